//! Suspended tasks go on when it is their turn: before what waits in their class, after what waits
//! in a higher one or takes back a guarantee. Only on their own nodes, where their memory is; after
//! `patience` the GPUs there are kept for them.

use tutti_model::{
    Attempt, Bytes, ClaimCause, GpuIndex, Job, Milli, NewClaim, Part, PartPlacement, TaskId, Time,
    Wake, WakePart,
};

use super::Pass;
use super::bars::reservation;
use crate::ask::Need;
use crate::backfill::ends_at;
use crate::cluster::{Card, HeldPart, SlotNo, Standing};
use crate::teams::by_model;
use crate::verdict::suspended;

/// What keeps a task from waking.
enum Why {
    /// Too few GPUs or CPUs are free on its nodes.
    NoRoom,
    /// Something else, in words.
    HeldUp(String),
}

/// One of its parts: where it is, and what it gets there.
struct Back<'a> {
    slot: SlotNo,
    part: &'a Part,
    gpus: Vec<GpuIndex>,
}

impl<'a> Pass<'a, '_> {
    /// The ranks of classes that have suspended tasks.
    pub(super) fn asleep_ranks(&self) -> Vec<i32> {
        let jobs = self.state.index.asleep.iter().filter_map(|(_, id)| self.state.job(id.job));
        jobs.map(|job| self.policy.class_rank(job.class())).collect()
    }

    /// Those who have been suspended for longest go first.
    pub(super) fn wake(&mut self, rank: i32) {
        let mut of_class = Vec::new();
        for &(since, task) in &self.state.index.asleep {
            let Some(job) = self.state.job(task.job) else { continue };
            let Some(attempt) = job.task(task.index).and_then(|t| t.attempt()) else { continue };
            let is_asked = Some(task.job) != self.what_if.left_out
                && !self.what_if.ended.contains(&task)
                && self.policy.class_rank(job.class()) == rank;
            if is_asked {
                of_class.push((task, job, attempt, since));
            }
        }
        if of_class.is_empty() {
            return;
        }
        // Who only waits for their GPUs waits for those who were there before.
        self.pass_over_the_patient(rank);
        let mut overdue = Vec::new();
        for (task, job, attempt, since) in of_class {
            if self.wake_one(task, job, attempt, since) {
                overdue.push((task, job, attempt));
            }
        }
        // First what is kept for others is theirs again, or both would keep the same in turn.
        self.keep_again(rank);
        for (task, job, attempt) in overdue {
            self.keep_its_gpus(task, job, attempt);
        }
    }

    /// True if it has waited for so long that room is to be kept for it.
    fn wake_one(&mut self, task: TaskId, job: &'a Job, attempt: &'a Attempt, since: Time) -> bool {
        let dropped = self.dropped.contains(&task);
        let claim = self.state.claims.get(&task).filter(|_| !dropped);
        // Other GPUs of its nodes do as well as those that are kept for it.
        if let Some(claim) = claim {
            self.view.cluster.unkeep(&claim.parts, job.spec.exclusive);
            self.forget_overdue(job, task, claim);
        }
        let why = match self.find_back(job, attempt) {
            Ok(back) => {
                self.go_on(task, job, attempt, &back);
                return false;
            }
            Err(why) => why,
        };
        if let Some(claim) = claim {
            self.view.cluster.keep(&claim.parts, job.spec.exclusive);
            self.note_claim(job, task, claim);
            return false;
        }
        let overdue = matches!(why, Why::NoRoom) && self.now.since(since) > self.policy.patience;
        let held_up = match why {
            Why::NoRoom => None,
            Why::HeldUp(words) => Some(words),
        };
        let verdict = suspended(self.state, attempt, held_up);
        self.plan.by_task.extend(verdict.map(|v| (task, v)));
        overdue
    }

    fn find_back(&mut self, job: &'a Job, attempt: &'a Attempt) -> Result<Vec<Back<'a>>, Why> {
        let mut found = Vec::new();
        let ends = self.ends_if_woken(job, attempt);
        for part in attempt.parts.iter().filter(|p| !p.phase.is_over()) {
            let slot = self.view.cluster.slot_of(part.node).ok_or(Why::NoRoom)?;
            let gpus = self.gpus_back(slot, job, part).ok_or(Why::NoRoom)?;
            self.may_wake_on(slot, job, part, ends).map_err(Why::HeldUp)?;
            found.push(Back { slot, part, gpus });
        }
        let held = by_model(&self.view.cluster, &placements(&found));
        let team = self.teams.number(&job.team);
        match self.teams.over_limit(team, &held, &self.view.cluster.models) {
            Some(over) => {
                let words = crate::describe(&over.verdict(held.iter().sum()));
                Err(Why::HeldUp(words))
            }
            None => Ok(found),
        }
    }

    /// When it will have ended, if anybody knows: its clock stood still.
    fn ends_if_woken(&self, job: &Job, attempt: &Attempt) -> Option<Time> {
        let since = attempt.running_since(self.now).unwrap_or(self.now);
        ends_at(self.state, self.policy, job, since)
    }

    /// GPUs of the models that it had: its own where they are free, else others if the node's driver
    /// can bring it back there.
    fn gpus_back(&self, slot: SlotNo, job: &Job, part: &Part) -> Option<Vec<GpuIndex>> {
        let slot = self.view.cluster.get(slot);
        // What runs on a node that somebody drains goes on, and so does this.
        let taken = slot.alone && !job.spec.exclusive;
        let cpus = part.asleep.as_deref().map_or(0, |a| a.cpus);
        if slot.standing == Standing::Away || taken || slot.free.cpus < cpus {
            return None;
        }
        let (home, moves) = (part.home_gpus(), self.can_move(part));
        let card = |index: GpuIndex| slot.cards.iter().find(|c| c.index == index);
        let is_free = |c: &&Card| c.free == 1000;
        let mut got: Vec<Option<GpuIndex>> =
            home.iter().map(|&i| card(i).filter(is_free).map(|c| c.index)).collect();
        for at in 0..home.len() {
            if got[at].is_none() {
                let had = card(home[at])?;
                let same = |c: &&Card| moves && c.model == had.model && c.mem == had.mem;
                let mut free = slot.cards.iter().filter(is_free).filter(same);
                got[at] = Some(free.find(|c| !got.contains(&Some(c.index)))?.index);
            }
        }
        got.into_iter().collect()
    }

    fn can_move(&self, part: &Part) -> bool {
        self.state.node(part.node).is_some_and(|node| node.facts.can_move)
    }

    fn may_wake_on(
        &self,
        slot: SlotNo,
        job: &Job,
        part: &Part,
        ends: Option<Time>,
    ) -> Result<(), String> {
        let until = ends.unwrap_or_else(|| self.now.plus(self.policy.durations.assumed));
        if let Some(r) = reservation(self.policy, &self.view.cluster, slot, job, self.now, until) {
            return Err(format!("its node is reserved ({})", r.name));
        }
        let need = need(part);
        let alone = job.spec.exclusive;
        match self.heads.iter().find(|head| !head.allows(slot, &need, alone, ends)) {
            Some(head) => Err(format!("it would delay job {}", head.task.job)),
            None => Ok(()),
        }
    }

    fn go_on(&mut self, task: TaskId, job: &'a Job, attempt: &Attempt, back: &[Back<'_>]) {
        let parts = placements(back);
        let held = by_model(&self.view.cluster, &parts);
        let charge = self.charge(job, &parts);
        let team = self.teams.number(&job.team);
        self.teams.charge(team, &job.user, &held, charge);
        let ends = self.ends_if_woken(job, attempt);
        self.tell_heads(&parts, ends);
        for (back, part) in back.iter().zip(&parts) {
            let held = HeldPart { tenant: false, ..HeldPart::placed(part, false) };
            self.view.cluster.change(back.slot, |slot| slot.take(&held));
        }
        if let Some(ends) = ends {
            self.placed.insert((ends, task), parts);
        }
        let part = |b: &Back<'_>| WakePart { node: b.part.node, gpus: b.gpus.clone() };
        self.done.insert(task);
        self.plan.by_task.remove(&task);
        self.plan.wakes.push(Wake { task, parts: back.iter().map(part).collect() });
    }

    /// It has waited for long: on its nodes nobody else gets what it needs, unless of a higher
    /// class.
    fn keep_its_gpus(&mut self, task: TaskId, job: &'a Job, attempt: &'a Attempt) {
        let mut back = Vec::new();
        for part in attempt.parts.iter().filter(|p| !p.phase.is_over()) {
            let Some(no) = self.view.cluster.slot_of(part.node) else { return };
            let slot = self.view.cluster.get(no);
            if slot.claims > 0 || slot.standing != Standing::Open {
                return;
            }
            let (home, moves) = (part.home_gpus(), self.can_move(part));
            let mut cards: Vec<&Card> = Vec::new();
            for index in home {
                let Some(had) = slot.cards.iter().find(|c| c.index == *index) else { return };
                let does = |c: &&Card| c.index == had.index || moves;
                let same = |c: &&Card| c.model == had.model && c.mem == had.mem && !c.fenced;
                let open = slot.cards.iter().filter(does).filter(same);
                let open = open.filter(|c| !cards.iter().any(|t| t.index == c.index));
                let most_free =
                    |c: &&Card| (c.free, home.contains(&c.index), std::cmp::Reverse(c.index));
                let Some(best) = open.max_by_key(most_free) else { return };
                cards.push(best);
            }
            let gpus = cards.iter().map(|c| c.index).collect();
            back.push(Back { slot: no, part, gpus });
        }
        let parts = placements(&back);
        if !self.may_have(job, &parts) {
            return;
        }
        let claim = NewClaim { task, parts, cause: ClaimCause::Overdue, victims: Vec::new() };
        let held = by_model(&self.view.cluster, &claim.parts);
        let charge = self.charge(job, &claim.parts);
        let team = self.teams.number(&job.team);
        self.charge_claim(team, job, claim.cause, &held, charge);
        self.view.cluster.keep(&claim.parts, job.spec.exclusive);
        self.plan.claims.push(claim);
    }
}

/// A suspended part has its memory already.
fn placements(back: &[Back<'_>]) -> Vec<PartPlacement> {
    let placement = |b: &Back<'_>| PartPlacement {
        node: b.part.node,
        gpus: b.gpus.clone(),
        cpus: b.part.asleep.as_deref().map_or(0, |a| a.cpus),
        mem: Bytes(0),
        ranks: b.part.ranks,
        share: b.part.share,
    };
    back.iter().map(placement).collect()
}

fn need(part: &Part) -> Need {
    Need {
        gpus: part.home_gpus().len() as u32,
        share: Milli::WHOLE,
        cpus: part.asleep.as_deref().map_or(0, |a| a.cpus),
        mem: Bytes(0),
    }
}
