//! `tutti quota`: teams as a tree, with what they are promised, have, borrow and lend.

use std::collections::{BTreeMap, BTreeSet};

use tutti_model::TeamShare;

use super::milli;
use super::table::{Grid, plain};
use crate::style::{Ink, Style};

pub fn table(teams: &[TeamShare], style: Style, width: Option<u16>) -> String {
    if teams.is_empty() {
        return "no teams: everybody shares alike (tutti policy apply FILE makes some)".to_owned();
    }
    let asleep = teams.iter().any(|t| t.suspended > 0);
    let mut head = vec![
        "TEAM",
        ">GUARANTEE",
        ">LIMIT",
        ">USED",
        ">BORROWED",
        ">LENT",
        ">SHARE",
        ">TARGET",
        ">RUNNING",
    ];
    head.extend(asleep.then_some(">SUSPENDED"));
    head.push(">WAITING");
    let mut grid = Grid::new(&head, style);
    for (depth, team) in tree(teams) {
        let lent = if team.lent > 0 { Ink::Yellow } else { Ink::Plain };
        let borrowed = if team.borrowed > 0 { Ink::Cyan } else { Ink::Plain };
        let mut row = vec![
            plain(format!("{}{}", "  ".repeat(depth), team.team)),
            plain(guarantee(team)),
            plain(limit(team)),
            plain(milli(team.used)),
            (milli(team.borrowed), borrowed),
            (milli(team.lent), lent),
            plain(per_cent(team.share)),
            plain(per_cent(team.target)),
            plain(team.running.to_string()),
        ];
        row.extend(asleep.then(|| plain(team.suspended.to_string())));
        row.push(plain(team.waiting.to_string()));
        grid.row(row);
    }
    grid.render(width)
}

/// `8`, or with those of certain models after those of any: `4+4 h100`; `100 (counts as 8)` where there
/// are too few GPUs.
fn guarantee(team: &TeamShare) -> String {
    match team.guarantee_counts {
        Some(counts) => format!("{} (counts as {counts})", written(team)),
        None => written(team),
    }
}

fn written(team: &TeamShare) -> String {
    let of_models: u32 = team.guarantee_models.values().sum();
    let any = team.guarantee.saturating_sub(of_models);
    let any = (any > 0 || of_models == 0).then(|| any.to_string());
    any.into_iter().chain(by_model(&team.guarantee_models)).collect::<Vec<_>>().join("+")
}

/// `16` of all together, `4 h100` of a model, or both.
fn limit(team: &TeamShare) -> String {
    let all = team.limit.map(|n| n.to_string());
    let limits: Vec<String> = all.into_iter().chain(by_model(&team.limit_models)).collect();
    if limits.is_empty() { "-".to_owned() } else { limits.join(", ") }
}

fn by_model(models: &BTreeMap<String, u32>) -> impl Iterator<Item = String> + '_ {
    models.iter().map(|(model, n)| format!("{n} {model}"))
}

/// Each team right before those under it. A team whose parent is not listed stands at the top, so
/// that none is lost.
fn tree(teams: &[TeamShare]) -> Vec<(usize, &TeamShare)> {
    let known: BTreeSet<&str> = teams.iter().map(|t| t.team.as_str()).collect();
    let mut under: BTreeMap<Option<&str>, Vec<&TeamShare>> = BTreeMap::new();
    for team in teams {
        let parent = team.parent.as_deref().filter(|p| known.contains(p) && *p != team.team);
        under.entry(parent).or_default().push(team);
    }
    let mut out = Vec::new();
    let mut left: Vec<(usize, &TeamShare)> = Vec::new();
    let push = |left: &mut Vec<_>, depth, parent| {
        let teams = under.get(&parent).into_iter().flatten().rev();
        left.extend(teams.map(|t| (depth, *t)));
    };
    push(&mut left, 0, None);
    while let Some((depth, team)) = left.pop() {
        out.push((depth, team));
        push(&mut left, depth + 1, Some(team.team.as_str()));
    }
    out
}

fn per_cent(per_mille: u32) -> String {
    format!("{}.{}%", per_mille / 10, per_mille % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn team(name: &str, parent: Option<&str>) -> TeamShare {
        TeamShare {
            team: name.to_owned(),
            parent: parent.map(str::to_owned),
            guarantee: 8,
            guarantee_counts: None,
            guarantee_models: BTreeMap::new(),
            limit: None,
            limit_models: BTreeMap::new(),
            weight: 1000,
            used: 0,
            borrowed: 0,
            lent: 0,
            share: 0,
            target: 500,
            running: 0,
            suspended: 0,
            waiting: 0,
            members: Vec::new(),
        }
    }

    #[test]
    fn teams_are_a_tree() {
        let rows = [
            team("audio", Some("research")),
            TeamShare {
                used: 9250,
                borrowed: 1250,
                limit: Some(16),
                share: 333,
                running: 3,
                ..team("ops", None)
            },
            team("research", None),
            TeamShare { lent: 1250, waiting: 12, ..team("vision", Some("research")) },
            team("nowhere", Some("gone")),
        ];
        assert_eq!(
            table(&rows, Style::PLAIN, None),
            "TEAM      GUARANTEE  LIMIT  USED  BORROWED  LENT  SHARE  TARGET  RUNNING  WAITING
ops               8     16  9.25      1.25     0  33.3%   50.0%        3        0
research          8      -     0         0     0   0.0%   50.0%        0        0
  audio           8      -     0         0     0   0.0%   50.0%        0        0
  vision          8      -     0         0  1.25   0.0%   50.0%        0       12
nowhere           8      -     0         0     0   0.0%   50.0%        0        0"
        );
        assert!(table(&[], Style::PLAIN, None).starts_with("no teams"));
        let asleep = [TeamShare { running: 1, suspended: 2, ..team("ops", None) }];
        let text = table(&asleep, Style::PLAIN, None);
        assert!(
            text.contains("RUNNING  SUSPENDED  WAITING") && text.ends_with("1          2        0"),
            "{text}"
        );
    }

    #[test]
    fn models_are_named() {
        let h100 = |n| BTreeMap::from([("h100".to_owned(), n)]);
        let rows = [
            TeamShare { guarantee_models: h100(2), limit_models: h100(4), ..team("a", None) },
            TeamShare {
                guarantee_models: h100(8),
                limit: Some(16),
                limit_models: h100(9),
                ..team("b", None)
            },
        ];
        assert_eq!(
            table(&rows, Style::PLAIN, None),
            "TEAM  GUARANTEE       LIMIT  USED  BORROWED  LENT  SHARE  TARGET  RUNNING  WAITING
a      6+2 h100      4 h100     0         0     0   0.0%   50.0%        0        0
b        8 h100  16, 9 h100     0         0     0   0.0%   50.0%        0        0"
        );
    }
}
