//! What teams and users have had, with the past fading away.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::{Span, Time};

/// Decayed, weighted GPU-time of one account. Whole numbers only: every machine that replays the
/// journal gets the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Thousandths of a weighted GPU, times milliseconds, as of `at`.
    past: u128,
    /// Thousandths of a weighted GPU that are held since `at`.
    rate: u64,
    at: Time,
}

/// The past fades in this many steps per half-life.
const STEPS: u64 = 32;

/// 2^(-n/32) in units of 2^-32.
const FADE: [u64; STEPS as usize] = fade_table();

/// 2^(-1/32) in units of 2^-32, multiplied up. An error of some 2^-28 in the share of a team is
/// of no consequence; being the same everywhere is.
const fn fade_table() -> [u64; STEPS as usize] {
    const STEP: u64 = 4_202_935_003;
    let mut table = [1 << 32; STEPS as usize];
    let mut n = 1;
    while n < table.len() {
        table[n] = (table[n - 1] * STEP) >> 32;
        n += 1;
    }
    table
}

impl Usage {
    /// What counts at `now`.
    pub fn at(&self, now: Time, half_life: Span) -> u128 {
        let step = (half_life.0 / STEPS).max(1);
        let steps = (now.0 / step).saturating_sub(self.at.0 / step);
        fade(self.past, steps).saturating_add(self.held(now, step, steps))
    }

    /// What is held since `at` fades step by step too, so that a long run counts the same as many
    /// short ones.
    fn held(&self, now: Time, step: u64, steps: u64) -> u128 {
        let rate = u128::from(self.rate);
        if rate == 0 {
            return 0;
        }
        if steps == 0 {
            return rate * u128::from(now.since(self.at).0);
        }
        let first = fade(rate * u128::from(step - self.at.0 % step), steps);
        let between = (rate * u128::from(step) * faded_steps(steps - 1)) >> 32;
        first + between + rate * u128::from(now.0 % step)
    }

    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// What is held since the last change.
    fn open(&self, now: Time) -> Open {
        Open { rate: self.rate, from: self.at, to: now }
    }

    /// From now on this much more, or less, is held.
    pub fn change(&mut self, now: Time, half_life: Span, by: i64) {
        self.past = self.at(now, half_life);
        self.at = now;
        self.rate = self.rate.saturating_add_signed(by);
    }
}

fn fade(amount: u128, steps: u64) -> u128 {
    let halvings = u32::try_from(steps / STEPS).unwrap_or(u32::MAX);
    let whole = amount.checked_shr(halvings).unwrap_or(0);
    // Split so that nothing overflows.
    let factor = u128::from(FADE[(steps % STEPS) as usize]);
    (whole >> 32) * factor + (((whole & 0xffff_ffff) * factor) >> 32)
}

/// One step back, two steps back and so on, added up, in units of 2^-32.
fn faded_steps(steps: u64) -> u128 {
    let up_to = |n: usize| (1..=n).map(|n| fade(1 << 32, n as u64)).sum::<u128>();
    let whole = up_to(STEPS as usize);
    let halvings = steps / STEPS;
    // After 64 halvings nothing is left of it.
    let all: u128 = (0..halvings.min(64)).map(|n| whole >> n).sum();
    let rest = up_to((steps % STEPS) as usize);
    all + rest.checked_shr(u32::try_from(halvings).unwrap_or(u32::MAX)).unwrap_or(0)
}

/// Usage by team, and inside a team by user. A team's usage counts for all teams above it as well.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ledger {
    pub teams: BTreeMap<String, Usage>,
    pub users: BTreeMap<(String, String), Usage>,
    /// What teams have used up by the calendar, in the same units.
    pub spent: BTreeMap<String, Spent>,
}

impl Ledger {
    pub fn change(&mut self, account: &Account<'_>, now: Time, half_life: Span, by: i64) {
        for team in &account.line {
            let usage = self.teams.entry((*team).to_owned()).or_default();
            self.spent.entry((*team).to_owned()).or_default().add(usage.open(now));
            usage.change(now, half_life, by);
        }
        if let Some(team) = account.line.first() {
            let user = ((*team).to_owned(), account.user.to_owned());
            self.users.entry(user).or_default().change(now, half_life, by);
        }
    }

    /// From now on the past fades at another pace.
    pub fn settle(&mut self, now: Time, half_life: Span) {
        for (team, usage) in &mut self.teams {
            self.spent.entry(team.clone()).or_default().add(usage.open(now));
            usage.change(now, half_life, 0);
        }
        self.users.values_mut().for_each(|usage| usage.change(now, half_life, 0));
    }

    /// What a team and all below it have used up since the first moment of this day, in thousandths
    /// of a weighted GPU times milliseconds. As far back as [`DAYS_KEPT`].
    pub fn spent_since(&self, team: &str, day: u64, now: Time) -> u128 {
        let mut spent = self.spent.get(team).cloned().unwrap_or_default();
        if let Some(usage) = self.teams.get(team) {
            spent.add(usage.open(now));
        }
        spent.since(day)
    }

    pub fn team(&self, team: &str, now: Time, half_life: Span) -> u128 {
        self.teams.get(team).map_or(0, |u| u.at(now, half_life))
    }

    pub fn user(&self, team: &str, user: &str, now: Time, half_life: Span) -> u128 {
        // A tuple of borrowed strings can't look up a tuple of owned ones.
        let key = (team.to_owned(), user.to_owned());
        self.users.get(&key).map_or(0, |u| u.at(now, half_life))
    }
}

/// Days whose beginnings are remembered: the longest month, and a day.
pub const DAYS_KEPT: u64 = 32;

pub const DAY: Span = Span::secs(86_400);

/// What is held from one moment to another.
#[derive(Clone, Copy, Debug)]
struct Open {
    rate: u64,
    from: Time,
    to: Time,
}

/// What was used up in all, and how much of it before each of the last days. Nothing fades.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spent {
    total: u128,
    /// Days since 1970, and the total at their first moment; oldest first.
    days: VecDeque<(u64, u128)>,
}

impl Spent {
    fn add(&mut self, Open { rate, from, to }: Open) {
        let amount = |until: Time| u128::from(rate) * u128::from(until.since(from).0);
        let today = to.0 / DAY.0;
        // A clock that begins in 1970 would have each day since then.
        let first = (from.0 / DAY.0 + 1).max((today + 1).saturating_sub(DAYS_KEPT));
        for day in first..=today {
            self.days.push_back((day, self.total + amount(Time(day * DAY.0))));
        }
        let surplus = self.days.len().saturating_sub(DAYS_KEPT as usize);
        self.days.drain(..surplus);
        self.total += amount(to);
    }

    /// One who had nothing before that day has no beginning of it.
    fn since(&self, day: u64) -> u128 {
        let before = self.days.iter().find(|(known, _)| *known == day);
        self.total - before.map_or(0, |(_, total)| *total)
    }
}

/// Who pays: a team with all above it, and a user in it.
#[derive(Clone, Debug)]
pub struct Account<'a> {
    pub line: Vec<&'a str>,
    pub user: &'a str,
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEEK: Span = Span::secs(7 * 86_400);

    #[test]
    fn half_is_left_after_a_half_life() {
        let mut usage = Usage::default();
        usage.change(Time(0), WEEK, 8000);
        usage.change(Time(3_600_000), WEEK, -8000);
        let then = usage.at(Time(3_600_000), WEEK);
        assert_eq!(then, 8000 * 3_600_000);
        for (n, left) in [(1, 2), (2, 4), (5, 32)] {
            let now = Time(3_600_000 + n * WEEK.0);
            assert_eq!(usage.at(now, WEEK), then / left, "after {n} half-lives");
        }
    }

    #[test]
    fn the_fading_is_even() {
        let mut usage = Usage::default();
        usage.change(Time(0), WEEK, 1_000_000);
        usage.change(Time(1_000_000), WEEK, -1_000_000);
        let mut before = u128::MAX;
        for day in 0..60 {
            let left = usage.at(Time(1_000_000 + day * 86_400_000), WEEK);
            assert!(left < before, "day {day}: {left} after {before}");
            let exact = 1e12 * (-(day as f64) / 7.0).exp2();
            assert!((left as f64 / exact - 1.0).abs() < 0.03, "day {day}: {left}, not {exact}");
            before = left;
        }
    }
    #[test]
    fn it_does_not_matter_how_often_it_is_settled() {
        const DAY: Span = Span::secs(86_400);
        for days in [1, 3, 7, 14, 30] {
            let (mut once, mut hourly) = (Usage::default(), Usage::default());
            once.change(Time(12_345), DAY, 8000);
            hourly.change(Time(12_345), DAY, 8000);
            for hour in 1..days * 24 {
                hourly.change(Time(12_345 + hour * 3_600_000), DAY, 0);
            }
            let now = Time(days * DAY.0 + 777);
            let (once, hourly) = (once.at(now, DAY), hourly.at(now, DAY));
            assert!(once.abs_diff(hourly) * 10_000 < hourly, "{days} days: {once}, not {hourly}");
        }
    }

    const HOUR: u64 = 3_600_000;

    fn account(team: &str) -> Account<'_> {
        Account { line: vec![team], user: "ada" }
    }

    #[test]
    fn what_is_spent_begins_anew_each_day() {
        let mut ledger = Ledger::default();
        let start = 20_773 * DAY.0 + 22 * HOUR;
        ledger.change(&account("a"), Time(start), WEEK, 2000);
        let gpu_hours = |ledger: &Ledger, day: u64, at: u64| {
            ledger.spent_since("a", day, Time(at)) / (1000 * u128::from(HOUR))
        };
        // Two GPUs from 22 o'clock on: four GPU-hours by midnight.
        assert_eq!(gpu_hours(&ledger, 20_773, start + 2 * HOUR), 4);
        assert_eq!(gpu_hours(&ledger, 20_774, start + 2 * HOUR), 0);
        assert_eq!(gpu_hours(&ledger, 20_774, start + 5 * HOUR), 6);
        ledger.settle(Time(start + 3 * HOUR), WEEK);
        ledger.change(&account("a"), Time(start + 4 * HOUR), WEEK, -2000);
        assert_eq!(gpu_hours(&ledger, 20_773, start + 90 * HOUR), 8);
        assert_eq!(gpu_hours(&ledger, 20_774, start + 20 * HOUR), 4);
        assert_eq!(gpu_hours(&ledger, 20_775, start + 90 * HOUR), 0);
        assert_eq!(ledger.spent_since("b", 20_773, Time(start)), 0);
    }

    proptest::proptest! {
        /// However it is settled, and however long nothing happens.
        #[test]
        fn days_add_up(changes in proptest::collection::vec((0u64..60 * HOUR, 0i64..9000), 1..40)) {
            let (mut ledger, mut now, mut rate, mut sum) = (Ledger::default(), 0, 0, 0u128);
            let first = 20_000 * DAY.0;
            for (wait, next) in changes {
                now += wait;
                sum += u128::from(wait) * rate as u128;
                ledger.change(&account("a"), Time(first + now), WEEK, next - rate);
                rate = next;
                let (day, at) = ((first + now) / DAY.0, Time(first + now));
                let since = |day| ledger.spent_since("a", day, at);
                proptest::prop_assert!((day - 20..day).all(|day| since(day) >= since(day + 1)));
                if now / DAY.0 < DAYS_KEPT {
                    proptest::prop_assert_eq!(ledger.spent_since("a", 20_000, at), sum);
                }
                proptest::prop_assert!(ledger.spent["a"].days.len() <= DAYS_KEPT as usize);
            }
        }
    }
}
