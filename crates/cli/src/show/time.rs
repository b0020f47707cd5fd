//! Times, short.

use tutti_model::{Span, Time};

/// The two largest units: `3m12s`, `2d4h`; `0s` for less than a second. As flags and files have it,
/// and as every other span of an answer is written, only not finer than it is worth.
pub fn short(span: Span) -> String {
    span.short().to_string()
}

/// In the caller's time zone, to the second.
pub fn clock(at: Time) -> String {
    let Some(stamp) =
        i64::try_from(at.0).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok())
    else {
        return "?".to_owned();
    };
    stamp.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// For log lines: `2026-08-01T12:00:00.123Z`.
pub fn stamp(at: Time) -> String {
    i64::try_from(at.0)
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok())
        .map_or_else(|| "?".to_owned(), |t| t.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string())
}

/// A moment as people write it: so long ago, or a date with or without a time, in their time zone.
pub fn moment(text: &str) -> Result<Time, String> {
    moment_at(text, now(), &jiff::tz::TimeZone::system())
}

fn moment_at(text: &str, now: Time, zone: &jiff::tz::TimeZone) -> Result<Time, String> {
    let bad = || {
        format!(
            "'{text}' is no moment: write how long ago (30d, 12h), or 2026-11-01 or 2026-11-01T08:00"
        )
    };
    let stamp = if let Ok(stamp) = text.parse::<jiff::Timestamp>() {
        stamp
    } else if let Ok(at) = text.parse::<jiff::civil::DateTime>() {
        at.to_zoned(zone.clone()).map_err(|_| bad())?.timestamp()
    } else {
        // A bare number would be minutes, which nobody means here.
        let span: Span = text.parse().map_err(|_| bad())?;
        let ago = !text.bytes().all(|b| b.is_ascii_digit());
        return ago.then(|| Time(now.0.saturating_sub(span.0))).ok_or_else(bad);
    };
    u64::try_from(stamp.as_millisecond()).map(Time).map_err(|_| bad())
}

pub fn now() -> Time {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Time(since.map_or(0, |d| d.as_millis() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_short() {
        for (ms, want) in [
            (0, "0s"),
            (999, "0s"),
            (59_000, "59s"),
            (60_999, "1m"),
            (192_000, "3m12s"),
            (3_600_000, "1h"),
            (7_384_000, "2h3m"),
            (187_260_000, "2d4h"),
        ] {
            assert_eq!(short(Span(ms)), want);
        }
    }

    #[test]
    fn moments_are_ago_or_dates() {
        let utc = jiff::tz::TimeZone::UTC;
        let now = Time(1_794_787_200_000);
        for (text, want) in [
            ("1d", "2026-11-15T00:00:00.000Z"),
            ("90m", "2026-11-15T22:30:00.000Z"),
            ("2026-11-01", "2026-11-01T00:00:00.000Z"),
            ("2026-11-01T08:30", "2026-11-01T08:30:00.000Z"),
            ("2026-11-01T08:30:00+02:00", "2026-11-01T06:30:00.000Z"),
        ] {
            assert_eq!(stamp(moment_at(text, now, &utc).unwrap()), want, "{text}");
        }
        for text in ["", "30", "yesterday", "2026-13-01", "1969-01-01"] {
            let error = moment_at(text, now, &utc).unwrap_err();
            assert!(error.starts_with(&format!("'{text}' is no moment")), "{error}");
        }
    }

    #[test]
    fn stamps_are_utc() {
        assert_eq!(stamp(Time(0)), "1970-01-01T00:00:00.000Z");
        assert_eq!(stamp(Time(u64::MAX)), "?");
    }
}
