//! Verdicts in words: one short sentence each.

use tutti_model::{Blocked, ClaimCause, DependOn, Dependency, Shortage, TaskId, Topology, Verdict};

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
            let limit = count(*limit, "GPU");
            format!("team {team} may have {limit} at once, has {used} and this needs {wanted}")
        }
        Verdict::Reserved { reservation, shortage: s, .. } => {
            let (wanted, fitting) = (wanted(s, "free "), fitting(s));
            format!("nodes are reserved ({reservation}): needs {wanted}, {fitting}")
        }
        Verdict::Claimed { cause, waiting_for } => claimed(*cause, waiting_for),
        Verdict::Next => "next in line".to_owned(),
    }
}

fn claimed(cause: ClaimCause, waiting_for: &[TaskId]) -> String {
    let (jobs, are, have) = match waiting_for {
        [] => return "about to start on the nodes that are kept for it".to_owned(),
        [one] => (format!("job {one}"), "is", "has"),
        [one, rest @ ..] => (format!("job {one} and {} more", rest.len()), "are", "have"),
    };
    match cause {
        ClaimCause::Guarantee => {
            format!("takes back what its team lent: {jobs} {are} being stopped")
        }
        ClaimCause::Class => format!("its class goes first: {jobs} {are} being stopped"),
        ClaimCause::Overdue => format!("nodes are kept for it until {jobs} {have} ended"),
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
    let gpus = |n: u32| match s.share.is_whole() {
        true => count(n, &format!("{free}GPU")),
        false => format!("{} of a {free}GPU", f64::from(s.share.0) / 1000.0),
    };
    let what = match (s.nodes_wanted, s.gpus_wanted) {
        (0, n) => gpus(n),
        (1, 0) => "a node".to_owned(),
        (1, n) => format!("a node with {}", gpus(n)),
        (nodes, 0) => format!("{nodes} nodes"),
        (nodes, n) => format!("{nodes} nodes with {}", gpus(n / nodes)),
    };
    match domain(s) {
        Some(domain) => format!("{what} in one {domain}"),
        None => what,
    }
}

/// The domain that several nodes, or GPUs on any nodes, must share.
fn domain(s: &Shortage) -> Option<&'static str> {
    let several = s.nodes_wanted != 1 && s.within != Topology::Any;
    several.then(|| s.within.as_str())
}

fn fitting(s: &Shortage) -> String {
    let now = match (domain(s), s.nodes_wanted, s.nodes_fitting) {
        (Some(_), _, 0) => "none fits now".to_owned(),
        (Some(_), _, _) => format!("the best has {} free", s.best_domain),
        (None, 0, nodes) => format!("{} free on {}", s.gpus_free, count(nodes, "fitting node")),
        (None, _, 0) => "none fits now".to_owned(),
        (None, _, 1) => "1 fits now".to_owned(),
        (None, _, nodes) => format!("{nodes} fit now"),
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
    use tutti_model::{JobId, Milli, Time};

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

    #[test]
    fn domains_shares_and_labels_are_named() {
        let s = Shortage {
            nodes_wanted: 4,
            gpus_wanted: 32,
            nodes_fitting: 5,
            within: Topology::Rack,
            best_domain: 3,
            blocked: Blocked { labels: 2, kept: 1, ..Blocked::default() },
            ..Shortage::default()
        };
        assert_eq!(
            describe(&Verdict::Busy(s.clone())),
            "needs 4 nodes with 8 free GPUs in one rack, the best has 3 free \
             (1 kept for others, 2 with other labels)"
        );
        let total = Shortage { nodes_wanted: 0, best_domain: 12, ..s.clone() };
        let busy = describe(&Verdict::Busy(Shortage { blocked: Blocked::default(), ..total }));
        assert_eq!(busy, "needs 32 free GPUs in one rack, the best has 12 free");
        let half = Shortage { nodes_wanted: 1, gpus_wanted: 1, share: Milli(500), ..s };
        let busy = describe(&Verdict::Busy(Shortage { blocked: Blocked::default(), ..half }));
        assert_eq!(busy, "needs a node with 0.5 of a free GPU, 5 fit now");
    }

    #[test]
    fn limits_reservations_and_claims_are_named() {
        let limit =
            Verdict::TeamLimit { team: "vision".to_owned(), limit: 16, used: 12, wanted: 8 };
        let expected = "team vision may have 16 GPUs at once, has 12 and this needs 8";
        assert_eq!(describe(&limit), expected);
        let shortage =
            Shortage { nodes_wanted: 1, gpus_wanted: 8, nodes_fitting: 0, ..Shortage::default() };
        let reservation = "power work".to_owned();
        let reserved = Verdict::Reserved { reservation, until: Time(1), shortage };
        let expected = "nodes are reserved (power work): \
                        needs a node with 8 free GPUs, none fits now";
        assert_eq!(describe(&reserved), expected);
        let claimed = |cause, n: u64| {
            let waiting_for = (1..=n).map(|n| TaskId::single(JobId(n))).collect();
            describe(&Verdict::Claimed { cause, waiting_for })
        };
        let stopped = "takes back what its team lent: job 1 is being stopped";
        assert_eq!(claimed(ClaimCause::Guarantee, 1), stopped);
        let class = "its class goes first: job 1 and 1 more are being stopped";
        assert_eq!(claimed(ClaimCause::Class, 2), class);
        let overdue = "nodes are kept for it until job 1 has ended";
        assert_eq!(claimed(ClaimCause::Overdue, 1), overdue);
        let ready = "about to start on the nodes that are kept for it";
        assert_eq!(claimed(ClaimCause::Class, 0), ready);
        assert_eq!(claimed(ClaimCause::Resize, 1), "changes its number of nodes");
    }
}
