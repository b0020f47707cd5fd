//! What is watched, from when on it is worth an alert, and what is done about it. The operator's
//! terms are part of the policy; a job may ask for more in its own file. Judging is `tutti-watch`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::units::text_serde;
use crate::{Day, Span, TaskId, Time};

mod notify;

pub use notify::{Notify, only_host};

/// Everything that is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WatchRule {
    /// GPUs of a running job do nothing.
    Idle,
    /// A job that reports steps makes none, as the engine sees it too.
    Stalled,
    /// One rank is behind the others and stays there.
    Straggler,
    /// GPUs look busy, draw little, and no step is made.
    Hang,
    /// A GPU's memory grows and will be full soon.
    Memory,
    /// A machine's memory is nearly used up.
    HostMemory,
    /// A job fails again and again and gets nowhere.
    CrashLoop,
    /// A team has used up what it may.
    Budget,
    /// A node comes and goes.
    Flapping,
    /// A node is gone, and nobody took it out.
    NodeLost,
    /// Two agents hold the key of one node.
    SharedKey,
    /// A certificate ends soon.
    Certificate,
    /// A disk is nearly full.
    Disk,
}

impl WatchRule {
    pub const ALL: [WatchRule; 13] = [
        WatchRule::Idle,
        WatchRule::Stalled,
        WatchRule::Straggler,
        WatchRule::Hang,
        WatchRule::Memory,
        WatchRule::HostMemory,
        WatchRule::CrashLoop,
        WatchRule::Budget,
        WatchRule::Flapping,
        WatchRule::NodeLost,
        WatchRule::SharedKey,
        WatchRule::Certificate,
        WatchRule::Disk,
    ];

    /// As it is written in files.
    pub fn as_str(self) -> &'static str {
        match self {
            WatchRule::Idle => "idle",
            WatchRule::Stalled => "stalled",
            WatchRule::Straggler => "straggler",
            WatchRule::Hang => "hang",
            WatchRule::Memory => "memory",
            WatchRule::HostMemory => "host_memory",
            WatchRule::CrashLoop => "crash_loop",
            WatchRule::Budget => "budget",
            WatchRule::Flapping => "flapping",
            WatchRule::NodeLost => "node_lost",
            WatchRule::SharedKey => "shared_key",
            WatchRule::Certificate => "certificate",
            WatchRule::Disk => "disk",
        }
    }

    /// What is wrong when it fires.
    pub fn looks_for(self) -> &'static str {
        match self {
            WatchRule::Idle => "a GPU of a running job does nothing",
            WatchRule::Stalled => "a job does no step any more",
            WatchRule::Straggler => "one rank is behind the others",
            WatchRule::Hang => "GPUs are busy with little power, and there is no step",
            WatchRule::Memory => "a GPU's memory is nearly full and grows",
            WatchRule::HostMemory => "a node's memory is nearly used up",
            WatchRule::CrashLoop => "a job fails and gets nowhere",
            WatchRule::Budget => "a team has used up its budget",
            WatchRule::Flapping => "a node leaves and comes back",
            WatchRule::NodeLost => "a node is lost",
            WatchRule::SharedKey => "two agents hold the key of one node",
            WatchRule::Certificate => "a certificate ends soon",
            WatchRule::Disk => "a disk is nearly full",
        }
    }

    /// It is about a job, which can be warned, started again or stopped.
    pub fn is_of_jobs(self) -> bool {
        matches!(
            self,
            WatchRule::Idle
                | WatchRule::Stalled
                | WatchRule::Straggler
                | WatchRule::Hang
                | WatchRule::Memory
                | WatchRule::CrashLoop
        )
    }

    /// The one table: from when on, for how long, how long it must be well again, and what is done
    /// if nobody says otherwise.
    pub fn defaults(self) -> Terms {
        let minutes = |n: u64| Span::secs(n * 60);
        let terms = |limit, within, lasts, clear| Terms {
            limit,
            within,
            lasts,
            clear,
            action: WatchAction::Tell,
        };
        let none = Span(0);
        match self {
            WatchRule::Idle => terms(Limit::percent(3), none, minutes(15), minutes(1)),
            WatchRule::Stalled => terms(Limit::Time(minutes(10)), none, none, minutes(1)),
            WatchRule::Straggler => terms(Limit::Count(2), none, minutes(5), minutes(2)),
            WatchRule::Hang => terms(Limit::percent(35), none, minutes(5), minutes(1)),
            WatchRule::Memory => terms(Limit::percent(95), minutes(15), minutes(1), minutes(5)),
            WatchRule::HostMemory => terms(Limit::percent(95), none, minutes(1), minutes(5)),
            WatchRule::CrashLoop => terms(Limit::Count(2), none, none, minutes(10)),
            WatchRule::Budget => terms(Limit::percent(100), none, none, minutes(1)),
            WatchRule::Flapping => terms(Limit::Count(3), minutes(30), none, minutes(10)),
            WatchRule::NodeLost => terms(Limit::Count(1), none, minutes(1), none),
            WatchRule::SharedKey => terms(Limit::Count(1), none, none, none),
            WatchRule::Certificate => {
                terms(Limit::Time(Span::secs(14 * 86_400)), none, none, minutes(1))
            }
            WatchRule::Disk => terms(Limit::percent(5), none, minutes(1), minutes(5)),
        }
    }

    /// Whether `limit` means anything to it: a node is lost or it is not.
    pub fn has_limit(self) -> bool {
        !matches!(self, WatchRule::NodeLost | WatchRule::SharedKey)
    }

    /// Whether `within` means anything to it.
    pub fn has_within(self) -> bool {
        !self.defaults().within.is_zero()
    }
}

/// What is done about an alert. Each does what those before it do as well, but for `off`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum WatchAction {
    /// Not even looked for.
    Off,
    /// People are told.
    #[default]
    Tell,
    /// The job is told too.
    Warn,
    /// The job is stopped and started again, at the cost of its budget for failures of nodes.
    Requeue,
    /// The job is stopped for good.
    Kill,
}

impl WatchAction {
    pub fn as_str(self) -> &'static str {
        match self {
            WatchAction::Off => "off",
            WatchAction::Tell => "tell",
            WatchAction::Warn => "warn",
            WatchAction::Requeue => "requeue",
            WatchAction::Kill => "kill",
        }
    }
}

/// `3%`, `3` or `14d`: which of them is for the rule to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// In tenths of a percent.
    Percent(u32),
    Count(u32),
    Time(Span),
}

impl Limit {
    pub const fn percent(whole: u32) -> Limit {
        Limit::Percent(whole * 10)
    }

    /// Of a share from 0 to 1.
    pub fn share(self) -> f64 {
        match self {
            Limit::Percent(tenths) => f64::from(tenths) / 1000.0,
            Limit::Count(_) | Limit::Time(_) => 0.0,
        }
    }
    pub fn count(self) -> u32 {
        if let Limit::Count(n) = self { n } else { 0 }
    }
    pub fn time(self) -> Span {
        if let Limit::Time(span) = self { span } else { Span(0) }
    }

    fn is_like(self, other: Limit) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no limit: write a share such as 3%, a number, or a length of time such as 14d")]
pub struct BadLimit(String);

/// More can't be meant: a budget may be exceeded ten times, and no further.
const PERCENT_MAX: f64 = 1000.0;

impl FromStr for Limit {
    type Err = BadLimit;
    fn from_str(text: &str) -> Result<Limit, BadLimit> {
        let bad = || BadLimit(text.to_owned());
        if let Some(number) = text.trim().strip_suffix('%') {
            let percent: f64 = number.trim().parse().map_err(|_| bad())?;
            let tenths = (percent * 10.0).round();
            let exact = (percent * 10.0 - tenths).abs() < 1e-6;
            if !exact || !(0.0..=PERCENT_MAX).contains(&percent) {
                return Err(bad());
            }
            return Ok(Limit::Percent(tenths as u32));
        }
        match text.trim().parse() {
            Ok(count) => Ok(Limit::Count(count)),
            Err(_) => text.parse().map(Limit::Time).map_err(|_| bad()),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Percent(tenths) if tenths % 10 == 0 => write!(f, "{}%", tenths / 10),
            Limit::Percent(tenths) => write!(f, "{}.{}%", tenths / 10, tenths % 10),
            Limit::Count(n) => n.fmt(f),
            Limit::Time(span) => span.fmt(f),
        }
    }
}

text_serde!(Limit, "a share such as 3%, a number, or a length of time such as 14d");

/// What a rule goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Terms {
    #[schema(value_type = String)]
    pub limit: Limit,
    /// The stretch of time that it looks at, where it looks at one.
    #[serde(default, skip_serializing_if = "Span::is_zero")]
    #[schema(value_type = String)]
    pub within: Span,
    /// It must have been so for this long.
    #[serde(rename = "for")]
    #[schema(value_type = String)]
    pub lasts: Span,
    /// It must have been well for this long before the alert ends.
    #[schema(value_type = String)]
    pub clear: Span,
    pub action: WatchAction,
}

/// The same as far as somebody says so; the rest is as it is by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct OwnTerms {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub limit: Option<Limit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub within: Option<Span>,
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub lasts: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub clear: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<WatchAction>,
}

impl OwnTerms {
    pub fn is_default(&self) -> bool {
        *self == OwnTerms::default()
    }

    /// On top of these.
    pub fn over(&self, terms: Terms) -> Terms {
        Terms {
            limit: self.limit.unwrap_or(terms.limit),
            within: self.within.unwrap_or(terms.within),
            lasts: self.lasts.unwrap_or(terms.lasts),
            clear: self.clear.unwrap_or(terms.clear),
            action: self.action.unwrap_or(terms.action),
        }
    }

    /// What can't be meant, each with its key.
    pub fn problems(&self, rule: WatchRule) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        let usual = rule.defaults();
        if self.limit.is_some() && !rule.has_limit() {
            found.push(("limit", format!("means nothing to {}", rule.as_str())));
        } else if let Some(limit) = self.limit.filter(|limit| !limit.is_like(usual.limit)) {
            let what = match usual.limit {
                Limit::Percent(_) => "a share",
                Limit::Count(_) => "a number",
                Limit::Time(_) => "a length of time",
            };
            found.push(("limit", format!("is {what} such as {}, not {limit}", usual.limit)));
        }
        let over = |limit: &Limit| matches!(limit, Limit::Percent(tenths) if *tenths > 1000);
        if rule != WatchRule::Budget
            && let Some(limit) = self.limit.filter(over)
        {
            found.push(("limit", format!("must be at most 100%, not {limit}")));
        }
        if self.limit == Some(Limit::Count(0)) && rule.has_limit() {
            found.push(("limit", "must be at least 1".to_owned()));
        }
        if self.within.is_some() && !rule.has_within() {
            found.push(("within", format!("means nothing to {}", rule.as_str())));
        }
        if self.within == Some(Span(0)) {
            found.push(("within", "must be longer than that".to_owned()));
        }
        if let Some(action) = self.action
            && action > WatchAction::Tell
            && !rule.is_of_jobs()
        {
            let problem = format!(
                "{} is about no job, so nothing can be done but tell: {} is not possible",
                rule.as_str(),
                action.as_str()
            );
            found.push(("action", problem));
        }
        if rule == WatchRule::CrashLoop && self.action == Some(WatchAction::Requeue) {
            let problem = "a job that fails is started again anyway, as its retry says: write tell, \
                           warn or kill";
            found.push(("action", problem.to_owned()));
        }
        found
    }

    /// What can't be meant in a job's own file, which anybody may write: one that fires and ends at
    /// every look would drown what others have to say.
    fn problems_of_job(&self, rule: WatchRule) -> Vec<(&'static str, String)> {
        let mut found = self.problems(rule);
        for (key, given) in [("for", self.lasts), ("clear", self.clear)] {
            if let Some(given) = given.filter(|given| *given < JobWatch::SHORTEST) {
                let least = JobWatch::SHORTEST;
                found.push((key, format!("must be at least {least} in a job file, not {given}")));
            }
        }
        found
    }
}

/// How the operator wants the cluster watched: `[watch]` of the policy file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct WatchPolicy {
    /// How often is looked; [`WatchPolicy::EVERY`] if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub every: Option<Span>,
    #[serde(skip_serializing_if = "OwnTerms::is_default")]
    pub idle: OwnTerms,
    #[serde(skip_serializing_if = "OwnTerms::is_default")]
    pub stalled: OwnTerms,
    #[serde(skip_serializing_if = "OwnTerms::is_default")]
    pub straggler: OwnTerms,
    #[serde(skip_serializing_if = "OwnTerms::is_default")]
    pub hang: OwnTerms,
    #[serde(skip_serializing_if = "OwnTerms::is_default")]
    pub memory: OwnTerms,
    #[serde(skip_serializing_if = "OwnTerms::is_default")]
    pub host_memory: OwnTerms,
    #[serde(skip_serializing_if = "OwnTerms::is_default")]
    pub crash_loop: OwnTerms,
    #[serde(skip_serializing_if = "OwnTerms::is_default")]
    pub budget: OwnTerms,
    #[serde(skip_serializing_if = "OwnTerms::is_default")]
    pub flapping: OwnTerms,
    #[serde(skip_serializing_if = "OwnTerms::is_default")]
    pub node_lost: OwnTerms,
    #[serde(skip_serializing_if = "OwnTerms::is_default")]
    pub shared_key: OwnTerms,
    #[serde(skip_serializing_if = "OwnTerms::is_default")]
    pub certificate: OwnTerms,
    #[serde(skip_serializing_if = "OwnTerms::is_default")]
    pub disk: OwnTerms,
    #[serde(skip_serializing_if = "Notify::is_default")]
    pub notify: Notify,
}

impl WatchPolicy {
    pub const EVERY: Span = Span::secs(5);
    const EVERY_MIN: Span = Span::millis(200);
    const EVERY_MAX: Span = Span::secs(60);

    pub fn is_default(&self) -> bool {
        *self == WatchPolicy::default()
    }

    pub fn every(&self) -> Span {
        self.every.unwrap_or(WatchPolicy::EVERY)
    }

    pub fn own(&self, rule: WatchRule) -> &OwnTerms {
        match rule {
            WatchRule::Idle => &self.idle,
            WatchRule::Stalled => &self.stalled,
            WatchRule::Straggler => &self.straggler,
            WatchRule::Hang => &self.hang,
            WatchRule::Memory => &self.memory,
            WatchRule::HostMemory => &self.host_memory,
            WatchRule::CrashLoop => &self.crash_loop,
            WatchRule::Budget => &self.budget,
            WatchRule::Flapping => &self.flapping,
            WatchRule::NodeLost => &self.node_lost,
            WatchRule::SharedKey => &self.shared_key,
            WatchRule::Certificate => &self.certificate,
            WatchRule::Disk => &self.disk,
        }
    }

    /// What is in force.
    pub fn terms(&self, rule: WatchRule) -> Terms {
        self.own(rule).over(rule.defaults())
    }

    /// What can't be meant, each with its key below `watch`.
    pub fn problems(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let possible = WatchPolicy::EVERY_MIN..=WatchPolicy::EVERY_MAX;
        if let Some(every) = self.every.filter(|every| !possible.contains(every)) {
            let (least, most) = (WatchPolicy::EVERY_MIN, WatchPolicy::EVERY_MAX);
            found.push(("every".to_owned(), format!("is {least} to {most}, not {every}")));
        }
        for rule in WatchRule::ALL {
            let of_rule = self.own(rule).problems(rule).into_iter();
            found.extend(of_rule.map(|(key, p)| (format!("{}.{key}", rule.as_str()), p)));
        }
        found.extend(self.notify.problems().into_iter().map(|(k, p)| (format!("notify.{k}"), p)));
        found
    }
}

/// What a job asks to be watched for on top of what the operator has: `[watch]` of the job file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct JobWatch {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<OwnTerms>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub straggler: Option<OwnTerms>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hang: Option<OwnTerms>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<OwnTerms>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crash_loop: Option<OwnTerms>,
}

impl JobWatch {
    /// Of `for` and `clear`: at the usual pace two looks must agree. Tests and people who try rules out
    /// need no more.
    pub const SHORTEST: Span = Span::secs(1);

    /// None: it does not ask.
    pub fn own(&self, rule: WatchRule) -> Option<&OwnTerms> {
        match rule {
            WatchRule::Idle => self.idle.as_ref(),
            WatchRule::Straggler => self.straggler.as_ref(),
            WatchRule::Hang => self.hang.as_ref(),
            WatchRule::Memory => self.memory.as_ref(),
            WatchRule::CrashLoop => self.crash_loop.as_ref(),
            // A job says what is done about stalls with `stall`, and the rest is not its own.
            _ => None,
        }
    }

    pub fn problems(&self) -> Vec<(String, String)> {
        let of_rule = |rule: WatchRule| {
            let found = self.own(rule).map(|own| own.problems_of_job(rule)).unwrap_or_default();
            found.into_iter().map(move |(key, p)| (format!("{}.{key}", rule.as_str()), p))
        };
        WatchRule::ALL.into_iter().flat_map(of_rule).collect()
    }
}

/// How many GPU-hours a team may have: `budget` of a team.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Budget {
    /// Weighted as `gpu_weights` says.
    pub gpu_hours: u64,
    pub per: Period,
}

/// By the calendar, in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Period {
    Day,
    /// From Monday on.
    Week,
    Month,
}

impl Period {
    pub fn as_str(self) -> &'static str {
        match self {
            Period::Day => "day",
            Period::Week => "week",
            Period::Month => "month",
        }
    }

    /// The first day of the period that this day is in; days since 1970.
    pub fn first_day(self, day: u64) -> u64 {
        match self {
            Period::Day => day,
            // 1970 began on a Thursday, so its first week is cut short.
            Period::Week => day.saturating_sub((day + 3) % 7),
            Period::Month => {
                let (_, _, of_month) = Day(u32::try_from(day).unwrap_or(u32::MAX)).date();
                day + 1 - u64::from(of_month)
            }
        }
    }
}

/// What an alert is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Subject {
    Job { id: TaskId },
    Node { name: String },
    Team { name: String },
    Controller { part: String },
}

impl Subject {
    pub fn task(&self) -> Option<TaskId> {
        if let Subject::Job { id } = self { Some(*id) } else { None }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Job { id } => write!(f, "job {id}"),
            Subject::Node { name } => write!(f, "node {name}"),
            Subject::Team { name } => write!(f, "team {name}"),
            Subject::Controller { part } => write!(f, "controller {part}"),
        }
    }
}

/// Whose terms were not met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum AskedBy {
    Policy,
    /// The job asked for it in its own file.
    Job,
}

/// Something is wrong, or was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Alert {
    /// Counts up, over restarts of the controller too.
    pub id: u64,
    pub rule: WatchRule,
    pub subject: Subject,
    pub asked_by: AskedBy,
    pub action: WatchAction,
    /// One plain sentence.
    pub text: String,
    /// The name of the job, and whose it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<AlertJob>,
    /// Since when it is so.
    pub since: Time,
    /// When that became an alert.
    pub fired_at: Time,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Time>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AlertJob {
    pub name: String,
    pub user: String,
}

#[cfg(test)]
mod tests;
