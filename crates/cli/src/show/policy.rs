//! `tutti policy apply`: what changed, or would.

use tutti_model::{PolicyNotes, ReservationOverlap, TaskEffect, Time};
use tutti_wire::api::PolicyPreview;
use tutti_wire::policyfile::Change;

use super::table::{Grid, plain};
use super::{count, harmless, time};
use crate::style::{Ink, Style};

/// Longer values are cut: a rack of a thousand nodes is not a line.
const VALUE_MAX: usize = 120;

pub fn changes(changes: &[Change], style: Style) -> String {
    if changes.is_empty() {
        return "nothing changed".to_owned();
    }
    changes.iter().map(|c| line(c, style)).collect::<Vec<_>>().join("\n")
}

/// What somebody who has changed the policy should know, a line each.
pub fn notes(notes: &PolicyNotes, now: Time) -> Vec<String> {
    let never = notes.never.iter().map(|never| {
        let TaskEffect { task, name, user, .. } = &never.task;
        let (name, user, why) = (harmless(name), harmless(user), harmless(&never.why));
        format!("job {task} ({name}, {user}) can never start under this policy: {why}")
    });
    never.chain(overlaps(notes, now)).chain(warnings(notes)).collect()
}

fn overlaps(notes: &PolicyNotes, now: Time) -> impl Iterator<Item = String> {
    notes.overlaps.iter().map(move |o| {
        let jobs: Vec<String> = o.by.iter().map(|by| in_the_way(by, now)).collect();
        let name = harmless(&o.reservation);
        format!("reservation '{name}' begins while these may still run there: {}", jobs.join(", "))
    })
}

fn warnings(notes: &PolicyNotes) -> impl Iterator<Item = String> {
    notes.warnings.iter().map(|w| format!("{}: {}", harmless(&w.path), harmless(&w.problem)))
}

/// What would change, what that would do at once, and what is odd about it.
pub fn preview(p: &PolicyPreview, now: Time, style: Style, width: Option<u16>) -> String {
    let e = &p.effects;
    let mut grid = Grid::new(&["EFFECT", ">JOB", "NAME", "USER", "TEAM", ">GPUS", "NOTE"], style);
    let mut rows = 0;
    let mut row = |what: &str, ink: Ink, task: &TaskEffect, note: String| {
        rows += 1;
        grid.row([
            (what.to_owned(), ink),
            plain(task.task.to_string()),
            plain(task.name.clone()),
            plain(task.user.clone()),
            plain(task.team.clone()),
            plain(task.gpus.to_string()),
            plain(note),
        ]);
    };
    for task in &e.preempted {
        let note = format!("for job {}", task.for_task);
        row(task.how.as_str(), Ink::Red, &task.task, note);
    }
    e.starts.iter().for_each(|task| row("starts", Ink::Green, task, String::new()));
    let waits = "would start under the running policy";
    e.waits.iter().for_each(|task| row("waits", Ink::Yellow, task, waits.to_owned()));
    for never in &e.notes.never {
        row("never starts", Ink::Red, &never.task, never.why.clone());
    }
    let mut lines = vec![changes(&p.changes, style)];
    lines.push(match rows {
        0 => "no job would start, stop or wait because of it at once".to_owned(),
        _ => format!("what would happen at once\n{}", grid.render(width)),
    });
    lines.extend(overlaps(&e.notes, now));
    let odd = |warning: String| style.paint(Ink::Yellow, &format!("warning: {warning}"));
    lines.extend(warnings(&e.notes).map(odd));
    lines.push("nothing was changed".to_owned());
    lines.join("\n")
}

fn in_the_way(o: &ReservationOverlap, now: Time) -> String {
    let ends = match o.ends_by {
        Some(end) => format!("for {} at most", time::short(end.since(now))),
        None => "no time limit".to_owned(),
    };
    let (name, nodes) = (harmless(&o.name), count(o.nodes.into(), "node"));
    format!("job {} ({name}, {}, on {nodes}, {ends})", o.task, harmless(&o.user))
}

fn line(change: &Change, style: Style) -> String {
    let path = harmless(&change.path);
    match (&change.old, &change.new) {
        (Some(old), Some(new)) => format!("~ {path}: {} → {}", clip(old), clip(new)),
        (None, Some(new)) => style.paint(Ink::Green, &format!("+ {path} = {}", clip(new))),
        (Some(old), None) => style.paint(Ink::Red, &format!("- {path} = {}", clip(old))),
        (None, None) => path,
    }
}

fn clip(text: &str) -> String {
    let text = harmless(text);
    if text.chars().count() <= VALUE_MAX {
        return text;
    }
    text.chars().take(VALUE_MAX - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_lines() {
        let change = |path: &str, old: Option<&str>, new: Option<&str>| Change {
            path: path.to_owned(),
            old: old.map(str::to_owned),
            new: new.map(str::to_owned),
        };
        let list = [
            change("patience", Some("\"5m\""), Some("\"1m\"")),
            change("teams.a", None, Some("{ guarantee = 4 }")),
            change("teams.b", Some(&"x".repeat(500)), None),
        ];
        let text = changes(&list, Style::PLAIN);
        assert!(text.starts_with(
            "~ patience: \"5m\" → \"1m\"\n+ teams.a = { guarantee = 4 }\n- teams.b = xxx"
        ));
        assert!(text.ends_with("x…") && text.lines().all(|l| l.chars().count() < 140), "{text}");
        assert_eq!(changes(&[], Style::PLAIN), "nothing changed");
    }
}
