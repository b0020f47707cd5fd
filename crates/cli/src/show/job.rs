//! `tutti show`.

use tutti_model::{
    Command, DEFAULT_CLASS, DEFAULT_TEAM, DefaultTimeOf, ExitStatus, IndexRanges, Span,
    SuspendCause, Time, Topology,
};
use tutti_wire::api::{JobDetail, JobRow, PartRow, ProgressPoint, SuspensionRow};

use super::jobs::array;
use super::plan::seen::PlanSeen;
use super::table::{Grid, plain};
use super::{count, harmless, milli, progress, report, thousands, time};
use crate::style::{Ink, Style, of_job};

/// Characters of a list of indices.
const INDICES_MAX: usize = 100;

/// Failed tasks of an array that are named; more are counted.
pub const FAILED_NAMED: u32 = 8;

/// `failed` are the first tasks of an array that failed, `history` is how it got where it is.
pub fn detail(
    job: &JobDetail,
    failed: &[JobRow],
    history: &[ProgressPoint],
    now: Time,
    style: Style,
    width: Option<u16>,
) -> String {
    let row = &job.row;
    let mut lines = vec![format!(
        "job {}  {}  {}",
        row.id,
        style.paint(Ink::Bold, &harmless(&row.name)),
        style.paint(of_job(row.state), row.state.as_str())
    )];
    let mut facts = facts(job, history, now);
    let at = facts.iter().position(|(key, _)| *key == "tasks").map_or(0, |at| at + 1);
    let named = failed_words(row, failed).into_iter().map(|words| ("failed", harmless(&words)));
    facts.splice(at..at, named);
    lines.extend(facts.iter().map(|(key, value)| format!("  {key:<11}{value}")));
    if !job.parts.is_empty() {
        lines.push(String::new());
        lines.push(parts(&job.parts, style, width));
    }
    lines.join("\n")
}

/// What is known of it, as keys and values.
pub fn facts(job: &JobDetail, history: &[ProgressPoint], now: Time) -> Vec<(&'static str, String)> {
    let row = &job.row;
    let mut facts = Vec::new();
    let mut add = |key: &'static str, value: String| {
        if !value.is_empty() {
            facts.push((key, harmless(&value)));
        }
    };
    add("note", row.note.clone());
    let serves = job.replica_of.as_ref();
    add(
        "endpoint",
        serves.map_or_else(String::new, |of| format!("{}, revision {}", of.endpoint, of.revision)),
    );
    if let Some(counts) = &row.array {
        add("tasks", array(counts));
        add("indices", job.spec.array.as_ref().map_or_else(String::new, |a| indices(&a.indices)));
    }
    let team = row.team.as_deref().filter(|t| *t != DEFAULT_TEAM);
    let team = team.map_or_else(String::new, |t| format!(", team {t}"));
    add("user", format!("{}{team}", row.user));
    let class =
        if row.class == DEFAULT_CLASS { String::new() } else { format!(", class {}", row.class) };
    add("priority", format!("{}{class}", row.priority));
    add("asks for", demand(job));
    add("submitted", ago(row.submitted_at, now));
    add("started", row.started_at.map_or_else(String::new, |t| ago(t, now)));
    add("ended", row.ended_at.map_or_else(String::new, |t| ago(t, now)));
    add("exit code", row.exit_code.map_or_else(String::new, |c| c.to_string()));
    add("attempt", attempts(job));
    add("output", output(job.output_dropped));
    add("before", job.stopped_before.clone().unwrap_or_default());
    for (key, value) in row.progress.iter().flat_map(|p| progress::lines(p, history, now)) {
        add(key, value);
    }
    add("planned", planned(job).map_or_else(String::new, |seen| seen.words()));
    add("goodput", job.goodput.as_ref().and_then(report::short).unwrap_or_default());
    add("time left", job.time_left.map_or_else(String::new, time::short));
    add(
        "held",
        if job.held { "yes: `tutti release` lets it start".to_owned() } else { String::new() },
    );
    add("after", job.spec.after.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "));
    for suspension in &job.suspensions {
        let which = match (job.attempt.unwrap_or(1), suspension.attempt) {
            (..=1, _) | (_, 0) => String::new(),
            (_, n) => format!("attempt {n}, "),
        };
        add("suspended", format!("{which}{}", suspended(suspension, now)));
    }
    add("workdir", job.spec.workdir.clone().unwrap_or_default());
    add("image", job.spec.image.clone().unwrap_or_default());
    add("run", command(&job.spec.run));
    facts
}

/// `0-9,20`, or of a list that nobody reads its ends.
fn indices(all: &IndexRanges) -> String {
    let list = all.to_string();
    match (all.first(), all.last()) {
        (Some(first), Some(last)) if list.len() > INDICES_MAX => {
            format!("{first} to {last}, with gaps")
        }
        _ => list,
    }
}

/// Which tasks failed and how: the first few, and how to see all.
fn failed_words(row: &JobRow, failed: &[JobRow]) -> Option<String> {
    let all = row.array.as_ref().map_or(0, |a| a.failed);
    let named: Vec<String> = failed.iter().filter_map(failed_task).collect();
    if named.is_empty() {
        return None;
    }
    let more = all.saturating_sub(named.len() as u64);
    let more = if more > 0 { format!(" and {} more", thousands(more)) } else { String::new() };
    Some(format!(
        "{}{more}; `tutti ps --tasks {} --state failed` lists all",
        named.join(", "),
        row.id
    ))
}

fn failed_task(task: &JobRow) -> Option<String> {
    let index = task.id.index?;
    let how = match task.exit_code {
        Some(code) => format!("exit {code}"),
        None if task.note.is_empty() => return Some(index.to_string()),
        None => task.note.clone(),
    };
    Some(format!("{index} ({how})"))
}

fn output(dropped: u64) -> String {
    match dropped {
        0 => String::new(),
        bytes => format!(
            "{bytes} bytes were dropped: a node's disk had no room; `tutti logs` shows where"
        ),
    }
}

/// What was planned for it beside what it does.
pub fn planned(job: &JobDetail) -> Option<PlanSeen> {
    PlanSeen::of(job.spec.plan.as_deref(), job.row.progress.as_ref().and_then(|p| p.pace))
}

fn ago(at: Time, now: Time) -> String {
    format!("{} ({} ago)", time::clock(at), time::short(now.since(at)))
}

fn suspended(s: &SuspensionRow, now: Time) -> String {
    let why = match &s.why {
        SuspendCause::Preempted { for_job } => format!("for job {for_job}"),
        SuspendCause::Asked { by } => format!("by {by}"),
    };
    let took = |from: Time, to: Option<Time>| to.map(|to| time::short(to.since(from)));
    let at = time::clock(s.since);
    if let Some(refused) = &s.refused {
        return format!("{at} {why}: not possible, {refused}");
    }
    let cut =
        |at: Time| format!("until the attempt ended after {}", time::short(at.since(s.since)));
    let Some(out) = took(s.since, s.out_at) else {
        return format!("{at} {why}, {}", s.cut_at.map_or_else(|| "under way".to_owned(), cut));
    };
    let lasted = match (s.until, s.cut_at) {
        (Some(until), _) => format!("for {}", time::short(until.since(s.since))),
        (None, Some(at)) => cut(at),
        (None, None) => format!("since {}", time::short(now.since(s.since))),
    };
    let back = s.back_at.and_then(|at| took(at, s.until));
    let back = back.map_or_else(String::new, |t| format!(", back in {t}"));
    let size = indicatif::BinaryBytes(s.bytes.0);
    format!("{at} {why}, {lasted}: {size} out in {out}{back}")
}

fn demand(job: &JobDetail) -> String {
    let spec = &job.spec;
    let mut parts = Vec::new();
    match (&spec.gpus_per_node, spec.gpus, spec.gpu_share) {
        (Some(g), _, Some(share)) => {
            parts.push(match &g.model {
                Some(model) => format!("{share} of one {model}"),
                None => format!("{share} of a GPU"),
            });
        }
        (Some(g), ..) => {
            let s = if g.count == 1 { "" } else { "s" };
            parts.push(format!("{} × {g} GPU{s}", nodes(job)));
        }
        (None, Some(n), _) => parts.push(count(n.into(), "GPU")),
        (None, None, Some(share)) => parts.push(format!("{share} of a GPU")),
        (None, None, None) => parts.push(nodes(job)),
    }
    parts.extend(spec.cpus_per_gpu.map(|n| format!("{} per GPU", count(n.into(), "CPU"))));
    parts.extend(spec.mem_per_gpu.map(|m| format!("{m} per GPU")));
    parts.extend(spec.cpus_per_node.map(|n| format!("{} per node", count(n.into(), "CPU"))));
    parts.extend(spec.mem_per_node.map(|m| format!("{m} per node")));
    parts.extend(spec.gpu_mem.map(|m| format!("GPUs of at least {m}")));
    parts.extend(spec.labels.iter().map(|(k, v)| format!("{k}={v}")));
    parts.extend(spec.avoid_labels.iter().map(|(k, v)| format!("not {k}={v}")));
    parts.extend(spec.exclusive.then(|| "nobody else on its nodes".to_owned()));
    let within = spec.topology.filter(|t| *t != Topology::Any);
    parts.extend(within.map(|t| format!("inside one {}", t.as_str())));
    parts.extend(spec.time.map(|t| time_limit(t, spec.default_time_of.as_ref())));
    parts.join(", ")
}

/// `at most 2h`, and whose default that is if it named no limit itself.
fn time_limit(time: Span, default_of: Option<&DefaultTimeOf>) -> String {
    let whose =
        default_of.map_or_else(String::new, |of| format!(" ({})", harmless(&of.in_words())));
    format!("at most {}{whose}", time::short(time))
}

fn nodes(job: &JobDetail) -> String {
    match &job.spec.elastic {
        Some(e) if e.min_nodes == e.max_nodes => count(e.max_nodes.into(), "node"),
        Some(e) => format!("{}-{}", e.min_nodes, count(e.max_nodes.into(), "node")),
        None => count(job.spec.nodes.unwrap_or(1).into(), "node"),
    }
}

fn attempts(job: &JobDetail) -> String {
    let Some(n) = job.attempt else { return String::new() };
    let r = job.restarts_by_cause;
    let causes = [
        (r.node_failure, "after node failures"),
        (r.preemption, "after preemption"),
        (r.job_failure, "after its own failure"),
        (r.health, "after broken GPUs"),
    ];
    let told: Vec<_> =
        causes.iter().filter(|(n, _)| *n > 0).map(|(n, why)| format!("{n} {why}")).collect();
    if told.is_empty() { n.to_string() } else { format!("{n}; restarts: {}", told.join(", ")) }
}

/// A script is long; its first lines say which it is.
fn command(run: &Command) -> String {
    let text = match run {
        Command::Shell(line) => line.trim().to_owned(),
        Command::Argv(words) => words.iter().map(|w| quoted(w)).collect::<Vec<_>>().join(" "),
    };
    let first = text.lines().next().unwrap_or_default();
    let shown: String = first.chars().take(200).collect();
    if shown.len() < text.len() { format!("{shown} …") } else { shown }
}

/// A word as a shell takes it.
pub fn quoted(word: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(safe) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// `3`, or `signal 9`.
pub fn exit_words(status: &ExitStatus) -> String {
    match status {
        ExitStatus::Code(code) => code.to_string(),
        ExitStatus::Signal(signal) => format!("signal {signal}"),
    }
}

fn parts(parts: &[PartRow], style: Style, width: Option<u16>) -> String {
    let head = ["NODE", "ADDRESS", "RANKS", "GPUS", ">CPUS", ">MEM", "PHASE", "EXITS"];
    let mut grid = Grid::new(&head, style);
    for p in parts {
        let ranks = match p.ranks {
            0 => "-".to_owned(),
            1 => p.first_rank.to_string(),
            n => format!("{}-{}", p.first_rank, p.first_rank + n - 1),
        };
        let gpus: Vec<_> = p.gpus.iter().map(ToString::to_string).collect();
        let exits: Vec<_> =
            p.exits.iter().map(|e| format!("{}:{}", e.rank, exit_words(&e.status))).collect();
        grid.row([
            plain(p.node.clone()),
            plain(p.address.clone()),
            plain(ranks),
            plain(match gpus.is_empty() {
                true => "-".to_owned(),
                false if p.share.is_whole() => gpus.join(","),
                false => format!("{} of {}", milli(p.share.0.into()), gpus.join(",")),
            }),
            plain(p.cpus.to_string()),
            plain(p.mem.to_string()),
            plain(p.phase.clone()),
            plain(exits.join(" ")),
        ]);
    }
    grid.render(width)
}

#[cfg(test)]
mod tests {
    use super::super::jobs::tests::row;
    use super::*;
    use tutti_model::{Bytes, Elastic, JobSpec, JobState, Milli, ReplicaOf, Restarts};

    #[test]
    fn all_about_a_job() {
        let mut spec = JobSpec::shell("python train.py\nsecond line");
        spec.nodes = Some(2);
        spec.gpus_per_node = Some("h100:8".parse().unwrap());
        let job = JobDetail {
            row: row("7", JobState::Running),
            spec,
            attempt: Some(2),
            generation: Some(9),
            restarts_by_cause: Restarts { node_failure: 1, ..Restarts::default() },
            parts: vec![PartRow {
                node: "n1".into(),
                address: "127.0.1.1".into(),
                gpus: vec![0, 1],
                share: Milli::WHOLE,
                cpus: 16,
                mem: Bytes::gib(64),
                first_rank: 0,
                ranks: 2,
                phase: "running".into(),
                exits: vec![],
            }],
            end: None,
            time_left: None,
            held: false,
            checkpoints: Vec::new(),
            goodput: None,
            output_dropped: 1234,
            suspensions: vec![SuspensionRow {
                why: SuspendCause::Preempted { for_job: tutti_model::JobId(9) },
                since: Time(1000),
                out_at: Some(Time(5000)),
                back_at: Some(Time(40_000)),
                until: Some(Time(42_000)),
                bytes: Bytes::gib(30),
                refused: None,
                attempt: 2,
                cut_at: None,
            }],
            stopped_before: Some("GPU 3 of n2 was broken".into()),
            replica_of: Some(ReplicaOf { endpoint: "chat".into(), revision: 2 }),
        };
        let text = detail(&job, &[], &[], Time(61_000), Style::PLAIN, None);
        for want in [
            "job 7  train  running",
            "asks for   2 nodes × h100:8 GPUs",
            "(1m ago)",
            "attempt    2; restarts: 1 after node failures",
            "before     GPU 3 of n2 was broken",
            "output     1234 bytes were dropped: a node's disk had no room",
            "endpoint   chat, revision 2",
            "run        python train.py …",
            "suspended  attempt 2, ",
            " for job 9, for 41s: 30.00 GiB out in 4s, back in 2s",
            "NODE  ADDRESS    RANKS  GPUS  CPUS    MEM  PHASE    EXITS",
            "n1    127.0.1.1  0-1    0,1     16  64GiB  running",
        ] {
            assert!(text.contains(want), "{want} in\n{text}");
        }
        assert!(!text.contains("exit code") && !text.contains("team"));
        let open = SuspensionRow { until: None, back_at: None, ..job.suspensions[0].clone() };
        let cut = suspended(&SuspensionRow { cut_at: Some(Time(61_000)), ..open }, Time(99_000));
        let want = " for job 9, until the attempt ended after 1m: 30.00 GiB out in 4s";
        assert!(cut.ends_with(want), "{cut}");

        assert!(!text.contains("planned"), "{text}");
        let mut told = job.clone();
        let plan = r#"{"model": "m", "seq": 1, "global_batch": 1, "step_time_s": 1.32}"#;
        told.spec.plan = serde_json::from_str(plan).unwrap();
        let pace = Some(tutti_model::Span(1410));
        told.row.progress =
            Some(tutti_wire::api::JobProgress { step: Some(9), pace, ..Default::default() });
        let text = detail(&told, &[], &[], Time(61_000), Style::PLAIN, None);
        assert!(text.contains("planned    1.32 s a step, seen 1.41 s (+7 %)"), "{text}");

        let mut part = job;
        part.row.team = Some("vision".into());
        part.row.class = "urgent".into();
        part.spec.gpu_share = Some(0.25);
        part.spec.gpus_per_node = Some("h100".parse().unwrap());
        part.spec.labels.insert("nvme".into(), "true".into());
        part.spec.topology = Some(Topology::Rack);
        (part.parts[0].gpus, part.parts[0].share) = (vec![3], Milli(250));
        let text = detail(&part, &[], &[], Time(61_000), Style::PLAIN, None);
        for want in [
            "user       ada, team vision",
            "priority   normal, class urgent",
            "asks for   0.25 of one h100, nvme=true, inside one rack",
            "0.25 of 3",
        ] {
            assert!(text.contains(want), "{want} in\n{text}");
        }
        part.spec.gpu_share = None;
        part.spec.elastic = Some(Elastic { min_nodes: 2, max_nodes: 8 });
        let text = detail(&part, &[], &[], Time(61_000), Style::PLAIN, None);
        assert!(text.contains("2-8 nodes × h100:1 GPU,"), "{text}");
        part.spec.elastic = Some(Elastic { min_nodes: 3, max_nodes: 3 });
        let text = detail(&part, &[], &[], Time(61_000), Style::PLAIN, None);
        assert!(text.contains("asks for   3 nodes × h100:1 GPU,"), "{text}");
    }

    #[test]
    fn an_array_says_which_indices_it_has() {
        let of = |text: &str| indices(&text.parse::<tutti_model::ArraySpec>().unwrap().indices);
        assert_eq!(of("0-9,20"), "0-9,20");
        assert_eq!(of("0-998:2"), "0 to 998, with gaps");
    }

    #[test]
    fn the_first_failed_tasks_are_named() {
        use tutti_wire::api::ArrayCounts;
        let counts = ArrayCounts { failed: 1_003, completed: 5, ..ArrayCounts::default() };
        let array = JobRow { array: Some(counts), ..row("12", JobState::Failed) };
        let task = |id: &str, exit_code, note: &str| JobRow {
            exit_code,
            note: note.into(),
            ..row(id, JobState::Failed)
        };
        let failed = [
            task("12_3", Some(1), "rank 0 exited with 1"),
            task("12_17", None, "ran out of its time limit"),
            task("12_20", None, ""),
        ];
        assert_eq!(
            failed_words(&array, &failed).unwrap(),
            "3 (exit 1), 17 (ran out of its time limit), 20 and 1,000 more; \
             `tutti ps --tasks 12 --state failed` lists all"
        );
        assert_eq!(failed_words(&array, &[]), None);
    }

    #[test]
    fn words_are_quoted_as_for_a_shell() {
        let run = Command::Argv(vec!["echo".into(), "a b".into(), "it's".into(), String::new()]);
        assert_eq!(command(&run), r"echo 'a b' 'it'\''s' ''");
    }
}
