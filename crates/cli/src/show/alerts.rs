//! `tutti alerts`: what is wrong, and what is looked for.

use tutti_model::{Alert, AskedBy, Time};
use tutti_wire::api::RuleRow;

use super::table::{Grid, plain};
use super::time;
use crate::style::{Ink, Style};

/// `all`: also what is over.
pub fn table(alerts: &[Alert], all: bool, now: Time, style: Style, width: Option<u16>) -> String {
    if alerts.is_empty() {
        return match all {
            true => "no alert, and there was none".to_owned(),
            false => {
                "no alert (tutti alerts --all shows what was, tutti doctor looks at everything)"
                    .to_owned()
            }
        };
    }
    let mut head = vec!["RULE", "ABOUT", ">FOR", "ACTION"];
    head.extend(all.then_some("ENDED"));
    head.push("WHAT");
    let mut grid = Grid::new(&head, style);
    for alert in alerts {
        let until = alert.ended_at.unwrap_or(now);
        let ink = if alert.ended_at.is_some() { Ink::Dim } else { Ink::Yellow };
        let mut row = vec![
            (alert.rule.as_str().to_owned(), ink),
            plain(about(alert)),
            plain(time::short(until.since(alert.since))),
            plain(action(alert)),
        ];
        let ended = |at: Time| format!("{} ago", time::short(now.since(at)));
        row.extend(all.then(|| plain(alert.ended_at.map_or_else(|| "-".to_owned(), ended))));
        row.push(plain(alert.text.clone()));
        grid.row(row);
    }
    grid.render(width)
}

pub fn about(alert: &Alert) -> String {
    match &alert.job {
        Some(job) => format!("{} ({} of {})", alert.subject, job.name, job.user),
        None => alert.subject.to_string(),
    }
}

fn action(alert: &Alert) -> String {
    let asked = if alert.asked_by == AskedBy::Job { " (asked by the job)" } else { "" };
    format!("{}{asked}", alert.action.as_str())
}

pub fn rules(rules: &[RuleRow], style: Style, width: Option<u16>) -> String {
    let mut grid = Grid::new(&["RULE", ">LIMIT", ">WITHIN", ">FOR", ">CLEAR", "ACTION"], style);
    for RuleRow { rule, terms } in rules {
        let within = match terms.within.is_zero() {
            true => "-".to_owned(),
            false => terms.within.to_string(),
        };
        let limit = match rule.has_limit() {
            true => terms.limit.to_string(),
            false => "-".to_owned(),
        };
        grid.row([
            plain(rule.as_str().to_owned()),
            plain(limit),
            plain(within),
            plain(terms.lasts.to_string()),
            plain(terms.clear.to_string()),
            plain(terms.action.as_str().to_owned()),
        ]);
    }
    grid.render(width)
}

#[cfg(test)]
pub mod tests {
    use tutti_model::{AlertJob, JobId, Subject, TaskId, WatchAction, WatchRule};

    use super::*;

    pub fn alert() -> Alert {
        Alert {
            id: 3,
            rule: WatchRule::Idle,
            subject: Subject::Job { id: TaskId::single(JobId(7)) },
            asked_by: AskedBy::Policy,
            action: WatchAction::Tell,
            text: "its GPU does nothing (under 3% busy): n1 GPU 0".into(),
            job: Some(AlertJob { name: "train".into(), user: "ada".into() }),
            since: Time(0),
            fired_at: Time(900_000),
            ended_at: None,
        }
    }

    #[test]
    fn what_stands_and_what_is_over() {
        let over = Alert {
            asked_by: AskedBy::Job,
            action: WatchAction::Kill,
            ended_at: Some(Time(960_000)),
            ..alert()
        };
        assert_eq!(
            table(&[alert()], false, Time(1_020_000), Style::PLAIN, None),
            "RULE  ABOUT                 FOR  ACTION  WHAT\n\
             idle  job 7 (train of ada)  17m  tell    its GPU does nothing (under 3% busy): n1 GPU 0"
        );
        assert_eq!(
            table(&[over], true, Time(1_020_000), Style::PLAIN, None),
            "RULE  ABOUT                 FOR  ACTION                   ENDED   WHAT\n\
             idle  job 7 (train of ada)  16m  kill (asked by the job)  1m ago  its GPU does nothing \
             (under 3% busy): n1 GPU 0"
        );
        assert!(table(&[], false, Time(0), Style::PLAIN, None).starts_with("no alert"));
    }

    #[test]
    fn rules_with_their_terms() {
        let row = |rule: WatchRule| RuleRow { rule, terms: rule.defaults() };
        let some = [WatchRule::Idle, WatchRule::Flapping, WatchRule::NodeLost].map(row);
        assert_eq!(
            rules(&some, Style::PLAIN, None),
            "RULE       LIMIT  WITHIN  FOR  CLEAR  ACTION\n\
             idle          3%       -  15m     1m  tell\n\
             flapping       3     30m   0s    10m  tell\n\
             node_lost      -       -   1m     0s  tell"
        );
    }
}
