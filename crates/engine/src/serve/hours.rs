//! Least numbers of replicas by the clock on the wall.

use tutti_model::{Replicas, ScheduledMin, ServiceSpec, Time, Weekday};

const MINUTE_MS: i64 = 60_000;
const DAY_MINUTES: i64 = 24 * 60;
const DAYS: [Weekday; 7] = [
    Weekday::Mon,
    Weekday::Tue,
    Weekday::Wed,
    Weekday::Thu,
    Weekday::Fri,
    Weekday::Sat,
    Weekday::Sun,
];

/// The least number of replicas now: of the bounds, or of the hour.
pub(crate) fn floor(service: &ServiceSpec, bounds: Replicas, now: Time) -> u32 {
    let hours = service.schedule.iter().filter(|entry| holds(entry, now)).map(|entry| entry.min);
    hours.max().unwrap_or(0).max(bounds.min).min(bounds.max)
}

/// What begins on a day and goes on into the next belongs to the day on which it began.
fn holds(entry: &ScheduledMin, now: Time) -> bool {
    let minutes = (now.0 as i64).div_euclid(MINUTE_MS) + i64::from(entry.utc_offset_minutes);
    let (day, minute) = (minutes.div_euclid(DAY_MINUTES), minutes.rem_euclid(DAY_MINUTES));
    let (from, until) = (i64::from(entry.from.0), i64::from(entry.until.0));
    let on = |day: i64| entry.days.is_empty() || entry.days.contains(&weekday(day));
    if from < until {
        return on(day) && (from..until).contains(&minute);
    }
    on(day) && minute >= from || on(day - 1) && minute < until
}

/// Of a day since 1970-01-01, which was a Thursday.
fn weekday(day: i64) -> Weekday {
    DAYS[(day + 3).rem_euclid(7) as usize]
}

/// When the next minimum begins or ends.
pub(super) fn next_turn(service: &ServiceSpec, now: Time) -> Option<Time> {
    let turns = service.schedule.iter().flat_map(|entry| {
        let local = (now.0 as i64).div_euclid(MINUTE_MS) + i64::from(entry.utc_offset_minutes);
        let today = local - local.rem_euclid(DAY_MINUTES);
        [entry.from, entry.until].map(|at| {
            let then = today + i64::from(at.0);
            let then = if then > local { then } else { then + DAY_MINUTES };
            Time(((then - i64::from(entry.utc_offset_minutes)) * MINUTE_MS).max(0) as u64)
        })
    });
    turns.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-16, a Monday, 00:00 UTC.
    const MONDAY: u64 = 1_794_787_200_000;

    fn at(day: u64, hour: u64, minute: u64) -> Time {
        Time(MONDAY + ((day * 24 + hour) * 60 + minute) * 60_000)
    }

    fn entry(from: &str, until: &str, days: &[Weekday], offset: i32) -> ScheduledMin {
        let (from, until) = (from.parse().unwrap(), until.parse().unwrap());
        ScheduledMin { from, until, days: days.to_vec(), min: 4, utc_offset_minutes: offset }
    }

    #[test]
    fn minimums_hold_at_their_hours_and_on_their_days() {
        let work = [Weekday::Mon, Weekday::Fri];
        for (entry, when, expected) in [
            (entry("08:00", "20:00", &[], 0), at(0, 8, 0), true),
            (entry("08:00", "20:00", &[], 0), at(0, 7, 59), false),
            (entry("08:00", "20:00", &[], 0), at(6, 20, 0), false),
            (entry("08:00", "20:00", &work, 0), at(0, 12, 0), true),
            (entry("08:00", "20:00", &work, 0), at(1, 12, 0), false),
            // Over midnight: Friday's goes on into Saturday, and Monday has none from Sunday.
            (entry("22:00", "06:00", &work, 0), at(4, 23, 0), true),
            (entry("22:00", "06:00", &work, 0), at(5, 5, 59), true),
            (entry("22:00", "06:00", &work, 0), at(5, 6, 0), false),
            (entry("22:00", "06:00", &work, 0), at(0, 5, 0), false),
            // Two hours ahead of UTC: Monday begins on Sunday at 22:00.
            (entry("00:00", "24:00", &[Weekday::Mon], 120), at(0, 21, 59), true),
            (entry("00:00", "24:00", &[Weekday::Mon], 120), at(0, 22, 0), false),
            (entry("00:00", "24:00", &[Weekday::Mon], 120), Time(MONDAY - 3_600_000), true),
            (entry("20:00", "23:00", &[Weekday::Sun], -300), at(0, 2, 0), true),
        ] {
            assert_eq!(holds(&entry, when), expected, "{entry:?} at {when:?}");
        }
    }

    #[test]
    fn the_hour_raises_the_least_number_up_to_the_most() {
        let schedule = vec![entry("08:00", "20:00", &[], 0)];
        let service = ServiceSpec { schedule, ..ServiceSpec::default() };
        let of = |min, max, when| floor(&service, Replicas { min, max }, when);
        assert_eq!(of(1, 8, at(0, 12, 0)), 4);
        assert_eq!(of(1, 3, at(0, 12, 0)), 3);
        assert_eq!(of(1, 8, at(0, 21, 0)), 1);
        assert_eq!(of(6, 8, at(0, 12, 0)), 6);
        assert_eq!(next_turn(&service, at(0, 12, 0)), Some(at(0, 20, 0)));
        assert_eq!(next_turn(&service, at(0, 20, 0)), Some(at(1, 8, 0)));
    }
}
