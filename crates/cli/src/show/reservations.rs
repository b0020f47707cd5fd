//! `tutti reservations`: when which nodes are kept for whom, and who is in the way.

use tutti_model::{NodeReservation, ReservationOverlap, ReservationRow, ReservationState, Time};
use tutti_wire::policyfile::compress_hosts;

use super::table::{Grid, plain};
use super::{count, harmless, time};
use crate::style::{Ink, Style};

pub const NONE: &str =
    "no reservations and no maintenance: tutti policy apply FILE with [[reservations]] makes some";

/// Tasks in the way that a row names; the rest is counted.
const OVERLAPS_SHOWN: usize = 4;
const NODES_CHARS_MAX: usize = 40;

pub fn table(rows: &[ReservationRow], now: Time, style: Style, width: Option<u16>) -> String {
    if rows.is_empty() {
        return NONE.to_owned();
    }
    let head = ["NAME", "FOR", "STATE", "FROM", "UNTIL", "NODES", ">GPUS", "NOTE"];
    let mut grid = Grid::new(&head, style);
    for row in rows {
        let ink = match row.state {
            ReservationState::Now => Ink::Yellow,
            ReservationState::Coming => Ink::Cyan,
            ReservationState::Over => Ink::Dim,
        };
        grid.row([
            plain(row.name.clone()),
            plain(whose(row.team.as_deref())),
            (standing(row, now), ink),
            plain(time::clock(row.from)),
            plain(time::clock(row.until)),
            plain(nodes(&row.nodes)),
            plain(row.gpus.to_string()),
            (note(row, now), Ink::Dim),
        ]);
    }
    grid.render(width)
}

fn whose(team: Option<&str>) -> String {
    team.map_or_else(|| "maintenance".to_owned(), |team| format!("team {team}"))
}

/// `now`, `in 3h`.
fn standing(row: &ReservationRow, now: Time) -> String {
    match row.state {
        ReservationState::Coming => format!("in {}", time::short(row.from.since(now))),
        state => state.as_str().to_owned(),
    }
}

/// `n[1-4]`, or how many they are.
fn nodes(names: &[String]) -> String {
    let text = compress_hosts(names).join(",");
    if text.chars().count() <= NODES_CHARS_MAX { text } else { count(names.len() as u64, "node") }
}

fn note(row: &ReservationRow, now: Time) -> String {
    let mut parts = Vec::new();
    if !row.overlaps.is_empty() {
        let shown = row.overlaps.iter().take(OVERLAPS_SHOWN).map(|o| overlap(o, now));
        let mut shown: Vec<String> = shown.collect();
        if row.overlaps.len() > OVERLAPS_SHOWN {
            shown.push(format!("{} more", row.overlaps.len() - OVERLAPS_SHOWN));
        }
        let verb = if row.state == ReservationState::Now { "still there" } else { "in the way" };
        parts.push(format!("{verb}: {}", shown.join(", ")));
    }
    if !row.unknown.is_empty() {
        parts.push(format!("no node is called {}", nodes(&row.unknown)));
    }
    parts.join("; ")
}

fn overlap(o: &ReservationOverlap, now: Time) -> String {
    match o.ends_by {
        Some(end) => format!("job {} (for {} at most)", o.task, time::short(end.since(now))),
        None => format!("job {} (no time limit)", o.task),
    }
}

/// As the note of a node has it: `maintenance 'power work' from … until …`.
pub fn on_node(r: &NodeReservation) -> String {
    let (name, from, until) = (harmless(&r.name), time::clock(r.from), time::clock(r.until));
    match &r.team {
        None => format!("maintenance '{name}' from {from} until {until}"),
        Some(team) => {
            format!("reserved for team {} ('{name}') from {from} until {until}", harmless(team))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_says_when_and_who_is_in_the_way() {
        let overlap = |n: u64, ends_by| ReservationOverlap {
            task: n.to_string().parse().unwrap(),
            user: "ada".into(),
            name: "train".into(),
            nodes: 1,
            ends_by,
        };
        let row = ReservationRow {
            name: "power work".into(),
            team: None,
            from: Time(3_600_000),
            until: Time(7_200_000),
            state: ReservationState::Coming,
            nodes: (1..=4).map(|n| format!("n{n}")).collect(),
            unknown: vec!["n4".into()],
            gpus: 24,
            overlaps: vec![overlap(7, None), overlap(8, Some(Time(5_400_000)))],
        };
        let text = table(std::slice::from_ref(&row), Time(0), Style::PLAIN, None);
        for want in [
            "NAME        FOR          STATE  FROM",
            "power work  maintenance  in 1h",
            "n[1-4]",
            "in the way: job 7 (no time limit), job 8 (for 1h30m at most); no node is called n4",
        ] {
            assert!(text.contains(want), "{want} in\n{text}");
        }
        let of_team = ReservationRow { team: Some("vision".into()), ..row };
        assert!(table(&[of_team], Time(0), Style::PLAIN, None).contains("team vision"));
        assert_eq!(table(&[], Time(0), Style::PLAIN, None), NONE);
    }
}
