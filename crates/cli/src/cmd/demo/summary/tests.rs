use tutti_model::TaskId;

use super::*;
use crate::cmd::demo::report::{
    ArrayFigures, ChainJob, ClusterFigures, ServingFigures, WaitingFigures,
};

fn id(n: u64) -> TaskId {
    TaskId::single(tutti_model::JobId(n))
}

fn link(n: u64, name: &str, after: &str, state: JobState, note: &str) -> ChainJob {
    ChainJob {
        job: id(n),
        name: name.into(),
        after: vec![after.into()],
        state,
        exit_code: (state == JobState::Completed).then_some(0),
        note: note.into(),
    }
}

fn chain_figures() -> ChainFigures {
    let rescue = link(7, "rescue", "failed:5", JobState::Cancelled, "job 5 ended the other way");
    ChainFigures {
        jobs: vec![
            link(4, "prepare", "", JobState::Completed, ""),
            link(5, "train", "ok:4", JobState::Completed, ""),
            link(6, "evaluate", "ok:5", JobState::Completed, ""),
            rescue,
        ],
        seconds: 1.34,
    }
}

fn loss_figures() -> NodeLossFigures {
    NodeLossFigures {
        job: id(8),
        ranks: 8,
        killed_node: "n1".into(),
        killed_processes: 5,
        nodes_before: ["n1", "n2", "n3", "n4"].map(String::from).to_vec(),
        nodes_after: ["n2", "n3", "n4", "n5"].map(String::from).to_vec(),
        noticed_seconds: 0.021,
        running_again_seconds: 1.63,
        steps: 300,
        reached_step: 107,
        resumed_after_step: 100,
        loss: 2.512_34,
        curves: ["5.545 █▆▄ 3.100".into(), "3.205 ▃▂▁ 2.512".into()],
        attempts: 2,
        restarts: Restarts { node_failure: 1, ..Restarts::default() },
        exit_code: 0,
        node_back_seconds: 0.25,
    }
}

fn report() -> Report {
    let gang = GangFigures {
        job: id(1),
        nodes: 4,
        ranks: 8,
        start_seconds: 0.084,
        steps: 300,
        first_loss: 5.545,
        loss: 2.512_34,
        tokens_per_s: 9876.5,
        exit_code: 0,
        waiting: WaitingFigures {
            job: id(2),
            note: "needs 2 nodes with 2 free GPUs each, 1 of 5 fits now (4 busy)".into(),
            waited_seconds: 3.8,
        },
    };
    let array = ArrayFigures {
        job: id(3),
        tasks: 200,
        seconds: 0.4,
        tasks_per_second: 500.0,
        exit_codes: BTreeMap::from([(0, 200)]),
    };
    let states = [("completed", 206), ("failed", 0), ("cancelled", 1), ("pending", 0)];
    Report {
        version: "0.1.0".into(),
        simulated_gpus: true,
        cluster: ClusterFigures {
            nodes: 5,
            gpus_per_node: 2,
            gpu_model: "h100".into(),
            up_seconds: 0.42,
        },
        gang,
        array,
        chain: chain_figures(),
        node_loss: loss_figures(),
        serving: ServingFigures {
            endpoint: "demo".into(),
            job: id(9),
            ready_seconds: 0.61,
            prompt: "The ".into(),
            answer: "the the\nthe".into(),
            answer_tokens: 27,
            answer_seconds: 0.034,
        },
        totals: Totals {
            jobs: 8,
            tasks: states.map(|(s, n)| (s.to_owned(), n)).into(),
            exit_codes: BTreeMap::from([(0, 206)]),
            restarts: Restarts { node_failure: 1, ..Restarts::default() },
        },
        seconds: 21.9,
        kept_in: None,
    }
}

#[test]
fn the_summary_tells_the_whole_story() {
    let want = "\
What happened on 5 nodes × 2 simulated GPUs, in 22 seconds:
  cluster    a controller, 5 agents and a router up in 0.42 s
  gang       8 ranks on 4 nodes ran together 84 ms after submission and trained a transformer
             for 300 steps, 2 × 2 × 2 by data, tensor and pipeline: loss 5.54 to 2.5123, the
             same on every rank, 9876 tokens/s, exit code 0
  waiting    meanwhile job 2 for 2 whole nodes waited 3.8 s and said why: \"needs 2 nodes with 2
             free GPUs each, 1 of 5 fits now (4 busy)\"
  array      200 tasks in 0.40 s, 500 tasks/s, every exit code 0
  chain      prepare → train → evaluate in 1.3 s; rescue (after failed:5) was cancelled: \"job 5
             ended the other way\"
  node loss  n1 was killed with all its 5 processes at step 107 of the same training: noticed
             after 21 ms, all 8 ranks running again on n2, n3, n4, n5 after 1.6 s; went on from
             the checkpoint of step 100 and ended after 300 with loss 2.5123, the same as
             undisturbed, exit code 0; n1 was ready again 0.25 s after its restart
  loss       until n1 died 5.545 █▆▄ 3.100
             and from step 100 on 3.205 ▃▂▁ 2.512
  serving    the trained model as an endpoint, ready 0.61 s after the command; asked \"The \"
             through the router, it went on \"the the\\nthe\": 27 tokens in 34 ms, of a model that
             has seen 300 steps
  totals     8 jobs: 206 tasks completed, 0 failed, 1 cancelled; every exit code 0; restarts: 1
             for node failure, 0 for preemption, 0 for the job's own failure

Go on:
  tutti demo --keep                             # the same, and the cluster stays up for you
  tutti up --detach                             # your own cluster; real GPUs if this machine has them
  tutti run -G 2 -- env                         # a command on 2 GPUs of it, as if it ran here
  tutti help                                    # every verb";
    assert_eq!(text(&report(), "tutti", Style::PLAIN, None), want);
}

#[test]
fn a_kept_cluster_can_be_used_and_stopped() {
    let kept = Report { kept_in: Some("/tmp/tutti-demo-x".into()), ..report() };
    let text = text(&kept, "target/release/tutti", Style::PLAIN, None);
    for line in [
        "The cluster is still up: 5 nodes × 2 simulated GPUs. Go on:",
        "  export TUTTI_CLUSTER=/tmp/tutti-demo-x        # use it in this shell",
        "  target/release/tutti show 8                   # the gang that lost its node",
        "  # stop and remove it",
        "  target/release/tutti down --data-dir /tmp/tutti-demo-x && rm -r /tmp/tutti-demo-x",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
    assert!(!text.contains("demo --keep"));
}

#[test]
fn a_narrow_terminal_gets_shorter_lines() {
    let text = text(&report(), "tutti", Style::PLAIN, Some(60));
    let story = text.split("Go on:").next().unwrap();
    assert!(story.lines().all(|l| l.chars().count() <= 60), "{story}");
}

#[test]
fn other_exit_codes_are_told() {
    assert_eq!(codes(&BTreeMap::from([(0, 198), (7, 2)])), "exit codes 0 (198 times), 7 (2 times)");
    assert_eq!(codes(&BTreeMap::from([(3, 1)])), "every exit code 3");
}

#[test]
fn seconds_have_no_more_digits_than_mean_something() {
    let texts = [0.0004, 0.045, 0.79, 8.63].map(seconds_text);
    assert_eq!(texts, ["1 ms", "45 ms", "0.79 s", "8.6 s"]);
}

#[test]
fn lines_break_between_words() {
    assert_eq!(wrap("one two three", 7), ["one two", "three"]);
    assert_eq!(wrap("unbreakable", 4), ["unbreakable"]);
    assert_eq!(wrap("", 4), [""]);
}

#[test]
fn paths_can_be_copied() {
    assert_eq!(quoted("/tmp/a b".as_ref()), "'/tmp/a b'");
    assert_eq!(quoted("/tmp/it's".as_ref()), "'/tmp/it'\\''s'");
}

#[test]
fn json_has_one_stable_shape() {
    let value = serde_json::to_value(report()).unwrap();
    let keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    let want =
        "array chain cluster gang kept_in node_loss seconds serving simulated_gpus totals version";
    assert_eq!(keys, want.split(' ').collect::<Vec<_>>());
    assert_eq!(value["node_loss"]["restarts"]["node_failure"], 1);
    assert_eq!(value["chain"]["jobs"][3]["state"], "cancelled");
}
