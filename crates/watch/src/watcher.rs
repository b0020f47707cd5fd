//! All rules over all subjects, round after round.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tutti_model::{
    Alert, AlertJob, AskedBy, JobWatch, Subject, Terms, Time, WatchAction, WatchPolicy, WatchRule,
};

use crate::judge::{self, Judged};
use crate::seen::{CertificateSeen, DiskSeen, NodeSeen, Seen, TeamSeen};
use crate::track::{Signal, Track, Turn};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    rule: WatchRule,
    subject: Subject,
    asked_by: AskedBy,
}

impl Key {
    fn of(alert: &Alert) -> Key {
        Key { rule: alert.rule, subject: alert.subject.clone(), asked_by: alert.asked_by }
    }
}

#[derive(Clone, Debug)]
struct Kept {
    era: u64,
    track: Track,
    bad: bool,
    alert: Option<Alert>,
}

impl Kept {
    fn new(era: u64) -> Kept {
        Kept { era, track: Track::Quiet, bad: false, alert: None }
    }
}

/// An alert that goes on, and the attempt that it is about; 0 where there is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    pub alert: Alert,
    pub era: u64,
    /// The newest look found it bad. It stands for a while without that, but nothing is done to
    /// anybody for what is past or not known.
    #[serde(skip)]
    pub bad: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Began(Alert),
    Ended(Alert),
}

#[derive(Clone, Debug, Default)]
pub struct Watcher {
    kept: BTreeMap<Key, Kept>,
    next: u64,
}

/// What is judged in one round.
struct Look<'a> {
    key: Key,
    era: u64,
    terms: Terms,
    judged: Judged,
    job: Option<&'a AlertJob>,
}

impl Watcher {
    /// Goes on where an earlier one was. What only threatened begins anew.
    pub fn restore(standing: Vec<Standing>, next: u64) -> Watcher {
        let kept = |Standing { alert, era, .. }: Standing| {
            let (key, track) = (Key::of(&alert), Track::restored());
            (key, Kept { track, alert: Some(alert), ..Kept::new(era) })
        };
        Watcher { kept: standing.into_iter().map(kept).collect(), next }
    }

    /// The number of the next alert.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// What stands, oldest first.
    pub fn standing(&self) -> Vec<Standing> {
        let stands = |kept: &Kept| {
            Some(Standing { alert: kept.alert.clone()?, era: kept.era, bad: kept.bad })
        };
        let mut all: Vec<Standing> = self.kept.values().filter_map(stands).collect();
        all.sort_by_key(|standing| standing.alert.id);
        all
    }

    /// Subjects that a rule has its eye on: worth a look even if nothing else points to them.
    pub fn eyed(&self, rule: WatchRule) -> impl Iterator<Item = &Subject> {
        let quiet = |kept: &Kept| kept.track == Track::Quiet;
        let of_rule = move |(key, kept): &(&Key, &Kept)| key.rule == rule && !quiet(kept);
        self.kept.iter().filter(of_rule).map(|(key, _)| &key.subject)
    }

    pub fn round(&mut self, policy: &WatchPolicy, seen: &Seen) -> Vec<Change> {
        let mut before = std::mem::take(&mut self.kept);
        let mut changes = Vec::new();
        for look in looks(policy, seen) {
            let was = before.remove(&look.key);
            let was = match was {
                Some(kept) if kept.era == look.era => Some(kept),
                // Another attempt: what there was is over.
                Some(gone) => {
                    changes.extend(gone.alert.map(|alert| ended(alert, seen.now)));
                    None
                }
                None => None,
            };
            let mut kept = was.unwrap_or_else(|| Kept::new(look.era));
            changes.extend(self.step(&mut kept, &look, seen.now));
            if kept.track != Track::Quiet {
                self.kept.insert(look.key, kept);
            }
        }
        // Nobody looks at these any more.
        let gone = before.into_values().filter_map(|kept| kept.alert);
        changes.extend(gone.map(|alert| ended(alert, seen.now)));
        changes
    }

    fn step(&mut self, kept: &mut Kept, look: &Look<'_>, now: Time) -> Option<Change> {
        kept.bad = look.judged.signal == Signal::Bad;
        let turn = kept.track.step(look.judged.signal, &look.terms, now);
        match turn {
            Turn::Fires { since } => {
                let alert = Alert {
                    id: self.next,
                    rule: look.key.rule,
                    subject: look.key.subject.clone(),
                    asked_by: look.key.asked_by,
                    action: look.terms.action,
                    text: look.judged.text.clone(),
                    job: look.job.cloned(),
                    since,
                    fired_at: now,
                    ended_at: None,
                };
                self.next += 1;
                kept.alert = Some(alert.clone());
                Some(Change::Began(alert))
            }
            Turn::Ends => kept.alert.take().map(|alert| ended(alert, now)),
            Turn::Stays => {
                if let Some(alert) = kept.alert.as_mut() {
                    alert.action = look.terms.action;
                    if !look.judged.text.is_empty() {
                        alert.text.clone_from(&look.judged.text);
                    }
                }
                None
            }
        }
    }
}

fn ended(alert: Alert, now: Time) -> Change {
    Change::Ended(Alert { ended_at: Some(now), ..alert })
}

/// Every rule that is in force, on everything that it is about.
fn looks<'a>(policy: &'a WatchPolicy, seen: &'a Seen) -> impl Iterator<Item = Look<'a>> {
    let in_force = WatchRule::ALL.into_iter().map(|rule| (rule, policy.terms(rule)));
    in_force.flat_map(move |(rule, terms)| {
        let mut looks = of_jobs(rule, terms, seen);
        if terms.action != WatchAction::Off {
            looks.extend(of_others(rule, terms, seen));
        }
        looks
    })
}

/// By the operator's terms, and by those that jobs have of their own: neither undoes the other.
fn of_jobs(rule: WatchRule, terms: Terms, seen: &Seen) -> Vec<Look<'_>> {
    let mut looks = Vec::new();
    if !rule.is_of_jobs() {
        return looks;
    }
    let mut add =
        |id, era, job, asks: Option<&JobWatch>, judge: &dyn Fn(&Terms) -> Option<Judged>| {
            let own = asks.and_then(|asks| asks.own(rule));
            let own = own.map(|own| own.over(Terms { action: WatchAction::Tell, ..terms }));
            for (asked_by, terms) in [(AskedBy::Policy, Some(terms)), (AskedBy::Job, own)] {
                let Some(terms) = terms.filter(|terms| terms.action != WatchAction::Off) else {
                    continue;
                };
                let Some(judged) = judge(&terms) else { continue };
                let key = Key { rule, subject: Subject::Job { id }, asked_by };
                looks.push(Look { key, era, terms, judged, job: Some(job) });
            }
        };
    match rule {
        WatchRule::CrashLoop => {
            for task in &seen.circling {
                let judge = |terms: &Terms| Some(judge::circling(terms, task));
                add(task.id, 0, &task.job, task.asks.as_deref(), &judge);
            }
        }
        _ => {
            for task in &seen.tasks {
                let judge = |terms: &Terms| judge::task(rule, terms, task);
                add(task.id, task.era, &task.job, task.asks.as_deref(), &judge);
            }
        }
    }
    looks
}

fn of_others(rule: WatchRule, terms: Terms, seen: &Seen) -> Vec<Look<'_>> {
    let look = |subject: Subject, judged: Judged| {
        let key = Key { rule, subject, asked_by: AskedBy::Policy };
        Look { key, era: 0, terms, judged, job: None }
    };
    let node = |name: &String| Subject::Node { name: name.clone() };
    let own = |part: &str| Subject::Controller { part: part.to_owned() };
    match rule {
        WatchRule::HostMemory => {
            let of = |n: &NodeSeen| look(node(&n.name), judge::host_memory(&terms, n));
            seen.nodes.iter().map(of).collect()
        }
        WatchRule::Flapping => {
            let of = |n: &NodeSeen| look(node(&n.name), judge::flapping(&terms, n, seen.now));
            seen.nodes.iter().map(of).collect()
        }
        WatchRule::NodeLost => {
            let of = |n: &NodeSeen| look(node(&n.name), judge::node_lost(n, seen.now));
            seen.nodes.iter().map(of).collect()
        }
        WatchRule::SharedKey => {
            let of = |n: &NodeSeen| look(node(&n.name), judge::shared_key(n));
            seen.nodes.iter().map(of).collect()
        }
        WatchRule::Budget => {
            let of = |t: &TeamSeen| {
                look(Subject::Team { name: t.name.clone() }, judge::budget(&terms, t))
            };
            seen.teams.iter().map(of).collect()
        }
        WatchRule::Disk => {
            let of = |d: &DiskSeen| {
                let subject = d.node.as_ref().map_or_else(|| own("disk"), node);
                look(subject, judge::disk(&terms, d))
            };
            seen.disks.iter().map(of).collect()
        }
        WatchRule::Certificate => {
            let of =
                |c: &CertificateSeen| look(own(c.which.as_str()), judge::certificate(&terms, c));
            seen.certificates.iter().map(of).collect()
        }
        _ => Vec::new(),
    }
}
