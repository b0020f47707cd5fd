//! How far each task is, as its ranks report it, and how it got there. In memory only: a controller
//! that starts again hears it anew, and the last durable step is in the state.
//!
//! ```text
//! reports ─► Kept { ranks } ─► JobProgress    step: the lowest · loss, tokens: the lowest rank's
//!                    └───────► History        (time, step, loss), thinned out as it grows
//! ```

mod history;

use std::collections::{BTreeMap, VecDeque};

use tutti_engine::Command;
use tutti_model::{
    Attempt, Generation, JobId, LeaseId, NodeId, PartReport, Rank, RankProgress, Span, State,
    TaskId, Time,
};
use tutti_wire::api::{JobProgress, ProgressPoint, RankRow};

use history::History;

/// Tasks that are over and still shown; beyond it the oldest are forgotten.
const OVER_MAX: usize = 1000;
/// A rank that did no step for more than so many times the usual waits for something.
const WAITS: u64 = 2;
/// Tokens per second are counted over so many changes.
const RATE_OVER: usize = 16;

/// What one command says of a current attempt.
pub struct Said {
    lease: LeaseId,
    ranks: Vec<RankProgress>,
}

/// What ranks say in this command. To be looked for before the step: it may end the attempt.
pub fn said(state: &State, command: &Command) -> Vec<Said> {
    let (node, parts): (Option<NodeId>, &[PartReport]) = match command {
        Command::Heartbeat { node, parts, .. } => (Some(*node), parts),
        Command::Report { node, report, .. } => (Some(*node), std::slice::from_ref(report)),
        Command::Hello { greeting, .. } => {
            (state.node_named(&greeting.facts.name).map(|node| node.id), &greeting.parts)
        }
        _ => return Vec::new(),
    };
    parts.iter().filter_map(|part| of_part(state, node?, part)).collect()
}

/// A node speaks for the ranks that it has of the current attempt, and for no others.
fn of_part(state: &State, node: NodeId, part: &PartReport) -> Option<Said> {
    let attempt = attempt(state, part.lease.task)?;
    let own = attempt.part_on(node)?;
    let has = |said: &&RankProgress| own.has_rank(said.rank);
    let said = part.progress.as_ref().filter(|_| attempt.generation == part.lease.generation)?;
    // One for each rank: those who say more of one than once are not counted for as many.
    let ranks: Vec<RankProgress> =
        said.ranks.iter().filter(has).take(own.ranks as usize).cloned().collect();
    (!ranks.is_empty()).then_some(Said { lease: part.lease, ranks })
}

fn attempt(state: &State, task: TaskId) -> Option<&Attempt> {
    state.job(task.job)?.task(task.index)?.attempt()
}

#[derive(Debug, Default)]
pub struct Book {
    tasks: BTreeMap<TaskId, Kept>,
}

#[derive(Debug)]
struct Kept {
    generation: Generation,
    heard: Time,
    ranks: BTreeMap<Rank, Heard>,
    /// When the tokens were how many.
    tokens: VecDeque<(Time, u64)>,
    history: History,
    /// The step at which the curve goes on: where it was when one more rank was heard.
    curve_waits_until: Option<u64>,
}

/// A rank, when that was heard, and when it had done its last step.
#[derive(Clone, Debug)]
struct Heard {
    said: RankProgress,
    at: Time,
    stepped_at: Time,
}

impl Heard {
    /// Where it should be by now. Nodes report at different times, and a rank that goes on is not
    /// behind because its node was heard a second earlier.
    fn should_be_at(&self, now: Time) -> u64 {
        let Some(Span(pace @ 1..)) = self.said.pace else { return self.said.step };
        let waits = self.said.age.0 > pace.saturating_mul(WAITS);
        let more = if waits { 0 } else { now.since(self.at).0 / pace };
        self.said.step.saturating_add(more)
    }
}

impl Book {
    pub fn note(&mut self, state: &State, said: Said, now: Time) {
        let Said { lease, ranks } = said;
        if !self.tasks.contains_key(&lease.task) {
            self.make_room(state);
        }
        let kept = self.tasks.entry(lease.task).or_insert_with(|| Kept::new(lease.generation));
        kept.take(lease.generation, ranks, now);
    }

    fn make_room(&mut self, state: &State) {
        if self.tasks.len() < OVER_MAX {
            return;
        }
        let over = self.tasks.iter().filter(|(task, _)| attempt(state, **task).is_none());
        if let Some(oldest) = over.min_by_key(|(_, kept)| kept.heard).map(|(task, _)| *task) {
            self.tasks.remove(&oldest);
        }
    }

    pub fn forget(&mut self, jobs: &[JobId]) {
        self.tasks.retain(|task, _| !jobs.contains(&task.job));
    }

    /// None if neither its ranks nor the journal know anything.
    pub fn of_task(&self, state: &State, task: TaskId, now: Time) -> Option<JobProgress> {
        let record = state.job(task.job)?.task(task.index);
        let saved = record.and_then(|t| t.past().saved.clone());
        let attempt = record.and_then(|t| t.attempt());
        // Where the last attempt was says nothing about one that is not heard yet.
        let of_now = |kept: &&Kept| attempt.is_none_or(|a| a.generation == kept.generation);
        let kept = self.tasks.get(&task).filter(of_now);
        let kept = kept.map(|kept| kept.progress(attempt.map(|_| now)));
        match (kept, &saved) {
            (None, None) => None,
            (kept, _) => Some(JobProgress { saved, ..kept.unwrap_or_default() }),
        }
    }

    pub fn ranks_of_task(&self, state: &State, task: TaskId, now: Time) -> Vec<RankRow> {
        let Some(kept) = self.tasks.get(&task) else { return Vec::new() };
        let attempt = attempt(state, task);
        if attempt.is_some_and(|a| a.generation != kept.generation) {
            return Vec::new();
        }
        let node = |rank: Rank| Some(state.node_name(attempt?.part_of(rank)?.node));
        let row = |(&rank, heard): (&Rank, &Heard)| RankRow {
            rank: rank.0,
            node: node(rank),
            step: heard.said.step,
            loss: number(heard.said.loss),
            tokens: heard.said.tokens,
            pace: heard.said.pace,
            age: attempt.map(|_| now.since(heard.stepped_at)),
        };
        kept.ranks.iter().map(row).collect()
    }

    pub fn history(&self, task: TaskId) -> Vec<ProgressPoint> {
        self.tasks.get(&task).map_or_else(Vec::new, |kept| kept.history.points())
    }
}

impl Kept {
    fn new(generation: Generation) -> Kept {
        Kept {
            generation,
            heard: Time(0),
            ranks: BTreeMap::new(),
            tokens: VecDeque::new(),
            history: History::default(),
            curve_waits_until: None,
        }
    }

    fn take(&mut self, generation: Generation, ranks: Vec<RankProgress>, now: Time) {
        if generation != self.generation {
            // The past stays: a curve goes on over restarts.
            *self = Kept { history: std::mem::take(&mut self.history), ..Kept::new(generation) };
        }
        self.heard = now;
        let known = self.ranks.len();
        for said in ranks {
            let stepped_at = Time(now.0.saturating_sub(said.age.0));
            self.ranks.insert(said.rank, Heard { said, at: now, stepped_at });
        }
        if known > 0 && self.ranks.len() > known {
            self.curve_waits_until = self.history.last_step();
        }
        self.note_tokens();
        self.note_point();
    }

    /// A curve goes back where the program does, and not because a rank that is further behind is
    /// heard later than others: for that one it waits.
    fn note_point(&mut self) {
        // A loss belongs to the step of who gives it.
        let teller = self.ranks.values().find(|heard| heard.said.loss.is_some());
        let Some(heard) = teller.or_else(|| self.slowest().map(|(_, heard)| heard)) else { return };
        let (at, step, loss) = (heard.stepped_at, heard.said.step, number(heard.said.loss));
        if self.curve_waits_until.is_none_or(|far| step >= far) {
            self.curve_waits_until = None;
            self.history.push(ProgressPoint { at, step, loss });
        }
    }

    /// More than a step behind the first.
    fn behind(&self) -> Option<Rank> {
        let (rank, slowest) = self.slowest()?;
        let first = self.ranks.values().map(|heard| heard.should_be_at(self.heard)).max()?;
        let distance = first.saturating_sub(slowest.should_be_at(self.heard));
        // What is between two reports is known to a step or so, or to a tenth.
        (distance > 1 + first.saturating_sub(slowest.said.step) / 10).then_some(rank)
    }

    fn slowest(&self) -> Option<(Rank, &Heard)> {
        let key = |(rank, heard): &(&Rank, &Heard)| (heard.said.step, heard.stepped_at, **rank);
        self.ranks.iter().min_by_key(key).map(|(rank, heard)| (*rank, heard))
    }

    fn loss(&self) -> Option<f64> {
        number(self.ranks.values().find_map(|heard| heard.said.loss))
    }

    fn note_tokens(&mut self) {
        let teller = self.ranks.values().find(|heard| heard.said.tokens.is_some());
        let Some((heard, tokens)) = teller.and_then(|h| Some((h, h.said.tokens?))) else { return };
        match self.tokens.back() {
            Some((_, last)) if *last == tokens => return,
            Some((_, last)) if *last > tokens => self.tokens.clear(),
            _ => {}
        }
        self.tokens.push_back((heard.stepped_at, tokens));
        let surplus = self.tokens.len().saturating_sub(RATE_OVER);
        self.tokens.drain(..surplus);
    }

    fn tokens_per_s(&self) -> Option<f64> {
        let ((from, first), (to, last)) = (self.tokens.front()?, self.tokens.back()?);
        let Span(ms) = to.since(*from);
        (ms > 0).then(|| (last - first) as f64 * 1000.0 / ms as f64)
    }

    /// With the time now if it runs.
    fn progress(&self, now: Option<Time>) -> JobProgress {
        let slowest = self.slowest();
        JobProgress {
            step: slowest.map(|(_, heard)| heard.said.step),
            step_max: self.ranks.values().map(|heard| heard.said.step).max(),
            slowest: slowest.map(|(rank, _)| rank.0),
            behind: self.behind().map(|rank| rank.0),
            loss: self.loss(),
            tokens: self.tokens.back().map(|(_, tokens)| *tokens),
            tokens_per_s: self.tokens_per_s(),
            pace: slowest.and_then(|(_, heard)| heard.said.pace),
            age: slowest.and_then(|(_, heard)| Some(now?.since(heard.stepped_at))),
            // The engine knows.
            stalled: false,
            ranks: self.ranks.len() as u32,
            saved: None,
        }
    }
}

/// JSON has no word for a loss that is none.
fn number(loss: Option<f64>) -> Option<f64> {
    loss.filter(|loss| loss.is_finite())
}

#[cfg(test)]
mod tests;
