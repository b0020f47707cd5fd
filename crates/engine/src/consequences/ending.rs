//! An attempt in trouble is stopped; one that is over is tried again or ends its task.

use std::collections::BTreeSet;

use tutti_model::{
    Attempt, AttemptPhase, Blame, EndReason, Ended, ExitStatus, HealthAction, Job, Kept, LeaseId,
    NodeId, Outcome, Part, PartState, Rank, Span, StopCause, Task, TaskId, Time,
};

use super::blame::{first_failure, launch_error, peer_fault, taken_down};
use crate::decide::{View, explains, own_doing};
use crate::effects::find_attempt;
use crate::event::{Event, Fruit, RetryCause};

/// Exit code of a job that was stopped by its time limit and left no failing exit of its own.
const TIMED_OUT: i32 = 124;
/// Whoever stopped an agent together with its jobs; its name is not known.
const ITS_OPERATOR: &str = "its operator";
const VANISHED: &str = "its processes vanished without an exit code";

pub(super) fn of_attempt(view: View<'_>, lease: LeaseId) -> Vec<Event> {
    let Some(attempt) = find_attempt(view.state, lease) else { return Vec::new() };
    if attempt.is_over() {
        return resolve(view, lease, attempt).into_iter().collect();
    }
    if matches!(attempt.phase, AttemptPhase::Stopping { .. }) {
        return Vec::new();
    }
    let why = first_trouble(view, attempt).or_else(|| could_not_be_suspended(attempt));
    why.map(|why| Event::Stopping { lease, why }).into_iter().collect()
}

/// All of it runs again, and is stopped in the ordinary way.
fn could_not_be_suspended(attempt: &Attempt) -> Option<StopCause> {
    let AttemptPhase::Waking { then, .. } = &attempt.phase else { return None };
    let awake = |p: &Part| p.phase.is_over() || p.asleep.is_none();
    then.clone().filter(|_| attempt.parts.iter().all(awake))
}

/// The reason to stop a gang whose other ranks still run.
fn first_trouble(view: View<'_>, attempt: &Attempt) -> Option<StopCause> {
    let lost = attempt.parts.iter().find(|p| p.phase == PartState::Lost);
    let launch = launch_error(attempt);
    lost.map(|p| StopCause::NodeLost { node: p.node })
        .or_else(|| {
            let ran = has_run(view, attempt);
            launch.map(|(node, e)| StopCause::LaunchFailed { node, error: e.message.clone(), ran })
        })
        .or_else(|| {
            let by = || ITS_OPERATOR.to_owned();
            taken_down(attempt).map(|node| StopCause::Evicted { node, by: by() })
        })
        .or_else(|| peer_fault(attempt))
        .or_else(|| first_failure(attempt).and(broken_part(view, attempt)))
        .or_else(|| {
            let saw = || seen(view, attempt);
            first_failure(attempt).map(|e| StopCause::RankFailed { rank: e.rank, saw: saw() })
        })
}

/// What ends before anybody heard that it ran counts as running from then on.
fn has_run(view: View<'_>, attempt: &Attempt) -> bool {
    attempt.ran(view.now).is_some_and(|ran| ran.0 > 0)
}

/// What a driver said of its GPUs while it ran, if that is most likely the program's own doing.
fn seen(view: View<'_>, attempt: &Attempt) -> Option<String> {
    attempt.parts.iter().find_map(|part| {
        let node = view.state.node(part.node)?;
        let finding = own_doing(node, part, attempt.placed_at)?;
        Some(format!("on {}: {}", node.facts.name, finding.text))
    })
}

/// A GPU of it is broken: that is why its ranks fail, whoever was heard first.
fn broken_part(view: View<'_>, attempt: &Attempt) -> Option<StopCause> {
    attempt
        .parts
        .iter()
        .find_map(|part| explains(view.state.node(part.node)?, part, attempt.placed_at))
}

/// Every part is over: what becomes of the task?
fn resolve(view: View<'_>, lease: LeaseId, attempt: &Attempt) -> Option<Event> {
    let job = view.state.job(lease.task.job)?;
    let task = job.task(lease.task.index)?;
    Some(Ending { view, job, task, lease, attempt }.event())
}

/// Whether the attempt that is under way would count as fruitful if it failed now.
pub(crate) fn gets_further(view: View<'_>, id: TaskId) -> bool {
    let Some(job) = view.state.job(id.job) else { return false };
    let Some(task) = job.task(id.index) else { return false };
    let Some(attempt) = task.attempt() else { return false };
    let ending = Ending { view, job, task, lease: attempt.lease(id), attempt };
    ending.fruit() == Fruit::Further
}

struct Ending<'a> {
    view: View<'a>,
    job: &'a Job,
    task: &'a Task,
    lease: LeaseId,
    attempt: &'a Attempt,
}

/// Why an attempt failed, and who pays for it.
struct Failure {
    cause: RetryCause,
    /// Where it is not started again if it can be helped.
    node: Option<NodeId>,
    code: Option<i32>,
    reason: EndReason,
    /// It says something about the job, not only about the node.
    own: bool,
}

impl Ending<'_> {
    fn event(&self) -> Event {
        let code = first_failure(self.attempt).map(|e| e.status.code());
        if let AttemptPhase::Stopping { why, .. } = &self.attempt.phase {
            match why {
                StopCause::Cancelled { by, .. } => {
                    let reason = EndReason::Cancelled { by: by.clone() };
                    return self.ended(Outcome::Cancelled, code, reason);
                }
                StopCause::TimeLimit => {
                    let code = code.unwrap_or(TIMED_OUT);
                    return self.ended(Outcome::Failed, Some(code), EndReason::TimeLimit);
                }
                StopCause::Watched { rule, text, again: false } => {
                    let reason = EndReason::Watched { rule: *rule, text: text.clone() };
                    return self.ended(Outcome::Failed, Some(code.unwrap_or(1)), reason);
                }
                StopCause::Preempted { .. } => return self.preempted(code),
                StopCause::Resized { .. } => return self.for_free(RetryCause::Resize),
                StopCause::Evicted { .. } => return self.for_free(RetryCause::Eviction),
                _ => {}
            }
        } else if taken_down(self.attempt).is_some() && self.is_whole() {
            return self.for_free(RetryCause::Eviction);
        }
        if let Some(StopCause::Unhealthy { action, .. }) = self.unhealthy()
            && action > HealthAction::RestartJob
        {
            return self.for_free(RetryCause::Health);
        }
        match self.failure(code) {
            Some(failure) => self.retry(failure),
            None => self.ended(Outcome::Completed, Some(0), EndReason::Finished),
        }
    }

    /// No part of it was lost or could not run.
    fn is_whole(&self) -> bool {
        let lost = |p: &Part| p.phase == PartState::Lost;
        launch_error(self.attempt).is_none() && !self.attempt.parts.iter().any(lost)
    }

    /// A GPU or node of it is broken: it was stopped for that, or its ranks died of it.
    fn unhealthy(&self) -> Option<StopCause> {
        match &self.attempt.phase {
            AttemptPhase::Stopping { why: why @ StopCause::Unhealthy { .. }, .. } => {
                Some(why.clone())
            }
            AttemptPhase::Stopping { why: StopCause::Stalled { .. }, .. } => {
                broken_part(self.view, self.attempt)
            }
            _ => first_failure(self.attempt).and(broken_part(self.view, self.attempt)),
        }
    }

    /// What went wrong, if anything did.
    fn failure(&self, code: Option<i32>) -> Option<Failure> {
        // A lost node explains whatever its peers died of.
        if let Some(part) = self.attempt.parts.iter().find(|p| p.phase == PartState::Lost) {
            let reason = EndReason::NodeFailures { last: part.node };
            return Some(Failure::of_node(part.node, code, reason, false));
        }
        if let Some(StopCause::Unhealthy { node, gpu, text, .. }) = self.unhealthy() {
            let (cause, reason) =
                (RetryCause::NodeFailure, EndReason::Unhealthy { node, gpu, text });
            return Some(Failure { cause, node: None, code, reason, own: false });
        }
        if let Some(failure) = self.launch_failure(code).or_else(|| self.peer_failure(code)) {
            return Some(failure);
        }
        if let Some(exit) = first_failure(self.attempt) {
            return Some(self.rank_failure(exit.rank, exit.status));
        }
        let node = self.unaccounted()?;
        let error = VANISHED.to_owned();
        let reason = EndReason::LaunchFailed { node, error, ran: self.has_run() };
        Some(Failure::of_node(node, code, reason, self.is_elsewhere(node)))
    }

    fn launch_failure(&self, code: Option<i32>) -> Option<Failure> {
        let told = match &self.attempt.phase {
            AttemptPhase::Stopping {
                why: StopCause::LaunchFailed { node, error, ran }, ..
            } => Some((*node, error.clone(), *ran)),
            _ => None,
        };
        let found = launch_error(self.attempt).map(|(node, e)| {
            // How it was when it was told to stop: it goes on running until all of it has.
            let ran = told.as_ref().map_or_else(|| self.has_run(), |(_, _, ran)| *ran);
            (node, e.message.clone(), ran, e.blame)
        });
        let found =
            found.or_else(|| told.map(|(node, error, ran)| (node, error, ran, Blame::Node)));
        let (node, error, ran, blame) = found?;
        let reason = EndReason::LaunchFailed { node, error, ran };
        Some(match blame {
            Blame::Node | Blame::Operator => {
                Failure::of_node(node, code, reason, self.never_ran_elsewhere(node))
            }
            // It may be started there again: that program is gone, or pays for itself.
            Blame::Neighbour => Failure {
                cause: RetryCause::NodeFailure,
                node: None,
                code: code.or(Some(1)),
                reason,
                own: false,
            },
            Blame::Job => Failure {
                cause: RetryCause::JobFailure,
                node: None,
                code: code.or(Some(1)),
                reason,
                own: true,
            },
        })
    }

    /// Ranks found that another one is dead or hangs, or nobody moved any more.
    fn peer_failure(&self, code: Option<i32>) -> Option<Failure> {
        if let Some(StopCause::PeerFault { rank, node, op, why }) = peer_fault(self.attempt) {
            let reason = EndReason::PeerFault { rank, node, op, why };
            return Some(Failure::of_node(node, code, reason, true));
        }
        let AttemptPhase::Stopping { why, .. } = &self.attempt.phase else { return None };
        let (node, reason) = match why {
            StopCause::Stalled { rank, node, idle } => {
                (*node, EndReason::Stalled { rank: *rank, idle: *idle })
            }
            StopCause::Watched { rule, text, .. } => {
                (None, EndReason::Watched { rule: *rule, text: text.clone() })
            }
            _ => return None,
        };
        Some(Failure { cause: RetryCause::NodeFailure, node, code, reason, own: true })
    }

    fn rank_failure(&self, rank: Rank, status: ExitStatus) -> Failure {
        Failure {
            cause: RetryCause::JobFailure,
            node: self.attempt.part_of(rank).map(|p| p.node),
            code: Some(status.code()),
            reason: EndReason::RankFailed { rank, signal: status.signal(), saw: self.saw() },
            own: true,
        }
    }

    /// It may have been seen when the first rank failed, or since.
    fn saw(&self) -> Option<String> {
        let then = match &self.attempt.phase {
            AttemptPhase::Stopping { why: StopCause::RankFailed { saw, .. }, .. } => saw.clone(),
            _ => None,
        };
        then.or_else(|| seen(self.view, self.attempt))
    }

    /// A node that says it is done without the exits of all its ranks.
    fn unaccounted(&self) -> Option<NodeId> {
        let short = |p: &&Part| p.phase.exits().len() < p.ranks as usize;
        self.attempt.parts.iter().find(short).map(|p| p.node)
    }

    /// What runs and then loses its node says nothing about itself.
    fn never_ran_elsewhere(&self, node: NodeId) -> bool {
        !self.has_run() && self.is_elsewhere(node)
    }

    fn has_run(&self) -> bool {
        has_run(self.view, self.attempt)
    }

    /// The same again on one node is that node; the same on another one may be the job.
    fn is_elsewhere(&self, node: NodeId) -> bool {
        !self.task.past().failed_on.contains(&node)
    }

    /// It was asked to go, so how its ranks went says nothing.
    fn for_free(&self, cause: RetryCause) -> Event {
        self.requeued(cause, None, Time(0))
    }

    fn preempted(&self, code: Option<i32>) -> Event {
        if self.spent(RetryCause::Preemption) >= self.budget(RetryCause::Preemption) {
            return self.ended(Outcome::Failed, code, EndReason::Preemptions);
        }
        self.for_free(RetryCause::Preemption)
    }

    /// Starts it again if the budget for this cause allows and it does not go in circles, else ends
    /// it for the reason.
    fn retry(&self, failure: Failure) -> Event {
        let used = self.spent(failure.cause);
        if used >= self.budget(failure.cause) {
            let reason = match (failure.cause, failure.reason) {
                (RetryCause::NodeFailure, EndReason::LaunchFailed { node, .. }) => {
                    EndReason::NodeFailures { last: node }
                }
                (_, reason) => reason,
            };
            return self.ended(Outcome::Failed, failure.code, reason);
        }
        if failure.own && self.fruit() == Fruit::None {
            let attempts = self.task.past().fruitless + 1;
            if attempts >= self.circles_max() {
                let mut nodes: BTreeSet<NodeId> = self.task.past().failed_on.clone();
                nodes.extend(failure.node);
                let (nodes, last) = (nodes.into_iter().collect(), Box::new(failure.reason));
                let reason = EndReason::CrashLoop { attempts, nodes, last };
                return self.ended(Outcome::Failed, failure.code.or(Some(1)), reason);
            }
        }
        let not_before = match self.wait(failure.cause, used) {
            Span(0) => Time(0),
            wait => self.view.now.plus(wait),
        };
        self.requeued(failure.cause, Some(&failure), not_before)
    }

    /// Who asked for so many retries of failures gets them, even if they lead nowhere.
    fn circles_max(&self) -> u32 {
        self.view.settings.fruitless_max.max(self.job.spec.retry.job_failure.saturating_add(1))
    }

    /// A task that never says how far it is gets somewhere by lasting for a while.
    fn fruit(&self) -> Fruit {
        let step = self.view.live.levels().highest_step(self.lease);
        let silent = step.is_none()
            && self.task.past().best_step.is_none()
            && self.task.past().saved.as_ref().is_none_or(|point| point.node.is_none());
        let lasted = self.attempt.ran(self.view.now).unwrap_or_default();
        let further = self.attempt.advanced
            || step > self.task.past().best_step
            || silent && lasted >= self.view.settings.fruitless_below;
        if further { Fruit::Further } else { Fruit::None }
    }

    /// What its budget has paid since it last got further.
    fn spent(&self, cause: RetryCause) -> u32 {
        if self.attempt.advanced {
            return 0;
        }
        match cause {
            RetryCause::NodeFailure => self.task.past().spent.node_failure,
            RetryCause::Preemption => self.task.past().spent.preemption,
            RetryCause::JobFailure => self.task.past().spent.job_failure,
            RetryCause::Resize | RetryCause::Eviction | RetryCause::Health => 0,
        }
    }

    fn budget(&self, cause: RetryCause) -> u32 {
        let retry = &self.job.spec.retry;
        match cause {
            RetryCause::NodeFailure => retry.node_failure,
            RetryCause::Preemption => retry.preemption,
            RetryCause::JobFailure => retry.job_failure,
            RetryCause::Resize | RetryCause::Eviction | RetryCause::Health => u32::MAX,
        }
    }

    fn requeued(&self, cause: RetryCause, failure: Option<&Failure>, not_before: Time) -> Event {
        let further = self.fruit() == Fruit::Further;
        let fruit = match failure {
            _ if further => Fruit::Further,
            Some(failure) if failure.own => Fruit::None,
            _ => Fruit::Unknown,
        };
        let lost = failure.is_some_and(|f| matches!(f.reason, EndReason::NodeFailures { .. }));
        Event::Requeued {
            lease: self.lease,
            cause,
            avoid: failure.and_then(|f| f.node),
            not_before,
            step: self.view.live.levels().highest_step(self.lease),
            fruit,
            failed_on: failure.and_then(|f| f.node).filter(|_| !lost),
            why: self.came_to_its_end().map(Box::new),
            kept: self.kept().map(Box::new),
        }
    }

    /// Who kept it suspended, and where what was suspended is lost.
    fn kept(&self) -> Option<Kept> {
        let kept = self.attempt.kept.as_deref().cloned();
        let kept = kept.or_else(|| self.attempt.kept_asleep())?;
        let lost = self.attempt.parts.iter().find(|p| p.phase == PartState::Lost).map(|p| p.node);
        let node = lost.or_else(|| self.came_to_its_end().and_then(|why| why.node()));
        Some(Kept { node, ..kept })
    }

    /// Why it was stopped or, if all of it was over before anybody could, what it died of.
    fn came_to_its_end(&self) -> Option<StopCause> {
        let vanished = || {
            let (node, error) = (self.unaccounted()?, VANISHED.to_owned());
            Some(StopCause::LaunchFailed { node, error, ran: self.has_run() })
        };
        self.unhealthy().or_else(|| match &self.attempt.phase {
            AttemptPhase::Stopping { why, .. } => Some(why.clone()),
            _ => first_trouble(self.view, self.attempt).or_else(vanished),
        })
    }

    /// A first node failure is nobody's fault and costs no wait; repeated failures wait longer.
    fn wait(&self, cause: RetryCause, used: u32) -> Span {
        let doublings = match cause {
            RetryCause::Preemption
            | RetryCause::Resize
            | RetryCause::Eviction
            | RetryCause::Health => return Span(0),
            RetryCause::NodeFailure if used == 0 => return Span(0),
            RetryCause::NodeFailure => used - 1,
            RetryCause::JobFailure => used,
        };
        let wait = self.view.settings.back_off.0.saturating_mul(1 << doublings.min(20));
        Span(wait).min(self.view.settings.back_off_max)
    }

    fn ended(&self, outcome: Outcome, exit_code: Option<i32>, reason: EndReason) -> Event {
        let ended = Ended {
            outcome,
            exit_code,
            reason,
            started_at: self.task.first_started_at,
            ended_at: self.view.now,
            attempts: self.task.attempts,
            restarts: self.task.restarts,
            nodes: self.attempt.parts.iter().map(|p| p.node).collect(),
            gpus: self.attempt.gpu_count(),
            last_ran: None,
            between: Span(0),
            away: Span(0),
            output_dropped: 0,
        };
        Event::TaskEnded { task: self.lease.task, ended }
    }
}

impl Failure {
    fn of_node(node: NodeId, code: Option<i32>, reason: EndReason, own: bool) -> Failure {
        Failure { cause: RetryCause::NodeFailure, node: Some(node), code, reason, own }
    }
}
