use proptest::prelude::*;
use tutti_model::{Bytes, Command, JobSpec, Launcher, Priority, Retry, Span, Topology};

use super::*;

const TOML: &str = r#"
name = "finetune"
nodes = 2
gpus_per_node = "h100:8"
cpus_per_gpu = 8
mem_per_gpu = "64GiB"
time = "2d"
team = "research"
priority = "high"
elastic = { min_nodes = 1, max_nodes = 4 }
topology = "rack"
launcher = "torch"
after = ["ok:41", 42]
env = { WANDB_MODE = "offline", N = 4, RATE = 1e-4, ON = true }
run = "python train.py"

[checkpoint]
dir = "/ckpt/finetune"
signal = "USR1"
grace = "2m"

[preempt]
mode = "auto"

[retry]
node_failure = 3
job_failure = 1
"#;

const YAML: &str = r#"
name: finetune
nodes: 2
gpus_per_node: h100:8
cpus_per_gpu: 8
mem_per_gpu: 64GiB
time: 2d
team: research
priority: high
elastic: {min_nodes: 1, max_nodes: 4}
topology: rack
launcher: torch
after: ["ok:41", 42]
env:
  WANDB_MODE: offline
  N: 4
  RATE: 1e-4
  ON: true
run: python train.py
checkpoint:
  dir: /ckpt/finetune
  signal: USR1
  grace: 2m
preempt: {mode: auto}
retry:
  node_failure: 3
  job_failure: 1
"#;

const JSON: &str = r#"{
  "name": "finetune", "nodes": 2, "gpus_per_node": "h100:8",
  "cpus_per_gpu": 8, "mem_per_gpu": "64GiB", "time": "2d", "team": "research",
  "priority": "high", "elastic": {"min_nodes": 1, "max_nodes": 4}, "topology": "rack",
  "launcher": "torch", "after": ["ok:41", 42],
  "env": {"WANDB_MODE": "offline", "N": 4, "RATE": 1e-4, "ON": true},
  "run": "python train.py",
  "checkpoint": {"dir": "/ckpt/finetune", "signal": "USR1", "grace": "2m"},
  "preempt": {"mode": "auto"}, "retry": {"node_failure": 3, "job_failure": 1}
}"#;

const SCRIPT: &str = "#!/bin/bash -l
# a comment
#SBATCH --job-name=train   # trailing words
#SBATCH -N 2 -t 1-12:00:00
#SBATCH --gres=gpu:h100:8
##SBATCH --nodes=99

#SBATCH -p gpu --mem=4000
#SBATCH -d afterok:12:13,afterany:14
module load cuda
#SBATCH --nodes=5
srun python train.py
";

fn spec(name: &str, text: &str) -> JobSpec {
    parse(Some(name), text.as_bytes()).unwrap_or_else(|e| panic!("{e}")).spec
}

fn error(name: &str, text: &str) -> String {
    let e = parse(Some(name), text.as_bytes()).expect_err(text);
    match e.hint() {
        Some(hint) => format!("{e}\n  {hint}"),
        None => e.to_string(),
    }
}

#[test]
fn the_same_job_in_three_formats() {
    let job = spec("a.toml", TOML);
    assert_eq!(spec("a.yaml", YAML), job);
    assert_eq!(spec("a.json", JSON), job);
    assert_eq!(parse(None, YAML.as_bytes()).unwrap().spec, job);
    assert_eq!(parse(None, JSON.as_bytes()).unwrap().spec, job);
    assert_eq!(parse(None, TOML.as_bytes()).unwrap().spec, job);

    assert_eq!((job.nodes, job.gpus_per_node.unwrap().to_string()), (Some(2), "h100:8".into()));
    assert_eq!((job.time, job.mem_per_gpu), (Some(Span::secs(172_800)), Some(Bytes::gib(64))));
    assert_eq!((job.launcher, job.topology), (Launcher::Torch, Some(Topology::Rack)));
    assert_eq!(job.priority, Priority::HIGH);
    assert_eq!(job.retry, Retry { node_failure: 3, job_failure: 1, ..Retry::default() });
    let env: Vec<_> = job.env.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(env, ["N=4", "ON=true", "RATE=1e-4", "WANDB_MODE=offline"]);
    assert_eq!(job.after.iter().map(ToString::to_string).collect::<Vec<_>>(), ["ok:41", "ok:42"]);
}

#[test]
fn a_list_of_words_runs_without_a_shell() {
    let words = Command::Argv(vec!["echo".into(), "a b".into()]);
    assert_eq!(spec("a.toml", "run = ['echo', 'a b']").run, words);
    assert_eq!(spec("a.yml", "run: [echo, a b]").run, words);
}

#[test]
fn errors_say_where_what_and_how() {
    for (name, text, want) in [
        (
            "train.toml",
            "run = 'x'\n\n# c\ngpus_per_node = 'h100x8:'",
            "train.toml:4:17: gpus_per_node: 'h100x8:' is no GPU request: write a number, or \
             model:number such as h100:8",
        ),
        (
            "a.toml",
            "run = 'x'\nnodes = -1",
            "a.toml:2:9: nodes: wants a whole number, not negative, found the number -1",
        ),
        (
            "a.toml",
            "run = 'x'\nnodes = 'two'",
            "a.toml:2:9: nodes: wants a whole number, not negative, found the text \"two\"",
        ),
        ("a.toml", "run = 'x'\nname = 5", "a.toml:2:8: name: wants text, found the number 5"),
        (
            "a.toml",
            "run = 5",
            "a.toml:1:7: run: wants a shell line, or a list of words, found the number 5",
        ),
        (
            "a.toml",
            "run = ['x', 5]",
            "a.toml:1:13: run: wants a shell line, or a list of words, found the number 5",
        ),
        (
            "a.toml",
            "run = 'x'\nnodes = ",
            "a.toml:2:9: not valid TOML: string values must be quoted, expected literal string",
        ),
        ("a.toml", "run = ''", "a.toml:1:7: run: the command is empty"),
        (
            "a.toml",
            "run = 'x'\ngpu_share = 0.0001",
            "a.toml:2:13: gpu_share: must be at least 0.001 and at most 1",
        ),
        (
            "a.toml",
            "run = 'x'\ngpus_per_node = 'h100:0'",
            "a.toml:2:17: gpus_per_node: 0 of a model: at least 1, or leave the key out for none",
        ),
        (
            "a.toml",
            "run = 'x'\ngpu_share = 1.5",
            "a.toml:2:13: gpu_share: must be at least 0.001 and at most 1",
        ),
        (
            "a.toml",
            "run = 'x'\nnodes = 2\ngpus = 4",
            "a.toml:3:8: gpus: not together with 'nodes': write nodes and gpus_per_node, or gpus",
        ),
        (
            "a.toml",
            "run = 'x'\nafter = ['ok:1', 'maybe:2']",
            "a.toml:2:18: after[1]: 'maybe:2' is no dependency: write 41, ok:41, failed:41 or any:41",
        ),
        (
            "a.toml",
            "run = 'x'\ntime = 'soon'",
            "a.toml:2:8: time: 'soon' is not a length of time: write 90s, 15m, 2h, 1d12h or 02:30:00",
        ),
        (
            "a.toml",
            "run = 'x'\nelastic = 3",
            "a.toml:2:11: elastic: wants a table, found the number 3",
        ),
        (
            "a.toml",
            "run = 'x'\nenv = { 'A=B' = 'c' }",
            "a.toml:2:9: env.A=B: the name of a variable can't contain '='",
        ),
        (
            "a.toml",
            "run = 'x'\nenv = { 'A B' = 'c' }",
            "a.toml:2:9: env.A B: the name of a variable can't contain white space",
        ),
        (
            "a.toml",
            "run = 'x'\nname = ''",
            "a.toml:2:8: name: is empty: write a name, or leave it out",
        ),
        (
            "a.toml",
            "run = 'x'\nteam = ' '",
            "a.toml:2:8: team: is empty: write a name, or leave it out",
        ),
        ("a.toml", "run = 'x'\nenv = { A = [1] }", "a.toml:2:13: env.A: wants text, found a list"),
        ("a.yaml", "run: x\nenv: [a]", "a.yaml:2:6: env: wants a table, found a list"),
        ("a.json", "{\"run\": \"x\",\n \"run\": \"y\"}", "a.json:2:2: run: given twice"),
        ("a.json", "[1]", "a.json:1:1: wants a table of keys, found a list"),
        ("a.yaml", "just text", "a.yaml:1:1: wants a table of keys, found the text \"just text\""),
    ] {
        assert_eq!(error(name, text), want);
    }
}

#[test]
fn unknown_keys_and_words_come_with_a_suggestion() {
    let e = error("a.toml", "run = 'x'\ngpu_per_node = 8");
    assert!(e.starts_with("a.toml:2:1: gpu_per_node: unknown key, did you mean 'gpus_per_node'?\n  keys here: name, run,"), "{e}");
    let e = error("a.yaml", "run: x\ncheckpoint:\n  dir: /a\n  singal: USR1");
    assert_eq!(
        e,
        "a.yaml:4:3: checkpoint.singal: unknown key, did you mean 'signal'?\n  keys here: dir, signal, grace"
    );
    let e = error("a.json", "{\"run\": \"x\", \"launcher\": \"torhc\"}");
    assert!(e.starts_with("a.json:1:26: launcher: 'torhc' is not known here, did you mean 'torch'?\n  write one of: none, torch"), "{e}");
    let e = error("a.toml", "run = 'x'\nzebra = 8");
    assert!(e.starts_with("a.toml:2:1: zebra: unknown key\n"), "{e}");
}

#[test]
fn a_plan_is_read_and_its_bounds_are_told() {
    let least = "run = 'x'\n[plan]\nmodel = 'llama-3.1-8b'\nseq = 4096\nglobal_batch = 64\n";
    let plan =
        spec("a.toml", &format!("{least}tp = 4\nstep_time_s = 1.25\nzero = 3")).plan.unwrap();
    assert_eq!((plan.model.as_str(), plan.tp, plan.dp, plan.zero), ("llama-3.1-8b", 4, 1, 3));
    assert_eq!(plan.step_time_s, Some(1.25));
    let e = error("a.toml", &format!("{least}zero = 9"));
    assert!(e.contains("plan.zero: 9 is no stage of ZeRO: write 0, 1, 2 or 3"), "{e}");
    let e = error("a.toml", &format!("{least}micro_bach = 9"));
    assert!(
        e.starts_with("a.toml:6:1: plan.micro_bach: unknown key, did you mean 'micro_batch'?"),
        "{e}"
    );
    let e = error("a.toml", "run = 'x'\n[plan]\nmodel = 'm'\nseq = 1");
    assert!(e.contains("'global_batch' is missing"), "{e}");
}

#[test]
fn a_job_needs_a_command() {
    let want = "1:1: 'run' is missing\n  every job file needs a command: run = \"python train.py\"";
    for (name, text) in [
        ("a.toml", "nodes = 1"),
        ("a.toml", ""),
        ("a.yaml", "nodes: 1"),
        ("a.yaml", ""),
        ("a.json", "{}"),
    ] {
        assert_eq!(error(name, text), format!("{name}:{want}"), "{text}");
    }
    assert_eq!(
        error("a.toml", "run = 'x'\n[checkpoint]\nsignal = 'USR1'"),
        "a.toml:2:1: checkpoint: 'dir' is missing"
    );
}

#[test]
fn bytes_that_are_no_text() {
    let e = parse(Some("a.toml"), b"run = 'x'\n# \xff").unwrap_err();
    assert_eq!(e.to_string(), "a.toml:2:3: not UTF-8 text");
    assert!(matches!(
        parse(Some("a.json"), br#"{"run": "a\u0000b"}"#).unwrap_err().problem.as_ref(),
        Problem::NulByte
    ));
    assert!(parse(Some("a.json"), br#"{"run": "\ud800"}"#).is_err());
}

#[test]
fn formats_are_recognised() {
    for (name, text, format) in [
        (Some("x.yml"), "", Format::Yaml),
        (Some("x.TOML"), "{", Format::Toml),
        (Some("x.slurm"), "", Format::Script),
        (None, "#!/bin/sh\n", Format::Script),
        (Some("train"), "# hi\n#SBATCH -N 1\n", Format::Script),
        (None, "\n  {\"run\": 1}", Format::Json),
        (None, "# c\nrun: 'a = b'", Format::Yaml),
        (None, "---\n", Format::Yaml),
        (None, "run = 'a: b'", Format::Toml),
        (None, "[retry]\n", Format::Toml),
    ] {
        assert_eq!(format_of(name, text), format, "{name:?} {text}");
    }
}

#[test]
fn a_slurm_script_is_a_job() {
    let parsed = parse(Some("dir/train.sh"), SCRIPT.as_bytes()).unwrap();
    let spec = &parsed.spec;
    assert_eq!(spec.name.as_deref(), Some("train"));
    assert_eq!((spec.nodes, spec.time), (Some(2), Some(Span::secs(129_600))));
    assert_eq!(spec.gpus_per_node.as_ref().unwrap().to_string(), "h100:8");
    assert_eq!(spec.mem_per_node, Some(Bytes(4000 << 20)));
    let after: Vec<_> = spec.after.iter().map(ToString::to_string).collect();
    assert_eq!(after, ["ok:12", "ok:13", "any:14"]);
    let words = ["/bin/bash", "-l", "-c", SCRIPT, "train.sh"].map(str::to_owned);
    assert_eq!(spec.run, Command::Argv(words.into()));
    assert_eq!(parsed.inherit, Inherit::All);
    assert!(parsed.takes_arguments);
    assert_eq!(parsed.warnings.len(), 2, "{:?}", parsed.warnings);
    assert_eq!(
        parsed.warnings[0],
        "line 8: -p gpu is ignored: there are no partitions; --account names the team"
    );
    assert!(parsed.warnings[1].contains("every node runs the whole script once"));
}

fn sbatch(lines: &str) -> JobSpec {
    let text: String = lines.lines().map(|l| format!("#SBATCH {l}\n")).collect();
    spec("x.sh", &format!("#!/bin/sh\n{text}true\n"))
}

#[test]
fn slurm_requests_become_ours() {
    let s = sbatch("-n 8 --ntasks-per-node=4 -c 2 --mem-per-cpu=1G --gpus-per-task=1");
    assert_eq!((s.nodes, s.cpus_per_node, s.mem_per_node), (Some(2), Some(8), Some(Bytes::gib(8))));
    assert_eq!(s.gpus_per_node.unwrap().count, 4);
    let s = sbatch("--gpus=16");
    assert_eq!((s.gpus, s.nodes, s.gpus_per_node), (Some(16), None, None));
    let s = sbatch("-N2 -G16");
    assert_eq!((s.gpus, s.nodes, s.gpus_per_node.unwrap().count), (None, Some(2), 8));
    let s = sbatch("-G h100:4 --cpus-per-gpu 6 --mem-per-gpu 32G");
    assert_eq!((s.nodes, s.gpus_per_node.unwrap().to_string()), (Some(1), "h100:4".into()));
    assert_eq!((s.cpus_per_gpu, s.mem_per_gpu), (Some(6), Some(Bytes::gib(32))));
    let s = sbatch("-N 2-4 -t 1-12 -a 0-9%3 -A lab -D /tmp -H --no-requeue --nice=5");
    assert_eq!((s.nodes, s.time), (Some(2), Some(Span::secs(129_600))));
    assert_eq!(s.array.unwrap().to_string(), "0-9%3");
    assert_eq!(
        (s.team.as_deref(), s.workdir.as_deref(), s.hold),
        (Some("lab"), Some("/tmp"), true)
    );
    assert_eq!((s.retry.node_failure, s.priority), (0, Priority(-5)));
    let s = sbatch("--export=ALL,A=1,B=\"two words\" --gres=gpu --time UNLIMITED --qos=high");
    assert_eq!(s.env.get("B").map(String::as_str), Some("two words"));
    assert_eq!((s.gpus_per_node.unwrap().count, s.time, s.priority), (1, None, Priority::HIGH));
}

#[test]
fn slurm_wishes_about_nodes_become_ours() {
    let s = sbatch("--exclusive -C 'ib&nvme' --qos=scavenger --switches=1 -A lab");
    assert!(s.exclusive);
    let labels: Vec<_> = s.labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(labels, ["ib=true", "nvme=true"]);
    assert_eq!((s.class.as_deref(), s.topology), (Some("scavenger"), Some(Topology::Rack)));
    assert_eq!(s.team.as_deref(), Some("lab"));
    assert_eq!(sbatch("-C rack=r1").labels["rack"], "r1");
    let s = sbatch("--switches=2 --qos=high");
    assert_eq!((s.topology, s.class, s.priority), (None, None, Priority::HIGH));
    let parsed = parse(Some("x.sh"), b"#!/bin/sh\n#SBATCH --exclusive=user --switches=1@10:00\n");
    let warnings = parsed.unwrap().warnings;
    assert_eq!(
        warnings,
        [
            "line 2: --exclusive user keeps everybody else off its nodes",
            "line 2: --switches 1@10:00 waits for room in one rack as long as it takes",
        ]
    );
}

#[test]
fn wishes_about_nodes() {
    let job = spec(
        "a.toml",
        "run = 'x'\nclass = 'urgent'\ngpu_mem = '80GiB'\nlabels = { nvme = true, gen = '4|5' }\n\
         avoid_labels = { flaky = true }\nexclusive = true\ngpu_share = 0.25\ntopology = 'rail'",
    );
    assert_eq!((job.class.as_deref(), job.gpu_mem), (Some("urgent"), Some(Bytes::gib(80))));
    assert_eq!((job.labels["nvme"].as_str(), job.labels["gen"].as_str()), ("true", "4|5"));
    assert_eq!(job.avoid_labels["flaky"], "true");
    assert_eq!((job.exclusive, job.gpu_share), (true, Some(0.25)));
    assert_eq!(job.topology, Some(Topology::Rail));
    for (text, want) in [
        (
            "gpu_share = 0.5\ngpus_per_node = 2",
            "2:13: gpu_share: a part of a GPU is of one GPU per node",
        ),
        ("gpu_share = 0.5\ngpus = 2", "2:13: gpu_share: a part of a GPU is of one GPU per node"),
        (
            "elastic = { min_nodes = 3, max_nodes = 2 }",
            "2:11: elastic: min_nodes must be at least 1 and at most max_nodes",
        ),
        (
            "elastic = { min_nodes = 1, max_nodes = 2 }\nnodes = 4",
            "3:9: nodes: not between min_nodes and max_nodes of 'elastic'",
        ),
        (
            "elastic = { min_nodes = 1, max_nodes = 2 }\ngpus = 4",
            "2:11: elastic: not together with 'gpus': it counts nodes",
        ),
        ("topology = 'node'\nnodes = 2", "2:12: topology: several nodes can't stay inside one"),
        (
            "topology = 'rak'",
            "2:12: topology: 'rak' is not known here, did you mean 'rack'?\n  write one of: island, node, rack, rail, site, any",
        ),
        ("labels = { '' = 'x' }", "2:10: labels: a label has a name"),
    ] {
        assert_eq!(error("a.toml", &format!("run = 'x'\n{text}")), format!("a.toml:{want}"));
    }
}

#[test]
fn slurm_options_that_can_t_be_followed() {
    let err = |line: &str| error("x.sh", &format!("#!/bin/sh\n#SBATCH {line}\ntrue"));
    assert_eq!(
        err("--gpu-per-node=2"),
        "x.sh:2:9: --gpu-per-node: unknown option, did you mean '--gpus-per-node'?\n  remove the \
         line, or write the job as TOML (see 'tutti help submit')"
    );
    assert!(err("-Z").starts_with("x.sh:2:9: -Z: unknown option\n"));
    assert_eq!(
        err("--nodes=two"),
        "x.sh:2:17: --nodes: 'two' is no number of nodes: write 4 or 2-4"
    );
    assert_eq!(err("-N  two"), "x.sh:2:13: -N: 'two' is no number of nodes: write 4 or 2-4");
    assert_eq!(err("-N"), "x.sh:2:9: -N: needs a value");
    assert_eq!(err("--requeue=1"), "x.sh:2:9: --requeue: takes no value");
    assert_eq!(err("--comment='a"), "x.sh:2:9: a quote is opened and never closed");
    assert_eq!(
        err("--gres=tpu:4"),
        "x.sh:2:16: --gres: 'tpu:4' is no GPU request: only gpu[:model][:number] is known"
    );
    assert!(err("-d singleton").contains("use afterok, afternotok or afterany"));
    assert!(err("-C 'a|b'").contains("only names joined by '&' are"));
    assert!(err("--switches=x").contains("no number of switches"));
    assert!(err("--begin=now+1hour").contains("not supported"));
    assert!(err("job.sh").contains("is no option"));
}

#[test]
fn interpreters() {
    let argv = |first: &str| match spec("x.sh", &format!("{first}\n1")).run.into_inner() {
        Command::Argv(words) => words,
        Command::Shell(line) => panic!("{line}"),
    };
    assert_eq!(argv("#!/usr/bin/env python3")[..3], ["/usr/bin/env", "python3", "-c"]);
    assert_eq!(argv("#!/usr/bin/env -S python3 -u")[..4], ["/usr/bin/env", "python3", "-u", "-c"]);
    assert_eq!(argv("# none")[..2], ["/bin/sh", "-c"]);
    assert_eq!(argv("#!/usr/bin/perl")[..2], ["/usr/bin/perl", "-e"]);
    let awk = argv("#!/usr/bin/awk -f");
    assert_eq!((awk[0].as_str(), awk[5].as_str()), ("/bin/sh", "/usr/bin/awk -f"));
}

#[test]
fn an_interpreter_that_wants_a_file_gets_one() {
    let awk = spec("x.sh", "#!/usr/bin/awk -f\nBEGIN { print ARGV[1] }\n");
    let Command::Argv(mut words) = awk.run.into_inner() else { panic!() };
    words.push("an argument".to_owned());
    let out = std::process::Command::new(&words[0]).args(&words[1..]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&out.stdout), "an argument\n", "{out:?}");
}

/// Whatever comes in, an error has a position inside or just after the text.
fn never_lost(name: Option<&str>, bytes: &[u8]) {
    if let Err(e) = parse(name, bytes) {
        let lines = bytes.iter().filter(|&&b| b == b'\n').count() as u32 + 1;
        assert!((1..=lines).contains(&e.line), "line {} of {lines}: {e}", e.line);
        assert!(e.column >= 1 && e.column as usize <= bytes.len() + 2, "{e}");
        assert!(!e.to_string().is_empty());
        let _ = e.hint();
    }
}

const NAMES: [Option<&str>; 5] =
    [None, Some("a.toml"), Some("a.yaml"), Some("a.json"), Some("a.sh")];
const FILES: [(&str, &str); 4] =
    [("a.toml", TOML), ("a.yaml", YAML), ("a.json", JSON), ("a.sh", SCRIPT)];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        for name in NAMES {
            never_lost(name, &bytes);
        }
    }

    #[test]
    fn random_text_never_panics(text in "[ -~\n\t\"'{}:=#é\u{0}-]{0,200}") {
        for name in NAMES {
            never_lost(name, text.as_bytes());
            never_lost(name, format!("#!/bin/sh\n#SBATCH {text}").as_bytes());
        }
    }

    #[test]
    fn broken_files_never_panic(
        which in 0usize..4,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..4), 1..6),
    ) {
        let (name, text) = FILES[which];
        let mut bytes = text.as_bytes().to_vec();
        for (at, byte, kind) in edits {
            let at = at.index(bytes.len().max(1)).min(bytes.len().saturating_sub(1));
            match kind {
                _ if bytes.is_empty() => {}
                0 => bytes[at] = byte,
                1 => bytes.insert(at, b"{}[]:=,\"'\n#- "[byte as usize % 13]),
                2 => { bytes.remove(at); }
                _ => bytes.truncate(at),
            }
        }
        never_lost(Some(name), &bytes);
        never_lost(None, &bytes);
    }
}

#[test]
fn lines_end_where_editors_end_them() {
    let text = b"name: a\rrun: x\ngpus 3\r\r\r\nnodes: 1\n[";
    let error = parse(Some("a.yaml"), text).unwrap_err();
    assert!((1..=4).contains(&error.line), "{error}");
    never_lost(Some("a.yaml"), text);
    never_lost(Some("a.yaml"), b"\r\r\r\rrun");
}

#[test]
fn deep_nesting_is_an_error() {
    for (name, open) in [("a.json", "["), ("a.yaml", "["), ("a.toml", "a = [")] {
        let text = format!("{open}{}", "[".repeat(50_000));
        never_lost(Some(name), text.as_bytes());
        let closed = format!("{open}{}{}", "[".repeat(200), "]".repeat(201));
        assert!(parse(Some(name), closed.as_bytes()).is_err());
    }
}
