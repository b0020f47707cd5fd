//! Times, short.

use tutti_model::{Span, Time};

/// The two largest units: `3m12s`, `2d4h`; `0s` for less than a second. As flags and files have it,
/// and as every other span of an answer is written, only not finer than it is worth.
pub fn short(span: Span) -> String {
    const HOUR: u64 = 3_600_000;
    let grain = match span.0 {
        ms if ms < HOUR => 1000,
        ms if ms < 24 * HOUR => 60_000,
        _ => HOUR,
    };
    Span(span.0 - span.0 % grain).to_string()
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
    fn stamps_are_utc() {
        assert_eq!(stamp(Time(0)), "1970-01-01T00:00:00.000Z");
        assert_eq!(stamp(Time(u64::MAX)), "?");
    }
}
