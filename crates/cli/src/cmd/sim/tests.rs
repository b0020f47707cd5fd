use clap::Parser;

use tutti_model::{Bytes, NodeState, Place, Policy, QueueOrder, Reservation, Time, TopologyMap};
use tutti_sim::trace::Trace;
use tutti_wire::api::{NodeFactsRow, NodeRow};

use super::input::Workload;
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

const CLUSTER: &str = "2xh100:8@r1,2xh100:8@r2";

fn load(flags: &str) -> Result<Workload, Fail> {
    let (_dir, path) = dir_with("trace.csv", TRACE);
    let args = parse(&format!("--format csv --trace {path} {flags}"));
    input::workload(Source::Csv, Some(CLUSTER), &args)
}

fn gpus_with(flags: &str) -> Result<u64, Fail> {
    let work = load(flags)?;
    let args = parse(&format!("--format csv {flags}"));
    Ok(input::changed(&work.cluster, &args, &TopologyMap::default())?.gpus())
}

#[test]
fn what_if_changes_the_cluster() {
    assert_eq!(gpus_with("").unwrap(), 32);
    assert_eq!(gpus_with("--add 4xh100:8").unwrap(), 64);
    assert_eq!(gpus_with("--remove-rack r2").unwrap(), 16);
    assert_eq!(load("--limit-jobs 1").unwrap().trace.jobs.len(), 1);
    let fail = gpus_with("--remove-rack r3").unwrap_err();
    assert_eq!(fail.exit, 2);
    assert!(fail.message.contains("the racks are r1, r2"), "{fail}");
    assert!(gpus_with("--add 4xfoo").unwrap_err().message.contains("no kind of server"));
    let fail = gpus_with("--add 1000000xh100:1024").unwrap_err();
    assert!(fail.exit == 2 && fail.message.contains("at most 1,048,576"), "{fail}");
}

fn choose(flags: &str, own: Option<&Policy>) -> Result<Vec<Choice>, Fail> {
    let args = parse(&format!("--format csv {flags}"));
    policies::choose(&args, own, &load("").unwrap().trace)
}

#[test]
fn a_quota_makes_teams_count() {
    let work = load("").unwrap();
    let choices = choose("--team-quota red=16", None).unwrap();
    let teams = &choices[0].policy.teams;
    assert_eq!(teams["red"].guarantee.any, 16);
    assert!(teams["blue"].members.contains("bob"));
    let run = replay::run(
        &work.cluster,
        choices[0].trace.as_ref().unwrap(),
        &Options { policy: choices[0].policy.clone(), ..Options::default() },
        &mut |_| {},
    );
    let figures = figures("default", 1, &run.unwrap());
    assert_eq!((figures.completed, figures.refused), (2, 0));
}

#[test]
fn a_quota_for_nobody_is_refused() {
    let fail = choose("--team-quota rde=16", None).err().unwrap();
    assert_eq!(fail.exit, 2);
    assert!(fail.message.contains("there is no team 'rde'"), "{fail}");
    assert_eq!(fail.hint.as_deref(), Some("the teams are blue, default, red"));
}

const TEAMS: &str =
    "order = \"srtf\"\n[teams.red]\nmembers = [\"*\"]\n[teams.blue]\nmembers = [\"bob\"]\n";

#[test]
fn a_quota_holds_in_policy_files_too() {
    let (_dir, path) = dir_with("p.toml", TEAMS);
    let choices = choose(&format!("--policy {path},fifo --team-quota red=16"), None).unwrap();
    let quotas: Vec<u32> = choices.iter().map(|c| c.policy.teams["red"].guarantee.any).collect();
    assert_eq!(quotas, [16, 16]);
    // The file has teams and says who is in them; the trace stays as it is.
    assert!(choices[0].trace.is_none() && choices[1].trace.is_some());
}

#[test]
fn what_somebody_wrote_stands_unless_a_name_says_otherwise() {
    let (_dir, path) = dir_with("p.toml", TEAMS);
    let orders = |flags: &str, own: Option<&Policy>| {
        let choices = choose(flags, own).unwrap().into_iter();
        choices.map(|c| (c.name, c.policy.order, c.known)).collect::<Vec<_>>()
    };
    let own = ("own".to_owned(), QueueOrder::Srtf, true);
    assert_eq!(orders(&format!("--policy-file {path}"), None), vec![own.clone()]);
    let fifo = Policy { order: QueueOrder::Fifo, ..Policy::default() };
    assert_eq!(orders("", Some(&fifo)), [("own".to_owned(), QueueOrder::Fifo, false)]);
    assert_eq!(orders("", None), [("default".to_owned(), QueueOrder::Fair, false)]);
    let both = orders(&format!("--policy-file {path} --policy default,own"), None);
    assert_eq!(both, [("default".to_owned(), QueueOrder::Fair, false), own]);
}

#[test]
fn reservations_need_dates() {
    let mut policy = Policy::default();
    policy.reservations.push(Reservation {
        name: "repair".to_owned(),
        nodes: ["h100-1".to_owned()].into(),
        from: Time(1),
        until: Time(2),
        team: None,
    });
    assert!(choose("", Some(&policy)).unwrap()[0].policy.reservations.is_empty());
    let args = parse("--format sacct");
    let dated = Trace { epoch: Some(Time(0)), ..Trace::default() };
    let kept = policies::choose(&args, Some(&policy), &dated).unwrap();
    assert_eq!(kept[0].policy.reservations.len(), 1);
}

#[test]
fn flags_that_do_nothing_are_refused() {
    for (line, hint) in [
        ("openb --csv x", "muri, philly, lingjun, sacct, csv, journal, day"),
        ("openb --failures 5", "philly, lingjun, sacct, csv, journal, day"),
        ("openb --load 2", "muri, philly, lingjun, sacct, csv, journal, day"),
        ("openb --add 1xh100:8", "philly, lingjun, sacct, csv, journal, day"),
        ("openb --remove-rack r1", "philly, lingjun, sacct, csv, journal, day"),
        ("muri --team-quota red=8", "philly, lingjun, sacct, csv, journal, day"),
        ("muri --slowdown x", "philly, lingjun, sacct, csv, journal, day"),
        ("muri --policy-file x", "openb, philly, lingjun, sacct, csv, journal, day"),
        ("philly --topology x", "lingjun"),
        ("csv --pods x", "openb"),
    ] {
        let args = parse(&format!("--format {line}"));
        let fail = flags::check(None, &args).unwrap_err();
        let (format, flag) = line.split_once(' ').unwrap();
        let flag = flag.split_whitespace().next().unwrap();
        assert_eq!(fail.exit, 2, "{line}");
        assert_eq!(fail.message, format!("{flag} does nothing with --format {format}"));
        assert_eq!(fail.hint, Some(format!("it is for {hint}")), "{line}");
    }
    for line in [
        "lingjun --topology x --nodes 4",
        "csv --gpus-per-node 4",
        "muri --cluster",
        "csv --nodes 4 --cluster",
        "lingjun --topology x --cluster",
    ] {
        let cluster = line.ends_with("--cluster").then_some("4xh100:8");
        let args = parse(&format!("--format {}", line.trim_end_matches(" --cluster")));
        assert_eq!(flags::check(cluster, &args).unwrap_err().exit, 2, "{line}");
    }
    for line in ["muri --policy first-fit", "muri --policy own"] {
        let fail = policies::orders(&parse(&format!("--format {line}"))).err().unwrap();
        assert!(fail.exit == 2 && fail.message.contains("does nothing"), "{fail}");
    }
}

/// Scripts rely on these.
#[test]
fn the_fixed_forms_are_taken() {
    for line in [
        "openb --nodes n --pods p --order o --json",
        "muri --trace t --nodes 8 --gpus-per-node 8 --policy srtf --json",
        "muri --trace t --nodes 8 --gpus-per-node 8 --policy srsf,default,default-known --json",
    ] {
        let args = parse(&format!("--format {line}"));
        flags::check(None, &args).unwrap();
        if args.format == Format::Muri {
            policies::orders(&args).unwrap();
        }
    }
}

#[test]
fn muri_gangs_fill_their_nodes() {
    let head = "job_id,num_gpu,submit_time,iterations,model_name,iteration_time\n";
    let (_dir, path) = dir_with("t.csv", &format!("{head}3,24,0,10,dqn,100\n"));
    let with =
        |gpus| parse(&format!("--format muri --trace {path} --nodes 4 --gpus-per-node {gpus}"));
    assert!(input::muri(&with(8)).is_ok());
    let fail = input::muri(&with(16)).unwrap_err();
    assert_eq!(fail.exit, 2);
    assert_eq!(fail.message, "job 3 wants 24 GPUs, which do not fill nodes of 16");
}

#[test]
fn errors_name_the_file_and_the_line() {
    let (_dir, path) = dir_with("t.csv", "submit_s,duration_s,gpus\n0,1,1\n0,1,x\n");
    let args = parse(&format!("--format csv --trace {path}"));
    let fail = input::workload(Source::Csv, Some("1xh100:8"), &args).err().unwrap();
    assert_eq!((fail.exit, fail.message), (2, format!("{path}: line 3: gpus 'x' is not a number")));
    let args = parse("--format csv --trace /nowhere/t.csv");
    assert_eq!(input::workload(Source::Csv, None, &args).err().unwrap().exit, crate::fail::USAGE);
    let fail = choose("--policy nonsense", None).err().unwrap();
    assert!(fail.message.contains("no policy 'nonsense'"));
}

#[test]
fn clusters_come_from_files_shapes_and_counts() {
    let (_dir, trace) = dir_with("trace.csv", TRACE);
    let (_other, file) = dir_with("cluster.toml", "[[nodes]]\ncount = 3\nshape = \"p5\"\n");
    let load = |flag, flags: &str| {
        let args = parse(&format!("--format csv --trace {trace} {flags}"));
        input::workload(Source::Csv, flag, &args)
    };
    assert_eq!(load(Some(&file), "").unwrap().cluster.gpus(), 24);
    assert_eq!(load(Some("2xdgx-2"), "").unwrap().cluster.gpus(), 32);
    assert!(load(Some("2xdgx-9"), "").err().unwrap().message.contains("dgx-9"));
    assert_eq!(load(None, "").err().unwrap().exit, 2);
    let missing = load(Some("/nowhere/cluster.toml"), "").err().unwrap();
    assert!(missing.exit == 2 && missing.message.contains("can't read"), "{missing}");
    assert_eq!(load(None, "--nodes 5 --gpus-per-node 4").unwrap().cluster.gpus(), 20);
}

fn node_row(name: &str, state: NodeState, model: &str) -> NodeRow {
    let facts = tutti_sim::cluster::NodeBuilder::new(name).gpus(model, 8, 80).build();
    NodeRow {
        name: name.to_owned(),
        state,
        facts: NodeFactsRow::from(&facts),
        gpus_used: 0,
        gpu_milli_used: 0,
        shared: Vec::new(),
        cpus_used: 0,
        mem_used: Bytes(0),
        jobs: Vec::new(),
        exclusive: None,
        place: Place::default(),
        drain_reason: None,
        drained_by: None,
        trouble: None,
        burn_in: None,
        gpu_bench: None,
        findings: Vec::new(),
        fenced: Vec::new(),
        reservations: Vec::new(),
        kept: Vec::new(),
        since: None,
    }
}

#[test]
fn of_a_running_cluster_counts_what_can_be_used() {
    let rows = [
        node_row("a", NodeState::Ready, "h100"),
        node_row("b", NodeState::Drained, "h100"),
        node_row("c", NodeState::Away, "x9000"),
        node_row("d", NodeState::Lost, "h100"),
    ];
    let (cluster, warnings) = input::usable(&rows);
    let names: Vec<_> = cluster.nodes.iter().map(|n| n.name.as_str()).collect();
    assert_eq!(names, ["a", "c"]);
    assert_eq!(cluster.nodes[1].gpus[0].mem, Bytes(0));
    assert_eq!(warnings[0], "drained or lost, and left out: b, d");
    assert!(warnings[1].starts_with("how much memory a x9000 has is not known"), "{warnings:?}");
}

#[test]
fn options_are_read() {
    let args = parse("--format philly --seeds 1,2 --restart 30m --policy default,fifo --load 1.5");
    assert_eq!(args.seed, [1, 2]);
    assert_eq!(args.restart, Some(Restart::Checkpoint(Span::secs(1800))));
    assert_eq!(args.policy, ["default", "fifo"]);
    for line in ["--load 0", "--failures -1", "--restart soon", "--team-quota red", "--load nan"] {
        let words = ["sim", "--format", "csv"].into_iter().chain(line.split_whitespace());
        assert!(Line::try_parse_from(words).is_err(), "{line}");
    }
}
