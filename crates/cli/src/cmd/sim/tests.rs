use clap::Parser;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: SimArgs,
}

fn parse(line: &str) -> SimArgs {
    let words = std::iter::once("sim").chain(line.split_whitespace());
    Line::try_parse_from(words).unwrap_or_else(|e| panic!("{line}: {e}")).args
}

fn dir_with(name: &str, text: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    let path = path.display().to_string();
    (dir, path)
}

const TRACE: &str =
    "name,submit_s,duration_s,gpus_per_node,team,user\na,0,100,8,red,ada\nb,0,50,8,blue,bob\n";

fn load(flags: &str) -> Result<Workload, Fail> {
    let (_dir, path) = dir_with("trace.csv", TRACE);
    let args = parse(&format!("--format csv --trace {path} {flags}"));
    input::workload(Some("2xh100:8@r1,2xh100:8@r2"), &args)
}

#[test]
fn what_if_changes_the_cluster() {
    assert_eq!(load("").unwrap().cluster.gpus(), 32);
    assert_eq!(load("--add 4xh100:8").unwrap().cluster.gpus(), 64);
    assert_eq!(load("--remove-rack r2").unwrap().cluster.gpus(), 16);
    assert_eq!(load("--limit-jobs 1").unwrap().trace.jobs.len(), 1);
    let fail = load("--remove-rack r3").err().unwrap();
    assert_eq!(fail.exit, 2);
    assert!(fail.message.contains("the racks are r1, r2"), "{fail}");
    assert!(load("--add 4xfoo").err().unwrap().message.contains("no kind of server"));
}

#[test]
fn a_quota_makes_teams_count() {
    let args = parse("--format csv --team-quota red=16,green=8");
    let work = load("--team-quota red=16,green=8").unwrap();
    let choices = policies::choose(&args, &work.policy, &work.trace).unwrap();
    let teams = &choices[0].policy.teams;
    assert_eq!(teams["red"].guarantee.any, 16);
    assert_eq!(teams["green"].guarantee.any, 8);
    assert!(teams["blue"].members.contains("bob"));
    let run = replay::run(
        &work.cluster,
        &work.trace,
        &Options { policy: choices[0].policy.clone(), ..Options::default() },
        &mut |_| {},
    );
    let figures = figures("default", 1, &run.unwrap());
    assert_eq!((figures.completed, figures.refused), (2, 0));
}

#[test]
fn errors_name_the_file_and_the_line() {
    let (_dir, path) = dir_with("t.csv", "submit_s,duration_s,gpus\n0,1,1\n0,1,x\n");
    let args = parse(&format!("--format csv --trace {path}"));
    let fail = input::workload(Some("1xh100:8"), &args).err().unwrap();
    assert_eq!((fail.exit, fail.message), (2, format!("{path}: line 3: gpus 'x' is not a number")));
    let args = parse("--format csv --trace /nowhere/t.csv");
    assert_eq!(input::workload(None, &args).err().unwrap().exit, crate::fail::NOT_FOUND);
    let fail = load("--policy nonsense").and_then(|w| {
        policies::choose(&parse("--format csv --policy nonsense"), &w.policy, &w.trace).map(|_| ())
    });
    assert!(fail.err().unwrap().message.contains("no policy 'nonsense'"));
}

#[test]
fn clusters_come_from_files_shapes_and_counts() {
    let (_dir, trace) = dir_with("trace.csv", TRACE);
    let (_other, file) = dir_with("cluster.toml", "[[nodes]]\ncount = 3\nshape = \"p5\"\n");
    let args = parse(&format!("--format csv --trace {trace}"));
    assert_eq!(input::workload(Some(&file), &args).unwrap().cluster.gpus(), 24);
    assert_eq!(input::workload(Some("2xdgx-2"), &args).unwrap().cluster.gpus(), 32);
    assert!(input::workload(Some("2xdgx-9"), &args).err().unwrap().message.contains("dgx-9"));
    assert_eq!(input::workload(None, &args).err().unwrap().exit, 2);
    let args = parse(&format!("--format csv --trace {trace} --nodes 5 --gpus-per-node 4"));
    assert_eq!(input::workload(None, &args).unwrap().cluster.gpus(), 20);
}

#[test]
fn options_are_read() {
    let args = parse("--format philly --seeds 1,2 --restart 30m --policy default,fifo --load 1.5");
    assert_eq!(args.seed, [1, 2]);
    assert_eq!(args.restart, Restart::Checkpoint(Span::secs(1800)));
    assert_eq!(args.policy, ["default", "fifo"]);
    for line in ["--load 0", "--failures -1", "--restart soon", "--team-quota red", "--load nan"] {
        let words = ["sim", "--format", "csv"].into_iter().chain(line.split_whitespace());
        assert!(Line::try_parse_from(words).is_err(), "{line}");
    }
}
