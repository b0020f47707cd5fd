//! `tutti why`: the verdict in sentences.

use tutti_model::{Explanation, Shortage, Time, Verdict};

use super::{count, harmless, thousands, time};
use crate::style::{Ink, Style};

/// Holders beyond these are counted, not listed.
const HOLDERS_SHOWN: usize = 8;

pub fn explanation(e: &Explanation, now: Time, style: Style) -> String {
    let mut lines = vec![format!(
        "job {} waits: {}",
        e.task,
        style.paint(Ink::Bold, &verdict(&e.verdict, now))
    )];
    if let Verdict::Busy(s) | Verdict::NodesUnavailable(s) = &e.verdict {
        lines.extend(blocked(s).into_iter().map(|l| format!("  {l}")));
    }
    if e.ahead > 0 {
        let verb = if e.ahead == 1 { "is" } else { "are" };
        lines.push(format!("{} {verb} tried before it", count(e.ahead, "task")));
    }
    let short = matches!(
        e.verdict,
        Verdict::Busy(_) | Verdict::NodesUnavailable(_) | Verdict::Behind { .. }
    );
    if short && !e.holders.is_empty() {
        lines.push("what it needs is held by".to_owned());
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
    }
    if let Some(at) = e.starts_by {
        lines.push(format!(
            "starts by {} at the latest (in {}) if nothing comes before it",
            time::clock(at),
            time::short(at.since(now))
        ));
    } else if matches!(e.verdict, Verdict::Busy(_)) {
        lines.push("no start can be promised: a holder has no time limit".to_owned());
    }
    if !e.advice.is_empty() {
        lines.push("what would help".to_owned());
        lines.extend(e.advice.iter().map(|a| format!("  - {}", harmless(a))));
    }
    lines.join("\n")
}

fn verdict(v: &Verdict, now: Time) -> String {
    match v {
        Verdict::Held => "it is held; tutti release lets it start".to_owned(),
        Verdict::Dependencies { waiting_for } => {
            let jobs: Vec<_> = waiting_for.iter().map(ToString::to_string).collect();
            format!("for other jobs to end ({})", jobs.join(", "))
        }
        Verdict::BackOff { until } => {
            format!(
                "it failed a moment ago and is tried again in {}",
                time::short(until.since(now))
            )
        }
        Verdict::ArrayLimit { max_running } => {
            format!("its array runs at most {max_running} tasks at once")
        }
        Verdict::Busy(s) => format!("{}, and {}", wanted(s), fitting(s)),
        Verdict::NodesUnavailable(s) => {
            format!("{}, and too many suitable nodes are away or draining", wanted(s))
        }
        Verdict::Behind { job } => format!("room is kept for job {job}, which has waited longer"),
        Verdict::Next => "it is about to be tried".to_owned(),
    }
}

fn wanted(s: &Shortage) -> String {
    let nodes = count(s.nodes_wanted.into(), "node");
    if s.gpus_wanted == 0 {
        return format!("it wants {nodes}");
    }
    format!("it wants {} on {nodes}", count(s.gpus_wanted.into(), "GPU"))
}

fn fitting(s: &Shortage) -> String {
    let free = match s.gpus_free {
        0 => "no GPU is free".to_owned(),
        1 => "1 GPU is free".to_owned(),
        n => format!("{} are free", count(n.into(), "GPU")),
    };
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
        (b.draining, "draining"),
        (b.away, "lost, away or cleaning up"),
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
}
