//! What everybody sees of alerts.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, RwLock};

use tutti_model::{Alert, AskedBy, TaskId, WatchPolicy, WatchRule};
use tutti_wire::api::{AlertList, RuleRow};

/// Alerts that are over and still shown, and how many of them jobs may have asked for: anybody can ask
/// for many, and must not hide by that what the operator wants to see.
const HISTORY: usize = 500;
const HISTORY_OF_JOBS: usize = 100;

#[derive(Default)]
pub struct Board {
    shown: RwLock<Arc<Shown>>,
}

#[derive(Clone, Default)]
struct Shown {
    standing: Vec<Alert>,
    by_task: BTreeMap<TaskId, Vec<usize>>,
    /// Newest first.
    over: VecDeque<Alert>,
}

impl Board {
    fn shown(&self) -> Arc<Shown> {
        Arc::clone(&self.shown.read().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    fn put(&self, shown: Shown) {
        *self.shown.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = Arc::new(shown);
    }

    /// What an earlier controller knew.
    pub(super) fn begin(&self, over: VecDeque<Alert>) {
        self.put(Shown { over, ..Shown::default() });
    }

    pub(super) fn show(&self, standing: Vec<Alert>, ended: impl Iterator<Item = Alert>) {
        let mut over = self.shown().over.clone();
        ended.for_each(|alert| over.push_front(alert));
        shorten(&mut over);
        let mut by_task: BTreeMap<TaskId, Vec<usize>> = BTreeMap::new();
        for (i, alert) in standing.iter().enumerate() {
            if let Some(task) = alert.subject.task() {
                by_task.entry(task).or_default().push(i);
            }
        }
        self.put(Shown { standing, by_task, over });
    }

    pub(super) fn history(&self) -> VecDeque<Alert> {
        self.shown().over.clone()
    }

    /// What is wrong now, oldest first.
    pub fn standing(&self) -> Vec<Alert> {
        self.shown().standing.clone()
    }

    pub fn of_task(&self, task: TaskId) -> Vec<Alert> {
        let shown = self.shown();
        let of = shown.by_task.get(&task).into_iter().flatten();
        of.map(|i| shown.standing[*i].clone()).collect()
    }

    /// Of this very task, in a few words; none if nothing is wrong.
    pub fn note(&self, task: TaskId) -> Option<String> {
        let alerts = self.of_task(task);
        let mut texts: Vec<&str> = Vec::new();
        for alert in &alerts {
            // The policy and the job may ask for the same.
            if !texts.contains(&alert.text.as_str()) {
                texts.push(&alert.text);
            }
        }
        (!texts.is_empty()).then(|| format!("alert: {}", texts.join("; ")))
    }

    /// `all`: with those that are over. The rules are those of a policy.
    pub fn list(&self, all: bool, policy: &WatchPolicy) -> AlertList {
        let shown = self.shown();
        let mut alerts: Vec<Alert> = shown.standing.iter().rev().cloned().collect();
        if all {
            alerts.extend(shown.over.iter().cloned());
        }
        let rule = |rule: WatchRule| RuleRow { rule, terms: policy.terms(rule) };
        AlertList { alerts, rules: WatchRule::ALL.map(rule).into() }
    }

    pub fn counts(&self) -> BTreeMap<WatchRule, u64> {
        let mut counts: BTreeMap<WatchRule, u64> =
            WatchRule::ALL.iter().map(|rule| (*rule, 0)).collect();
        for alert in &self.shown().standing {
            *counts.entry(alert.rule).or_default() += 1;
        }
        counts
    }
}

/// The newest are kept.
fn shorten(over: &mut VecDeque<Alert>) {
    let mut of_jobs = 0;
    over.retain(|alert| {
        of_jobs += usize::from(alert.asked_by == AskedBy::Job);
        alert.asked_by == AskedBy::Policy || of_jobs <= HISTORY_OF_JOBS
    });
    over.truncate(HISTORY);
}

#[cfg(test)]
mod tests {
    use tutti_model::{JobId, Subject, Time, WatchAction};

    use super::*;

    fn alert(id: u64, job: u64) -> Alert {
        Alert {
            id,
            rule: WatchRule::Idle,
            subject: Subject::Job { id: TaskId::single(JobId(job)) },
            asked_by: AskedBy::Policy,
            action: WatchAction::Tell,
            text: format!("wrong {id}"),
            job: None,
            since: Time(0),
            fired_at: Time(id),
            ended_at: None,
        }
    }

    #[test]
    fn jobs_find_their_own_and_what_is_over_is_kept_for_a_while() {
        let board = Board::default();
        let standing = vec![alert(1, 7), alert(2, 8), alert(3, 7)];
        board.show(standing, std::iter::empty());
        let note = board.note(TaskId::single(JobId(7)));
        assert_eq!(note.as_deref(), Some("alert: wrong 1; wrong 3"));
        assert_eq!(board.note(TaskId::single(JobId(9))), None);
        assert_eq!(board.counts()[&WatchRule::Idle], 3);
        let over = (10..10 + HISTORY as u64 + 5).map(|id| alert(id, 7));
        board.show(vec![alert(2, 8)], over);
        let ids = |all| {
            board.list(all, &WatchPolicy::default()).alerts.iter().map(|a| a.id).collect::<Vec<_>>()
        };
        assert_eq!(ids(false), [2]);
        assert_eq!((ids(true).len(), ids(true)[1]), (HISTORY + 1, 10 + HISTORY as u64 + 4));
        assert_eq!(board.list(false, &WatchPolicy::default()).rules.len(), WatchRule::ALL.len());
    }

    fn asked(alert: Alert) -> Alert {
        Alert { asked_by: AskedBy::Job, ..alert }
    }

    #[test]
    fn what_policy_and_job_both_ask_for_is_said_once() {
        let board = Board::default();
        let same = Alert { text: "wrong 1".into(), ..asked(alert(2, 7)) };
        let standing = vec![alert(1, 7), same, asked(alert(3, 7))];
        board.show(standing, std::iter::empty());
        let note = board.note(TaskId::single(JobId(7)));
        assert_eq!(note.as_deref(), Some("alert: wrong 1; wrong 3"));
    }

    #[test]
    fn jobs_do_not_push_out_what_the_operator_wants_to_see() {
        let board = Board::default();
        let policys = (0..5).map(|id| alert(id, 7));
        board.show(Vec::new(), policys);
        for round in 1..=3 {
            let jobs = (0..400).map(|n| asked(alert(round * 1000 + n, 8)));
            board.show(Vec::new(), jobs);
        }
        let over = board.history();
        assert_eq!(over.len(), 5 + HISTORY_OF_JOBS);
        assert_eq!(over[0].id, 3399, "the newest first");
        let kept: Vec<u64> = over.range(HISTORY_OF_JOBS..).map(|alert| alert.id).collect();
        assert_eq!(kept, [4, 3, 2, 1, 0]);
    }
}
