//! What can be known to be wrong with a `[service]` table, whatever the cluster. Readers of job files tell
//! where it stands in the text, the controller refuses it.

use std::collections::BTreeSet;
use std::fmt;

use crate::{JobSpec, Replicas, RolloutRule, ScheduledMin, ServiceSpec};

const REPLICAS_MAX: u32 = 1000;
const MODELS_MAX: usize = 100;
const MODEL_CHARS_MAX: usize = 200;
const SCHEDULE_MAX: usize = 100;
const DAYS_MAX: usize = 7;
const PATH_BYTES_MAX: usize = 4096;
const HEADER_BYTES_MAX: usize = 200;
/// Lower ones are what daemons of the machine itself listen on.
const PORT_MIN: u16 = 1024;
/// The clocks that are furthest from UTC.
const OFFSET_MAX: i32 = 14 * 60;

/// What is wrong, and where below `service`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongService {
    pub at: ServicePath,
    pub why: String,
}

/// Keys and positions in lists: `schedule[0].min`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePath(pub Vec<ServiceStep>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceStep {
    Key(&'static str),
    Item(usize),
}

use ServiceStep::{Item, Key};

impl fmt::Display for ServicePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, step) in self.0.iter().enumerate() {
            match step {
                Key(key) if n == 0 => write!(f, "{key}")?,
                Key(key) => write!(f, ".{key}")?,
                Item(at) => write!(f, "[{at}]")?,
            }
        }
        Ok(())
    }
}

type Checked = Result<(), WrongService>;

fn wrong<const N: usize>(at: [ServiceStep; N], why: impl Into<String>) -> Checked {
    Err(WrongService { at: ServicePath(at.into()), why: why.into() })
}

impl JobSpec {
    /// A key that makes no sense for something that is always there.
    pub fn not_with_service(&self) -> Option<&'static str> {
        let keys = [
            ("array", self.array.is_some()),
            ("stdin", self.stdin),
            ("after", !self.after.is_empty()),
            ("hold", self.hold),
            ("elastic", self.elastic.is_some()),
        ];
        keys.into_iter().find(|(_, there)| *there).map(|(key, _)| key)
    }
}

impl ServiceSpec {
    pub fn check(&self) -> Checked {
        self.check_bounds(self.replicas)?;
        self.check_numbers()?;
        self.check_names()?;
        self.check_models()?;
        self.rollout.check()?;
        self.check_schedule()
    }

    /// Whether it can be served with these bounds, its own or those that a person sets.
    pub fn check_bounds(&self, bounds: Replicas) -> Checked {
        let Replicas { min, max } = bounds;
        if max == 0 {
            return wrong(
                [Key("replicas")],
                "0 would never answer anything: write [0, 1] to let it sleep",
            );
        }
        if min > max {
            let why = format!("[{min}, {max}] is no range: write [min, max]");
            return wrong([Key("replicas")], why);
        }
        if max > REPLICAS_MAX {
            let why = format!("{max} are too many: at most {REPLICAS_MAX}");
            return wrong([Key("replicas")], why);
        }
        if min == 0 && self.queue == 0 {
            let why = "must be at least 1: requests wait there while nobody is awake";
            return wrong([Key("queue")], why);
        }
        Ok(())
    }

    fn check_numbers(&self) -> Checked {
        if self.port == Some(0) {
            let why = "0 is no port: leave the key out, and $PORT says which is free";
            return wrong([Key("port")], why);
        }
        if let Some(port) = self.port.filter(|port| *port < PORT_MIN) {
            let why = format!(
                "{port} belongs to the system: ports from {PORT_MIN} on are for jobs; leave the key \
                 out, and $PORT says which is free"
            );
            return wrong([Key("port")], why);
        }
        if self.target_in_flight == 0 {
            return wrong([Key("target_in_flight")], "must be at least 1");
        }
        if self.max_in_flight == Some(0) {
            let why = "must be at least 1; leave the key out for no bound";
            return wrong([Key("max_in_flight")], why);
        }
        if self.warm_up.0 == 0 {
            return wrong([Key("warm_up")], "nothing is ready at once: give it some time");
        }
        if self.hung_after.0 == 0 {
            return wrong(
                [Key("hung_after")],
                "everybody is silent for a moment: give it some time",
            );
        }
        Ok(())
    }

    fn check_names(&self) -> Checked {
        self.check_lengths()?;
        if !self.health.starts_with('/') {
            let why = format!("'{}' is no path: it starts with / as in /health", self.health);
            return wrong([Key("health")], why);
        }
        if self.health.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return wrong([Key("health")], "a path has no spaces");
        }
        let fits = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        let header = &self.sticky_header;
        if header.is_empty() || !header.chars().all(fits) {
            return wrong([Key("sticky_header")], format!("'{header}' is no header's name"));
        }
        match self.files.as_deref().filter(|files| !files.starts_with('/')) {
            Some(files) => {
                let why = format!("'{files}' is no path on every node: it starts with /");
                wrong([Key("files")], why)
            }
            None => Ok(()),
        }
    }

    /// First, because what else is wrong with a text is said with the text.
    fn check_lengths(&self) -> Checked {
        let texts = [
            ("health", self.health.len(), PATH_BYTES_MAX),
            ("sticky_header", self.sticky_header.len(), HEADER_BYTES_MAX),
            ("files", self.files.as_ref().map_or(0, String::len), PATH_BYTES_MAX),
        ];
        match texts.into_iter().find(|(_, bytes, most)| bytes > most) {
            Some((key, bytes, most)) => {
                wrong([Key(key)], format!("has {bytes} bytes, and at most {most} are taken"))
            }
            None => Ok(()),
        }
    }

    fn check_models(&self) -> Checked {
        if self.models.len() > MODELS_MAX {
            return wrong([Key("models")], format!("at most {MODELS_MAX} names are taken"));
        }
        let mut seen = BTreeSet::new();
        for (n, model) in self.models.iter().enumerate() {
            let at = [Key("models"), Item(n)];
            if model.trim().is_empty() {
                return wrong(at, "a model has a name");
            }
            if model.chars().count() > MODEL_CHARS_MAX || model.chars().any(char::is_control) {
                let why = format!(
                    "{model:?} is no name: at most {MODEL_CHARS_MAX} characters in one line"
                );
                return wrong(at, why);
            }
            if !seen.insert(model) {
                return wrong(at, format!("'{model}' is there twice"));
            }
        }
        Ok(())
    }

    fn check_schedule(&self) -> Checked {
        if self.schedule.len() > SCHEDULE_MAX {
            return wrong([Key("schedule")], format!("at most {SCHEDULE_MAX} entries are taken"));
        }
        let max = self.replicas.max;
        self.schedule.iter().enumerate().try_for_each(|(n, hours)| hours.check(n, max))
    }
}

impl ScheduledMin {
    fn check(&self, n: usize, max: u32) -> Checked {
        let at = |key| [Key("schedule"), Item(n), Key(key)];
        if self.min > max {
            return wrong(at("min"), format!("{} is more than the {max} of 'replicas'", self.min));
        }
        if self.from == self.until {
            return wrong(at("until"), "the same as 'from': write 00:00 and 24:00 for a day");
        }
        if self.days.len() > DAYS_MAX {
            return wrong(at("days"), format!("names {} of the 7 days", self.days.len()));
        }
        if self.utc_offset_minutes.unsigned_abs() > OFFSET_MAX.unsigned_abs() {
            let why = format!("{} minutes: no clock is that far", self.utc_offset_minutes);
            return wrong(at("utc_offset_minutes"), why);
        }
        Ok(())
    }
}

impl RolloutRule {
    /// Per cent of the requests that a new revision gets first.
    pub fn check_canary(percent: u32) -> Checked {
        match percent {
            0..=100 => Ok(()),
            _ => {
                let why = format!("{percent} is no part of the requests: write 0 to 100 per cent");
                wrong([Key("rollout"), Key("canary")], why)
            }
        }
    }

    fn check(&self) -> Checked {
        let at = |key| [Key("rollout"), Key(key)];
        RolloutRule::check_canary(self.canary)?;
        if self.surge > REPLICAS_MAX {
            let why = format!("{} are too many: at most {REPLICAS_MAX}", self.surge);
            return wrong(at("surge"), why);
        }
        if !(0.0..=100.0).contains(&self.max_errors) {
            return wrong(at("max_errors"), "must be 0 to 100 per cent");
        }
        if !(self.max_slowdown >= 1.0 && self.max_slowdown.is_finite()) {
            return wrong(at("max_slowdown"), "must be at least 1: so many times as slow");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Span, TimeOfDay, Weekday};

    fn hours(from: u16, until: u16, utc_offset_minutes: i32) -> ScheduledMin {
        let (from, until) = (TimeOfDay(from), TimeOfDay(until));
        ScheduledMin { from, until, days: Vec::new(), min: 1, utc_offset_minutes }
    }

    type Spoil = fn(&mut ServiceSpec);

    #[test]
    fn every_mistake_has_its_place() {
        assert_eq!(ServiceSpec::default().check(), Ok(()));
        let cases: [(&str, Spoil); 29] = [
            ("replicas", |s| s.replicas = Replicas { min: 0, max: 0 }),
            ("replicas", |s| s.replicas = Replicas { min: 3, max: 2 }),
            ("replicas", |s| s.replicas = Replicas { min: 0, max: 1001 }),
            ("queue", |s| (s.replicas.min, s.queue) = (0, 0)),
            ("port", |s| s.port = Some(0)),
            ("port", |s| s.port = Some(22)),
            ("port", |s| s.port = Some(1023)),
            ("target_in_flight", |s| s.target_in_flight = 0),
            ("max_in_flight", |s| s.max_in_flight = Some(0)),
            ("warm_up", |s| s.warm_up = Span(0)),
            ("hung_after", |s| s.hung_after = Span(0)),
            ("health", |s| s.health = "health".into()),
            ("health", |s| s.health = "/a b".into()),
            ("health", |s| s.health = format!("/{}", "x".repeat(4096))),
            ("sticky_header", |s| s.sticky_header = String::new()),
            ("sticky_header", |s| s.sticky_header = "x".repeat(201)),
            ("files", |s| s.files = Some(format!("/{}", "x".repeat(4096)))),
            ("schedule[0].days", |s| {
                s.schedule = vec![ScheduledMin { days: vec![Weekday::Mon; 8], ..hours(1, 2, 0) }];
            }),
            ("files", |s| s.files = Some("models".into())),
            ("models", |s| s.models = (0..101).map(|n| n.to_string()).collect()),
            ("models[0]", |s| s.models = vec![" ".into()]),
            ("models[0]", |s| s.models = vec!["x".repeat(201)]),
            ("models[1]", |s| s.models = vec!["a".into(), "a\nb".into()]),
            ("schedule[1].until", |s| s.schedule = vec![hours(1, 2, 0), hours(3, 3, 0)]),
            ("schedule[0].min", |s| s.schedule = vec![ScheduledMin { min: 2, ..hours(1, 2, 0) }]),
            ("schedule[0].utc_offset_minutes", |s| s.schedule = vec![hours(1, 2, i32::MIN)]),
            ("rollout.canary", |s| s.rollout.canary = 101),
            ("rollout.max_errors", |s| s.rollout.max_errors = f64::NAN),
            ("rollout.max_slowdown", |s| s.rollout.max_slowdown = f64::INFINITY),
        ];
        for (at, spoil) in cases {
            let mut service = ServiceSpec::default();
            spoil(&mut service);
            let wrong = service.check().expect_err(at);
            assert_eq!(wrong.at.to_string(), at, "{}", wrong.why);
        }
    }

    #[test]
    fn no_bounds_let_an_endpoint_sleep_that_nothing_could_wake() {
        let service = ServiceSpec { queue: 0, ..ServiceSpec::default() };
        assert_eq!(service.check(), Ok(()));
        let asleep = service.check_bounds(Replicas { min: 0, max: 2 }).unwrap_err();
        assert_eq!(asleep.at.to_string(), "queue");
    }
}
