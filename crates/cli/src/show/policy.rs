//! `tutti policy apply`: what changed.

use tutti_wire::policyfile::Change;

use super::harmless;
use crate::style::{Ink, Style};

/// Longer values are cut: a rack of a thousand nodes is not a line.
const VALUE_MAX: usize = 120;

pub fn changes(changes: &[Change], style: Style) -> String {
    if changes.is_empty() {
        return "nothing changed".to_owned();
    }
    changes.iter().map(|c| line(c, style)).collect::<Vec<_>>().join("\n")
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
