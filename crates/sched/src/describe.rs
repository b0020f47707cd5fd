//! Verdicts in words. There is no other place that has any: lists show the sentence, and `why`
//! the same sentence with what is behind it.

use tutti_model::{
    Blocked, ClaimCause, DependOn, Dependency, GpuIndex, LostSleep, Shortage, SuspendCause, TaskId,
    Time, Topology, Verdict, WakeNeed,
};

/// Jobs that are listed before the rest is counted.
const JOBS_SHOWN: usize = 8;
const NODES_SHOWN: usize = 3;

/// A verdict for a page of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    pub sentence: String,
    /// What is behind it, a line each.
    pub details: Vec<String>,
}

/// One short sentence for a list. Points in time are left out: see [`tell`].
pub fn describe(verdict: &Verdict) -> String {
    let sentence = sentence(verdict, &|_| None);
    let reasons = shortage(verdict).map(|s| reasons(&s.blocked)).unwrap_or_default();
    let reasons: Vec<String> = reasons.iter().map(|r| format!("{} {}", r.nodes, r.short)).collect();
    if reasons.is_empty() { sentence } else { format!("{sentence} ({})", reasons.join(", ")) }
}

/// The same sentence, and all that is known. `when` says a time as the reader likes it.
pub fn tell(verdict: &Verdict, when: &dyn Fn(Time) -> String) -> Told {
    let sentence = sentence(verdict, &|at| Some(when(at)));
    Told { sentence, details: details(verdict) }
}

type When<'w> = &'w dyn Fn(Time) -> Option<String>;

fn sentence(verdict: &Verdict, when: When<'_>) -> String {
    let at = |time: Time, before: &str| match when(time) {
        Some(words) => format!("{before}{words}"),
        None => String::new(),
    };
    match verdict {
        Verdict::Held { suspended: None } => "held until it is released".to_owned(),
        Verdict::Held { suspended: Some(lost) } => lost_sleep(lost),
        Verdict::Dependencies { waiting_for } => dependencies(waiting_for),
        Verdict::BackOff { until } => {
            format!("failed a moment ago, will be tried again{}", at(*until, " at "))
        }
        Verdict::ArrayLimit { max_running: 1 } => "the array runs one task at a time".to_owned(),
        Verdict::ArrayLimit { max_running } => {
            format!("the array runs at most {max_running} tasks at once")
        }
        Verdict::Busy(s) => format!("needs {}, {}", wanted(s, "free "), fitting(s)),
        Verdict::NodesUnavailable(s) => {
            format!("waits for nodes to come back: needs {}, {}", wanted(s, ""), fitting(s))
        }
        Verdict::Behind { job } => format!("would delay job {job}, which is before it in line"),
        Verdict::TeamLimit { team, limit, wanted, model, .. } if wanted > limit => {
            let limit = gpus(*limit, model.as_deref());
            format!(
                "can never start under this policy: team {team} may have {limit} at once and this \
                 needs {wanted}"
            )
        }
        Verdict::TeamLimit { team, limit, used, wanted, model } => {
            let limit = gpus(*limit, model.as_deref());
            format!("team {team} may have {limit} at once, has {used} and this needs {wanted}")
        }
        Verdict::Reserved { reservation, shortage: s, until } => {
            let (wanted, fitting) = (wanted(s, "free "), fitting(s));
            let until = at(*until, ", until ");
            format!("nodes are reserved ({reservation}{until}): needs {wanted}, {fitting}")
        }
        Verdict::Claimed { cause, waiting_for } => claimed(*cause, waiting_for),
        Verdict::Suspended { why, stays, needs, held_up } => {
            asleep(why, *stays, needs, held_up.as_deref())
        }
        Verdict::Next => "next in line".to_owned(),
    }
}

fn lost_sleep(lost: &LostSleep) -> String {
    let by = lost.by.as_deref().unwrap_or("somebody");
    let with = lost.node.as_ref().map_or_else(String::new, |node| format!(" with node {node}"));
    let from = match lost.step {
        Some(step) => format!("from step {step} "),
        None => String::new(),
    };
    format!(
        "suspended by {by}; its state in memory was lost{with}; starts again {from}when it is resumed"
    )
}

fn asleep(why: &SuspendCause, stays: bool, needs: &[WakeNeed], held_up: Option<&str>) -> String {
    let why = match why {
        SuspendCause::Preempted { for_job } => format!("suspended for job {for_job}"),
        SuspendCause::Asked { by } => format!("suspended by {by}"),
    };
    if stays {
        return format!("{why}; wakes when it is resumed (`tutti resume`)");
    }
    let need = |n: &WakeNeed| {
        let fenced = match n.fenced.len() {
            0 => String::new(),
            _ => format!(" ({})", are_fenced(&n.fenced)),
        };
        format!("{} {} free on {}{fenced}", needed(n), are(n.gpus), n.node)
    };
    let shown: Vec<String> = needs.iter().take(NODES_SHOWN).map(need).collect();
    let more = match needs.len().saturating_sub(NODES_SHOWN) {
        0 => String::new(),
        n => format!(" and the same for {n} more"),
    };
    match held_up {
        Some(words) => format!("{why}; can't wake now: {words}"),
        None if needs.is_empty() => format!("{why}; about to wake"),
        None => format!("{why}; wakes when {}{more}", shown.join(", ")),
    }
}

/// "2 h100", or which ones where only those will do.
fn needed(need: &WakeNeed) -> String {
    let own: Vec<String> = need.own.iter().map(ToString::to_string).collect();
    match own.as_slice() {
        [] => format!("{} {}", need.gpus, need.model),
        [one] => format!("its own GPU {one}"),
        several => format!("its own GPUs {}", several.join(", ")),
    }
}

/// "GPU 3 is fenced".
fn are_fenced(gpus: &[GpuIndex]) -> String {
    let names: Vec<String> = gpus.iter().map(ToString::to_string).collect();
    match names.as_slice() {
        [one] => format!("GPU {one} is fenced"),
        several => format!("GPUs {} are fenced", several.join(", ")),
    }
}

fn are(n: u32) -> &'static str {
    if n == 1 { "is" } else { "are" }
}

fn shortage(verdict: &Verdict) -> Option<&Shortage> {
    match verdict {
        Verdict::Busy(s) | Verdict::NodesUnavailable(s) => Some(s),
        Verdict::Reserved { shortage, .. } => Some(shortage),
        _ => None,
    }
}

fn details(verdict: &Verdict) -> Vec<String> {
    match verdict {
        Verdict::Claimed { cause, waiting_for } if !waiting_for.is_empty() => {
            let over = if *cause == ClaimCause::Overdue { "ended" } else { "stopped" };
            let (jobs, have) =
                if waiting_for.len() == 1 { ("job", "has") } else { ("jobs", "have") };
            vec![format!("it starts when {jobs} {} {have} {over}", list(waiting_for))]
        }
        Verdict::Suspended { needs, .. } => {
            let free = |n: &WakeNeed| {
                let (needed, of, own) = (needed(n), &n.node, n.own.is_empty());
                let why = if own { "" } else { " (its driver can't bring it back on others)" };
                let fenced = match n.fenced.len() {
                    0 => String::new(),
                    _ => format!(", {}", are_fenced(&n.fenced)),
                };
                format!("{of}: it needs {needed}{why}, {} {} free{fenced}", n.free, are(n.free))
            };
            needs.iter().map(free).collect()
        }
        _ => shortage(verdict).map_or_else(Vec::new, missing),
    }
}

/// One line per reason that keeps nodes from taking a part.
fn missing(s: &Shortage) -> Vec<String> {
    let free = (s.gpus_wanted > 0).then(|| match s.gpus_free {
        0 => "no GPU is free on the nodes that it may use".to_owned(),
        1 => "1 GPU is free on the nodes that it may use".to_owned(),
        n => format!("{n} GPUs are free on the nodes that it may use"),
    });
    let nodes = count(s.nodes_total, "node");
    let reason = |r: Reason| format!("{} of {nodes}: {}", r.nodes, r.long);
    free.into_iter().chain(reasons(&s.blocked).into_iter().map(reason)).collect()
}

fn list(tasks: &[TaskId]) -> String {
    let mut shown: Vec<String> = tasks.iter().take(JOBS_SHOWN).map(ToString::to_string).collect();
    if tasks.len() > JOBS_SHOWN {
        shown.push(format!("{} more", tasks.len() - JOBS_SHOWN));
    }
    shown.join(", ")
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

pub(crate) fn dependency(d: &Dependency) -> String {
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
    several.then_some(match s.within {
        Topology::Island => "NVLink island",
        Topology::Rail => "rail group",
        other => other.as_str(),
    })
}

fn fitting(s: &Shortage) -> String {
    match (domain(s), s.nodes_wanted, s.nodes_fitting) {
        // It wants nodes for itself, whatever is free on them.
        (_, _, 0) if s.blocked.not_empty > 0 => "no node is empty".to_owned(),
        (Some(_), _, 0) => "none fits now".to_owned(),
        (Some(_), _, _) => format!("the best has {} free", s.best_domain),
        (None, 0, nodes) => format!("{} free on {}", s.gpus_free, count(nodes, "fitting node")),
        (None, _, 0) => "none fits now".to_owned(),
        (None, _, 1) => "1 fits now".to_owned(),
        (None, _, nodes) => format!("{nodes} fit now"),
    }
}

/// What keeps this many nodes from taking a part: in a list, and on a line of its own.
struct Reason {
    nodes: u32,
    short: &'static str,
    long: &'static str,
}

fn reasons(b: &Blocked) -> Vec<Reason> {
    [
        (b.gpus_busy, "busy", "too few GPUs free"),
        (b.cpus_busy, "short of CPUs", "too few CPUs free"),
        (b.mem_busy, "short of memory", "too little memory free"),
        (b.draining, "draining", "draining"),
        (b.fenced_busy, "short by a fence", "too few GPUs free, as some are fenced"),
        (b.not_empty, "not empty", "not empty, and it wants its nodes for itself (exclusive)"),
        (b.alone, "all for others", "all for a job that wants its nodes for itself (exclusive)"),
        (b.fenced, "fenced", "with GPUs that are fenced: `tutti nodes` says why"),
        (b.away, "away", "lost, away or cleaning up"),
        (b.reserved, "reserved", "reserved for others or for maintenance"),
        (
            b.unreachable,
            "out of reach of the others",
            "free, but not reached from the others: their addresses are of different machines' loopback",
        ),
        (
            b.port,
            "with its port taken",
            "with a replica on the same fixed `port`: without `port` one is picked for each",
        ),
        (b.kept, "kept for others", "kept for a job before it, or as a spare"),
        (
            b.labels,
            "with other labels",
            "without a label that it wants, or with one that it avoids",
        ),
        (b.unsuitable, "unsuitable", "unsuitable even when empty"),
    ]
    .into_iter()
    .filter(|(nodes, ..)| *nodes > 0)
    .map(|(nodes, short, long)| Reason { nodes, short, long })
    .collect()
}

/// `1 GPU`, `2 h100 GPUs`.
pub(crate) fn gpus(n: u32, model: Option<&str>) -> String {
    model.map_or_else(|| count(n, "GPU"), |model| count(n, &format!("{model} GPU")))
}

/// `1 GPU`, `2 GPUs`.
pub(crate) fn count(n: u32, what: &str) -> String {
    tutti_model::count(n.into(), what)
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
        let limit = |model| Verdict::TeamLimit {
            team: "vision".to_owned(),
            limit: 16,
            used: 12,
            wanted: 8,
            model,
        };
        let expected = "team vision may have 16 GPUs at once, has 12 and this needs 8";
        assert_eq!(describe(&limit(None)), expected);
        let expected = "team vision may have 16 h100 GPUs at once, has 12 and this needs 8";
        assert_eq!(describe(&limit(Some("h100".to_owned()))), expected);
        let team = "vision".to_owned();
        let never = Verdict::TeamLimit { team, limit: 4, used: 2, wanted: 8, model: None };
        let expected = "can never start under this policy: team vision may have 4 GPUs at once and \
                        this needs 8";
        assert_eq!(describe(&never), expected);
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

    /// A quarter of a GPU is that in lists and on the page of `why` alike.
    #[test]
    fn a_list_and_a_page_say_the_same() {
        let s = Shortage {
            nodes_wanted: 1,
            gpus_wanted: 1,
            gpus_free: 0,
            nodes_total: 4,
            share: Milli(250),
            blocked: Blocked { gpus_busy: 3, away: 1, ..Blocked::default() },
            ..Shortage::default()
        };
        let told = tell(&Verdict::Busy(s.clone()), &|_| String::new());
        assert_eq!(told.sentence, "needs a node with 0.25 of a free GPU, none fits now");
        let listed = describe(&Verdict::Busy(s.clone()));
        assert_eq!(listed, format!("{} (3 busy, 1 away)", told.sentence));
        assert_eq!(
            told.details,
            [
                "no GPU is free on the nodes that it may use",
                "3 of 4 nodes: too few GPUs free",
                "1 of 4 nodes: lost, away or cleaning up"
            ]
        );
        let reserved =
            Verdict::Reserved { reservation: "power work".to_owned(), until: Time(7), shortage: s };
        let told = tell(&reserved, &|at| format!("{} o'clock", at.0));
        let expected = "nodes are reserved (power work, until 7 o'clock): needs a node with 0.25 \
                        of a free GPU, none fits now";
        assert_eq!(told.sentence, expected);
        let again = tell(&Verdict::BackOff { until: Time(9) }, &|at| at.0.to_string());
        assert_eq!(again.sentence, "failed a moment ago, will be tried again at 9");
    }

    #[test]
    fn a_page_lists_who_has_to_go() {
        let waiting = |n: u64| (1..=n).map(|n| TaskId::single(JobId(n))).collect();
        let told = |cause, n| {
            tell(&Verdict::Claimed { cause, waiting_for: waiting(n) }, &|_| String::new()).details
        };
        assert_eq!(told(ClaimCause::Class, 2), ["it starts when jobs 1, 2 have stopped"]);
        assert_eq!(told(ClaimCause::Overdue, 1), ["it starts when job 1 has ended"]);
        let many = ["it starts when jobs 1, 2, 3, 4, 5, 6, 7, 8, 2 more have stopped"];
        assert_eq!(told(ClaimCause::Guarantee, 10), many);
        assert!(told(ClaimCause::Guarantee, 0).is_empty());
    }
}
