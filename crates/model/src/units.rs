//! Time and sizes. Numbers with a unit in their type, and one parser for what people write.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Milliseconds since 1970 (UTC). Always an argument in pure code, never read from a clock there.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    ToSchema,
)]
#[serde(transparent)]
pub struct Time(pub u64);

impl Time {
    pub fn plus(self, span: Span) -> Time {
        Time(self.0.saturating_add(span.0))
    }
    /// How long ago `earlier` was; nothing if the clock went backwards.
    pub fn since(self, earlier: Time) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

/// A length of time in milliseconds. Written as `90s`, `15m`, `2h`, `1d12h`, `02:30:00` or minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub u64);

impl Span {
    pub fn is_zero(&self) -> bool {
        self.0 == 0
    }
    pub const fn secs(s: u64) -> Span {
        Span(s * 1000)
    }
    pub const fn millis(ms: u64) -> Span {
        Span(ms)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadUnit {
    #[error("'{0}' is not a length of time: write 90s, 15m, 2h, 1d12h or 02:30:00")]
    Span(String),
    #[error("'{0}' is not a size: write 512MiB, 64GiB or 64G")]
    Bytes(String),
}

impl FromStr for Span {
    type Err = BadUnit;
    fn from_str(s: &str) -> Result<Self, BadUnit> {
        parse_span(s.trim()).map(Span).ok_or_else(|| BadUnit::Span(s.to_owned()))
    }
}

fn parse_span(s: &str) -> Option<u64> {
    if s.contains(':') {
        return parse_clock_span(s);
    }
    if s.is_empty() {
        return None;
    }
    if let Ok(minutes) = s.parse::<u64>() {
        return minutes.checked_mul(60_000);
    }
    let mut total: u64 = 0;
    let mut rest = s;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).filter(|&n| n > 0)?;
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let unit = match &rest[..letters] {
            "ms" => 1,
            "s" | "sec" | "secs" => 1000,
            "m" | "min" | "mins" => 60_000,
            "h" | "hour" | "hours" => 3_600_000,
            "d" | "day" | "days" => 86_400_000,
            "w" => 7 * 86_400_000,
            _ => return None,
        };
        total = total.checked_add(number.checked_mul(unit)?)?;
        rest = &rest[letters..];
    }
    Some(total)
}

/// Slurm's `[D-]HH:MM[:SS]` and `MM:SS`.
fn parse_clock_span(s: &str) -> Option<u64> {
    let (days, clock) = match s.split_once('-') {
        Some((d, rest)) => (Some(d.parse::<u64>().ok()?), rest),
        None => (None, s),
    };
    let parts: Vec<u64> = clock.split(':').map(|p| p.parse().ok()).collect::<Option<_>>()?;
    let secs = match (days, parts.as_slice()) {
        (None, [m, s]) => m.checked_mul(60)?.checked_add(*s)?,
        (Some(_), [h, m]) => h.checked_mul(3600)?.checked_add(m.checked_mul(60)?)?,
        (_, [h, m, s]) => h.checked_mul(3600)?.checked_add(m.checked_mul(60)?)?.checked_add(*s)?,
        _ => return None,
    };
    days.unwrap_or(0).checked_mul(86_400)?.checked_add(secs)?.checked_mul(1000)
}

impl Span {
    /// For people: its two largest units, and nothing below a second.
    pub fn short(self) -> Span {
        const HOUR: u64 = 3_600_000;
        let grain = match self.0 {
            ms if ms < HOUR => 1000,
            ms if ms < 24 * HOUR => 60_000,
            _ => HOUR,
        };
        Span(self.0 - self.0 % grain)
    }

    /// [`Span::short`] of a wait, rounded up: what is not over is not nothing.
    pub fn short_up(self) -> Span {
        Span(self.0.saturating_add(999)).short()
    }

    /// [`Span::short`] of what is measured and often below a second, such as a step: with
    /// milliseconds as long as these say something.
    pub fn fine(self) -> Span {
        if self.0 < 10_000 { self } else { self.short() }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0;
        if ms == 0 {
            return f.write_str("0s");
        }
        let mut left = ms;
        for (unit, size) in
            [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)]
        {
            if left >= size {
                write!(f, "{}{unit}", left / size)?;
                left %= size;
            }
        }
        Ok(())
    }
}

/// Thousandths of one GPU.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(transparent)]
pub struct Milli(pub u16);

impl Default for Milli {
    fn default() -> Self {
        Milli::WHOLE
    }
}

impl Milli {
    pub const WHOLE: Milli = Milli(1000);
    pub fn is_whole(&self) -> bool {
        self.0 >= 1000
    }
    /// `0.25` is 250; at least one thousandth, at most a whole GPU.
    pub fn from_part(part: f64) -> Milli {
        Milli((part * 1000.0).round().clamp(1.0, 1000.0) as u16)
    }
}

/// A number of bytes. Written as `64GiB`, `64G` (also binary, as Slurm reads it) or plain bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl Bytes {
    pub const fn gib(n: u64) -> Bytes {
        Bytes(n << 30)
    }
}

impl FromStr for Bytes {
    type Err = BadUnit;
    fn from_str(s: &str) -> Result<Self, BadUnit> {
        let bad = || BadUnit::Bytes(s.to_owned());
        let t = s.trim();
        let digits = t.find(|c: char| !c.is_ascii_digit()).unwrap_or(t.len());
        let number: u64 = t[..digits].parse().map_err(|_| bad())?;
        let shift = match t[digits..].trim().to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kib" | "kb" => 10,
            "m" | "mib" | "mb" => 20,
            "g" | "gib" | "gb" => 30,
            "t" | "tib" | "tb" => 40,
            _ => return Err(bad()),
        };
        number.checked_mul(1 << shift).map(Bytes).ok_or_else(bad)
    }
}

impl Bytes {
    /// For people: its largest unit, and one digit after the point.
    pub fn rounded(self) -> String {
        for (unit, shift) in [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)] {
            if self.0 >= 1 << shift {
                return format!("{:.1} {unit}", self.0 as f64 / (1u64 << shift) as f64);
            }
        }
        format!("{} bytes", self.0)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, shift) in [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)] {
            let size = 1u64 << shift;
            if self.0 >= size && self.0.is_multiple_of(size) {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}B", self.0)
    }
}

/// In the OpenAPI document a type that is written as text is a string, with its form as the
/// description.
macro_rules! text_schema {
    ($name:ident, $what:literal) => {
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                utoipa::openapi::ObjectBuilder::new()
                    .schema_type(utoipa::openapi::schema::Type::String)
                    .description(Some($what))
                    .into()
            }
        }
        impl utoipa::ToSchema for $name {}
    };
}
pub(crate) use text_schema;

/// Serde for what people write as text: `Display` and `FromStr` are the one spelling. A bare number
/// reads as if it were quoted (`gpus_per_node = 8`, `after = [41]`, minutes for a time as in Slurm).
macro_rules! text_serde {
    ($name:ident, $what:literal) => {
        $crate::units::text_schema!($name, $what);
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                struct Visitor;
                impl serde::de::Visitor<'_> for Visitor {
                    type Value = $name;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str($what)
                    }
                    fn visit_str<E: serde::de::Error>(self, s: &str) -> Result<$name, E> {
                        s.parse().map_err(E::custom)
                    }
                    fn visit_u64<E: serde::de::Error>(self, n: u64) -> Result<$name, E> {
                        self.visit_str(&n.to_string())
                    }
                    fn visit_i64<E: serde::de::Error>(self, n: i64) -> Result<$name, E> {
                        self.visit_str(&n.to_string())
                    }
                }
                d.deserialize_any(Visitor)
            }
        }
    };
}
pub(crate) use text_serde;

text_serde!(Span, "a length of time such as 90s, 15m, 2h or 1d12h");
text_serde!(Bytes, "a size such as 512MiB or 64GiB");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_parse_as_people_write_them() {
        for (text, secs) in [
            ("90s", 90),
            ("15m", 900),
            ("2h30m", 9000),
            ("1d12h", 129_600),
            ("30", 1800),
            ("02:30", 150),
            ("02:30:00", 9000),
            ("1-00:00:00", 86_400),
            ("1-06:30", 109_800),
        ] {
            assert_eq!(text.parse::<Span>().unwrap(), Span::secs(secs), "{text}");
        }
        for text in ["", "h", "2x", "1:2:3:4", "-5m", "99999999999999999d", "m5", "2h 3"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }

    #[test]
    fn people_read_no_milliseconds_after_hours() {
        let long: Span = "2h3m4s784ms".parse().unwrap();
        let texts = [long.short(), long.short_up(), long.fine()].map(|s| s.to_string());
        assert_eq!(texts, ["2h3m"; 3]);
        let texts = [Span(1784).short(), Span(1784).short_up(), Span(1784).fine()];
        assert_eq!(texts.map(|s| s.to_string()), ["1s", "2s", "1s784ms"]);
        let texts = [Span(62_784).short(), Span(1).short_up(), Span(12_784).fine()];
        assert_eq!(texts.map(|s| s.to_string()), ["1m2s", "1s", "12s"]);
        assert_eq!(Span(u64::MAX).short_up(), Span(u64::MAX).short());
    }

    #[test]
    fn sizes_parse_and_print() {
        assert_eq!("64GiB".parse::<Bytes>().unwrap(), Bytes::gib(64));
        assert_eq!("64G".parse::<Bytes>().unwrap().to_string(), "64GiB");
        assert!("64 parsecs".parse::<Bytes>().is_err());
        assert!("99999999999T".parse::<Bytes>().is_err());
    }

    proptest::proptest! {
        #[test]
        fn what_is_printed_is_read_back(ms in 0u64..1u64 << 50, bytes in 0u64..1u64 << 60) {
            proptest::prop_assert_eq!(Span(ms).to_string().parse::<Span>().unwrap(), Span(ms));
            proptest::prop_assert_eq!(Bytes(bytes).to_string().parse::<Bytes>().unwrap(), Bytes(bytes));
        }
    }
}
