//! Blockers in words: beside the verdict in a list, and a line each on a page.

use tutti_model::{Blocker, Obstacle, Time, Verdict};

use crate::describe::{count, dependency, describe, gpus};

/// Blockers that a list names beside the verdict; the rest is counted.
const ALSO_SHOWN: usize = 3;

/// The verdict in one short sentence, and what else keeps the task waiting. Points in time are left
/// out: see [`tell_blockers`].
pub fn describe_all(verdict: &Verdict, blockers: &[Blocker]) -> String {
    let mut also: Vec<String> =
        blockers.iter().filter(|b| !is_said_by(verdict, b)).map(|b| short(&b.what)).collect();
    if also.is_empty() {
        return describe(verdict);
    }
    if also.len() > ALSO_SHOWN {
        let more = also.len() - ALSO_SHOWN;
        also.truncate(ALSO_SHOWN);
        also.push(format!("{more} more"));
    }
    format!("{}; also {}", describe(verdict), also.join(", "))
}

/// A line for each. `when` says a time as the reader likes it.
pub fn tell_blockers(blockers: &[Blocker], when: &dyn Fn(Time) -> String) -> Vec<String> {
    blockers.iter().map(|b| long(b, when)).collect()
}

/// Whether the verdict says it already, in its sentence or in its counts of nodes.
fn is_said_by(verdict: &Verdict, blocker: &Blocker) -> bool {
    let counts_nodes = matches!(
        verdict,
        Verdict::Busy(_) | Verdict::NodesUnavailable(_) | Verdict::Reserved { .. }
    );
    match &blocker.what {
        Obstacle::Held => matches!(verdict, Verdict::Held { .. }),
        Obstacle::Dependency { .. } => matches!(verdict, Verdict::Dependencies { .. }),
        Obstacle::BackOff => matches!(verdict, Verdict::BackOff { .. }),
        Obstacle::ArrayLimit { .. } => matches!(verdict, Verdict::ArrayLimit { .. }),
        Obstacle::TeamLimit { team, model, .. } => {
            let own = (team, model);
            matches!(verdict, Verdict::TeamLimit { team, model, .. } if own == (team, model))
        }
        Obstacle::Reservation { name, .. } => {
            matches!(verdict, Verdict::Reserved { reservation, .. } if reservation == name)
        }
        Obstacle::Behind { .. } => matches!(verdict, Verdict::Behind { .. }),
        Obstacle::KeptFor { .. } | Obstacle::LeftAlone { .. } => false,
        Obstacle::Busy { .. } => counts_nodes || matches!(verdict, Verdict::Claimed { .. }),
        Obstacle::Spares { .. }
        | Obstacle::Draining { .. }
        | Obstacle::Away { .. }
        | Obstacle::Fenced { .. }
        | Obstacle::Port { .. } => counts_nodes,
    }
}

fn short(what: &Obstacle) -> String {
    match what {
        Obstacle::Held => "held".to_owned(),
        Obstacle::Dependency { waiting_for } => format!("waits for {}", dependency(waiting_for)),
        Obstacle::BackOff => "failed a moment ago".to_owned(),
        Obstacle::ArrayLimit { max_running } => {
            format!("the array runs at most {} at once", count(*max_running, "task"))
        }
        Obstacle::TeamLimit { team, limit, model, .. } => {
            format!("team {team} is at its limit of {}", gpus(*limit, model.as_deref()))
        }
        Obstacle::Reservation { name, team: None, nodes, .. } => {
            format!("maintenance '{name}' on {}", count(*nodes, "node"))
        }
        Obstacle::Reservation { name, team: Some(team), nodes, .. } => {
            format!("{} reserved for team {team} ('{name}')", count(*nodes, "node"))
        }
        Obstacle::KeptFor { task, gpus: 0, nodes } => {
            format!("{} kept for job {task}", count(*nodes, "node"))
        }
        Obstacle::KeptFor { task, gpus: n, .. } => {
            format!("{} kept for job {task}", count(*n, "GPU"))
        }
        Obstacle::Spares { nodes } => format!("{} kept as spares", count(*nodes, "node")),
        Obstacle::Behind { job } => format!("job {job} is before it in line"),
        Obstacle::LeftAlone { task, .. } => {
            format!("job {task} was preempted before and may not be again yet")
        }
        Obstacle::Busy { nodes, .. } => format!("{} busy", count(*nodes, "node")),
        Obstacle::Draining { nodes } => format!("{} draining", count(*nodes, "node")),
        Obstacle::Away { nodes } => format!("{} away", count(*nodes, "node")),
        Obstacle::Fenced { nodes } => format!("{} with fenced GPUs", count(*nodes, "node")),
        Obstacle::Port { nodes } => format!("its port is taken on {}", count(*nodes, "node")),
    }
}

fn long(blocker: &Blocker, when: &dyn Fn(Time) -> String) -> String {
    let until = blocker.until.map(when);
    let by = |before: &str| until.as_ref().map_or_else(String::new, |t| format!("{before}{t}"));
    match &blocker.what {
        Obstacle::Held => "it is held until it is released".to_owned(),
        Obstacle::Dependency { waiting_for } => {
            format!("it waits for {}", dependency(waiting_for))
        }
        Obstacle::BackOff => format!("it failed a moment ago and is tried again{}", by(" at ")),
        Obstacle::TeamLimit { team, limit, used, model } => format!(
            "team {team} has {used} of the {} that it may have at once",
            gpus(*limit, model.as_deref())
        ),
        Obstacle::Reservation { name, team, from, nodes } => {
            let whom = team.as_ref().map_or_else(String::new, |t| format!(" for team {t}"));
            let what = if team.is_some() { "reservation" } else { "maintenance" };
            let (on, from) = (could_use(*nodes), when(*from));
            format!("{what} '{name}'{whom} on {on}, from {from}{}", by(" until "))
        }
        Obstacle::KeptFor { task, gpus: n, nodes } => {
            let on = count(*nodes, "node");
            let what = if *n > 0 { format!("{} on {on}", count(*n, "GPU")) } else { on };
            format!("{what} kept for job {task}, which waits for the rest or comes back")
        }
        Obstacle::Spares { nodes } => {
            format!("{} kept empty for gangs that lose a node (spares)", are(*nodes))
        }
        Obstacle::Behind { job } => {
            let start = by(" and starts by ");
            format!("it would delay job {job}, which is before it in line{start}")
        }
        Obstacle::LeftAlone { task, gpus: n, .. } => format!(
            "job {task} has {} that it may take, but was preempted before and is left alone{} \
             (not_again_within)",
            count(*n, "GPU"),
            by(" until ")
        ),
        Obstacle::Busy { nodes, gpus: n } => {
            let ends = match &until {
                Some(t) => format!("time limits free enough of them by {t}"),
                None => "when enough of them are free is not known".to_owned(),
            };
            let what = if *n > 0 { format!("{} of ", count(*n, "GPU")) } else { String::new() };
            format!("others have {what}{}; {ends}", could_use(*nodes))
        }
        Obstacle::Draining { nodes } => format!("{} draining", are(*nodes)),
        Obstacle::Away { nodes } => format!("{} lost, away or cleaning up", are(*nodes)),
        Obstacle::Fenced { nodes } => {
            format!("{} short of GPUs that are fenced: `tutti nodes` says why", are(*nodes))
        }
        Obstacle::Port { nodes } => {
            format!("somebody listens on its fixed `port` on {}", could_use(*nodes))
        }
        other @ Obstacle::ArrayLimit { .. } => short(other),
    }
}

fn could_use(nodes: u32) -> String {
    format!("{} that it could use", count(nodes, "node"))
}

fn are(nodes: u32) -> String {
    format!("{} {}", could_use(nodes), if nodes == 1 { "is" } else { "are" })
}
