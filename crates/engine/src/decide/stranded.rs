//! Suspended tasks whose node can't take them back: too few of its GPUs are whole.

use tutti_model::{
    Attempt, Finding, Gpu, GpuIndex, HealthAction, LeaseId, Link, Part, Span, State, StopCause,
    TaskId, Time,
};

use super::View;

/// For so long a fence may turn out to be for a moment only. Whoever lets a task go on that was kept
/// suspended has as long to mend its GPUs.
const HOPES_FOR: Span = Span::secs(600);

/// Those that can never wake, from when, and why. They start again elsewhere.
pub(super) fn stranded(view: View<'_>) -> impl Iterator<Item = (Time, LeaseId, StopCause)> {
    view.state.index.asleep.iter().filter_map(move |&(_, id)| {
        let attempt = view.state.job(id.job)?.task(id.index)?.attempt()?;
        let (at, why) = of_attempt(view.state, attempt)?;
        Some((at, attempt.lease(id), why))
    })
}

/// When this suspended attempt is given up, unless GPUs of its nodes are mended before.
fn of_attempt(state: &State, attempt: &Attempt) -> Option<(Time, StopCause)> {
    let pause = attempt.pause().filter(|pause| !pause.stays)?;
    let live = attempt.parts.iter().filter(|p| !p.phase.is_over());
    let (at, why) = live.filter_map(|part| lacks_gpus(state, part)).min_by_key(|(at, _)| *at)?;
    let hoped = pause.released_at.map(|at| at.plus(HOPES_FOR));
    Some((hoped.map_or(at, |hoped| hoped.max(at)), why))
}

/// When a suspended task that can't wake for broken GPUs is stopped, to start again elsewhere.
pub fn gives_up_at(state: &State, task: TaskId) -> Option<Time> {
    let attempt = state.job(task.job)?.task(task.index)?.attempt()?;
    of_attempt(state, attempt.is_suspended().then_some(attempt)?).map(|(at, _)| at)
}

/// Since when the node has too few GPUs like those of a suspended part, broken ones given up.
fn lacks_gpus(state: &State, part: &Part) -> Option<(Time, StopCause)> {
    let node = state.node(part.node).filter(|n| n.link == Link::Up)?;
    let home = part.home_gpus();
    let known = |index: &GpuIndex| node.facts.gpus.iter().find(|g| g.index == *index);
    if let Some(gone) = home.iter().find(|index| known(index).is_none()) {
        let text = format!("GPU {gone} is not there any more");
        let (gpu, action) = (Some(*gone), HealthAction::FenceGpu);
        return Some((Time(0), StopCause::Unhealthy { node: node.id, gpu, text, action }));
    }
    let mut soonest = None;
    for had in home.iter().filter_map(known) {
        let does = |g: &Gpu| node.facts.can_move || home.contains(&g.index);
        let same = |g: &&Gpu| (&g.model, g.mem) == (&had.model, had.mem) && does(g);
        let needed = home.iter().filter_map(known).filter(same).count();
        let all = node.facts.gpus.iter().filter(same);
        let fenced = |f: &&Finding, gpu: GpuIndex| f.fences() == Some(gpu);
        let fence = |gpu| node.findings.iter().filter(move |f| fenced(f, gpu));
        let mut given_up: Vec<(Time, &Finding)> = all
            .clone()
            .filter_map(|g| fence(g.index).min_by_key(|f| f.since))
            .map(|f| (f.since.plus(HOPES_FOR), f))
            .collect();
        given_up.sort_by_key(|(at, f)| (*at, f.gpu));
        // So many may be lost before it is one too few.
        let spare = all.count().saturating_sub(needed);
        let Some(&(at, finding)) = given_up.get(spare) else { continue };
        if soonest.as_ref().is_none_or(|(first, _)| at < *first) {
            let (gpu, text, action) = (finding.gpu, finding.text.clone(), finding.action);
            soonest = Some((at, StopCause::Unhealthy { node: node.id, gpu, text, action }));
        }
    }
    soonest
}
