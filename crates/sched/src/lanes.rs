//! The order in which waiting work is tried: between teams by what they have had, inside a team by
//! priority, then by user, then by rank and age.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use tutti_model::{Job, JobId, Lane, Priority, QueueKey, State, Tasks};

use crate::candidates::PageNo;
use crate::teams::{TeamNo, Teams};

pub(crate) type LaneNo = usize;

/// Everything waiting that is alike but for its age.
#[derive(Debug)]
pub(crate) struct LaneView<'a> {
    pub lane: &'a Lane,
    pub keys: &'a BTreeSet<QueueKey>,
    pub page: PageNo,
    pub team: TeamNo,
    /// The entry to try next; none when the lane is through.
    pub head: Option<QueueKey>,
    /// In the untouched rest of an array: the next index.
    pub next_index: Option<u32>,
    /// Entries that fitted but had to stand back.
    pub stood_back: usize,
}

impl LaneView<'_> {
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

/// The lanes of one class, by team.
#[derive(Debug, Default)]
pub(crate) struct Line {
    by_team: BTreeMap<TeamNo, TeamLine>,
}

#[derive(Debug, Default)]
struct TeamLine {
    lanes: Vec<LaneNo>,
    /// What it would try next, unless something changed.
    next: Option<LaneNo>,
    fresh: bool,
}

impl Line {
    pub fn add(&mut self, team: TeamNo, lane: LaneNo) {
        self.by_team.entry(team).or_default().lanes.push(lane);
    }

    /// Something of this team was placed or went on.
    pub fn changed(&mut self, team: TeamNo) {
        if let Some(line) = self.by_team.get_mut(&team) {
            line.fresh = false;
        }
    }

    pub fn changed_all(&mut self) {
        self.by_team.values_mut().for_each(|line| line.fresh = false);
    }

    /// The lane whose turn it is, among those that `may` go.
    pub fn next<'a>(
        &mut self,
        lanes: &[LaneView<'a>],
        teams: &mut Teams<'a>,
        may: &dyn Fn(&LaneView<'a>, &Teams<'a>) -> bool,
    ) -> Option<LaneNo> {
        for line in self.by_team.values_mut().filter(|line| !line.fresh) {
            line.lanes.retain(|&no| lanes[no].head.is_some());
            line.next = best_of_team(&line.lanes, lanes, teams, may);
            line.fresh = true;
        }
        self.by_team.retain(|_, line| !line.lanes.is_empty());
        let waiting = self.by_team.iter().filter_map(|(&team, line)| Some((team, line.next?)));
        let mut waiting = waiting.peekable();
        let first = waiting.next()?;
        if waiting.peek().is_none() {
            return Some(first.1);
        }
        let all = std::iter::once(first).chain(waiting);
        all.min_by_key(|(team, _)| teams.due(*team)).map(|(_, lane)| lane)
    }
}

fn best_of_team<'a>(
    of_team: &[LaneNo],
    lanes: &[LaneView<'a>],
    teams: &mut Teams<'a>,
    may: &dyn Fn(&LaneView<'a>, &Teams<'a>) -> bool,
) -> Option<LaneNo> {
    let mut best: Option<((Reverse<Priority>, u128, &str, u64, JobId), LaneNo)> = None;
    for &no in of_team {
        let lane = &lanes[no];
        let Some(head) = lane.head else { continue };
        if !may(lane, teams) {
            continue;
        }
        let user = lane.lane.user.as_str();
        let key = (head.priority, teams.user_due(lane.team, user), user, head.rank, head.job);
        if best.as_ref().is_none_or(|(least, _)| key < *least) {
            best = Some((key, no));
        }
    }
    best.map(|(_, no)| no)
}

/// Active tasks of a job.
pub(crate) fn active_tasks(active: &BTreeSet<tutti_model::TaskId>, job: JobId) -> u32 {
    let first = tutti_model::TaskId::single(job);
    let last = tutti_model::TaskId::of_array(job, u32::MAX);
    active.range(first..=last).count() as u32
}

pub(crate) fn array_limit(job: &Job) -> Option<u32> {
    job.spec.array.as_ref().and_then(|array| array.max_running)
}

/// Since when an entry of the queue has waited.
pub(crate) fn waiting_since(state: &State, key: &QueueKey) -> tutti_model::Time {
    let Some(job) = state.job(key.job) else { return tutti_model::Time(u64::MAX) };
    match job.task(key.index).map(|task| &task.phase) {
        Some(tutti_model::Phase::Pending { since, .. }) => *since,
        _ => job.submitted_at,
    }
}
