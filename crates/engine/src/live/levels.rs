//! Where the ranks of running attempts are, as they say themselves. Levels: the newest counts, and
//! none of it is in the journal.

use std::collections::BTreeMap;

use tutti_model::{LeaseId, NodeId, PartProgress, PartReport, RankProgress, Span, Time};

#[derive(Clone, Debug, Default)]
pub struct Levels {
    of: BTreeMap<LeaseId, Attempt>,
}

#[derive(Clone, Debug, Default)]
struct Attempt {
    parts: BTreeMap<NodeId, Part>,
    /// The longest time without a step that a step has ended.
    longest_pause: Span,
}

#[derive(Clone, Debug)]
struct Part {
    heard: Time,
    said: PartProgress,
}

/// One rank, when its last step was, and when its node last spoke of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level<'a> {
    pub node: NodeId,
    pub rank: &'a RankProgress,
    pub stepped: Time,
    pub heard: Time,
}

impl Levels {
    pub(super) fn note(&mut self, node: NodeId, report: &PartReport, now: Time, sleeps: bool) {
        let Some(said) = report.progress.as_deref() else { return };
        let attempt = self.of.entry(report.lease).or_default();
        let before = attempt.parts.insert(node, Part { heard: now, said: said.clone() });
        let Some(before) = before.filter(|_| !sleeps) else { return };
        for rank in &said.ranks {
            let old = before.said.ranks.iter().find(|r| r.rank == rank.rank);
            let Some(old) = old.filter(|old| old.step < rank.step) else { continue };
            // It was at least so long, and a heartbeat longer at most.
            attempt.longest_pause = attempt.longest_pause.max(old.age);
        }
    }

    pub(super) fn retain(&mut self, is_current: impl Fn(LeaseId) -> bool) {
        self.of.retain(|lease, _| is_current(*lease));
    }

    /// The ranks that said something, in rank order within each node.
    pub fn ranks(&self, lease: LeaseId) -> impl Iterator<Item = Level<'_>> {
        let parts = self.of.get(&lease).into_iter().flat_map(|a| &a.parts);
        parts.flat_map(move |(&node, part)| {
            part.said.ranks.iter().map(move |rank| {
                let stepped = Time(part.heard.0.saturating_sub(rank.age.0));
                Level { node, rank, stepped, heard: part.heard }
            })
        })
    }

    /// Attempts of which anything is known.
    pub fn leases(&self) -> impl Iterator<Item = LeaseId> {
        self.of.keys().copied()
    }

    /// What each part said last.
    pub fn parts(&self, lease: LeaseId) -> impl Iterator<Item = (NodeId, &PartProgress)> {
        let parts = self.of.get(&lease).into_iter().flat_map(|a| &a.parts);
        parts.map(|(&node, part)| (node, &part.said))
    }

    /// The highest step that any rank has done.
    pub fn highest_step(&self, lease: LeaseId) -> Option<u64> {
        let said = self.parts(lease).flat_map(|(_, part)| &part.ranks);
        said.map(|r| r.step).max()
    }

    pub fn longest_pause(&self, lease: LeaseId) -> Span {
        self.of.get(&lease).map_or(Span(0), |a| a.longest_pause)
    }
}

#[cfg(test)]
mod tests {
    use tutti_model::{Generation, JobId, Rank, ReportedPhase, TaskId};

    use super::*;

    fn said(step: u64, age: u64) -> PartReport {
        let lease = LeaseId { task: TaskId::single(JobId(1)), generation: Generation(1) };
        let rank = RankProgress {
            rank: Rank(0),
            step,
            loss: None,
            tokens: None,
            age: Span::secs(age),
            pace: None,
        };
        let progress = PartProgress { ranks: vec![rank], ..PartProgress::default() };
        let phase = ReportedPhase::Running { exits: Vec::new() };
        PartReport { progress: Some(Box::new(progress)), ..PartReport::new(lease, phase) }
    }

    #[test]
    fn the_newest_counts_and_pauses_that_ended_are_remembered() {
        let (mut levels, node) = (Levels::default(), NodeId(1));
        let at = |secs: u64| Time(secs * 1000);
        let lease = said(0, 0).lease;
        levels.note(node, &said(7, 1), at(10), false);
        let stepped: Vec<Time> = levels.ranks(lease).map(|l| l.stepped).collect();
        assert_eq!(stepped, [at(9)]);
        levels.note(node, &said(7, 41), at(50), false);
        assert_eq!(levels.longest_pause(lease), Span(0), "no step has ended it yet");
        levels.note(node, &said(8, 2), at(60), false);
        assert_eq!(levels.longest_pause(lease), Span::secs(41));
        assert_eq!(levels.highest_step(lease), Some(8));
        levels.retain(|_| false);
        assert_eq!(levels.highest_step(lease), None);
    }
}
