//! The order in which waiting work is tried: between teams by what they have had, inside a team by
//! priority, then by user, then by rank and age.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::ops::Bound;

use tutti_model::{
    Job, JobId, Lane, Policy, Priority, QueueKey, State, Task, TaskId, Tasks, Time, Verdict,
};

use crate::candidates::PageNo;
use crate::teams::{Charges, TeamNo, Teams, UserNo};

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
    /// Room is kept for a task of it.
    pub has_claims: bool,
    /// One entry of another lane that has waited beyond bearing, and goes first in its team.
    /// Since when it has waited.
    pub starves_since: Option<Time>,
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
            has_claims: false,
            starves_since: None,
            stood_back: 0,
            too_long: None,
            verdict: None,
        }
    }

    /// One entry of this lane as a lane of its own.
    pub fn starving(&self, key: QueueKey, since: Time) -> LaneView<'a> {
        let alone = LaneView::new(self.lane, &NO_KEYS, self.page, self.team, self.user);
        let (head, has_claims) = (Some(key), self.has_claims);
        LaneView { head, has_claims, starves_since: Some(since), ..alone }
    }

    fn turn(&self) -> Option<LaneTurn> {
        let head = self.head?;
        Some(match self.starves_since {
            Some(since) => (false, Reverse(Priority::default()), since.0, head.job),
            None => (true, head.priority, head.rank, head.job),
        })
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
            && let Some(next) = array.waiting.next_after(index)
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
    teams: Vec<TeamLine>,
    /// The team whose turn it is, and what was charged when that was found out.
    turn: Option<(usize, Charges)>,
}

#[derive(Debug)]
struct TeamLine {
    team: TeamNo,
    users: Vec<UserLine>,
    order: BinaryHeap<Reverse<(UserTurn, UserNo, usize)>>,
}

/// Of a user's first work: whether it can wait, priority, what the user has had. Among those who
/// starve the oldest goes first, whoever it is.
type UserTurn = (bool, Reverse<Priority>, u128);
/// Inside a user's work of one team: whether it can wait, priority, rank, age.
type LaneTurn = (bool, Reverse<Priority>, u64, JobId);
type UserLine = BinaryHeap<Reverse<(LaneTurn, LaneNo)>>;

impl Line {
    /// Of these lanes, those that have something to try.
    pub fn new(
        of: impl Iterator<Item = LaneNo>,
        lanes: &[LaneView<'_>],
        teams: &Teams<'_>,
    ) -> Line {
        let mut waiting: Vec<_> = of
            .filter_map(|no| {
                let lane = &lanes[no];
                Some((lane.team, lane.user, lane.turn()?, no))
            })
            .collect();
        waiting.sort_unstable();
        let of_team = |of: &[(TeamNo, UserNo, LaneTurn, LaneNo)]| {
            let mut line = TeamLine { team: of[0].0, users: Vec::new(), order: BinaryHeap::new() };
            for of_user in of.chunk_by(|a, b| a.1 == b.1) {
                let user = line.users.len();
                line.users
                    .push(of_user.iter().map(|&(.., turn, no)| Reverse((turn, no))).collect());
                line.enter(of_user[0].1, user, teams);
            }
            line
        };
        Line { teams: waiting.chunk_by(|a, b| a.0 == b.0).map(of_team).collect(), turn: None }
    }

    /// The lane whose turn it is. It stays so until it is updated or leaves.
    pub fn next(&mut self, teams: &Teams<'_>) -> Option<LaneNo> {
        let stands = |&(at, charges): &(usize, Charges)| {
            charges == teams.charges() && !self.teams[at].order.is_empty()
        };
        if !self.turn.as_ref().is_some_and(stands) {
            let waiting = self.teams.iter().enumerate().filter(|(_, l)| !l.order.is_empty());
            let first = waiting.min_by(|(_, a), (_, b)| teams.compare(a.team, b.team));
            self.turn = first.map(|(at, _)| (at, teams.charges()));
        }
        let line = &self.teams[self.turn?.0];
        let Reverse((.., user)) = line.order.peek()?;
        line.users[*user].peek().map(|Reverse((_, lane))| *lane)
    }

    /// The lane whose turn it was went on, and its user may have got something.
    pub fn update(&mut self, no: LaneNo, lanes: &[LaneView<'_>], teams: &Teams<'_>) {
        self.put(no, lanes[no].turn(), teams);
    }

    /// Whatever the lane whose turn it was still has is not tried here.
    pub fn leave(&mut self, no: LaneNo, teams: &Teams<'_>) {
        self.put(no, None, teams);
    }

    fn put(&mut self, no: LaneNo, turn: Option<LaneTurn>, teams: &Teams<'_>) {
        let Some((at, _)) = self.turn else { return };
        let line = &mut self.teams[at];
        let Some(Reverse((_, user_no, user))) = line.order.pop() else { return };
        let was = line.users[user].pop();
        debug_assert_eq!(was.map(|Reverse((_, lane))| lane), Some(no), "not its turn");
        line.users[user].extend(turn.map(|turn| Reverse((turn, no))));
        line.enter(user_no, user, teams);
    }
}

impl TeamLine {
    /// A user whose lanes or whose due changed takes a place, if there is anything left to try.
    fn enter(&mut self, user_no: UserNo, user: usize, teams: &Teams<'_>) {
        if let Some(Reverse(((can_wait, priority, rank, _), _))) = self.users[user].peek() {
            let due = if *can_wait { teams.user_due(user_no) } else { (*rank).into() };
            let turn = (*can_wait, *priority, due);
            self.order.push(Reverse((turn, user_no, user)));
        }
    }
}

static NO_KEYS: BTreeSet<QueueKey> = BTreeSet::new();

/// Of everything that has waited beyond bearing, the oldest.
pub(crate) fn starving_tasks<'a>(
    state: &'a State,
    policy: &Policy,
    now: Time,
    most: usize,
) -> Vec<(&'a Job, TaskId, Time)> {
    let before = Time(now.0.saturating_sub(policy.starve_after.0));
    // What returns counts as waiting since ever, however young the clock is.
    let old = state.index.waiting.iter().take_while(|(since, _)| *since < before);
    let old = old.filter(|(_, task)| !returns(state, *task)).copied();
    let waiting = returning_tasks(state).map(|task| (Time(0), task)).chain(old).take(most);
    waiting.filter_map(|(since, task)| Some((state.job(task.job)?, task, since))).collect()
}

/// Whether the task waits because it lost a node, and goes before everything else of its class.
pub(crate) fn returns(state: &State, task: TaskId) -> bool {
    let task = state.job(task.job).and_then(|j| j.task(task.index));
    task.is_some_and(|t| t.lost_node)
}

pub(crate) fn returning_tasks(state: &State) -> impl Iterator<Item = TaskId> {
    let since_ever = state.index.waiting.iter().take_while(|(since, _)| *since == Time(0));
    since_ever.map(|(_, task)| *task).filter(|task| returns(state, *task))
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
    job.task(key.index).and_then(Task::waits_since).unwrap_or(job.submitted_at)
}

#[cfg(test)]
mod tests;
