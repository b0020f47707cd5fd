//! `tutti why`: the verdict and what is behind it. The words are the scheduler's; here they are
//! laid out.

use tutti_model::{Explanation, Forecast, KeptFor, Time, Verdict};
use tutti_sched::{tell, tell_blockers};

use super::{count, harmless, thousands, time};
use crate::style::{Ink, Style};

/// Holders beyond these are counted, not listed.
const HOLDERS_SHOWN: usize = 8;
/// Blockers beyond these are counted.
const BLOCKERS_SHOWN: usize = 12;
/// The same for those for whom something is kept.
const KEPT_SHOWN: usize = 9;

pub fn explanation(e: &Explanation, now: Time, style: Style) -> String {
    let told = tell(&e.verdict, &|at| format!("{} ({})", time::clock(at), from_now(at, now)));
    let sentence = style.paint(Ink::Bold, &harmless(&told.sentence));
    // That sentence says itself what it is.
    let pending = !matches!(e.verdict, Verdict::Suspended { .. });
    let state = if pending { "pending: " } else { "" };
    let mut lines = vec![format!("job {} is {state}{sentence}", e.task)];
    lines.extend(told.details.iter().map(|line| format!("  {}", harmless(line))));
    lines.extend(blockers(e, now));
    if e.ahead > 0 {
        let verb = if e.ahead == 1 { "is" } else { "are" };
        lines.push(format!("{} {verb} tried before it", count(e.ahead, "task")));
    }
    lines.extend(holders(e, now));
    lines.extend(kept(e));
    lines.extend(fences(e));
    lines.extend(e.gives_up_at.map(|at| gives_up(at, now)));
    lines.extend(start(e, now));
    lines.extend(e.default_time.as_ref().map(|limit| {
        let (time, of) = (time::short(limit.time), harmless(&limit.of.in_words()));
        format!("it may run for {time}, {of}, as it named no time limit")
    }));
    if !e.advice.is_empty() {
        lines.push("what would help".to_owned());
        lines.extend(e.advice.iter().map(|a| format!("  - {}", harmless(a))));
    }
    lines.join("\n")
}

/// All that keeps it from starting, where that is more than the verdict says.
fn blockers(e: &Explanation, now: Time) -> Vec<String> {
    if e.blockers.is_empty() {
        return Vec::new();
    }
    let when = |at: Time| format!("{} ({})", time::clock(at), from_now(at, now));
    let said = tell_blockers(&e.blockers, &when);
    let mut lines = vec!["what keeps it waiting, what ends last first".to_owned()];
    lines.extend(said.iter().take(BLOCKERS_SHOWN).map(|line| format!("  - {}", harmless(line))));
    if said.len() > BLOCKERS_SHOWN {
        lines.push(format!("  and {} more", thousands((said.len() - BLOCKERS_SHOWN) as u64)));
    }
    lines
}

/// Who has what it waits for.
fn holders(e: &Explanation, now: Time) -> Vec<String> {
    let holders = e.holders_in_its_way();
    if holders.is_empty() {
        return Vec::new();
    }
    let mut lines = vec!["what it needs is held by".to_owned()];
    lines.extend(holders.iter().take(HOLDERS_SHOWN).map(|h| {
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
    if holders.len() > HOLDERS_SHOWN {
        let more = (holders.len() - HOLDERS_SHOWN) as u64;
        lines.push(format!("  and {} more", thousands(more)));
    }
    lines
}

/// What is free, but not for it.
fn kept(e: &Explanation) -> Vec<String> {
    let words = |kept: &KeptFor| {
        let (gpus, nodes) = (count(kept.gpus.into(), "GPU"), count(kept.nodes.into(), "node"));
        format!("kept for job {}: {gpus} on {nodes}", kept.task)
    };
    let mut lines: Vec<String> = e.kept.iter().take(KEPT_SHOWN).map(words).collect();
    if e.kept.len() > KEPT_SHOWN {
        let more = (e.kept.len() - KEPT_SHOWN) as u64;
        lines.push(format!("kept for {} more", thousands(more)));
    }
    lines
}

/// What is broken, or was found to be.
fn fences(e: &Explanation) -> Vec<String> {
    if e.fences.is_empty() {
        return Vec::new();
    }
    let mut lines = vec!["fenced, and could be used otherwise".to_owned()];
    lines.extend(e.fences.iter().take(HOLDERS_SHOWN).map(|f| {
        let (node, text, key) = (harmless(&f.node), harmless(&f.text), harmless(&f.key));
        let mend = format!("`tutti nodes resolve {node} --key {key}` once it is mended");
        format!("  GPU {} of {node}: {text} ({mend})", f.gpu)
    }));
    if e.fences.len() > HOLDERS_SHOWN {
        lines.push(format!("  and {} more", thousands((e.fences.len() - HOLDERS_SHOWN) as u64)));
    }
    lines
}

/// It waits for what is broken for ten minutes only.
fn gives_up(at: Time, now: Time) -> String {
    format!(
        "if its GPUs stay broken it is stopped at {} ({}), and starts again where there is room, \
         from what it saved",
        time::clock(at),
        from_now(at, now)
    )
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
            "it is expected to start {}, by {} at the latest",
            range(early, late, now),
            time::clock(late)
        )),
        (Some(Forecast { early, late: None }), _) => Some(format!(
            "it is expected to start {} ({}) if jobs end as such jobs did before; some have no time \
             limit, so no latest time is known",
            from_now(early, now),
            time::clock(early)
        )),
        (None, Some(at)) => Some(latest(at)),
        (None, None) if matches!(e.verdict, Verdict::Busy(_)) && !e.holders.is_empty() => {
            Some("no start can be promised: a holder has no time limit".to_owned())
        }
        (None, None) => None,
    }
}

fn from_now(at: Time, now: Time) -> String {
    if at <= now { "now".to_owned() } else { format!("in {}", time::short(at.since(now))) }
}

fn range(early: Time, late: Time, now: Time) -> String {
    let late = time::short(late.since(now));
    match early <= now {
        true => format!("within {late}"),
        false => format!("in {} to {late}", time::short(early.since(now))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tutti_model::{
        Blocked, Blocker, DefaultTime, DefaultTimeOf, Fence, GpuIndex, Holder, Obstacle, Shortage,
        Span, SuspendCause, WakeNeed,
    };

    /// Job 12, of which no more is known than this.
    fn because(verdict: Verdict) -> Explanation {
        Explanation {
            task: "12".parse().unwrap(),
            verdict,
            ahead: 0,
            holders: Vec::new(),
            starts_by: None,
            forecast: None,
            advice: Vec::new(),
            fences: Vec::new(),
            kept: Vec::new(),
            gives_up_at: None,
            blockers: Vec::new(),
            default_time: None,
        }
    }

    #[test]
    fn every_blocker_has_a_line_and_a_default_limit_is_said() {
        let until = Some(Time(600_000));
        let left_alone = Obstacle::LeftAlone { task: "7".parse().unwrap(), gpus: 4, nodes: 1 };
        let maintenance = Obstacle::Reservation {
            name: "power\u{1b} work".into(),
            team: None,
            from: Time(0),
            nodes: 2,
        };
        let e = Explanation {
            blockers: vec![
                Blocker::new(Obstacle::Draining { nodes: 1 }, None),
                Blocker::new(left_alone, until),
                Blocker::new(maintenance, until),
            ],
            default_time: Some(DefaultTime { time: Span::secs(3600), of: DefaultTimeOf::Policy }),
            ..because(Verdict::Busy(Shortage::default()))
        };
        let text = explanation(&e, Time(0), Style::PLAIN);
        for want in [
            "what keeps it waiting, what ends last first\n  - 1 node that it could use is draining",
            "  - job 7 has 4 GPUs that it may take, but was preempted before and is left alone until ",
            " (in 10m) (not_again_within)",
            "  - maintenance 'power\\x1b work' on 2 nodes that it could use, from ",
            "it may run for 1h, the default of the cluster, as it named no time limit",
        ] {
            assert!(text.contains(want), "{want} in\n{text}");
        }
    }

    #[test]
    fn what_is_kept_for_others_is_said_and_counted() {
        let one = |id: u64| KeptFor { task: format!("{id}").parse().unwrap(), gpus: 4, nodes: 1 };
        let busy = || Verdict::Busy(Shortage::default());
        let e = Explanation { kept: (20..32).map(one).collect(), ..because(busy()) };
        let text = explanation(&e, Time(0), Style::PLAIN);
        let kept: Vec<&str> = text.lines().filter(|line| line.starts_with("kept for")).collect();
        assert_eq!((kept.len(), kept[0]), (10, "kept for job 20: 4 GPUs on 1 node"));
        assert_eq!(kept[9], "kept for 3 more");
    }

    #[test]
    fn a_busy_cluster_in_sentences() {
        let now = Time(1_000_000);
        let busy = Verdict::Busy(Shortage {
            nodes_wanted: 2,
            gpus_wanted: 16,
            nodes_fitting: 1,
            gpus_free: 11,
            nodes_total: 4,
            blocked: Blocked { gpus_busy: 2, draining: 1, ..Blocked::default() },
            ..Shortage::default()
        });
        let e = Explanation {
            ahead: 1,
            holders: vec![Holder {
                task: "7".parse().unwrap(),
                user: "ada".into(),
                name: "train".into(),
                gpus: 8,
                nodes: 1,
                ends_by: Some(now.plus(Span::secs(90))),
            }],
            advice: vec!["ask for 8 GPUs on 1 node".into()],
            fences: vec![Fence {
                node: "n2".into(),
                gpu: GpuIndex(3),
                key: "xid-48/gpu3".into(),
                text: "XID 48".into(),
                since: Time(0),
            }],
            ..because(busy)
        };
        let text = explanation(&e, now, Style::PLAIN);
        assert_eq!(
            text,
            "job 12 is pending: needs 2 nodes with 8 free GPUs, 1 fits now
  11 GPUs are free on the nodes that it may use
  2 of 4 nodes: too few GPUs free
  1 of 4 nodes: draining
1 task is tried before it
what it needs is held by
  job 7 (train, ada): 8 GPUs on 1 node, ends in 1m30s at the latest
fenced, and could be used otherwise
  GPU 3 of n2: XID 48 (`tutti nodes resolve n2 --key xid-48/gpu3` once it is mended)
no start can be promised: a holder has no time limit
what would help
  - ask for 8 GPUs on 1 node"
        );
    }

    #[test]
    fn times_are_told_from_now_and_names_are_harmless() {
        let text = |verdict: Verdict| explanation(&because(verdict), Time(0), Style::PLAIN);
        let reserved = text(Verdict::Reserved {
            reservation: "power\u{1b} work".into(),
            until: Time(90_000),
            shortage: Shortage { nodes_wanted: 1, nodes_total: 4, ..Shortage::default() },
        });
        let start = "job 12 is pending: nodes are reserved (power\\x1b work, until ";
        assert!(reserved.starts_with(start), "{reserved}");
        assert!(reserved.contains(" (in 1m30s)): needs a node, none fits now"), "{reserved}");
        let again = text(Verdict::BackOff { until: Time(5_000) });
        let start = "job 12 is pending: failed a moment ago, will be tried again at ";
        assert!(again.starts_with(start) && again.ends_with(" (in 5s)"), "{again}");
    }

    #[test]
    fn the_start_is_a_range() {
        let at = |early: u64, late: Option<u64>| {
            let forecast = Some(Forecast { early: Time(early), late: late.map(Time) });
            start(&Explanation { forecast, ..because(Verdict::Next) }, Time(60_000)).unwrap()
        };
        assert!(at(90_000, Some(120_000)).starts_with("it is expected to start in 30s to 1m, by "));
        assert!(at(90_000, None).starts_with("it is expected to start in 30s ("));
        assert!(at(0, Some(120_000)).starts_with("it is expected to start within 1m, by "));
        assert!(at(90_000, Some(90_000)).starts_with("starts by "));
    }

    /// Where nobody holds anything, nobody's time limit is to blame.
    #[test]
    fn holders_are_blamed_only_if_there_are_any() {
        let busy = Verdict::Busy(Shortage { nodes_wanted: 2, ..Shortage::default() });
        assert_eq!(start(&because(busy), Time(0)), None);
    }

    #[test]
    fn a_suspended_job_is_told_of_fences_and_how_long_it_waits_for_them() {
        let need = WakeNeed {
            node: "n1".into(),
            gpus: 2,
            model: "h100".into(),
            free: 1,
            own: Vec::new(),
            fenced: vec![GpuIndex(3)],
        };
        let why = SuspendCause::Preempted { for_job: tutti_model::JobId(9) };
        let suspended = Verdict::Suspended { why, stays: false, needs: vec![need], held_up: None };
        let e = Explanation { gives_up_at: Some(Time(480_000)), ..because(suspended) };
        let text = explanation(&e, Time(0), Style::PLAIN);
        for want in [
            "wakes when 2 h100 are free on n1 (GPU 3 is fenced)",
            "n1: it needs 2 h100, 1 is free, GPU 3 is fenced",
            "if its GPUs stay broken it is stopped at ",
            " (in 8m), and starts again where there is room",
        ] {
            assert!(text.contains(want), "{want} in\n{text}");
        }
    }
}
