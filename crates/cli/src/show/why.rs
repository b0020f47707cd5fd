//! `tutti why`: the verdict in sentences.

use tutti_model::{ClaimCause, Explanation, Forecast, Shortage, TaskId, Time, Topology, Verdict};

use super::{count, harmless, thousands, time};
use crate::style::{Ink, Style};

/// Holders beyond these are counted, not listed.
const HOLDERS_SHOWN: usize = 8;

pub fn explanation(e: &Explanation, now: Time, style: Style) -> String {
    let mut lines = vec![format!(
        "job {} waits: {}",
        e.task,
        style.paint(Ink::Bold, &harmless(&verdict(&e.verdict, now)))
    )];
    if let Some(s) = shortage(&e.verdict) {
        lines.extend(blocked(s).into_iter().map(|l| format!("  {l}")));
    }
    if e.ahead > 0 {
        let verb = if e.ahead == 1 { "is" } else { "are" };
        lines.push(format!("{} {verb} tried before it", count(e.ahead, "task")));
    }
    lines.extend(holders(e, now));
    lines.extend(start(e, now));
    if !e.advice.is_empty() {
        lines.push("what would help".to_owned());
        lines.extend(e.advice.iter().map(|a| format!("  - {}", harmless(a))));
    }
    lines.join("\n")
}

fn shortage(v: &Verdict) -> Option<&Shortage> {
    match v {
        Verdict::Busy(s) | Verdict::NodesUnavailable(s) => Some(s),
        Verdict::Reserved { shortage, .. } => Some(shortage),
        _ => None,
    }
}

/// Who has what it waits for.
fn holders(e: &Explanation, now: Time) -> Vec<String> {
    let waits_for_room = shortage(&e.verdict).is_some()
        || matches!(e.verdict, Verdict::Behind { .. } | Verdict::Claimed { .. });
    if !waits_for_room || e.holders.is_empty() {
        return Vec::new();
    }
    let mut lines = vec!["what it needs is held by".to_owned()];
    lines.extend(e.holders.iter().take(HOLDERS_SHOWN).map(|h| {
        let end = h.ends_by.map_or_else(
            || "no time limit".to_owned(),
            |t| format!("ends in {} at the latest", time::short(t.since(now))),
        );
        format!(
            "  job {} ({}, {}): {} on {}, {end}",
            h.task,
            harmless(&h.name),
            harmless(&h.user),
            count(h.gpus.into(), "GPU"),
            count(h.nodes.into(), "node")
        )
    }));
    if e.holders.len() > HOLDERS_SHOWN {
        let more = (e.holders.len() - HOLDERS_SHOWN) as u64;
        lines.push(format!("  and {} more", thousands(more)));
    }
    lines
}

/// When it starts, as far as that is known.
fn start(e: &Explanation, now: Time) -> Option<String> {
    let latest = |at: Time| {
        let (clock, span) = (time::clock(at), time::short(at.since(now)));
        format!("starts by {clock} at the latest (in {span}) if nothing comes before it")
    };
    match (e.forecast, e.starts_by) {
        (Some(Forecast { early, late: Some(late) }), _) if early >= late => Some(latest(late)),
        (Some(Forecast { early, late: Some(late) }), _) => Some(format!(
            "it is expected to start between {} and {}, by {} at the latest",
            from_now(early, now),
            from_now(late, now),
            time::clock(late)
        )),
        (Some(Forecast { early, late: None }), _) => Some(format!(
            "it is expected to start {} ({}) if jobs end as such jobs did before; some have no time \
             limit, so no latest time is known",
            from_now(early, now),
            time::clock(early)
        )),
        (None, Some(at)) => Some(latest(at)),
        (None, None) if matches!(e.verdict, Verdict::Busy(_)) => {
            Some("no start can be promised: a holder has no time limit".to_owned())
        }
        (None, None) => None,
    }
}

fn from_now(at: Time, now: Time) -> String {
    if at <= now { "now".to_owned() } else { format!("in {}", time::short(at.since(now))) }
}

fn verdict(v: &Verdict, now: Time) -> String {
    match v {
        Verdict::Held => "it is held; tutti release lets it start".to_owned(),
        Verdict::Dependencies { waiting_for } => {
            format!("for other jobs to end ({})", list(waiting_for))
        }
        Verdict::BackOff { until } => {
            format!("it failed a moment ago and is tried again {}", from_now(*until, now))
        }
        Verdict::ArrayLimit { max_running } => {
            format!("its array runs at most {max_running} tasks at once")
        }
        Verdict::Busy(s) => format!("{}, and {}", wanted(s), fitting(s)),
        Verdict::NodesUnavailable(s) => {
            format!("{}, and too many suitable nodes are away or draining", wanted(s))
        }
        Verdict::Behind { job } => {
            format!("it would delay job {job}, which is before it in line and has a time to start")
        }
        Verdict::TeamLimit { team, limit, used, wanted } => {
            let limit = count((*limit).into(), "GPU");
            format!(
                "team {team} may have {limit} at once; it has {used}, and this job wants {wanted}"
            )
        }
        Verdict::Reserved { reservation, until, shortage } => format!(
            "{}, and nodes that it could use are reserved ('{reservation}', until {}, {})",
            wanted(shortage),
            time::clock(*until),
            from_now(*until, now)
        ),
        Verdict::Claimed { cause, waiting_for } => claimed(*cause, waiting_for),
        Verdict::Next => "it is about to be tried".to_owned(),
    }
}

fn list<T: ToString>(items: &[T]) -> String {
    let shown: Vec<_> = items.iter().take(HOLDERS_SHOWN).map(ToString::to_string).collect();
    let more = items.len() - shown.len();
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{rest}", shown.join(", "))
}

fn claimed(cause: ClaimCause, waiting_for: &[TaskId]) -> String {
    let what = match cause {
        ClaimCause::Guarantee => "room is being made, since its team has less than its guarantee",
        ClaimCause::Class => "room is being made, since its class goes before others",
        ClaimCause::Overdue => "room is kept for it, since it has waited so long",
        ClaimCause::Resize => "it goes on with another number of nodes",
    };
    if waiting_for.is_empty() {
        return format!("{what}; it starts in a moment");
    }
    let jobs = if waiting_for.len() == 1 { "job" } else { "jobs" };
    let over = match (cause, waiting_for.len()) {
        (ClaimCause::Overdue, 1) => "has ended",
        (ClaimCause::Overdue, _) => "have ended",
        (_, 1) => "has stopped",
        _ => "have stopped",
    };
    format!("{what}; it starts when {jobs} {} {over}", list(waiting_for))
}

fn wanted(s: &Shortage) -> String {
    let nodes = count(s.nodes_wanted.into(), "node");
    let gpus = count(s.gpus_wanted.into(), "GPU");
    let what = match (s.gpus_wanted, s.nodes_wanted) {
        (0, _) => nodes,
        (_, 0) => gpus,
        _ => format!("{gpus} on {nodes}"),
    };
    let inside = domain(s).map_or_else(String::new, |d| format!(" inside one {d}"));
    format!("it wants {what}{inside}")
}

/// The domain that it must stay in, if that is a limit.
fn domain(s: &Shortage) -> Option<&'static str> {
    match s.within {
        Topology::Any => None,
        Topology::Island => Some("NVLink island"),
        Topology::Rail => Some("rail group"),
        Topology::Node | Topology::Rack | Topology::Site => Some(s.within.as_str()),
    }
}

fn fitting(s: &Shortage) -> String {
    let free = match s.gpus_free {
        0 => "no GPU is free".to_owned(),
        1 => "1 GPU is free".to_owned(),
        n => format!("{} are free", count(n.into(), "GPU")),
    };
    // Enough in all, but not together: the domain is what stops it.
    let enough = s.nodes_wanted > 0 && s.nodes_fitting >= s.nodes_wanted;
    let enough = enough || s.nodes_wanted == 0 && s.gpus_free >= s.gpus_wanted;
    if let Some(domain) = domain(s).filter(|_| enough) {
        let what = if s.nodes_wanted > 0 { "node" } else { "GPU" };
        let best = count(s.best_domain.into(), what);
        return format!("the best {domain} has room for {best} ({free} in all)");
    }
    match s.nodes_fitting {
        0 => format!("no node fits now ({free})"),
        1 => format!("only 1 node fits now ({free})"),
        n => format!("only {} fit now ({free})", count(n.into(), "node")),
    }
}

/// One line per reason that keeps nodes from taking a part.
fn blocked(s: &Shortage) -> Vec<String> {
    let b = &s.blocked;
    [
        (b.gpus_busy, "too few GPUs free"),
        (b.cpus_busy, "too few CPUs free"),
        (b.mem_busy, "too little memory free"),
        (b.kept, "kept for a job before it, or as a spare"),
        (b.reserved, "reserved for others or for maintenance"),
        (b.draining, "draining"),
        (b.away, "lost, away or cleaning up"),
        (b.labels, "without a label that it wants, or with one that it avoids"),
        (b.unsuitable, "unsuitable even when empty"),
    ]
    .iter()
    .filter(|(n, _)| *n > 0)
    .map(|(n, why)| format!("{n} of {}: {why}", count(s.nodes_total.into(), "node")))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tutti_model::{Blocked, Holder, Span};

    #[test]
    fn a_busy_cluster_in_sentences() {
        let now = Time(1_000_000);
        let e = Explanation {
            task: "12".parse().unwrap(),
            verdict: Verdict::Busy(Shortage {
                nodes_wanted: 2,
                gpus_wanted: 16,
                nodes_fitting: 1,
                gpus_free: 11,
                nodes_total: 4,
                blocked: Blocked { gpus_busy: 2, draining: 1, ..Blocked::default() },
                ..Shortage::default()
            }),
            ahead: 1,
            holders: vec![Holder {
                task: "7".parse().unwrap(),
                user: "ada".into(),
                name: "train".into(),
                gpus: 8,
                nodes: 1,
                ends_by: Some(now.plus(Span::secs(90))),
            }],
            starts_by: None,
            forecast: None,
            advice: vec!["ask for 8 GPUs on 1 node".into()],
        };
        let text = explanation(&e, now, Style::PLAIN);
        assert_eq!(
            text,
            "job 12 waits: it wants 16 GPUs on 2 nodes, and only 1 node fits now (11 GPUs are free)
  2 of 4 nodes: too few GPUs free
  1 of 4 nodes: draining
1 task is tried before it
what it needs is held by
  job 7 (train, ada): 8 GPUs on 1 node, ends in 1m30s at the latest
no start can be promised: a holder has no time limit
what would help
  - ask for 8 GPUs on 1 node"
        );
    }

    #[test]
    fn every_verdict_has_words() {
        for v in [
            Verdict::Held,
            Verdict::Dependencies { waiting_for: vec!["ok:3".parse().unwrap()] },
            Verdict::BackOff { until: Time(5_000) },
            Verdict::ArrayLimit { max_running: 4 },
            Verdict::NodesUnavailable(Shortage::default()),
            Verdict::Behind { job: tutti_model::JobId(3) },
            Verdict::Next,
        ] {
            assert!(!verdict(&v, Time(0)).is_empty());
        }
    }

    #[test]
    fn what_holds_a_job_is_named() {
        let tasks = |ids: &[&str]| ids.iter().map(|t| t.parse().unwrap()).collect::<Vec<TaskId>>();
        let shortage = Shortage {
            nodes_wanted: 2,
            gpus_wanted: 16,
            nodes_fitting: 3,
            gpus_free: 24,
            nodes_total: 8,
            within: Topology::Rack,
            best_domain: 1,
            ..Shortage::default()
        };
        let gpus = Shortage { nodes_wanted: 0, gpus_free: 20, best_domain: 12, ..shortage.clone() };
        let few = Shortage { nodes_fitting: 1, gpus_free: 8, ..shortage.clone() };
        for (v, want) in [
            (
                Verdict::TeamLimit { team: "vision".into(), limit: 8, used: 6, wanted: 4 },
                "team vision may have 8 GPUs at once; it has 6, and this job wants 4",
            ),
            (
                Verdict::Claimed {
                    cause: ClaimCause::Guarantee,
                    waiting_for: tasks(&["7", "8_1"]),
                },
                "room is being made, since its team has less than its guarantee; it starts when jobs 7, 8_1 have stopped",
            ),
            (
                Verdict::Claimed { cause: ClaimCause::Overdue, waiting_for: tasks(&["7"]) },
                "room is kept for it, since it has waited so long; it starts when job 7 has ended",
            ),
            (
                Verdict::Claimed { cause: ClaimCause::Class, waiting_for: Vec::new() },
                "room is being made, since its class goes before others; it starts in a moment",
            ),
            (
                Verdict::Busy(shortage),
                "it wants 16 GPUs on 2 nodes inside one rack, and the best rack has room for 1 node (24 GPUs are free in all)",
            ),
            (
                Verdict::Busy(gpus),
                "it wants 16 GPUs inside one rack, and the best rack has room for 12 GPUs (20 GPUs are free in all)",
            ),
            (
                Verdict::Busy(few),
                "it wants 16 GPUs on 2 nodes inside one rack, and only 1 node fits now (8 GPUs are free)",
            ),
        ] {
            assert_eq!(verdict(&v, Time(0)), want);
        }
        let reserved = Verdict::Reserved {
            reservation: "power\u{1b} work".into(),
            until: Time(90_000),
            shortage: Shortage { nodes_wanted: 1, nodes_total: 4, ..Shortage::default() },
        };
        assert!(
            verdict(&reserved, Time(0))
                .starts_with("it wants 1 node, and nodes that it could use are reserved ('power")
        );
        assert!(verdict(&reserved, Time(0)).ends_with("in 1m30s)"));
    }

    #[test]
    fn the_start_is_a_range() {
        let at = |early: u64, late: Option<u64>| {
            let e = Explanation {
                task: "12".parse().unwrap(),
                verdict: Verdict::Next,
                ahead: 0,
                holders: Vec::new(),
                starts_by: None,
                forecast: Some(Forecast { early: Time(early), late: late.map(Time) }),
                advice: Vec::new(),
            };
            start(&e, Time(60_000)).unwrap()
        };
        assert!(
            at(90_000, Some(120_000))
                .starts_with("it is expected to start between in 30s and in 1m00s, by ")
        );
        assert!(at(90_000, None).starts_with("it is expected to start in 30s ("));
        assert!(
            at(0, Some(120_000)).starts_with("it is expected to start between now and in 1m00s")
        );
        assert!(at(90_000, Some(90_000)).starts_with("starts by "));
    }
}
