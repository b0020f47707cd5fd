//! The part's time limit, kept by its shim: it holds while the controller is away, and the agent too.
//! The controller stops a job in time; only when it has not by then, and a little longer, its node does.

use std::time::{Duration, Instant};

use tutti_model::{LimitReport, Span, TimeLimit};

/// The controller's word, which may be on its way, comes first.
const SLACK: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub struct Limit {
    rule: Option<TimeLimit>,
    left: Left,
    /// It was stopped here.
    over: bool,
}

/// How long it may run on.
#[derive(Clone, Copy, Debug)]
enum Left {
    /// While it can't do anything.
    Paused(Duration),
    Until(Instant),
}

impl Default for Left {
    fn default() -> Left {
        Left::Paused(Duration::ZERO)
    }
}

impl Limit {
    pub fn new(rule: Option<TimeLimit>) -> Limit {
        let left = rule.as_ref().map_or(Duration::ZERO, left);
        Limit { rule, left: Left::Paused(left), over: false }
    }

    /// Another one from now on, or none.
    pub fn set(&mut self, rule: Option<TimeLimit>, now: Instant) {
        let runs = matches!(self.left, Left::Until(_));
        if !self.over {
            *self = Limit::new(rule);
            self.follow(now, runs);
        }
    }

    /// Only time in which its ranks run counts. True if that has changed what is to be said of it.
    pub fn follow(&mut self, now: Instant, runs: bool) -> bool {
        self.left = match (self.left, runs) {
            (Left::Paused(left), true) => Left::Until(now + left),
            (Left::Until(at), false) => Left::Paused(at.saturating_duration_since(now)),
            _ => return false,
        };
        self.rule.is_some()
    }

    pub fn next_timer(&self) -> Option<Instant> {
        match self.left {
            Left::Until(at) if self.rule.is_some() && !self.over => Some(at + SLACK),
            _ => None,
        }
    }

    /// The rule that it has outlived by more than is left to the controller; said once.
    pub fn take_due(&mut self, now: Instant) -> Option<TimeLimit> {
        self.next_timer().filter(|at| *at <= now)?;
        self.over = true;
        self.rule.clone()
    }

    pub fn is_over(&self) -> bool {
        self.over
    }

    pub fn level(&self, now: Instant) -> Option<LimitReport> {
        if self.over {
            return Some(LimitReport::Over);
        }
        self.rule.as_ref()?;
        let left = match self.left {
            Left::Paused(left) => left,
            Left::Until(at) => at.saturating_duration_since(now),
        };
        Some(LimitReport::Left { left: Span(left.as_millis() as u64) })
    }
}

fn left(rule: &TimeLimit) -> Duration {
    // Nobody's clock goes further, and sums must not overflow.
    Duration::from_millis(rule.left.0.min(1 << 45))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(seconds: u64) -> Option<TimeLimit> {
        Some(TimeLimit { left: Span::secs(seconds), grace: Span::secs(3), signal: None })
    }

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn it_is_over_once_and_a_little_later_than_the_controller_would_say() {
        let began = Instant::now();
        let mut limit = Limit::new(rule(60));
        assert_eq!(limit.next_timer(), None, "it has not started");
        assert!(limit.follow(began, true));
        assert_eq!(limit.take_due(began + secs(60)), None);
        assert_eq!(limit.level(began + secs(61)), Some(LimitReport::Left { left: Span(0) }));
        assert_eq!(limit.take_due(began + secs(65)), rule(60));
        assert_eq!(limit.level(began + secs(66)), Some(LimitReport::Over));
        assert_eq!(limit.take_due(began + secs(90)), None, "said once");
        limit.set(rule(60), began + secs(91));
        assert!(limit.is_over(), "what is stopped is not taken back");
    }

    #[test]
    fn time_in_which_it_is_suspended_does_not_count() {
        let began = Instant::now();
        let mut limit = Limit::new(rule(60));
        limit.follow(began, true);
        assert!(limit.follow(began + secs(20), false));
        assert!(!limit.follow(began + secs(30), false));
        let left = Some(LimitReport::Left { left: Span::secs(40) });
        assert_eq!((limit.level(began + secs(500)), limit.next_timer()), (left, None));
        assert!(limit.follow(began + secs(500), true));
        assert_eq!(limit.take_due(began + secs(544)), None);
        assert!(limit.take_due(began + secs(545)).is_some());
    }

    #[test]
    fn it_can_be_changed_given_and_taken_away() {
        let began = Instant::now();
        let mut limit = Limit::new(None);
        limit.follow(began, true);
        assert_eq!((limit.level(began), limit.next_timer()), (None, None));
        limit.set(rule(10), began + secs(100));
        assert_eq!(limit.next_timer(), Some(began + secs(115)));
        limit.set(rule(1000), began + secs(105));
        assert_eq!(limit.take_due(began + secs(115)), None);
        limit.follow(began + secs(120), false);
        limit.set(rule(7), began + secs(130));
        assert_eq!(limit.next_timer(), None, "it is suspended");
        limit.set(None, began + secs(140));
        limit.follow(began + secs(150), true);
        assert_eq!((limit.level(began), limit.next_timer()), (None, None));
        limit.set(Some(TimeLimit { left: Span(u64::MAX), ..rule(1).unwrap() }), began);
        assert!(limit.next_timer().is_some());
    }
}
