//! Teams that are asked for by name.

use std::collections::BTreeSet;

use tutti_model::{DEFAULT_TEAM, State};
use tutti_wire::textfile::nearest;

use super::problem::Problem;

/// Refuses a team that nobody knows, for one of which nothing was found: it is mistyped. Where no teams
/// are configured, those are known that jobs have named.
pub(super) fn must_be_known(state: &State, team: &str) -> Result<(), Problem> {
    let mut known: BTreeSet<&str> = BTreeSet::from([DEFAULT_TEAM]);
    known.extend(state.policy.teams.keys().map(String::as_str));
    known.extend(state.ledger.teams.keys().map(String::as_str));
    if known.contains(team) {
        return Ok(());
    }
    known.extend(state.jobs.values().map(|job| job.team.as_str()));
    if known.contains(team) {
        return Ok(());
    }
    let near = nearest(team, known).map_or_else(String::new, |n| format!(", did you mean '{n}'?"));
    Err(Problem::not_found(format!("there is no team '{team}'{near}"))
        .hint("`tutti quota` lists the teams"))
}

#[cfg(test)]
mod tests {
    use tutti_model::{Policy, Team};

    use super::*;

    #[test]
    fn what_is_mistyped_is_refused_with_what_was_meant() {
        let teams = ["vision", "speech"].map(|name| (name.to_owned(), Team::default()));
        let policy = Policy { teams: teams.into(), ..Policy::default() };
        let state = State { policy: policy.into(), ..State::default() };
        for known in ["vision", "speech", DEFAULT_TEAM] {
            assert_eq!(must_be_known(&state, known), Ok(()));
        }
        let problem = must_be_known(&state, "visoin").unwrap_err();
        assert_eq!((problem.error.code.as_str(), problem.error.exit), ("not_found", 3));
        assert_eq!(problem.error.message, "there is no team 'visoin', did you mean 'vision'?");
        let problem = must_be_known(&state, "robotics").unwrap_err();
        assert_eq!(problem.error.message, "there is no team 'robotics'");
    }
}
