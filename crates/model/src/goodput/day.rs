//! Days of the calendar, in UTC.

use std::fmt;
use std::str::FromStr;

use crate::{Span, Time};

const DAY_MS: u64 = 86_400_000;

/// Days since 1970-01-01 (UTC). Written as `2026-11-16`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Day(pub u32);

impl Day {
    pub fn of(at: Time) -> Day {
        Day(u32::try_from(at.0 / DAY_MS).unwrap_or(u32::MAX))
    }
    pub fn begins(self) -> Time {
        Time(u64::from(self.0) * DAY_MS)
    }
    pub fn next(self) -> Day {
        Day(self.0.saturating_add(1))
    }

    /// Year, month and day of the Gregorian calendar. Counted in eras of 400 years that begin in
    /// March, so that the leap day is the last of its year.
    pub fn date(self) -> (u32, u32, u32) {
        let z = u64::from(self.0) + 719_468;
        let (era, of_era) = (z / 146_097, z % 146_097);
        let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let month = (5 * of_year + 2) / 153;
        let day = of_year - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year = year + era * 400 + u64::from(month <= 2);
        (year as u32, month as u32, day as u32)
    }

    fn of_date(year: u32, month: u32, day: u32) -> Option<Day> {
        if year < 1970 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
            return None;
        }
        let y = u64::from(year) - u64::from(month <= 2);
        let (era, of_era) = (y / 400, y % 400);
        let m = u64::from(if month > 2 { month - 3 } else { month + 9 });
        let of_year = (153 * m + 2) / 5 + u64::from(day) - 1;
        let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year;
        let found = Day(u32::try_from(days - 719_468).ok()?);
        (found.date() == (year, month, day)).then_some(found)
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = self.date();
        write!(f, "{year:04}-{month:02}-{day:02}")
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a day: write it as 2026-11-16")]
pub struct BadDay(String);

impl FromStr for Day {
    type Err = BadDay;
    fn from_str(s: &str) -> Result<Day, BadDay> {
        let parse = || {
            let mut parts = s.trim().splitn(3, '-').map(|part| part.parse::<u32>().ok());
            let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
            Day::of_date(year, month, day)
        };
        parse().ok_or_else(|| BadDay(s.to_owned()))
    }
}

crate::units::text_serde!(Day, "a day such as 2026-11-16");

/// Cuts a stretch of time at midnights and at the other moments given.
pub fn pieces(
    from: Time,
    until: Time,
    cuts: impl Iterator<Item = Time>,
) -> impl Iterator<Item = (Time, Time)> {
    let inside = |at: &Time| *at > from && *at < until;
    let mut cuts: Vec<Time> = cuts.filter(inside).collect();
    let mut midnight = Day::of(from).next().begins();
    while midnight < until {
        cuts.push(midnight);
        midnight = midnight.plus(Span(DAY_MS));
    }
    cuts.push(until);
    cuts.sort_unstable();
    cuts.dedup();
    let mut from = from;
    cuts.into_iter().map(move |to| (std::mem::replace(&mut from, to), to))
}
