//! `tutti ps`.

use std::collections::BTreeMap;

use tutti_model::{DEFAULT_CLASS, DEFAULT_TEAM, JobState, Span, Time};
use tutti_wire::api::{ArrayCounts, JobRow};

use super::table::{Grid, plain};
use super::{milli, progress, thousands, time};
use crate::style::{Ink, Style, of_job};

/// The list and, if something was left out, how much.
pub fn table(
    jobs: &[JobRow],
    hidden: &BTreeMap<String, u64>,
    now: Time,
    style: Style,
    width: Option<u16>,
) -> String {
    if jobs.is_empty() {
        return "no jobs".to_owned();
    }
    let classes = jobs.iter().any(|j| j.class != DEFAULT_CLASS);
    let mut head = vec![">ID", "NAME", "USER", "TEAM"];
    head.extend(classes.then_some("CLASS"));
    let progress = jobs.iter().any(|j| j.progress.is_some());
    head.extend(["STATE", ">NODES", ">GPUS", ">TIME"]);
    head.extend(progress.then_some("PROGRESS"));
    head.push("NOTE");
    let mut grid = Grid::new(&head, style);
    for job in jobs {
        let mut row = vec![
            plain(job.id.to_string()),
            plain(clip(&job.name, 24)),
            plain(clip(&job.user, 12)),
            plain(team(job)),
        ];
        row.extend(classes.then(|| plain(clip(&job.class, 12))));
        row.extend([
            (job.state.as_str().to_owned(), of_job(job.state)),
            plain(nodes(job)),
            plain(milli(u64::from(job.gpus) * u64::from(job.share.0))),
            plain(time::short(how_long(job, now))),
        ]);
        let far = || job.progress.as_ref().map_or_else(|| "-".to_owned(), progress::short);
        row.extend(progress.then(|| plain(far())));
        row.push(note(job));
        grid.row(row);
    }
    let mut text = grid.render(width);
    for (state, n) in hidden.iter().filter(|&(_, &n)| n > 0) {
        text.push_str(&format!("\n… {} more {state} (tutti ps --all)", thousands(*n)));
    }
    text
}

/// As `tutti quota` calls it.
pub fn team(job: &JobRow) -> String {
    clip(job.team.as_deref().unwrap_or(DEFAULT_TEAM), 12)
}

/// While the scheduler is to choose how many, nobody knows.
pub fn nodes(job: &JobRow) -> String {
    if job.nodes == 0 { "-".to_owned() } else { job.nodes.to_string() }
}

/// Waiting, running, or how long it ran. While it is suspended, or waits for nodes again between two
/// attempts, its clock stands still.
pub fn how_long(job: &JobRow, now: Time) -> Span {
    match (job.ran_since(), job.ended_at) {
        (Some(start), end) => end.unwrap_or(now).since(start),
        (None, Some(_)) => Span::default(),
        (None, None) => now.since(job.submitted_at),
    }
}

pub fn note(job: &JobRow) -> (String, Ink) {
    let mut parts = Vec::new();
    if let Some(counts) = &job.array {
        parts.push(array(counts));
    }
    if !job.note.is_empty() {
        parts.push(job.note.clone());
    } else if job.state == JobState::Running && !job.node_names.is_empty() {
        parts.push(format!("on {}", job.node_names.join(",")));
    }
    if job.restarts > 0 {
        parts.push(format!("restarted {}×", job.restarts));
    }
    let ink = if job.state == JobState::Failed { Ink::Red } else { Ink::Plain };
    (parts.join("; "), ink)
}

pub fn array(counts: &ArrayCounts) -> String {
    let all = [
        (counts.pending, "pending"),
        (counts.running, "running"),
        (counts.suspended, "suspended"),
        (counts.completed, "completed"),
        (counts.failed, "failed"),
        (counts.cancelled, "cancelled"),
    ];
    let shown: Vec<_> =
        all.iter().filter(|(n, _)| *n > 0).map(|(n, s)| format!("{} {s}", thousands(*n))).collect();
    shown.join(", ")
}

fn clip(text: &str, max: usize) -> String {
    if text.chars().count() <= max {
        return text.to_owned();
    }
    text.chars().take(max - 1).chain(['…']).collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use tutti_model::{Milli, Priority, TaskId};

    pub fn row(id: &str, state: JobState) -> JobRow {
        JobRow {
            id: id.parse::<TaskId>().unwrap(),
            name: "train".into(),
            user: "ada".into(),
            team: Some(DEFAULT_TEAM.into()),
            class: DEFAULT_CLASS.into(),
            state,
            nodes: 2,
            gpus: 16,
            share: Milli::WHOLE,
            priority: Priority::NORMAL,
            submitted_at: Time(1_000),
            started_at: None,
            ended_at: None,
            suspended_for: Span(0),
            between_attempts: Span(0),
            exit_code: None,
            restarts: 0,
            verdict: None,
            blockers: Vec::new(),
            note: String::new(),
            array: None,
            node_names: Vec::new(),
            progress: None,
        }
    }

    #[test]
    fn a_list_of_jobs() {
        let running = JobRow {
            started_at: Some(Time(1_000)),
            node_names: vec!["n1".into(), "n2".into()],
            restarts: 1,
            team: Some("research".into()),
            ..row("7", JobState::Running)
        };
        let pending =
            JobRow { note: "waits for 16 GPUs; 3 are free".into(), ..row("12", JobState::Pending) };
        let array = JobRow {
            name: "a-very-long-name-that-goes-on-and-on".into(),
            array: Some(ArrayCounts { pending: 1200, completed: 7, ..ArrayCounts::default() }),
            ..row("13", JobState::Pending)
        };
        let failed = JobRow {
            started_at: Some(Time(2_000)),
            ended_at: Some(Time(5_000)),
            note: "rank 1 exited with 3".into(),
            ..row("5_3", JobState::Failed)
        };
        let hidden = BTreeMap::from([("pending".to_owned(), 99_950), ("running".to_owned(), 0)]);
        let text =
            table(&[running, pending, array, failed], &hidden, Time(193_000), Style::PLAIN, None);
        let want = " ID  NAME                      USER  TEAM      STATE    NODES  GPUS   TIME  NOTE
  7  train                     ada   research  running      2    16  3m12s  on n1,n2; restarted 1×
 12  train                     ada   default   pending      2    16  3m12s  waits for 16 GPUs; 3 are free
 13  a-very-long-name-that-g…  ada   default   pending      2    16  3m12s  1,200 pending, 7 completed
5_3  train                     ada   default   failed       2    16     3s  rank 1 exited with 3
… 99,950 more pending (tutti ps --all)";
        assert_eq!(text, want);
    }

    #[test]
    fn classes_are_shown_where_there_is_one() {
        let jobs = [
            JobRow { class: "urgent".into(), ..row("7", JobState::Running) },
            row("8", JobState::Pending),
        ];
        let text = table(&jobs, &BTreeMap::new(), Time(1_000), Style::PLAIN, None);
        let want = "ID  NAME   USER  TEAM     CLASS     STATE    NODES  GPUS  TIME  NOTE
 7  train  ada   default  urgent    running      2    16    0s
 8  train  ada   default  standard  pending      2    16    0s";
        assert_eq!(text, want);
    }

    #[test]
    fn progress_is_shown_where_there_is_any() {
        use tutti_wire::api::JobProgress;
        let far = JobProgress { step: Some(1200), loss: Some(2.3149), ..JobProgress::default() };
        let jobs = [
            JobRow { progress: Some(far), ..row("7", JobState::Running) },
            row("8", JobState::Pending),
        ];
        let text = table(&jobs, &BTreeMap::new(), Time(1_000), Style::PLAIN, None);
        let want =
            "ID  NAME   USER  TEAM     STATE    NODES  GPUS  TIME  PROGRESS                 NOTE
 7  train  ada   default  running      2    16    0s  step 1,200 · loss 2.315
 8  train  ada   default  pending      2    16    0s  -";
        assert_eq!(text, want);
    }

    #[test]
    fn parts_of_gpus_and_nodes_that_nobody_knows_yet() {
        let jobs = [
            JobRow { nodes: 1, gpus: 1, share: Milli(250), ..row("7", JobState::Running) },
            JobRow { nodes: 0, gpus: 12, ..row("8", JobState::Pending) },
        ];
        let text = table(&jobs, &BTreeMap::new(), Time(1_000), Style::PLAIN, None);
        let want = "ID  NAME   USER  TEAM     STATE    NODES  GPUS  TIME  NOTE
 7  train  ada   default  running      1  0.25    0s
 8  train  ada   default  pending      -    12    0s";
        assert_eq!(text, want);
    }

    #[test]
    fn the_clock_of_a_suspended_job_stands_still() {
        let job = JobRow {
            started_at: Some(Time(10_000)),
            suspended_for: Span::secs(30),
            ..row("7", JobState::Suspended)
        };
        assert_eq!(how_long(&job, Time(60_000)), Span::secs(20));
        let ended = JobRow { ended_at: Some(Time(50_000)), ..job };
        assert_eq!(how_long(&ended, Time(99_000)), Span::secs(10));
    }

    /// The cluster was down, or no node was free: nothing of it ran.
    #[test]
    fn the_time_between_attempts_is_no_running_time() {
        let job = JobRow {
            started_at: Some(Time(10_000)),
            suspended_for: Span::secs(5),
            between_attempts: Span::secs(3600),
            ..row("7", JobState::Running)
        };
        assert_eq!(how_long(&job, Time(3_640_000)), Span::secs(25));
        let ended = JobRow { ended_at: Some(Time(3_630_000)), ..job };
        assert_eq!(how_long(&ended, Time(9_999_000)), Span::secs(15));
    }

    #[test]
    fn nothing_to_list() {
        assert_eq!(table(&[], &BTreeMap::new(), Time(0), Style::PLAIN, None), "no jobs");
    }
}
