//! Whom to blame for a wait that took too long: not the rank that is waited for if it waits itself.

use crate::health::Wait;

/// Follows the chain of waits from `first` to a rank that waits for nobody. `waits_of` gives what
/// each rank last said it waits for.
pub(super) fn culprit(first: Wait, waits_of: &dyn Fn(usize) -> Vec<Wait>) -> usize {
    let (mut at, mut seen) = (first, vec![first.on]);
    loop {
        let waits = waits_of(at.on);
        // A wait in the same group comes first; one in a later operation there means that the rank
        // has done its part of this one, and something else is wrong: then it keeps the blame.
        let same = waits.iter().find(|w| w.group == at.group && w.seq <= at.seq);
        let other = waits.iter().find(|w| w.group != at.group);
        let Some(next) = same.or(other) else { return at.on };
        if seen.contains(&next.on) {
            // A circle: everybody waits, so the first report is as good as any.
            return first.on;
        }
        seen.push(next.on);
        at = *next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(on: usize) -> Wait {
        Wait { group: 1, seq: 5, on }
    }

    #[test]
    fn the_end_of_the_chain_is_blamed() {
        // 0 waits for 3, 3 for 2, 2 for 1, and 1 waits for nobody.
        let waits = [vec![wait(3)], vec![], vec![wait(1)], vec![wait(2)]];
        assert_eq!(culprit(wait(3), &|r| waits[r].clone()), 1);
    }

    #[test]
    fn a_rank_held_up_in_another_group_is_not_to_blame() {
        let elsewhere = Wait { group: 9, seq: 1, on: 2 };
        let waits = [vec![wait(1)], vec![elsewhere], vec![]];
        assert_eq!(culprit(wait(1), &|r| waits[r].clone()), 2);
    }

    #[test]
    fn a_circle_ends() {
        let waits = [vec![wait(1)], vec![wait(2)], vec![wait(1)]];
        assert_eq!(culprit(wait(1), &|r| waits[r].clone()), 1);
    }

    #[test]
    fn a_rank_that_is_ahead_is_not_followed_in_its_own_group() {
        let ahead = Wait { group: 1, seq: 6, on: 0 };
        let waits = [vec![wait(1)], vec![ahead]];
        assert_eq!(culprit(wait(1), &|r| waits[r].clone()), 1);
    }
}
