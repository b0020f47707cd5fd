use tutti_model::{Happening, JobId, JobSpec, OwnLoad, Rollout, Served, Span};
use tutti_wire::api::EndpointState;

use super::super::endpoints::tests::row;
use super::*;

pub fn replica(job: u64, phase: ReplicaPhase, state: JobState) -> ReplicaRow {
    ReplicaRow {
        job: JobId(job),
        revision: 3,
        phase,
        since: Time(0),
        state,
        generation: None,
        address: None,
        nodes: vec![format!("n{job}")],
        gpus: 4,
        in_flight: 2,
        requests: 1200,
        errors: 0,
        broken: false,
        own: None,
        why: None,
    }
}

pub fn endpoint(state: EndpointState, replicas: Vec<ReplicaRow>) -> EndpointDetail {
    EndpointDetail {
        row: row("chat", state),
        replicas,
        revisions: vec![RevisionRow {
            number: 3,
            at: Time(0),
            by: "ada".into(),
            command: "vllm serve".into(),
            taken_back: None,
        }],
        routers: Vec::new(),
        why: Vec::new(),
        served: ServedView::default(),
        chronicle: Vec::new(),
        spec: JobSpec::shell("vllm serve"),
    }
}

fn whole() -> EndpointDetail {
    let mut ready = replica(7, ReplicaPhase::Ready, JobState::Running);
    ready.own = Some(OwnLoad { running: 2, waiting: 1, kv_used: Some(0.25) });
    let mut waits = replica(9, ReplicaPhase::Coming, JobState::Pending);
    waits.nodes.clear();
    waits.why = Some("needs 4 free GPUs".into());
    let mut e = endpoint(EndpointState::Partial, vec![ready, waits]);
    (e.row.ready, e.row.figures.prefix_hits) = (1, Some(0.5));
    (e.row.figures.per_token_p50, e.row.figures.queue_wait_p95) = (Some(Span(21)), Some(Span(40)));
    e.revisions.insert(
        0,
        RevisionRow {
            number: 2,
            taken_back: Some("4% of its requests failed".into()),
            ..e.revisions[0].clone()
        },
    );
    e.routers.push(RouterRow {
        router: "east-1-0123456789abcdef".into(),
        address: "127.0.0.1:8080".into(),
        heard_at: Time(40_000),
        current: true,
    });
    e.why.push("1 of 2 replicas waits for GPUs".into());
    e.served = ServedView {
        total: Served {
            requests: 12_000,
            errors: 3,
            prompt_tokens: 4_200_000,
            output_tokens: 800_000,
            ..Served::default()
        },
        gpu_hours: 1.25,
        cost: Some(5.0),
        currency: Some("EUR".into()),
        cost_per_million_tokens: Some(1.0),
    };
    e.chronicle.push(Happening { at: Time(1_000), text: "ada made it".into() });
    e
}

#[test]
fn everything_is_told() {
    let text = detail(&whole(), Time(61_000), Style::PLAIN, None);
    for line in [
        "endpoint chat  partial",
        "  why         1 of 2 replicas waits for GPUs",
        "  replicas    1 of 2 ready, 4 GPUs each, bounds 1..8",
        "  router      http://127.0.0.1:8080 (east-1), silent for 21s",
        "  requests    12.4/s, 0% failed, 0/s refused, 1,800 tokens/s",
        "  first byte  p50 120ms, p95 340ms",
        "  per token   p50 21ms",
        "  queue       p95 40ms",
        "  prefix hits 50.0% of the prompts' blocks",
        "  GPU-hours   1.25",
        "JOB  REV  PHASE    FOR  NODES  IN FLIGHT  REQUESTS  ERRORS  NOTE",
        "  7    3  ready   1m1s  n7             2     1,200       0  2 running, 1 waiting inside, cache 25.0%",
        "  9    3  waiting 1m1s  -              2     1,200       0  needs 4 free GPUs",
        "  2  1m1s  ada  taken back: 4% of its requests failed  vllm serve",
        "  3  1m1s  ada  serves                                 vllm serve",
        "      1m ago  ada made it",
    ] {
        let same = |l: &str| l.split_whitespace().eq(line.split_whitespace());
        assert!(text.lines().any(same), "{line}\n{text}");
    }
    for part in ["12,000 requests, 3 failed, 4.2", "per million tokens"] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn reasons_are_told_once() {
    let mut e = whole();
    assert_eq!(
        why(&e, Style::PLAIN),
        "endpoint chat is partial: 1 of 2 replicas answer\n  \
         1 of 2 replicas waits for GPUs\n  replica (job 9): needs 4 free GPUs"
    );
    e.why = vec!["job 9: needs 4 free GPUs".into()];
    assert!(!why(&e, Style::PLAIN).contains("replica (job 9)"));
}

#[test]
fn names_can_t_paint_the_screen() {
    let mut e = whole();
    e.row.name = "a\x1b[2J".into();
    e.why = vec!["b\x1b[2J".into()];
    e.chronicle[0].text = "c\x1b[2J".into();
    let text = detail(&e, Time(61_000), Style::PLAIN, None) + &why(&e, Style::PLAIN);
    assert!(!text.contains('\x1b'), "{text}");
}

#[test]
fn revisions_say_which_of_them_serve() {
    let of = |number: u32, stage: Option<RolloutStage>| {
        let mut e = endpoint(EndpointState::Ready, Vec::new());
        e.row.rollout = stage.map(|stage| Rollout { from: 3, to: 4, began_at: Time(0), stage });
        standing(&RevisionRow { number, ..e.revisions[0].clone() }, &e.row).0
    };
    assert_eq!([of(2, None), of(3, None)], ["-", "serves"]);
    let canary = RolloutStage::Canary { percent: 10, since: None };
    assert_eq!([of(3, Some(canary)), of(4, Some(canary))], ["serves", "gets 10%"]);
    let watching = RolloutStage::Watching { until: Time(9) };
    assert_eq!([of(3, Some(watching)), of(4, Some(watching))], ["-", "serves, on probation"]);
    assert_eq!(of(4, Some(RolloutStage::Back)), "goes");
}
