//! How single values of the policy file are spelled.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use tutti_model::{CLOUD_SHAPES, GpuQuota, Price, Time};

use super::hosts;

/// A factor such as `2` or `0.5`, kept in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Factor(pub u32);

impl Serialize for Factor {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self.0 % 1000 {
            0 => s.serialize_u32(self.0 / 1000),
            _ => s.serialize_f64(f64::from(self.0) / 1000.0),
        }
    }
}

impl<'de> Deserialize<'de> for Factor {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(FactorVisitor)
    }
}

struct FactorVisitor;

impl Visitor<'_> for FactorVisitor {
    type Value = Factor;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number such as 2 or 0.5")
    }
    fn visit_u64<E: de::Error>(self, n: u64) -> Result<Factor, E> {
        let milli = n.checked_mul(1000).and_then(|m| u32::try_from(m).ok());
        milli.map(Factor).ok_or_else(|| E::custom("more than 4,000,000"))
    }
    fn visit_f64<E: de::Error>(self, n: f64) -> Result<Factor, E> {
        let milli = (n * 1000.0).round();
        if !(0.0..=f64::from(u32::MAX)).contains(&milli) {
            return Err(E::custom("not negative, and at most 4,000,000"));
        }
        if (n * 1000.0 - milli).abs() > 1e-6 * milli.max(1.0) {
            return Err(E::custom("at most three digits after the point"));
        }
        Ok(Factor(milli as u32))
    }
}

/// What an hour of a GPU costs: `2.99`, or the name of a cloud shape for its list price.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Money(pub Price);

impl Serialize for Money {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        // A list price may be another by now; the name stands only for the one that is known.
        let named =
            self.0.shape.as_deref().filter(|n| Price::of_shape(n).as_ref() == Some(&self.0));
        match named {
            Some(name) => s.serialize_str(name),
            None => s.serialize_f64(self.0.micros as f64 / 1e6),
        }
    }
}

impl<'de> Deserialize<'de> for Money {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(MoneyVisitor)
    }
}

struct MoneyVisitor;

impl Visitor<'_> for MoneyVisitor {
    type Value = Money;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a price such as 2.99, or a cloud shape such as \"aws p5.48xlarge\"")
    }
    fn visit_u64<E: de::Error>(self, n: u64) -> Result<Money, E> {
        self.visit_f64(n as f64)
    }
    fn visit_i64<E: de::Error>(self, n: i64) -> Result<Money, E> {
        self.visit_f64(n as f64)
    }
    fn visit_f64<E: de::Error>(self, n: f64) -> Result<Money, E> {
        if !(0.0..=1e9).contains(&n) {
            return Err(E::custom("not negative, and not without end"));
        }
        Ok(Money(Price { micros: (n * 1e6).round() as u64, shape: None }))
    }
    fn visit_str<E: de::Error>(self, name: &str) -> Result<Money, E> {
        let known = || CLOUD_SHAPES.map(|shape| shape.name).join(", ");
        Price::of_shape(name).map(Money).ok_or_else(|| {
            E::custom(format!(
                "no price is known for '{name}': write a number, or one of {}",
                known()
            ))
        })
    }
}

/// `64`, or by GPU model: `{ any = 32, h100 = 32 }`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Quota(pub GpuQuota);

impl Quota {
    pub fn is_none(&self) -> bool {
        self.0 == GpuQuota::default()
    }
}

const ANY: &str = "any";

impl Serialize for Quota {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if self.0.models.is_empty() {
            return s.serialize_u32(self.0.any);
        }
        let any = (self.0.any > 0).then_some((ANY, self.0.any));
        let models = self.0.models.iter().map(|(model, n)| (model.as_str(), *n));
        s.collect_map(any.into_iter().chain(models))
    }
}

impl<'de> Deserialize<'de> for Quota {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(QuotaVisitor)
    }
}

struct QuotaVisitor;

impl<'de> Visitor<'de> for QuotaVisitor {
    type Value = Quota;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of GPUs, or a table such as { any = 32, h100 = 32 }")
    }
    fn visit_u64<E: de::Error>(self, n: u64) -> Result<Quota, E> {
        let any = u32::try_from(n).map_err(|_| E::custom("more GPUs than can be counted"))?;
        Ok(Quota(GpuQuota { any, models: BTreeMap::new() }))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Quota, A::Error> {
        let mut quota = GpuQuota::default();
        while let Some((model, n)) = map.next_entry::<String, u32>()? {
            let model = model.to_ascii_lowercase();
            if model == ANY {
                quota.any = n;
            } else if quota.models.insert(model.clone(), n).is_some() {
                return Err(de::Error::custom(format!("{model} is given twice")));
            }
        }
        Ok(Quota(quota))
    }
}

/// `2026-12-01T08:00:00Z`, or milliseconds since 1970 for what no calendar holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment(pub Time);

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let ms = i64::try_from(self.0.0).ok();
        match ms.and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok()) {
            Some(stamp) => s.collect_str(&stamp),
            None => s.collect_str(&self.0.0),
        }
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(MomentVisitor)
    }
}

struct MomentVisitor;

impl Visitor<'_> for MomentVisitor {
    type Value = Moment;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a time such as 2026-12-01T08:00:00Z")
    }
    fn visit_u64<E: de::Error>(self, ms: u64) -> Result<Moment, E> {
        Ok(Moment(Time(ms)))
    }
    fn visit_str<E: de::Error>(self, text: &str) -> Result<Moment, E> {
        if let Ok(ms) = text.parse() {
            return Ok(Moment(Time(ms)));
        }
        let stamp: jiff::Timestamp = text.parse().map_err(|_| {
            E::custom(format!(
                "'{text}' is no time: write 2026-12-01T08:00:00Z, or +01:00 and the like for Z"
            ))
        })?;
        let ms = u64::try_from(stamp.as_millisecond())
            .map_err(|_| E::custom(format!("'{text}' is before 1970")))?;
        Ok(Moment(Time(ms)))
    }
}

/// `["n[1-16]", "gpu07"]`, or one text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Hosts(pub BTreeSet<String>);

impl Serialize for Hosts {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(hosts::compress(&self.0))
    }
}

impl<'de> Deserialize<'de> for Hosts {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(HostsVisitor)
    }
}

struct HostsVisitor;

impl<'de> Visitor<'de> for HostsVisitor {
    type Value = Hosts;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of nodes such as [\"n[1-16]\", \"gpu07\"]")
    }
    fn visit_str<E: de::Error>(self, text: &str) -> Result<Hosts, E> {
        hosts::expand(text).map(|names| Hosts(names.into_iter().collect())).map_err(E::custom)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Hosts, A::Error> {
        let mut all = BTreeSet::new();
        while let Some(OneHosts(names)) = seq.next_element()? {
            all.extend(names);
        }
        Ok(Hosts(all))
    }
}

/// One text of such a list: an error in it is told with its own place.
struct OneHosts(Vec<String>);

impl<'de> Deserialize<'de> for OneHosts {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct One;
        impl Visitor<'_> for One {
            type Value = OneHosts;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a node, or n[1-16]")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<OneHosts, E> {
                hosts::expand(text).map(OneHosts).map_err(E::custom)
            }
        }
        d.deserialize_any(One)
    }
}
