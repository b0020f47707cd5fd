//! Reservations and coming maintenance, for people who look at them.

use std::collections::BTreeSet;

use tutti_model::{
    Node, NodeId, NodeReservation, Reservation, ReservationOverlap, ReservationRow,
    ReservationState, State, TaskId, Time,
};

use crate::cluster::natural;

/// All of the policy: what is going on, what comes next, what is over.
pub fn reservations(state: &State, now: Time) -> Vec<ReservationRow> {
    let all = state.policy.reservations.iter();
    let mut rows: Vec<ReservationRow> = all.map(|r| row(state, r, now)).collect();
    rows.sort_by(|a, b| (a.state, a.from, &a.name).cmp(&(b.state, b.from, &b.name)));
    rows
}

/// Those of one node that are not over, the next first.
pub fn reservations_of(state: &State, node: &Node, now: Time) -> Vec<NodeReservation> {
    let meant = |r: &&Reservation| r.until > now && r.nodes.contains(&node.facts.name);
    let shown = |r: &Reservation| NodeReservation {
        name: r.name.clone(),
        team: r.team.clone(),
        from: r.from,
        until: r.until,
    };
    let all = state.policy.reservations.iter();
    let mut found: Vec<NodeReservation> = all.filter(meant).map(shown).collect();
    found.sort_by(|a, b| (a.from, &a.name).cmp(&(b.from, &b.name)));
    found
}

fn row(state: &State, r: &Reservation, now: Time) -> ReservationRow {
    let mut nodes: Vec<String> = r.nodes.iter().cloned().collect();
    nodes.sort_by_cached_key(|name| natural(name));
    let known: Vec<&Node> = nodes.iter().filter_map(|name| state.node_named(name)).collect();
    let unknown = nodes.iter().filter(|name| state.node_named(name).is_none()).cloned().collect();
    ReservationRow {
        name: r.name.clone(),
        team: r.team.clone(),
        from: r.from,
        until: r.until,
        state: ReservationState::of(r.from, r.until, now),
        gpus: known.iter().map(|n| n.facts.gpus.len() as u32).sum(),
        overlaps: if r.until > now { overlaps(state, r, &known, now) } else { Vec::new() },
        nodes,
        unknown,
    }
}

/// Whoever is on these nodes, is none of its team, and may still be there when it begins.
fn overlaps(state: &State, r: &Reservation, nodes: &[&Node], now: Time) -> Vec<ReservationOverlap> {
    let tasks: BTreeSet<TaskId> =
        nodes.iter().flat_map(|n| &n.used.leases).map(|lease| lease.task).collect();
    let ids: BTreeSet<NodeId> = nodes.iter().map(|n| n.id).collect();
    let overlap = |task: TaskId| {
        let job = state.job(task.job)?;
        let line = state.policy.line_of(&job.team);
        if r.team.as_ref().is_some_and(|team| line.contains(&team.as_str())) {
            return None;
        }
        let attempt = job.task(task.index)?.attempt()?;
        let ends_by = attempt.running_since(now).zip(job.spec.time);
        let ends_by = ends_by.map(|(since, time)| since.plus(time).max(now));
        let parts = attempt.parts.iter().filter(|p| !p.phase.is_over());
        let nodes = parts.filter(|p| ids.contains(&p.node)).count() as u32;
        let stays = ends_by.is_none_or(|end| end > r.from.max(now));
        (nodes > 0 && stays).then(|| ReservationOverlap {
            task,
            user: job.user.clone(),
            name: job.spec.display_name().to_owned(),
            nodes,
            ends_by,
        })
    };
    tasks.into_iter().filter_map(overlap).collect()
}

#[cfg(test)]
mod tests {
    use tutti_model::Span;

    use super::*;
    use crate::testing::*;

    fn reserved(name: &str, node: &str, from: u64, team: Option<&str>) -> Reservation {
        Reservation {
            name: name.to_owned(),
            nodes: [node.to_owned()].into(),
            from: Time(NOW.0 + from * 1000),
            until: Time(NOW.0 + from * 1000 + 3_600_000),
            team: team.map(str::to_owned),
        }
    }

    #[test]
    fn what_goes_on_comes_first_and_says_who_is_in_the_way() {
        let c = case()
            .nodes(2, 4)
            .running(time(Span::secs(60), gpus(1)), &[(1, &[0])])
            .running(time(Span::secs(36_000), gpus(1)), &[(1, &[1])])
            .running(team("a", gpus(1)), &[(2, &[0])])
            .running(team("b", gpus(2)), &[(2, &[1, 2])])
            .policy(|p| {
                let mut gone = reserved("gone", "n9", 0, None);
                gone.from = Time(0);
                gone.until = Time(NOW.0 - 1);
                p.reservations = vec![
                    gone,
                    reserved("later", "n1", 7200, None),
                    reserved("a's day", "n2", 0, Some("a")),
                ];
            });
        let state = c.state();
        let rows = reservations(&state, NOW);
        let shown: Vec<_> = rows.iter().map(|r| (r.name.as_str(), r.state.as_str())).collect();
        assert_eq!(shown, [("a's day", "now"), ("later", "coming"), ("gone", "over")]);
        let tasks = |row: &ReservationRow| -> Vec<String> {
            row.overlaps.iter().map(|o| o.task.to_string()).collect()
        };
        assert_eq!(tasks(&rows[0]), ["4"], "its own team is not in its way");
        assert_eq!(tasks(&rows[1]), ["2"], "the first has ended by then");
        assert!(rows[1].overlaps[0].ends_by.is_some());
        assert_eq!((rows[2].unknown.as_slice(), rows[2].gpus), (&["n9".to_owned()][..], 0));
        let of = |name| reservations_of(&state, state.node_named(name).unwrap(), NOW);
        assert_eq!(of("n1").len(), 1);
        assert_eq!(of("n1")[0].name, "later");
    }
}
