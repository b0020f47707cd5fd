//! What one key may use up.

use std::time::{Duration, Instant};

use tutti_model::KeyLimits;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Requests,
    Tokens,
    Concurrent,
}

impl Limit {
    pub fn as_str(self) -> &'static str {
        match self {
            Limit::Requests => "requests per minute",
            Limit::Tokens => "tokens per minute",
            Limit::Concurrent => "requests at the same time",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this key's limit of {} is reached: try again in {} s, or ask for a higher limit",
    .which.as_str(), .retry_after.as_secs().max(1)
)]
pub struct Limited {
    pub which: Limit,
    pub retry_after: Duration,
}

/// Longest that anybody is told to wait.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// When a request under way will end is not known.
const RETRY_CONCURRENT: Duration = Duration::from_secs(1);

/// Fills by a minute's worth per minute, up to a minute's worth: a key that was quiet may use that at
/// once. What was used in excess is a debt that is worked off first.
#[derive(Clone, Debug)]
struct Bucket {
    per_minute: f64,
    level: f64,
    at: Instant,
}

impl Bucket {
    fn new(per_minute: f64, now: Instant) -> Self {
        Bucket { per_minute, level: per_minute, at: now }
    }

    fn fill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.level = (self.level + passed / 60.0 * self.per_minute).min(self.per_minute);
        self.at = self.at.max(now);
    }

    /// How long until there is so much; none if there is now.
    fn wait_for(&self, wanted: f64) -> Option<Duration> {
        // A hair less will do: the level is a sum of many fractions.
        let missing = wanted - self.level;
        if missing <= 1e-6 {
            return None;
        }
        if self.per_minute <= 0.0 {
            return Some(RETRY_AFTER_MAX);
        }
        let wait = Duration::from_secs_f64((missing / self.per_minute * 60.0).min(1e6));
        Some(wait.min(RETRY_AFTER_MAX))
    }

    /// Keeps the part that is filled.
    fn resize(&mut self, per_minute: f64, now: Instant) {
        self.fill(now);
        let part = if self.per_minute > 0.0 { self.level / self.per_minute } else { 1.0 };
        *self = Bucket { per_minute, level: part * per_minute, at: now };
    }
}

/// One key's use, in this router.
#[derive(Clone, Debug)]
pub struct Limiter {
    requests: Option<Bucket>,
    tokens: Option<Bucket>,
    concurrent: Option<u32>,
    in_flight: u32,
}

impl Limiter {
    pub fn new(limits: &KeyLimits, now: Instant) -> Self {
        let mut limiter = Limiter { requests: None, tokens: None, concurrent: None, in_flight: 0 };
        limiter.update(limits, now);
        limiter
    }

    /// Takes over changed limits; what was used up stays used up.
    pub fn update(&mut self, limits: &KeyLimits, now: Instant) {
        let renew = |bucket: &mut Option<Bucket>, rate: Option<f64>| match (bucket.as_mut(), rate) {
            (Some(bucket), Some(rate)) => bucket.resize(rate, now),
            (_, rate) => *bucket = rate.map(|rate| Bucket::new(rate, now)),
        };
        renew(&mut self.requests, limits.requests_per_minute.map(f64::from));
        renew(&mut self.tokens, limits.tokens_per_minute.map(|n| n as f64));
        self.concurrent = limits.concurrent;
    }

    /// Counts a request, or says why not; a refused one costs nothing. One that was admitted is given back
    /// by [`Limiter::release`].
    pub fn admit(&mut self, now: Instant) -> Result<(), Limited> {
        if self.concurrent.is_some_and(|most| self.in_flight >= most) {
            return Err(Limited { which: Limit::Concurrent, retry_after: RETRY_CONCURRENT });
        }
        if let Some(tokens) = &mut self.tokens {
            tokens.fill(now);
            // How many it will take is not known yet: any at all will do.
            if let Some(retry_after) = tokens.wait_for(1.0) {
                return Err(Limited { which: Limit::Tokens, retry_after });
            }
        }
        if let Some(requests) = &mut self.requests {
            requests.fill(now);
            if let Some(retry_after) = requests.wait_for(1.0) {
                return Err(Limited { which: Limit::Requests, retry_after });
            }
            requests.level -= 1.0;
        }
        self.in_flight += 1;
        Ok(())
    }

    /// Tokens of prompt and answer, when they are known. The level may fall below nothing.
    pub fn charge(&mut self, tokens: u64, now: Instant) {
        if let Some(bucket) = &mut self.tokens {
            bucket.fill(now);
            bucket.level -= tokens as f64;
        }
    }

    /// The request has ended, however it did.
    pub fn release(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(requests: Option<u32>, tokens: Option<u64>, concurrent: Option<u32>) -> KeyLimits {
        KeyLimits {
            requests_per_minute: requests,
            tokens_per_minute: tokens,
            concurrent,
            endpoints: Vec::new(),
        }
    }

    #[test]
    fn a_minutes_worth_at_once_then_one_by_one() {
        let now = Instant::now();
        let mut limiter = Limiter::new(&limits(Some(60), None, None), now);
        assert_eq!((0..100).filter(|_| limiter.admit(now).is_ok()).count(), 60);
        let refused = limiter.admit(now).unwrap_err();
        assert_eq!(refused.which, Limit::Requests);
        assert_eq!(refused.retry_after.as_millis(), 1000);
        assert!(limiter.admit(now + refused.retry_after).is_ok());
        assert!(limiter.admit(now + refused.retry_after).is_err());
    }

    #[test]
    fn a_debt_of_tokens_delays_the_next_request() {
        let now = Instant::now();
        let mut limiter = Limiter::new(&limits(None, Some(6000), None), now);
        limiter.admit(now).unwrap();
        limiter.charge(8000, now);
        let refused = limiter.admit(now).unwrap_err();
        assert_eq!(refused.which, Limit::Tokens);
        assert!((20_000..20_100).contains(&refused.retry_after.as_millis()), "{refused:?}");
        assert!(limiter.admit(now + Duration::from_secs(19)).is_err());
        assert!(limiter.admit(now + Duration::from_secs(21)).is_ok());
    }

    #[test]
    fn so_many_at_the_same_time() {
        let now = Instant::now();
        let mut limiter = Limiter::new(&limits(Some(10), None, Some(2)), now);
        limiter.admit(now).unwrap();
        limiter.admit(now).unwrap();
        assert_eq!(limiter.admit(now).unwrap_err().which, Limit::Concurrent);
        limiter.release();
        assert!(limiter.admit(now).is_ok());
        (0..7).for_each(|_| {
            limiter.release();
            limiter.admit(now).expect("refused requests cost none of the ten");
        });
    }

    #[test]
    fn changed_limits_keep_what_was_used() {
        let now = Instant::now();
        let mut limiter = Limiter::new(&limits(Some(10), None, None), now);
        (0..10).for_each(|_| limiter.admit(now).unwrap());
        limiter.update(&limits(Some(100), None, None), now);
        assert!(limiter.admit(now).is_err(), "a change of limits is no refill");
        limiter.update(&limits(None, None, None), now);
        assert!(limiter.admit(now).is_ok());
    }

    #[test]
    fn nothing_allowed_is_nothing_allowed() {
        let now = Instant::now();
        let mut limiter = Limiter::new(&limits(Some(0), None, None), now);
        let later = now + Duration::from_secs(3600);
        assert_eq!(limiter.admit(later).unwrap_err().retry_after, RETRY_AFTER_MAX);
    }
}
