use tutti_model::{JobId, JobSpec, JobState, Restarts, Role, TaskId};
use tutti_wire::api::{ArrayCounts, JobProgress};

use super::*;
use crate::jobs::tests::row;
use crate::shell::tests::reader;

fn view(state: JobState) -> View {
    let detail = JobDetail {
        row: row(7, state),
        spec: JobSpec::shell("python train.py"),
        attempt: Some(1),
        generation: None,
        restarts_by_cause: Restarts::default(),
        parts: Vec::new(),
        end: None,
        time_left: None,
        held: false,
        checkpoints: Vec::new(),
        stopped_before: None,
        suspensions: Vec::new(),
        goodput: None,
        output_dropped: 0,
        replica_of: None,
    };
    let progress = ProgressDetail {
        id: detail.row.id,
        progress: None,
        ranks: Vec::new(),
        history: Vec::new(),
    };
    View {
        detail,
        tasks: Vec::new(),
        stays: Vec::new(),
        moments: Vec::new(),
        until: Time(60_000),
        why: None,
        progress,
        ranks: Vec::new(),
        more_ranks: 0,
        spots: Vec::new(),
        simulated: true,
        inside: true,
        left: false,
    }
}

fn text(role: Role, view: &View) -> String {
    page(&reader(role), view).into_string()
}

#[test]
fn everything_live_is_in_the_page_as_it_is_sent() {
    let view = view(JobState::Running);
    let text = text(Role::User, &view);
    for (id, html) in &view.shown().regions {
        assert!(text.contains(&format!("id=\"{id}\">{html}")), "{id}");
    }
    assert!(text.contains("python train.py") && text.contains("page=job&amp;id=7"), "{text}");
}

#[test]
fn a_replica_says_whose_it_is() {
    let of = tutti_model::ReplicaOf { endpoint: "chat".into(), revision: 3 };
    let mut replica = view(JobState::Running);
    replica.detail.replica_of = Some(of);
    let words = text(Role::Viewer, &replica);
    assert!(words.contains("Replica of") && words.contains("href=\"/endpoints/chat\""), "{words}");
    assert!(words.contains("revision 3"), "{words}");
    assert!(!text(Role::Viewer, &view(JobState::Running)).contains("Replica of"));
}

#[test]
fn a_waiting_job_says_why_until_it_runs() {
    let why = Why {
        sentence: "needs 2 free nodes, 1 fits".into(),
        details: vec!["3 nodes are busy".into()],
        blockers: vec!["4 GPUs on 1 node kept for job 12".into()],
        ahead: 4,
        forecast: None,
        advice: vec!["1 node instead of 2".into()],
        holders: Vec::new(),
        kept: Vec::new(),
    };
    let waiting = View { why: Some(why), ..view(JobState::Pending) };
    let text = text(Role::Viewer, &waiting);
    assert!(text.contains("4 tasks before it in line") && text.contains("1 node instead of 2"));
    assert!(text.contains("what ends last first") && text.contains("kept for job 12"), "{text}");
    assert!(!view(JobState::Running).shown().regions["why"].contains("Why it waits"));
}

#[test]
fn a_waiting_job_says_who_holds_what_it_needs() {
    let holder = |job, ends_by| Holder {
        task: TaskId::single(JobId(job)),
        user: "bob".into(),
        name: format!("<train {job}>"),
        gpus: 8,
        nodes: 1,
        ends_by,
    };
    let mut holders = vec![holder(3, Some(Time(90_000))), holder(4, None)];
    holders.extend((10..40).map(|job| holder(job, None)));
    let why = Why {
        sentence: "needs 2 free nodes, 1 fits".into(),
        details: Vec::new(),
        blockers: Vec::new(),
        ahead: 0,
        forecast: None,
        advice: Vec::new(),
        holders,
        kept: vec![KeptFor { task: TaskId::single(JobId(5)), gpus: 4, nodes: 1 }],
    };
    let waiting = View { why: Some(why), ..view(JobState::Pending) };
    let text = waiting.shown().regions["why"].clone();
    for told in [
        "Who holds what it needs",
        "href=\"/jobs/3\"",
        "&lt;train 3&gt;",
        "data-until=\"90000\"",
        "no time limit",
        "and 12 other jobs",
        "4 free GPUs on 1 node kept for job <a href=\"/jobs/5\"",
    ] {
        assert!(text.contains(told), "{told} in {text}");
    }
}

#[test]
fn only_who_may_gets_buttons() {
    let mine = view(JobState::Running);
    assert!(text(Role::User, &mine).contains("data-one=\"7\""));
    assert!(!text(Role::Viewer, &mine).contains("data-one"));
    let mut others = view(JobState::Running);
    others.detail.row.user = "bob".into();
    assert!(!text(Role::User, &others).contains("data-one"));
    assert!(text(Role::Admin, &others).contains("data-one"));
}

#[test]
fn only_what_makes_sense_is_offered() {
    use JobState::*;
    assert_eq!(view(Pending).verbs(), ["cancel", "hold"]);
    let mut held = view(Pending);
    held.detail.held = true;
    assert_eq!(held.verbs(), ["cancel", "release"]);
    assert_eq!(view(Running).verbs(), ["cancel", "suspend"]);
    assert_eq!(view(Suspended).verbs(), ["cancel", "resume"]);
    assert_eq!(view(Stopping).verbs(), ["cancel"]);
    assert!([Completed, Failed, Cancelled].iter().all(|over| view(*over).verbs().is_empty()));
}

#[test]
fn logs_are_for_those_who_may_read_them() {
    let mine = view(JobState::Running);
    assert!(text(Role::User, &mine).contains("role=\"log\""));
    let others = View { inside: false, ..mine };
    let text = text(Role::User, &others);
    assert!(!text.contains("role=\"log\"") && text.contains("owner and for admins"), "{text}");
}

#[test]
fn what_is_archived_does_not_pretend_to_be_live() {
    let left = View { left: true, ..view(JobState::Completed) };
    let words = text(Role::Admin, &left);
    assert!(words.contains("From the archive") && words.contains("is not kept"), "{words}");
    assert!(!words.contains("data-live") && !words.contains("data-one"), "{words}");
    assert!(words.contains("role=\"log\""), "its nodes may still have it");
    assert!(text(Role::Admin, &view(JobState::Completed)).contains("data-live"));
}

#[test]
fn a_past_that_nobody_knows_is_not_drawn() {
    let mut left = View { left: true, ..view(JobState::Completed) };
    left.detail.row.started_at = Some(Time(5));
    assert_eq!(left.story().into_string(), "");
    left.detail.row.started_at = None;
    assert!(left.story().into_string().contains("What became of it"), "it only waited");
}

fn array(counts: ArrayCounts) -> View {
    let mut of = view(JobState::Running);
    of.detail.row.array = Some(counts);
    of
}

#[test]
fn an_array_says_how_many_ended_how_and_which_failed() {
    let counts =
        ArrayCounts { failed: 30, completed: 5, running: 2, pending: 1, ..ArrayCounts::default() };
    let task = |index, state, exit_code| {
        let id = TaskId { job: JobId(7), index: Some(index) };
        JobRow { id, exit_code, note: "<lost>".into(), ..row(7, state) }
    };
    let mut of = array(counts);
    of.tasks = (0..25).rev().map(|n| task(n, JobState::Failed, Some(3))).collect();
    of.tasks[24].exit_code = None;
    of.tasks.push(task(40, JobState::Completed, Some(0)));
    let story = of.story().into_string();
    for told in [
        "<b>30</b>",
        "<b>5</b>",
        "<b>2</b>",
        "<b>1</b>",
        "<a href=\"/jobs/7_0\">7_0</a><span class=\"sub\"> (&lt;lost&gt;)</span>, ",
        "<a href=\"/jobs/7_1\">7_1</a><span class=\"sub\"> (exit 3)</span>",
        "and 10 more: <code>tutti ps --tasks 7 --state failed</code> lists all.",
    ] {
        assert!(story.contains(told), "{told} in {story}");
    }
    assert!(!story.contains("7_20") && !story.contains("7_40"), "{story}");
    assert!(!story.contains("waits") && !story.contains("cancelled"), "{story}");
}

#[test]
fn an_array_of_the_archive_has_its_counts_too() {
    let counts = ArrayCounts { failed: 2, completed: 5, ..ArrayCounts::default() };
    let mut left = View { left: true, ..array(counts) };
    left.detail.row.started_at = Some(Time(5));
    let story = left.story().into_string();
    assert!(story.contains("<b>5</b>") && story.contains("2 tasks failed: <code>"), "{story}");
    let well = array(ArrayCounts { completed: 5, ..ArrayCounts::default() });
    assert!(!well.story().into_string().contains("failed"));
}

#[test]
fn loss_and_pace_are_drawn_once_there_is_some() {
    let mut view = view(JobState::Running);
    assert!(view.shown().series.is_empty());
    let point = |at, step, loss| ProgressPoint { at: Time(at), step, loss };
    view.progress.history =
        vec![point(1000, 10, Some(3.5)), point(3000, 14, None), point(4000, 14, None)];
    let json: serde_json::Value = serde_json::from_str(&view.shown().series["training"]).unwrap();
    assert_eq!(json["t"], serde_json::json!([1.0, 3.0, 4.0]));
    assert_eq!(json["pace"], serde_json::json!([null, 0.5, null]));
    assert_eq!(json["loss"], serde_json::json!([3.5, null, null]));
}

#[test]
fn checkpoints_are_listed_newest_first() {
    let mut view = view(JobState::Running);
    let point = |step| SavedPoint {
        step,
        at: None,
        path: Some(format!("/ckpt/{step}")),
        save_ms: None,
        node: None,
    };
    view.detail.checkpoints = vec![point(100), point(200)];
    view.progress.progress =
        Some(JobProgress { saved: Some(point(200)), ..JobProgress::default() });
    let text = view.points().into_string();
    assert!(text.find("/ckpt/200") < text.find("/ckpt/100"), "{text}");
}
