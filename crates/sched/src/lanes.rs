//! The order in which waiting work is tried: between teams by what they have had, inside a team by
//! priority, then by user, then by rank and age.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use tutti_model::{
    Job, JobId, Lane, Phase, Priority, QueueKey, State, TaskId, Tasks, Time, Verdict,
};

use crate::candidates::PageNo;
use crate::teams::{TeamNo, Teams, UserNo};

pub(crate) type LaneNo = usize;

/// Everything waiting that is alike but for its age.
#[derive(Debug)]
pub(crate) struct LaneView<'a> {
    pub lane: &'a Lane,
    pub keys: &'a BTreeSet<QueueKey>,
    pub page: PageNo,
    pub team: TeamNo,
    pub user: UserNo,
    /// The entry to try next; none when the lane is through.
    pub head: Option<QueueKey>,
    /// In the untouched rest of an array: the next index.
    pub next_index: Option<u32>,
    /// Entries that fitted but had to stand back.
    pub stood_back: usize,
    /// Whatever ends then or later has to stand back, too. None: whatever has no known end.
    pub too_long: Option<(Option<Time>, Verdict)>,
    /// Why everything in it waits.
    pub verdict: Option<Verdict>,
}

impl<'a> LaneView<'a> {
    pub fn new(
        lane: &'a Lane,
        keys: &'a BTreeSet<QueueKey>,
        page: PageNo,
        team: TeamNo,
        user: UserNo,
    ) -> LaneView<'a> {
        let head = keys.first().copied();
        LaneView {
            lane,
            keys,
            page,
            team,
            user,
            head,
            next_index: None,
            stood_back: 0,
            too_long: None,
            verdict: None,
        }
    }

    /// The verdict of an entry like this, if an entry that would end no later had to stand back.
    pub fn stands_back(&self, ends: Option<Time>) -> Option<&Verdict> {
        let far = |end: Option<Time>| end.unwrap_or(Time(u64::MAX));
        let (least, verdict) = self.too_long.as_ref()?;
        (far(ends) >= far(*least)).then_some(verdict)
    }

    /// Goes on to the entry after this one.
    pub fn advance(&mut self, left_out: Option<JobId>) {
        self.next_index = None;
        self.head = self.head.and_then(|head| {
            let after = self.keys.range((Bound::Excluded(head), Bound::Unbounded));
            after.copied().find(|key| Some(key.job) != left_out)
        });
    }

    /// Goes on to the next task of an array's untouched rest, or to the entry after it.
    pub fn advance_task(&mut self, job: &Job, index: Option<u32>, left_out: Option<JobId>) {
        if let (Tasks::Array(array), Some(index), Some(head)) = (&job.tasks, index, self.head)
            && head.index.is_none()
            && let Some(next) = array.waiting.next_from(index + 1)
        {
            self.next_index = Some(next);
            return;
        }
        self.advance(left_out);
    }
}

/// Some lanes of one class in the order of their turns. Costs what changes, not what waits.
#[derive(Debug, Default)]
pub(crate) struct Line {
    teams: BTreeMap<TeamNo, TeamLine>,
}

#[derive(Debug, Default)]
struct TeamLine {
    users: BTreeMap<UserNo, UserLine>,
    order: BTreeSet<(UserTurn, UserNo)>,
}

/// The most important work of a user, then what the user has had.
type UserTurn = (Reverse<Priority>, u128);
/// Inside a user's work of one team: priority, rank, age.
type LaneTurn = (Reverse<Priority>, u64, JobId);

#[derive(Debug, Default)]
struct UserLine {
    turn: UserTurn,
    lanes: BTreeSet<(LaneTurn, LaneNo)>,
    turns: BTreeMap<LaneNo, LaneTurn>,
}

impl Line {
    /// Of these lanes, those that have something to try.
    pub fn new(
        of: impl Iterator<Item = LaneNo>,
        lanes: &[LaneView<'_>],
        teams: &Teams<'_>,
    ) -> Line {
        let mut line = Line::default();
        of.for_each(|no| line.update(no, lanes, teams));
        line
    }

    /// The lane whose turn it is.
    pub fn next(&self, teams: &Teams<'_>) -> Option<LaneNo> {
        let waiting = self.teams.iter().filter(|(_, line)| !line.order.is_empty());
        let (_, line) = waiting.min_by(|(a, _), (b, _)| teams.compare(**a, **b))?;
        let (_, user) = line.order.first()?;
        line.users.get(user)?.lanes.first().map(|(_, lane)| *lane)
    }

    /// The lane went on, or its user got something.
    pub fn update(&mut self, no: LaneNo, lanes: &[LaneView<'_>], teams: &Teams<'_>) {
        let lane = &lanes[no];
        let turn = lane.head.map(|head| (head.priority, head.rank, head.job));
        self.put(no, lane, turn, teams);
    }

    /// Whatever the lane still has is not tried here.
    pub fn leave(&mut self, no: LaneNo, lanes: &[LaneView<'_>], teams: &Teams<'_>) {
        self.put(no, &lanes[no], None, teams);
    }

    fn put(&mut self, no: LaneNo, lane: &LaneView<'_>, turn: Option<LaneTurn>, teams: &Teams<'_>) {
        let team = self.teams.entry(lane.team).or_default();
        let user = team.users.entry(lane.user).or_default();
        team.order.remove(&(user.turn, lane.user));
        if let Some(old) = user.turns.remove(&no) {
            user.lanes.remove(&(old, no));
        }
        if let Some(turn) = turn {
            user.turns.insert(no, turn);
            user.lanes.insert((turn, no));
        }
        if let Some(((priority, ..), _)) = user.lanes.first() {
            user.turn = (*priority, teams.user_due(lane.user));
            team.order.insert((user.turn, lane.user));
        }
    }
}

/// Active tasks of a job.
pub(crate) fn active_tasks(active: &BTreeSet<TaskId>, job: JobId) -> u32 {
    let all = TaskId::single(job)..=TaskId::of_array(job, u32::MAX);
    active.range(all).count() as u32
}

pub(crate) fn array_limit(job: &Job) -> Option<u32> {
    job.spec.array.as_ref().and_then(|array| array.max_running)
}

/// Since when an entry of the queue has waited.
pub(crate) fn waiting_since(state: &State, key: &QueueKey) -> Time {
    let Some(job) = state.job(key.job) else { return Time(u64::MAX) };
    match job.task(key.index).map(|task| &task.phase) {
        Some(Phase::Pending { since, .. }) => *since,
        _ => job.submitted_at,
    }
}

#[cfg(test)]
mod tests;
