//! Whether what is expected is so; if not, what is so instead.

use std::collections::BTreeSet;

use tutti_engine::Event;
use tutti_model::{
    Attempt, Job, JobState, StopCause, SuspendCause, Task, TaskId, TeamShare, Time, Topology,
    Verdict,
};

use crate::expect::{Expect, Of, Why};
use crate::show;
use crate::words::{Spot, since_epoch};
use crate::world::World;

/// Thousandths by which a share of past use may miss what is expected, and a rounded per cent.
const SHARE_TOLERANCE: u64 = 20;
const ROUNDING: u64 = 5;

/// What was expected and what is, if they differ.
type Found = Result<(), String>;

pub fn check(world: &World, expect: &Expect) -> Found {
    match expect {
        Expect::Refused(_) => Ok(()),
        Expect::Tasks { tasks, what } => tasks.iter().try_for_each(|task| of(world, *task, what)),
        Expect::Count { job, count, state } => {
            let job = find(world, *job)?;
            let is = |task: &TaskId| job.task_state(task.index) == Some(*state);
            let found = show::tasks_of(job).iter().filter(|t| is(t)).count();
            equal(&format!("{} tasks of {}", state.as_str(), job.id), count, &found)
        }
        Expect::Why { task, what } => why(world, *task, what),
        Expect::StoppedFor { task, victims } => {
            let found: BTreeSet<TaskId> = stopped(world)
                .filter(|(_, by)| *by == task.job)
                .map(|(victim, _)| victim)
                .collect();
            let wanted: BTreeSet<TaskId> = victims.iter().copied().collect();
            equal(&format!("stopped for {task}"), &list(wanted), &list(found))
        }
        Expect::SuspendedFor { task, victims } => {
            let of_job = |why: &SuspendCause| matches!(why, SuspendCause::Preempted { for_job } if *for_job == task.job);
            let suspended = world.records.iter().filter_map(|r| match &r.event {
                Event::Suspending { lease, why, .. } => of_job(why).then_some(lease.task),
                _ => None,
            });
            let wanted: BTreeSet<TaskId> = victims.iter().copied().collect();
            equal(&format!("suspended for {task}"), &list(wanted), &list(suspended.collect()))
        }
        Expect::NoPreemption => match stopped(world).next() {
            None => Ok(()),
            Some((victim, by)) => Err(format!("{victim} was stopped for {by}")),
        },
        Expect::StartOrder(tasks) => start_order(world, tasks),
        Expect::Quota { team, rows } => quota(world, team, rows),
        Expect::Node { node, state } => {
            let found = world.state().node_named(node).map(|n| n.state().as_str());
            equal(node, &Some(state.as_str()), &found)
        }
        Expect::Says { node, words } => {
            let drain = world.state().node_named(node).and_then(|n| n.drain.as_ref());
            let said = drain.map(|d| d.reason.clone()).unwrap_or_default();
            said.contains(words.as_str()).then_some(()).ok_or(format!("it says \"{said}\""))
        }
        Expect::FreeGpus { node, gpus } => {
            let found = world.state().node_named(node).map(tutti_model::Node::free_gpu_count);
            equal(&format!("free gpus of {node}"), &Some(*gpus), &found)
        }
    }
}

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, wanted: &T, found: &T) -> Found {
    if wanted == found { Ok(()) } else { Err(format!("{what}: not {wanted:?}, but {found:?}")) }
}

fn list(tasks: BTreeSet<TaskId>) -> String {
    if tasks.is_empty() {
        return "nobody".to_owned();
    }
    tasks.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn find(world: &World, task: TaskId) -> Result<&Job, String> {
    world.state().job(task.job).ok_or_else(|| format!("there is no job {}", task.job))
}

fn record(world: &World, task: TaskId) -> Result<&Task, String> {
    let own = find(world, task)?.task(task.index);
    own.ok_or_else(|| format!("{task} is {}", show::task_words(world, task)))
}

fn attempt(world: &World, task: TaskId) -> Result<&Attempt, String> {
    let own = record(world, task)?.attempt();
    own.ok_or_else(|| format!("{task} is {}", show::task_words(world, task)))
}

/// Who was stopped for which job, in the order in which it happened.
fn stopped(world: &World) -> impl Iterator<Item = (TaskId, tutti_model::JobId)> + '_ {
    world.records.iter().filter_map(|r| match &r.event {
        Event::Stopping { lease, why: StopCause::Preempted { for_job, .. } } => {
            Some((lease.task, *for_job))
        }
        _ => None,
    })
}

fn of(world: &World, task: TaskId, what: &Of) -> Found {
    match what {
        Of::State { state, verdict, on } => state_of(world, task, *state, verdict, on),
        Of::Ranks(nodes) => {
            let parts = &attempt(world, task)?.parts;
            let found: Vec<String> =
                parts.iter().map(|p| world.state().node_name(p.node)).collect();
            equal(&format!("ranks of {task}"), nodes, &found)
        }
        Of::Spans(count, level) => {
            equal(&format!("{} of {task}", level.as_str()), count, &domains(world, task, *level)?)
        }
        Of::OnNodes(count) => {
            equal(&format!("nodes of {task}"), count, &attempt(world, task)?.parts.len())
        }
        Of::StartsBy(at) => {
            let head = world.engine.plan().heads.iter().find(|h| h.task == task);
            let found = head.and_then(|h| h.starts_by);
            let show = |t: &Option<Time>| t.map(since_epoch);
            equal(&format!("{task} starts by"), &show(at), &show(&found))
        }
        Of::StartedAt(at) => {
            equal(&format!("{task} started at"), &Some(since_epoch(*at)), &started(world, task))
        }
        Of::EndedAt(at) => {
            let ended = find(world, task)?.ended(task.index).map(|e| since_epoch(e.ended_at));
            equal(&format!("{task} ended at"), &Some(since_epoch(*at)), &ended)
        }
        Of::ResizedTo(nodes) => {
            let found = world.records.iter().rev().find_map(|r| match &r.event {
                Event::Stopping { lease, why: StopCause::Resized { nodes } } => {
                    (lease.task == task).then_some(*nodes)
                }
                _ => None,
            });
            equal(&format!("{task} was resized to"), &Some(*nodes), &found)
        }
        Of::AskedToStop { signal, grace } => {
            let stops = world.stops.iter().rev().find(|(lease, ..)| lease.task == task);
            let found = stops.map(|(_, signal, grace)| (signal.clone(), *grace));
            equal(&format!("{task} was told to stop"), &Some((signal.clone(), *grace)), &found)
        }
        Of::Stalled => {
            let found = world.engine.stalled(task, world.now);
            found.map(|_| ()).ok_or(format!("{task} is {}", show::task_words(world, task)))
        }
        Of::EndedBy(words) => {
            let ended = find(world, task)?.ended(task.index);
            let found = ended.map(|e| show::reason(&e.reason));
            equal(&format!("{task} ended by"), &Some(words.as_str()), &found)
        }
        Of::Saved(saved) => {
            let found = world.work.saved.get(&task).copied().unwrap_or(false);
            equal(&format!("{task} saved its work"), saved, &found)
        }
        _ => counted(world, task, what),
    }
}

fn counted(world: &World, task: TaskId, what: &Of) -> Found {
    let job = find(world, task)?;
    let ended = job.ended(task.index);
    let restarts = match ended {
        Some(ended) => ended.restarts,
        None => record(world, task)?.restarts,
    };
    match what {
        Of::Attempts(n) => {
            let found = ended.map_or(record(world, task).map_or(0, |t| t.attempts), |e| e.attempts);
            equal(&format!("{task} was tried"), n, &found)
        }
        Of::Preempted(n) => equal(&format!("{task} was preempted"), n, &restarts.preemption),
        Of::Suspended(n) => {
            let out = |r: &&tutti_engine::Record| matches!(&r.event, Event::Waking { lease, refused: None, .. } if lease.task == task);
            let mut times = world.records.iter().filter(out).count() as u32;
            let now = job.task(task.index).and_then(Task::attempt);
            times += u32::from(now.is_some_and(Attempt::is_suspended));
            equal(&format!("{task} was suspended"), n, &times)
        }
        Of::NodeFailures(n) => equal(&format!("{task} lost nodes"), n, &restarts.node_failure),
        Of::Charged(milli) => {
            equal(&format!("{task} is charged"), milli, &attempt(world, task)?.charge)
        }
        Of::Team(team) => equal(&format!("team of {task}"), team, &job.team),
        Of::Claims(spots) => {
            let claim = world.state().claims.get(&task);
            let claim = claim.ok_or_else(|| format!("{task} claims nothing"))?;
            let found = show::placements(world.state(), &claim.parts);
            let parts = claim.parts.iter().map(|p| (p.node, p.gpus.as_slice())).collect();
            placed_on(world, spots, parts).then_some(()).ok_or(format!("{task} claims {found}"))
        }
        other => Err(format!("nobody knows how to check {other:?}")),
    }
}

fn started(world: &World, task: TaskId) -> Option<String> {
    let placed = world.records.iter().rev().find_map(|r| match &r.event {
        Event::Placed { task: t, .. } => (*t == task).then_some(r.at),
        _ => None,
    });
    placed.map(since_epoch)
}

fn state_of(
    world: &World,
    task: TaskId,
    state: JobState,
    verdict: &Option<String>,
    on: &Option<Vec<Spot>>,
) -> Found {
    let job = find(world, task)?;
    let is = || format!("{task} is {}", show::task_words(world, task));
    // An array without an index stands for its untouched rest, and then for the whole job.
    let found = match (job.task_state(task.index), show::verdict(world, task)) {
        (Some(state), _) => state,
        (None, Some(_)) => JobState::Pending,
        (None, None) => job.state(),
    };
    if found != state {
        return Err(is());
    }
    if let Some(wanted) = verdict {
        let label = show::verdict(world, task).as_ref().map(show::label).unwrap_or_default();
        let left = label.strip_prefix(wanted.as_str());
        if !left.is_some_and(|left| left.is_empty() || left.starts_with(' ')) {
            return Err(is());
        }
    }
    if let Some(spots) = on {
        let parts = &attempt(world, task)?.parts;
        let parts = parts.iter().map(|p| (p.node, p.gpus.as_slice())).collect();
        if !placed_on(world, spots, parts) {
            return Err(is());
        }
    }
    Ok(())
}

/// The same nodes, in whatever order, and the same GPUs where they are named.
fn placed_on(
    world: &World,
    spots: &[Spot],
    parts: Vec<(tutti_model::NodeId, &[tutti_model::GpuIndex])>,
) -> bool {
    let held = |spot: &Spot| {
        parts.iter().any(|(node, gpus)| {
            let same = spot.gpus.as_ref().is_none_or(|wanted| wanted == gpus);
            world.state().node_name(*node) == spot.node && same
        })
    };
    spots.len() == parts.len() && spots.iter().all(held)
}

fn domains(world: &World, task: TaskId, level: Topology) -> Result<usize, String> {
    let state = world.state();
    let place = |node| state.node(node).map(|n| state.policy.topology.place_of(n));
    let parts = &attempt(world, task)?.parts;
    let domain = |p: &tutti_model::Part| {
        let place = place(p.node).unwrap_or_default();
        match level {
            Topology::Island | Topology::Node => format!("{}", p.node),
            Topology::Rack => format!("{place:?}"),
            Topology::Rail => format!("{:?} {:?}", place.site, place.rail),
            Topology::Site => format!("{:?}", place.site),
            Topology::Any => String::new(),
        }
    };
    Ok(parts.iter().map(domain).collect::<BTreeSet<_>>().len())
}

fn why(world: &World, task: TaskId, what: &Why) -> Found {
    let (state, plan) = (world.state(), world.engine.plan());
    let explained = tutti_sched::explain(state, plan, &state.policy, task, world.now);
    let Some(explained) = explained else {
        return Err(format!("{task} is {}", show::task_words(world, task)));
    };
    match what {
        Why::Says(words) => {
            let said = describe(&explained.verdict);
            said.contains(words.as_str()).then_some(()).ok_or(format!("it says \"{said}\""))
        }
        Why::Advises(words) => {
            let any = explained.advice.iter().any(|a| a.contains(words.as_str()));
            any.then_some(()).ok_or(format!("it advises {:?}", explained.advice))
        }
        Why::Holders(tasks) => {
            let found: BTreeSet<TaskId> = explained.holders.iter().map(|h| h.task).collect();
            equal("holders", &list(tasks.iter().copied().collect()), &list(found))
        }
        Why::Ahead(n) => equal("ahead of it", n, &explained.ahead),
        Why::Forecast(early, late) => {
            let show =
                |early: Time, late: Option<Time>| (since_epoch(early), late.map(since_epoch));
            let found = explained.forecast.map(|f| show(f.early, f.late));
            equal("forecast", &Some(show(*early, *late)), &found)
        }
    }
}

fn describe(verdict: &Verdict) -> String {
    tutti_sched::describe(verdict)
}

fn start_order(world: &World, tasks: &[TaskId]) -> Found {
    let mut found: Vec<TaskId> = Vec::new();
    for record in &world.records {
        if let Event::Placed { task, .. } = &record.event
            && tasks.contains(task)
            && !found.contains(task)
        {
            found.push(*task);
        }
    }
    let show = |tasks: &[TaskId]| tasks.iter().map(ToString::to_string).collect::<Vec<_>>();
    equal("start order", &show(tasks).join(" "), &show(&found).join(" "))
}

fn quota(world: &World, team: &str, rows: &[(String, u64)]) -> Found {
    let shares = tutti_sched::shares(world.state(), world.now);
    let Some(share) = shares.iter().find(|s| s.team == team) else {
        return Err(format!("the quota table has no row for {team}"));
    };
    for (key, wanted) in rows {
        let found = column(share, key)?;
        let tolerance = match key.as_str() {
            "share" => SHARE_TOLERANCE,
            "target" => ROUNDING,
            _ => 0,
        };
        if found.abs_diff(*wanted) > tolerance {
            return Err(format!("{key} of {team}: not {wanted}, but {found} (in thousandths)"));
        }
    }
    Ok(())
}

fn column(share: &TeamShare, key: &str) -> Result<u64, String> {
    Ok(match key {
        "used" => share.used,
        "borrowed" => share.borrowed,
        "lent" => share.lent,
        "share" => share.share.into(),
        "target" => share.target.into(),
        "running" => share.running,
        "waiting" => share.waiting,
        "guarantee" => share.guarantee.into(),
        "limit" => share.limit.map_or(0, u64::from),
        _ => return Err(format!("nobody knows how to check {key}")),
    })
}
