//! The rules: whether what is seen is bad, and in which words.

use tutti_model::{Period, Span, Terms, Time, WatchRule, count};

use crate::seen::{
    Certificate, CertificateSeen, CirclingSeen, DiskSeen, GpuSeen, NodeSeen, Steps, TaskSeen,
    TeamSeen,
};
use crate::track::Signal;

/// A level that must be above its limit is good from here on: half as much again.
const AGAIN: f64 = 1.5;
/// The same for power, which is never that much more.
const POWER_AGAIN: f64 = 1.3;
/// One that must be below it is good from here on, in shares of the whole.
const LESS: f64 = 0.02;
/// Something runs on it all the time.
const ALWAYS_BUSY: f64 = 0.95;
/// Less than this and nothing runs on it.
const NEVER_BUSY: f64 = 0.03;
/// Waiting for others moves no data; work does.
const NO_TRAFFIC: f64 = 0.02;
/// A certificate is good again with this much more.
const MARGIN: Span = Span::secs(86_400);
/// So many GPUs are named, the rest is counted.
const NAMED: usize = 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Judged {
    pub signal: Signal,
    /// What is wrong, if it is bad.
    pub text: String,
}

impl Judged {
    fn bad(text: String) -> Judged {
        Judged { signal: Signal::Bad, text }
    }
    const BETWEEN: Judged = Judged { signal: Signal::Between, text: String::new() };
    const GOOD: Judged = Judged { signal: Signal::Good, text: String::new() };

    fn if_good(good: bool) -> Judged {
        if good { Judged::GOOD } else { Judged::BETWEEN }
    }

    /// Of several, those that are known decide. If none is, nothing ends.
    fn if_all_good(known: impl Iterator<Item = bool>) -> Judged {
        let known: Vec<bool> = known.collect();
        Judged::if_good(!known.is_empty() && known.iter().all(|good| *good))
    }
}

/// None: the rule is not about such a task.
pub(crate) fn task(rule: WatchRule, terms: &Terms, task: &TaskSeen) -> Option<Judged> {
    // A new controller does not know them at first, and that mends nothing.
    let by_steps = |judge: fn(&Terms, &Steps) -> Judged| {
        task.steps.as_ref().map_or(Judged::BETWEEN, |steps| judge(terms, steps))
    };
    match rule {
        WatchRule::Idle if !task.gpus.is_empty() => Some(idle(terms, &task.gpus)),
        WatchRule::Stalled => Some(by_steps(stalled)),
        WatchRule::Straggler => Some(by_steps(straggler)),
        WatchRule::Hang if !task.gpus.is_empty() => Some(hang(terms, task)),
        WatchRule::Memory if !task.gpus.is_empty() => Some(memory(terms, &task.gpus)),
        _ => None,
    }
}

/// It spins, as somebody who waits for others does: that is no work, but no idleness either.
fn spins(gpu: &GpuSeen) -> bool {
    gpu.busy.is_some_and(|busy| busy >= ALWAYS_BUSY)
}

fn idle(terms: &Terms, gpus: &[GpuSeen]) -> Judged {
    let limit = terms.limit.share();
    let is_idle = |gpu: &&GpuSeen| gpu.activity.is_some_and(|a| a < limit) && !spins(gpu);
    let idle: Vec<&GpuSeen> = gpus.iter().filter(is_idle).collect();
    if idle.is_empty() {
        let works = |gpu: &GpuSeen| match spins(gpu) {
            true => Some(true),
            false => gpu.activity.map(|activity| activity >= limit * AGAIN),
        };
        return Judged::if_all_good(gpus.iter().filter_map(works));
    }
    let (n, all) = (idle.len(), gpus.len());
    let which = match (n, all) {
        (1, 1) => "its GPU does nothing".to_owned(),
        (n, all) if n == all => format!("all of its {all} GPUs do nothing"),
        (1, all) => format!("1 of its {all} GPUs does nothing"),
        (n, all) => format!("{n} of its {all} GPUs do nothing"),
    };
    let names = if n == all && all > 1 { String::new() } else { format!(": {}", named(&idle)) };
    Judged::bad(format!("{which} (under {} busy){names}", terms.limit))
}

fn named(gpus: &[&GpuSeen]) -> String {
    let name = |gpu: &&GpuSeen| format!("{} GPU {}", gpu.node, gpu.gpu);
    let names: Vec<String> = gpus.iter().take(NAMED).map(name).collect();
    match gpus.len().saturating_sub(NAMED) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

/// Never before the engine says so, which knows what is usual for the job.
fn stalled(terms: &Terms, steps: &Steps) -> Judged {
    if !steps.stalled {
        return Judged::GOOD;
    }
    if steps.age < terms.limit.time() {
        return Judged::BETWEEN;
    }
    let usual =
        steps.pace.map_or_else(String::new, |pace| format!(", usually one in {}", pace.fine()));
    Judged::bad(format!("no step for {}{usual}", steps.age.short()))
}

fn straggler(terms: &Terms, steps: &Steps) -> Judged {
    // Then it is not slow, it stands.
    let Some(lag) = steps.behind.as_ref().filter(|_| !steps.stalled) else {
        return Judged::if_good(!steps.stalled);
    };
    if lag.steps < u64::from(terms.limit.count()) {
        return Judged::BETWEEN;
    }
    let on = lag.node.as_ref().map_or_else(String::new, |node| format!(" on {node}"));
    Judged::bad(format!("rank {}{on} is {} behind the first", lag.rank, steps_of(lag.steps)))
}

fn steps_of(n: u64) -> String {
    count(n, "step")
}

/// Full use and little power on some, nothing on the rest, and no step: they wait for each other, or
/// for one that is gone.
fn hang(terms: &Terms, task: &TaskSeen) -> Judged {
    let limit = terms.limit.share();
    let waits = |gpu: &&GpuSeen| spins(gpu) && gpu.power.is_some_and(|p| p <= limit);
    let rests = |gpu: &&GpuSeen| gpu.busy.is_some_and(|b| b < NEVER_BUSY);
    let waiting: Vec<&GpuSeen> = task.gpus.iter().filter(waits).collect();
    let silent = task.gpus.iter().all(|gpu| waits(&gpu) || rests(&gpu));
    if let Some(steps) = &task.steps {
        if !no_step(steps) {
            return Judged::GOOD;
        }
    } else if !waiting.iter().all(|gpu| gpu.traffic.is_some_and(|t| t < NO_TRAFFIC)) {
        // One that reports no steps may well work like this; but then it moves data.
        return Judged::GOOD;
    }
    if waiting.is_empty() || !silent {
        // Neither work nor a hang for sure, unless somebody draws power for it.
        let works = |gpu: &GpuSeen| gpu.power.is_some_and(|p| p > limit * POWER_AGAIN);
        return Judged::if_good(task.gpus.iter().any(works));
    }
    let mean = waiting.iter().filter_map(|g| g.power).sum::<f64>() / waiting.len() as f64;
    let mean = percent(mean);
    let who = match waiting.len() {
        1 => format!("1 GPU looks busy but draws {mean} of its power"),
        n => format!("{n} GPUs look busy but draw {mean} of their power"),
    };
    let since = task.steps.as_ref().map_or_else(
        || "and move no data".to_owned(),
        |steps| format!("and there is no step for {}", steps.age.short()),
    );
    Judged::bad(format!("it hangs: {who}, {since}"))
}

/// Longer than two of the usual, or than any that is short.
fn no_step(steps: &Steps) -> bool {
    let usual = steps.pace.unwrap_or(Span::secs(5));
    steps.age.0 > usual.0.saturating_mul(2)
}

/// Nearly full, and at this pace soon wholly: what is full and stays so is how many work.
fn memory(terms: &Terms, gpus: &[GpuSeen]) -> Judged {
    let limit = terms.limit.share();
    let full_in = |gpu: &GpuSeen| {
        let (used, growth) = (gpu.memory?, gpu.growth?);
        let secs = (1.0 - used).max(0.0) / growth;
        (used >= limit && growth > 0.0 && secs <= terms.within.0 as f64 / 1000.0).then_some(secs)
    };
    let soonest = gpus.iter().filter_map(|gpu| Some((gpu, full_in(gpu)?)));
    let Some((gpu, secs)) = soonest.min_by(|a, b| a.1.total_cmp(&b.1)) else {
        let well = |gpu: &GpuSeen| {
            let used = gpu.memory?;
            Some(used < limit - LESS || gpu.growth.is_some_and(|growth| growth <= 0.0))
        };
        return Judged::if_all_good(gpus.iter().filter_map(well));
    };
    let used = percent(gpu.memory.unwrap_or_default());
    let left = Span::secs(secs.round() as u64).short();
    Judged::bad(format!(
        "the memory of {} GPU {} is {used} full and grows: nothing is left in {left}",
        gpu.node, gpu.gpu
    ))
}

pub(crate) fn circling(terms: &Terms, task: &CirclingSeen) -> Judged {
    match task.failures {
        None => Judged::BETWEEN,
        Some(0) => Judged::GOOD,
        Some(n) if n < terms.limit.count() => Judged::BETWEEN,
        Some(n) => {
            let end = if task.over { ", and was given up" } else { "" };
            Judged::bad(format!("failed {} in a row and got nowhere{end}", count(n.into(), "time")))
        }
    }
}

pub(crate) fn host_memory(terms: &Terms, node: &NodeSeen) -> Judged {
    let limit = terms.limit.share();
    match node.memory {
        None => Judged::BETWEEN,
        Some(used) if used < limit => Judged::if_good(used < limit - LESS),
        Some(used) => Judged::bad(format!("{} of its memory is in use", percent(used))),
    }
}

pub(crate) fn flapping(terms: &Terms, node: &NodeSeen, now: Time) -> Judged {
    let recent = node.left.iter().filter(|at| now.since(**at) <= terms.within).count();
    match recent >= terms.limit.count() as usize {
        false => Judged::GOOD,
        true => Judged::bad(format!(
            "was gone {} within {}",
            count(recent as u64, "time"),
            terms.within
        )),
    }
}

pub(crate) fn node_lost(node: &NodeSeen, now: Time) -> Judged {
    let lost = |since: Time| {
        let ago = now.since(since).short();
        Judged::bad(format!(
            "is lost for {ago}: look at its machine, or take it out with tutti drain {}",
            node.name
        ))
    };
    node.lost.map_or(Judged::GOOD, lost)
}

pub(crate) fn shared_key(node: &NodeSeen) -> Judged {
    let shared = |(first, second): &(String, String)| {
        let name = &node.name;
        Judged::bad(format!(
            "two agents hold its key, at {first} and at {second}: nothing new starts there; find out \
             which one is not yours, then `tutti nodes remove {name}` and let it join again"
        ))
    };
    node.shared_key.as_ref().map_or(Judged::GOOD, shared)
}

pub(crate) fn budget(terms: &Terms, team: &TeamSeen) -> Judged {
    let of = team.budget.gpu_hours as f64;
    let used = team.used_hours / of;
    if used < terms.limit.share() {
        return Judged::GOOD;
    }
    let period = match team.budget.per {
        Period::Day => "today",
        Period::Week => "this week",
        Period::Month => "this month",
    };
    Judged::bad(format!(
        "used {:.1} of {} {period} ({})",
        team.used_hours,
        count(team.budget.gpu_hours, "GPU-hour"),
        percent(used)
    ))
}

pub(crate) fn disk(terms: &Terms, disk: &DiskSeen) -> Judged {
    let limit = terms.limit.share();
    let Some(free) = disk.free else { return Judged::BETWEEN };
    if free >= limit {
        return Judged::if_good(free >= limit * AGAIN);
    }
    let where_to = disk.path.as_ref().map_or_else(String::new, |path| format!(" for {path}"));
    let mib = disk.free_bytes >> 20;
    Judged::bad(format!("only {} ({mib} MiB) of the disk is free{where_to}", percent(free)))
}

pub(crate) fn certificate(terms: &Terms, certificate: &CertificateSeen) -> Judged {
    let limit = terms.limit.time();
    if certificate.left >= limit {
        return Judged::if_good(certificate.left.0 >= limit.0.saturating_add(MARGIN.0));
    }
    let days = certificate.left.0 / 86_400_000;
    let what = match (certificate.left.is_zero(), days) {
        (true, _) => "has ended".to_owned(),
        (false, days) => format!("ends in {}", count(days, "day")),
    };
    let mend = match certificate.which {
        Certificate::Server => "restart the controller to renew it",
        Certificate::Ca => {
            "it does not renew itself, and all tokens and certificates of nodes end with it; \
             docs/guide/alerts.md says how to make a new one"
        }
    };
    Judged::bad(format!("the {} {what}: {mend}", certificate.which.as_str()))
}

fn percent(share: f64) -> String {
    match share * 100.0 {
        few if few < 10.0 => format!("{few:.1}%"),
        many => format!("{many:.0}%"),
    }
}
