//! A look at everything that rules go by. The engine's world is held for as short as can be; what
//! devices do is read from the rings afterwards.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tutti_engine::Engine;
use tutti_model::{
    AlertJob, Attempt, AttemptPhase, DAY, Drain, EndReason, GpuIndex, GpuSample, Job, JobWatch,
    Link, Node, NodeId, NodeKeyRecord, Part, Policy, Rank, Span, State, Subject, Task, TaskId,
    Time, WatchRule,
};
use tutti_watch::{
    Certificate, CertificateSeen, CirclingSeen, DiskSeen, GpuSeen, Lag, NodeSeen, Seen, Standing,
    Steps, TaskSeen, TeamSeen, Watcher,
};
use tutti_wire::pki::Validity;

use crate::api::App;
use crate::chronicle::Fate;
use crate::clock::patience;
use crate::core::{Stopped, World};
use crate::telemetry::series::Layout;
use crate::telemetry::{Newest, Of, Store};

/// Older values say nothing about now.
const OLD: Span = Span::secs(15);
/// Activity is the mean over this long, or over what a rule waits for if that is shorter.
const WINDOW: Span = Span::secs(60);
const WINDOW_MIN: Span = Span::secs(2);
/// Growth is looked for over a third of the time that counts, but no longer.
const GROWTH_OVER: Span = Span::secs(300);
/// What is within the noise does not grow.
const NOISE: f64 = 0.002;
/// Of jobs that ended lately, so many are looked at.
const ENDED_MAX: usize = 10_000;
/// Whether a job has ended is looked for when something happens, but not more often than this.
const BETWEEN: Duration = Duration::from_millis(200);
const GPU_MS_PER_HOUR: f64 = 1000.0 * 3_600_000.0;

/// What the engine's world says of one task that runs.
struct Found {
    seen: TaskSeen,
    gpus: Vec<(String, GpuIndex)>,
}

pub fn look(app: &App, watcher: &Watcher, now: Time) -> Result<(Arc<Policy>, Seen), Stopped> {
    let eyed: Vec<TaskId> = watcher.eyed(WatchRule::CrashLoop).filter_map(Subject::task).collect();
    let (policy, found, mut seen) = app.core.peek(|world| {
        let state = world.engine.state();
        let seen = Seen {
            now,
            circling: circling(&world.engine, eyed, now),
            nodes: state.nodes.values().map(|node| node_seen(world, node)).collect(),
            teams: teams(state, now),
            ..Seen::default()
        };
        (Arc::clone(&state.policy), running(world, now), seen)
    })?;
    let tasks = found.into_iter().map(|found| on_devices(&app.telemetry, &policy, found, now));
    seen.tasks = tasks.collect();
    on_hosts(&app.telemetry, &mut seen, now);
    seen.disks.push(own_disk(&app.data_dir));
    seen.certificates = certificates(app, now);
    Ok((policy, seen))
}

/// Tasks that stand accused of something that is over when they are. That a job went round in circles
/// stays true after its end.
pub fn said_of(standing: &[Standing]) -> Vec<TaskId> {
    let of_attempts = standing.iter().filter(|one| one.alert.rule != WatchRule::CrashLoop);
    of_attempts.filter_map(|one| one.alert.subject.task()).collect()
}

/// Resolves soon after one of these has ended; never without any.
pub async fn one_is_over(app: &App, tasks: &[TaskId]) {
    if tasks.is_empty() {
        return std::future::pending().await;
    }
    let mut durable = app.core.feed().durable();
    let any = |world: &World| tasks.iter().any(|task| is_over(world.engine.state(), *task));
    // A controller that stops is for the look that follows to find out.
    while !app.core.peek(any).unwrap_or(true) {
        tokio::time::sleep(BETWEEN).await;
        if durable.changed().await.is_err() {
            return;
        }
    }
}

fn is_over(state: &State, task: TaskId) -> bool {
    state.job(task.job).is_none_or(|job| job.ended(task.index).is_some())
}

fn about(job: &Job) -> AlertJob {
    AlertJob { name: job.spec.display_name().to_owned(), user: job.user.clone() }
}

fn running(world: &World, now: Time) -> Vec<Found> {
    let state = world.engine.state();
    let found = |id: &TaskId| {
        let job = state.job(id.job)?;
        let attempt = job.task(id.index)?.attempt()?;
        let runs = matches!(attempt.phase, AttemptPhase::Running { .. });
        if !runs || attempt.is_hardly_awake(now) {
            return None;
        }
        let seen = TaskSeen {
            id: *id,
            era: attempt.generation.0,
            job: about(job),
            asks: job.spec.watch.clone(),
            gpus: Vec::new(),
            steps: steps(world, *id, attempt, now),
        };
        let of_part = |part: &Part| {
            let name = state.node_name(part.node);
            part.gpus.iter().map(|gpu| (name.clone(), *gpu)).collect::<Vec<_>>()
        };
        Some(Found { seen, gpus: attempt.parts.iter().flat_map(of_part).collect() })
    };
    state.index.active.iter().filter_map(found).collect()
}

/// None before it has said anything, and before a new controller has heard of it.
fn steps(world: &World, id: TaskId, attempt: &Attempt, now: Time) -> Option<Steps> {
    let state = world.engine.state();
    let progress = world.progress.of_task(state, id, now)?;
    let (step, age) = (progress.step?, progress.age?);
    let behind = progress.behind.map(|rank| Lag {
        rank: Rank(rank),
        node: attempt.part_of(Rank(rank)).map(|part| state.node_name(part.node)),
        steps: progress.step_max.unwrap_or(step).saturating_sub(step),
    });
    let stalled = world.engine.stalled(id, now).is_some();
    Some(Steps { age, pace: progress.pace, stalled, behind })
}

/// Tasks that have failed without getting anywhere, those that a rule has its eye on, and those that
/// were given up for it a while ago.
fn circling(engine: &Engine, eyed: Vec<TaskId>, now: Time) -> Vec<CirclingSeen> {
    let state = engine.state();
    let waiting = state.index.back_off.iter().map(|(_, id)| *id);
    let ids: BTreeSet<TaskId> = state.index.active.iter().copied().chain(waiting).collect();
    let eyed: BTreeSet<TaskId> = eyed.into_iter().collect();
    let seen = |id: &TaskId, job: &Job, failures, over| CirclingSeen {
        id: *id,
        job: about(job),
        asks: job.spec.watch.clone(),
        failures,
        over,
    };
    let live = ids.union(&eyed).filter_map(|id| {
        let job = state.job(id.job)?;
        let failures = failures(engine, *id, job.task(id.index)?, now);
        let worth = job.ended(id.index).is_none() && (failures != Some(0) || eyed.contains(id));
        worth.then(|| seen(id, job, failures, false))
    });
    let mut all: Vec<CirclingSeen> = live.collect();
    let lately = state.policy.watch.terms(WatchRule::CrashLoop).clear;
    let ended = state.index.ended.iter().rev().take(ENDED_MAX);
    all.extend(ended.take_while(|(at, _)| now.since(*at) < lately).filter_map(|(_, id)| {
        let job = state.job(*id)?;
        let EndReason::CrashLoop { attempts, .. } = job.ended(None)?.reason else { return None };
        Some(seen(&TaskId::single(*id), job, Some(attempts), true))
    }));
    all
}

/// How often it has failed in a row and got nowhere. The state counts that when an attempt ends; one
/// that has got further meanwhile has made it good. None: nobody can tell.
fn failures(engine: &Engine, id: TaskId, task: &Task, now: Time) -> Option<u32> {
    let failed = task.past().fruitless;
    let Some(attempt) = task.attempt().filter(|_| failed > 0) else { return Some(failed) };
    if engine.gets_further(id, now) {
        return Some(0);
    }
    // A new controller has forgotten how far it is, and hears so with the hello of its nodes.
    let is_up = |node: NodeId| engine.state().node(node).is_some_and(|n| n.link == Link::Up);
    let is_known = |part: &Part| part.phase.is_over() || is_up(part.node);
    attempt.parts.iter().all(is_known).then_some(failed)
}

fn node_seen(world: &World, node: &Node) -> NodeSeen {
    let (name, left) = (node.facts.name.clone(), left(world, node.id));
    let shared = world.engine.state().node_keys.get(&name).and_then(NodeKeyRecord::shared);
    let shared_key = shared.map(|s| (s.first.clone(), s.second.clone()));
    NodeSeen { name, memory: None, left, lost: lost(node), shared_key }
}

/// Who drains a node by hand knows why it is gone.
fn lost(node: &Node) -> Option<Time> {
    let by_hand = |drain: &Drain| !drain.auto && drain.finding.is_none();
    match node.link {
        Link::Lost { since } if !node.drain.as_ref().is_some_and(by_hand) => Some(since),
        _ => None,
    }
}

/// When the node's stream broke or it fell silent; not when it was the controller that left.
fn left(world: &World, node: NodeId) -> Vec<Time> {
    let mut left: Vec<Time> = Vec::new();
    // Oldest first, so that one who is away and then lost has left once.
    let mut away = false;
    let fates: Vec<_> = world.chronicle.fates_of(node).collect();
    for fate in fates.into_iter().rev() {
        let gone = match fate.what {
            Fate::Away => !world.chronicle.has_started_at(fate.at),
            Fate::Lost => !away,
            _ => false,
        };
        match fate.what {
            Fate::Away | Fate::Lost => away = true,
            Fate::Up | Fate::Joined => away = false,
            _ => {}
        }
        if gone {
            left.insert(0, fate.at);
        }
    }
    left
}

fn teams(state: &State, now: Time) -> Vec<TeamSeen> {
    let today = now.0 / DAY.0;
    let seen = |(name, team): (&String, &tutti_model::Team)| {
        let budget = team.budget?;
        let used = state.ledger.spent_since(name, budget.per.first_day(today), now);
        Some(TeamSeen { name: name.clone(), budget, used_hours: used as f64 / GPU_MS_PER_HOUR })
    };
    state.policy.teams.iter().filter_map(seen).collect()
}

/// Adds what the GPUs of a task do.
fn on_devices(store: &Store, policy: &Policy, found: Found, now: Time) -> TaskSeen {
    let Found { mut seen, gpus } = found;
    let spans = Spans::of(policy, seen.asks.as_deref());
    let gpu = |(node, gpu): &(String, GpuIndex)| gpu_seen(store, node, *gpu, spans, now);
    seen.gpus = gpus.iter().map(gpu).collect();
    seen
}

/// How far back is looked for a task.
#[derive(Clone, Copy)]
struct Spans {
    window: Span,
    growth: Span,
}

impl Spans {
    fn of(policy: &Policy, asks: Option<&JobWatch>) -> Spans {
        let own = |rule: WatchRule| asks.and_then(|asks| asks.own(rule));
        let waits = [WatchRule::Idle, WatchRule::Hang].into_iter().flat_map(|rule| {
            let of_job = own(rule).and_then(|own| own.lasts);
            [Some(policy.watch.terms(rule).lasts), of_job].into_iter().flatten()
        });
        let within = own(WatchRule::Memory).and_then(|own| own.within);
        let within = within.unwrap_or(policy.watch.terms(WatchRule::Memory).within);
        Spans {
            window: waits.min().unwrap_or(WINDOW).clamp(WINDOW_MIN, WINDOW),
            growth: Span(within.0 / 3).clamp(WINDOW_MIN, GROWTH_OVER),
        }
    }
}

fn gpu_seen(store: &Store, node: &str, gpu: GpuIndex, spans: Spans, now: Time) -> GpuSeen {
    let blank = GpuSeen { node: node.to_owned(), gpu: gpu.0, ..GpuSeen::default() };
    let Some(newest) = fresh(store, node, now) else { return blank };
    let Some(sample) = newest.sample.gpus.iter().find(|sample| sample.index == gpu) else {
        return blank;
    };
    let mean = |name: &str, until: Time, over: Span| {
        let from = Time(until.0.saturating_sub(over.0));
        let point = store.mean(node, Of::Gpu(gpu), Layout::gpu().cell(name)?, from, until)?;
        Some(point.mean)
    };
    let lately = |name: &str| mean(name, now, spans.window);
    let (busy, limit) = (lately("util"), sample.power_limit_mw.filter(|mw| *mw > 0));
    let total = memory_total(sample);
    let used = sample.mem_used.zip(total).map(|(used, total)| used.0 as f64 / total);
    let before = mean("mem", Time(now.0.saturating_sub(spans.growth.0)), WINDOW_MIN);
    let growth = before.zip(total).zip(used).map(|((before, total), used)| {
        let more = used - before / total;
        if more.abs() < NOISE { 0.0 } else { more / (spans.growth.0 as f64 / 1000.0) }
    });
    GpuSeen {
        activity: lately("sm").or(busy),
        busy,
        power: lately("power").zip(limit).map(|(w, mw)| w * 1000.0 / f64::from(mw)),
        traffic: lately("dram"),
        memory: used,
        growth,
        ..blank
    }
}

fn memory_total(sample: &GpuSample) -> Option<f64> {
    let total = sample.mem_used?.0 + sample.mem_free?.0;
    (total > 0).then_some(total as f64)
}

fn fresh(store: &Store, node: &str, now: Time) -> Option<Newest> {
    store.newest(node).filter(|newest| newest.age(now) <= patience(OLD))
}

/// Adds what hosts say of their memory and disks.
fn on_hosts(store: &Store, seen: &mut Seen, now: Time) {
    for node in &mut seen.nodes {
        let newest = fresh(store, &node.name, now);
        let host = newest.as_ref().map(|newest| &newest.sample.host);
        let free = |total: u64, free: u64| (total > 0).then(|| free as f64 / total as f64);
        node.memory = host.and_then(|h| free(h.mem_total.0, h.mem_available.0)).map(|f| 1.0 - f);
        seen.disks.push(DiskSeen {
            node: Some(node.name.clone()),
            path: None,
            free: host.and_then(|h| free(h.disk_total.0, h.disk_free.0)),
            free_bytes: host.map_or(0, |h| h.disk_free.0),
        });
    }
}

fn own_disk(dir: &Path) -> DiskSeen {
    let stat = nix::sys::statvfs::statvfs(dir).ok();
    let free = |s: &nix::sys::statvfs::Statvfs| s.blocks_available() * s.fragment_size();
    DiskSeen {
        node: None,
        path: Some(dir.display().to_string()),
        free: stat.as_ref().filter(|s| s.blocks() > 0).map(|s| {
            let total = s.blocks() * s.fragment_size();
            free(s) as f64 / total as f64
        }),
        free_bytes: stat.as_ref().map_or(0, free),
    }
}

fn certificates(app: &App, now: Time) -> Vec<CertificateSeen> {
    let left = |until: SystemTime| {
        let end = until.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Time(u64::try_from(end.as_millis()).unwrap_or(u64::MAX)).since(now)
    };
    let of = |which: Certificate, until| CertificateSeen { which, left: left(until) };
    let ca = Validity::of(app.ca.der()).ok().map(|validity| of(Certificate::Ca, validity.until));
    std::iter::once(of(Certificate::Server, app.server_until)).chain(ca).collect()
}

#[cfg(test)]
mod tests;
