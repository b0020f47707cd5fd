//! Who is to blame when ranks accuse each other. A rule on what was said, and on nothing else:
//!
//! - An accusation against a rank is set aside if the part of that rank accuses another one: it does
//!   not hang, it waits, too. If all accuse each other in a circle, none is set aside.
//! - Of the rest the rank that most parts accuse is the suspect, of equals the lowest.
//! - A suspect that ended by itself has failed; it does not matter who noticed.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use tutti_model::{
    Accusation, Attempt, AttemptPhase, Blame, ExitStatus, NodeId, PartError, PartState, Rank,
    RankExit, StopCause,
};

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// The accusation that counts.
pub(super) fn suspect(attempt: &Attempt) -> Option<&Accusation> {
    let accused_by =
        |node: NodeId| attempt.accusations.iter().find(|a| a.by == node).map(|a| a.fault.rank);
    let waits_itself = |rank: Rank| {
        let accuses = attempt.part_of(rank).and_then(|part| accused_by(part.node));
        accuses.is_some_and(|other| other != rank)
    };
    let known: Vec<&Accusation> =
        attempt.accusations.iter().filter(|a| attempt.part_of(a.fault.rank).is_some()).collect();
    let hang: Vec<&Accusation> =
        known.iter().copied().filter(|a| !waits_itself(a.fault.rank)).collect();
    let voices = if hang.is_empty() { known } else { hang };
    let mut votes: BTreeMap<Rank, u32> = BTreeMap::new();
    voices.iter().for_each(|a| *votes.entry(a.fault.rank).or_default() += 1);
    let (rank, _) = votes.into_iter().max_by_key(|(rank, votes)| (*votes, Reverse(*rank)))?;
    voices.into_iter().find(|a| a.fault.rank == rank)
}

/// Why a gang is stopped that somebody accused a rank of.
pub(super) fn peer_fault(attempt: &Attempt) -> Option<StopCause> {
    let Accusation { fault, .. } = suspect(attempt)?;
    let node = attempt.part_of(fault.rank)?.node;
    if own_end(attempt, fault.rank).is_some() {
        return None;
    }
    let (op, why) = (fault.op.clone(), fault.why.clone());
    Some(StopCause::PeerFault { rank: fault.rank, node, op, why })
}

/// How this rank failed, if not by being stopped.
fn own_end(attempt: &Attempt, rank: Rank) -> Option<&RankExit> {
    let exits = attempt.part_of(rank)?.phase.exits();
    let failed = exits.iter().find(|e| e.rank == rank && !e.status.is_success())?;
    let by_itself = match &attempt.phase {
        // What was known before anybody was told to stop is the rank's own.
        AttemptPhase::Stopping { why: StopCause::RankFailed { rank: blamed, .. }, .. }
            if *blamed == rank =>
        {
            true
        }
        // Afterwards, the signals that stop it say nothing; else the clock of its node decides.
        AttemptPhase::Stopping { since, .. } => {
            let told = matches!(failed.status, ExitStatus::Signal(SIGKILL | SIGTERM));
            !told && failed.at <= *since
        }
        _ => true,
    };
    by_itself.then_some(failed)
}

pub(super) fn launch_error(attempt: &Attempt) -> Option<(NodeId, &PartError)> {
    part_errors(attempt).find(|(_, e)| e.blame != Blame::Operator)
}

/// The node that somebody took down on purpose, and this attempt with it.
pub(super) fn taken_down(attempt: &Attempt) -> Option<NodeId> {
    let mut errors = part_errors(attempt);
    errors.find(|(_, e)| e.blame == Blame::Operator).map(|(node, _)| node)
}

fn part_errors(attempt: &Attempt) -> impl Iterator<Item = (NodeId, &PartError)> {
    attempt.parts.iter().filter_map(|p| match &p.phase {
        PartState::Done { error: Some(e), .. } => Some((p.node, e)),
        _ => None,
    })
}

/// The failed rank that ended first; the one already blamed, if any.
pub(super) fn first_failure(attempt: &Attempt) -> Option<&RankExit> {
    let failed = || {
        let exits = attempt.parts.iter().flat_map(|p| p.phase.exits());
        exits.filter(|e| !e.status.is_success())
    };
    let blamed = match &attempt.phase {
        AttemptPhase::Stopping { why: StopCause::RankFailed { rank, .. }, .. } => Some(*rank),
        _ => None,
    };
    // A rank that others accuse, and that did fail, was there first whatever the clocks say.
    let accused = suspect(attempt).and_then(|a| own_end(attempt, a.fault.rank));
    accused
        .or_else(|| blamed.and_then(|rank| failed().find(|e| e.rank == rank)))
        .or_else(|| failed().min_by_key(|e| (e.at, e.rank)))
}

#[cfg(test)]
mod tests {
    use tutti_model::{Bytes, Fault, Generation, Milli, Part, Span, Time};

    use super::*;

    /// Two ranks on each of four nodes; node 1 has ranks 0 and 1.
    fn attempt(accusations: &[(u32, u32)]) -> Attempt {
        let part = |n: u32| Part {
            node: NodeId(n),
            gpus: Vec::new(),
            cpus: 1,
            mem: Bytes(0),
            share: Milli::WHOLE,
            first_rank: Rank((n - 1) * 2),
            ranks: 2,
            phase: PartState::Running { exits: Vec::new() },
            port: None,
            gpu_mem: None,
            port_owner: None,
            asleep: None,
        };
        let accusation = |&(by, rank): &(u32, u32)| Accusation {
            by: NodeId(by),
            fault: Fault { rank: Rank(rank), op: "all_reduce".into(), why: "silent".into() },
        };
        Attempt {
            number: 1,
            generation: Generation(1),
            placed_at: Time(0),
            phase: AttemptPhase::Running { since: Time(0) },
            master_port: None,
            parts: (1..=4).map(part).collect(),
            charge: 0,
            saved_at: None,
            saved: None,
            advanced: false,
            let_go: false,
            accusations: accusations.iter().map(accusation).collect(),
            disregarded: Vec::new(),
            naps: Vec::new(),
            away: Span::default(),
            kept: None,
        }
    }

    fn suspect_of(accusations: &[(u32, u32)]) -> Option<u32> {
        suspect(&attempt(accusations)).map(|a| a.fault.rank.0)
    }

    #[test]
    fn the_majority_decides_and_then_the_lower_rank() {
        assert_eq!(suspect_of(&[]), None);
        assert_eq!(suspect_of(&[(1, 6)]), Some(6));
        assert_eq!(suspect_of(&[(1, 4), (2, 6), (3, 6)]), Some(6));
        assert_eq!(suspect_of(&[(1, 6), (2, 7)]), Some(6));
        assert_eq!(suspect_of(&[(1, 8)]), None, "there is no such rank");
    }

    #[test]
    fn who_accuses_another_waits_itself() {
        // 2 waits for 1's rank, which waits for one of 4: two voices against one.
        assert_eq!(suspect_of(&[(2, 0), (3, 0), (1, 6)]), Some(6));
        // Its own neighbour on the node accuses it, too.
        assert_eq!(suspect_of(&[(1, 0), (2, 1), (3, 0)]), Some(0));
        // All in a circle.
        assert_eq!(suspect_of(&[(1, 2), (2, 4), (3, 6), (4, 0)]), Some(0));
    }

    fn ended(attempt: &mut Attempt, rank: u32, status: ExitStatus, at: u64) {
        let exits = vec![RankExit { rank: Rank(rank), status, at: Time(at) }];
        attempt.parts[rank as usize / 2].phase = PartState::Running { exits };
    }

    #[test]
    fn a_suspect_that_failed_by_itself_is_a_failed_rank() {
        let mut it = attempt(&[(1, 6)]);
        assert!(matches!(peer_fault(&it), Some(StopCause::PeerFault { rank: Rank(6), .. })));
        ended(&mut it, 6, ExitStatus::Code(1), 50);
        assert_eq!(peer_fault(&it), None);
        assert_eq!(first_failure(&it).map(|e| e.rank), Some(Rank(6)));
        let why = StopCause::PeerFault {
            rank: Rank(6),
            node: NodeId(4),
            op: String::new(),
            why: String::new(),
        };
        it.phase = AttemptPhase::Stopping { since: Time(60), running_since: None, why };
        assert_eq!(peer_fault(&it), None, "its end was before the stop, only heard of later");
        ended(&mut it, 6, ExitStatus::Code(1), 70);
        assert!(peer_fault(&it).is_some(), "it left when it was told to");
        ended(&mut it, 6, ExitStatus::Signal(SIGKILL), 50);
        assert!(peer_fault(&it).is_some(), "clocks differ, and this is what a stop looks like");
    }

    #[test]
    fn an_accuser_that_leaves_is_not_the_one_that_failed() {
        let mut it = attempt(&[(1, 6)]);
        ended(&mut it, 0, ExitStatus::Code(1), 50);
        assert!(matches!(peer_fault(&it), Some(StopCause::PeerFault { rank: Rank(6), .. })));
    }
}
