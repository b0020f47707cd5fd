//! Operators' own checks: programs that end with 0, 1 or 2, and say why in their first line.

use tutti_model::{Finding, HealthAction, Span, Time};

use super::{Keep, Seen};

/// Of what a check writes, so much is kept.
pub const TEXT_CHARS_MAX: usize = 200;

/// How one run of a check ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ran {
    /// With this exit code, and this first line.
    Exited {
        code: i32,
        line: String,
    },
    Killed {
        signal: i32,
    },
    /// It took longer than this and was ended.
    TooLong(Span),
    NotStarted {
        why: String,
    },
}

impl std::fmt::Display for Ran {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ran::Exited { code, line } if line.is_empty() => write!(f, "exit {code}"),
            Ran::Exited { code, line } => write!(f, "exit {code}: {line}"),
            Ran::Killed { signal } => write!(f, "killed by signal {signal}"),
            Ran::TooLong(limit) => write!(f, "took longer than {limit}"),
            Ran::NotStarted { why } => f.write_str(why),
        }
    }
}

/// What follows: nothing if it is content. It stands until the check has been run twice again.
pub fn judge(name: &str, ran: &Ran, every: Span, at: Time) -> Option<Seen> {
    let (action, text) = match ran {
        Ran::Exited { code: 0, .. } => return None,
        Ran::Exited { code: 1, line } => (HealthAction::Note, said(line, "is not content")),
        Ran::Exited { code: 2, line } => (HealthAction::DrainNode, said(line, "has failed")),
        Ran::Exited { code, line } => {
            let line = if line.is_empty() { String::new() } else { format!(": {line}") };
            (HealthAction::Note, format!("ended with {code}, which is none of 0, 1 and 2{line}"))
        }
        Ran::Killed { signal } => (HealthAction::Note, format!("was killed by signal {signal}")),
        Ran::TooLong(limit) => (HealthAction::Note, format!("took longer than {limit}")),
        Ran::NotStarted { why } => (HealthAction::Note, format!("can't be run: {why}")),
    };
    let text: String = text.chars().filter(|c| !c.is_control()).take(TEXT_CHARS_MAX).collect();
    let finding = Finding {
        key: format!("check/{name}"),
        check: "check".to_owned(),
        gpu: None,
        action,
        text: format!("check {name}: {text}"),
        since: at,
        drill: false,
        by_job: false,
    };
    Some(Seen { finding, keep: Keep::For(Span(every.0.saturating_mul(5) / 2)) })
}

fn said(line: &str, otherwise: &str) -> String {
    if line.trim().is_empty() { otherwise.to_owned() } else { line.trim().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action(ran: &Ran) -> Option<(HealthAction, String)> {
        let seen = judge("raid", ran, Span::secs(60), Time(0))?;
        Some((seen.finding.action, seen.finding.text))
    }

    #[test]
    fn exits_mean_ok_note_and_drain() {
        let exited = |code, line: &str| Ran::Exited { code, line: line.to_owned() };
        assert_eq!(action(&exited(0, "fine")), None);
        let note = (HealthAction::Note, "check raid: one disk is slow".to_owned());
        assert_eq!(action(&exited(1, "one disk is slow")), Some(note));
        let drain = (HealthAction::DrainNode, "check raid: has failed".to_owned());
        assert_eq!(action(&exited(2, " ")), Some(drain));
    }

    /// A broken check must not take a node out.
    #[test]
    fn a_check_that_breaks_is_noted() {
        let broken = [
            Ran::Exited { code: 127, line: String::new() },
            Ran::Killed { signal: 9 },
            Ran::TooLong(Span::secs(30)),
            Ran::NotStarted { why: "no such file".to_owned() },
        ];
        for ran in broken {
            assert_eq!(action(&ran).unwrap().0, HealthAction::Note, "{ran:?}");
        }
    }

    #[test]
    fn what_a_check_writes_cannot_upset_a_terminal() {
        let ran = Ran::Exited { code: 2, line: format!("\u{1b}[31m{}", "x".repeat(5000)) };
        let text = action(&ran).unwrap().1;
        assert!(!text.contains('\u{1b}') && text.chars().count() < 250, "{text}");
    }
}
