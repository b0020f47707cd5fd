//! What teams and users pay per moment is what their attempts are charged: for every team, the sum
//! over itself and all below it.

use std::collections::BTreeMap;

use tutti_model::State;

pub(super) fn check(state: &State) -> Result<(), String> {
    let mut teams: BTreeMap<&str, u64> = BTreeMap::new();
    let mut users: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for (_, job, attempt) in super::attempts(state) {
        for team in state.policy.line_of(&job.team) {
            *teams.entry(team).or_default() += attempt.charge;
        }
        *users.entry((&job.team, &job.user)).or_default() += attempt.charge;
    }
    for (team, usage) in &state.ledger.teams {
        let charged = teams.remove(team.as_str()).unwrap_or(0);
        if usage.rate() != charged {
            return Err(format!("team {team} pays {}, is charged {charged}", usage.rate()));
        }
    }
    for ((team, user), usage) in &state.ledger.users {
        let charged = users.remove(&(team.as_str(), user.as_str())).unwrap_or(0);
        if usage.rate() != charged {
            return Err(format!("{user} of {team} pays {}, is charged {charged}", usage.rate()));
        }
    }
    match teams.into_iter().chain(users.into_iter().map(|((_, u), n)| (u, n))).find(|(_, n)| *n > 0)
    {
        Some((who, charged)) => Err(format!("{who} is charged {charged} and pays nothing")),
        None => Ok(()),
    }
}
