//! Verdicts in words: one short sentence each.

use tutti_model::{Blocked, ClaimCause, DependOn, Dependency, Shortage, TaskId, Verdict};

/// One short sentence for a list. Points in time are left out: callers show them as they like.
pub fn describe(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Held => "held until it is released".to_owned(),
        Verdict::Dependencies { waiting_for } => dependencies(waiting_for),
        Verdict::BackOff { .. } => "failed a moment ago, will be tried again".to_owned(),
        Verdict::ArrayLimit { max_running: 1 } => "the array runs one task at a time".to_owned(),
        Verdict::ArrayLimit { max_running } => {
            format!("the array runs at most {max_running} tasks at once")
        }
        Verdict::Busy(s) => format!("needs {}, {}", wanted(s, "free "), fitting(s)),
        Verdict::NodesUnavailable(s) => {
            format!("waits for nodes to come back: needs {}, {}", wanted(s, ""), fitting(s))
        }
        Verdict::Behind { job } => format!("would delay job {job}, which is before it in line"),
        Verdict::TeamLimit { team, limit, used, wanted } => {
            format!("team {team} may have {limit} GPUs at once, has {used} and this needs {wanted}")
        }
        Verdict::Reserved { reservation, shortage, .. } => {
            format!("nodes are reserved ({reservation}): needs {}", wanted(shortage, "free "))
        }
        Verdict::Claimed { cause, waiting_for } => claimed(*cause, waiting_for),
        Verdict::Next => "next in line".to_owned(),
    }
}

fn claimed(cause: ClaimCause, waiting_for: &[TaskId]) -> String {
    let jobs = match waiting_for {
        [] => return "about to start on the nodes that are kept for it".to_owned(),
        [one] => format!("job {one}"),
        [one, rest @ ..] => format!("job {one} and {} more", rest.len()),
    };
    match cause {
        ClaimCause::Guarantee => format!("takes back what its team lent: {jobs} is being stopped"),
        ClaimCause::Class => format!("its class goes first: {jobs} is being stopped"),
        ClaimCause::Overdue => format!("nodes are kept for it until {jobs} has ended"),
        ClaimCause::Resize => "changes its number of nodes".to_owned(),
    }
}

fn dependencies(waiting_for: &[Dependency]) -> String {
    const SHOWN: usize = 3;
    let mut jobs: Vec<String> = waiting_for.iter().take(SHOWN).map(dependency).collect();
    if waiting_for.len() > SHOWN {
        jobs.push(format!("{} more", waiting_for.len() - SHOWN));
    }
    format!("waits for {}", jobs.join(", "))
}

fn dependency(d: &Dependency) -> String {
    match d.on {
        DependOn::Ok => format!("job {} to succeed", d.job),
        DependOn::Failed => format!("job {} to fail", d.job),
        DependOn::Any => format!("job {} to end", d.job),
    }
}

fn wanted(s: &Shortage, free: &str) -> String {
    match (s.nodes_wanted, s.gpus_wanted) {
        (0, gpus) => count(gpus, &format!("{free}GPU")),
        (1, 0) => "a node".to_owned(),
        (1, gpus) => format!("a node with {}", count(gpus, &format!("{free}GPU"))),
        (nodes, 0) => format!("{nodes} nodes"),
        (nodes, gpus) => {
            format!("{nodes} nodes with {}", count(gpus / nodes, &format!("{free}GPU")))
        }
    }
}

fn fitting(s: &Shortage) -> String {
    let now = match (s.nodes_wanted, s.nodes_fitting) {
        (0, nodes) => format!("{} free on {}", s.gpus_free, count(nodes, "fitting node")),
        (_, 0) => "none fits now".to_owned(),
        (_, 1) => "1 fits now".to_owned(),
        (_, nodes) => format!("{nodes} fit now"),
    };
    let reasons = blocked(&s.blocked);
    if reasons.is_empty() { now } else { format!("{now} ({reasons})") }
}

fn blocked(b: &Blocked) -> String {
    let parts = [
        (b.gpus_busy, "busy"),
        (b.cpus_busy, "short of CPUs"),
        (b.mem_busy, "short of memory"),
        (b.draining, "draining"),
        (b.away, "away"),
        (b.reserved, "reserved"),
        (b.kept, "kept for others"),
        (b.labels, "with other labels"),
        (b.unsuitable, "unsuitable"),
    ];
    let named = parts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}"));
    named.collect::<Vec<_>>().join(", ")
}

/// `1 GPU`, `2 GPUs`.
pub(crate) fn count(n: u32, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tutti_model::JobId;

    fn busy(nodes_wanted: u32, gpus_wanted: u32, nodes_fitting: u32, blocked: Blocked) -> String {
        let s =
            Shortage { nodes_wanted, gpus_wanted, nodes_fitting, blocked, ..Shortage::default() };
        describe(&Verdict::Busy(s))
    }

    #[test]
    fn verdicts_read_as_sentences() {
        let b = Blocked { gpus_busy: 14, ..Blocked::default() };
        assert_eq!(busy(4, 32, 2, b), "needs 4 nodes with 8 free GPUs, 2 fit now (14 busy)");
        assert_eq!(busy(1, 1, 0, b), "needs a node with 1 free GPU, none fits now (14 busy)");
        let b = Blocked { cpus_busy: 1, draining: 2, ..Blocked::default() };
        assert_eq!(busy(2, 0, 1, b), "needs 2 nodes, 1 fits now (1 short of CPUs, 2 draining)");
        let s =
            Shortage { gpus_wanted: 16, gpus_free: 10, nodes_fitting: 2, ..Shortage::default() };
        assert_eq!(describe(&Verdict::Busy(s)), "needs 16 free GPUs, 10 free on 2 fitting nodes");
        let after = |text: &str| text.parse().unwrap();
        let waiting_for = vec![after("41"), after("failed:42"), after("any:43"), after("44")];
        assert_eq!(
            describe(&Verdict::Dependencies { waiting_for }),
            "waits for job 41 to succeed, job 42 to fail, job 43 to end, 1 more"
        );
        let behind = Verdict::Behind { job: JobId(7) };
        assert_eq!(describe(&behind), "would delay job 7, which is before it in line");
    }
}
