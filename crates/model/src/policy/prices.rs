//! What GPUs cost, so that a report speaks of money.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{GPU_HOUR, GpuMicros};

/// The currency of the prices of cloud shapes.
const LISTED_IN: &str = "USD";

/// By GPU model. A model that is not listed has no price, and its hours are not in any sum of money.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Prices {
    /// As it is printed: `USD`, `€`.
    pub currency: String,
    pub gpus: BTreeMap<String, Price>,
}

impl Default for Prices {
    fn default() -> Self {
        Prices { currency: LISTED_IN.to_owned(), gpus: BTreeMap::new() }
    }
}

/// What an hour of one GPU costs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Price {
    /// Millionths of the currency.
    pub micros: u64,
    /// The cloud shape whose list price it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<String>,
}

impl Prices {
    pub fn is_none(&self) -> bool {
        self.gpus.is_empty()
    }

    pub(super) fn is_unset(&self) -> bool {
        *self == Prices::default()
    }

    /// What time on a model costs, in millionths of the currency. None: nobody said.
    pub fn of(&self, model: &str, time: GpuMicros) -> Option<u128> {
        let price = self.gpus.get(model)?;
        Some(u128::from(time) * u128::from(price.micros) / u128::from(GPU_HOUR))
    }

    /// Why the list price of this shape says nothing about this model, if so.
    pub(super) fn misfit(&self, model: &str, shape: &str) -> Option<String> {
        let currency = &self.currency;
        if !currency.eq_ignore_ascii_case(LISTED_IN) {
            return Some(format!(
                "\"{shape}\" is in {LISTED_IN}, the currency is {currency}: write a number"
            ));
        }
        let has = CloudShape::named(shape)?.model;
        (!has.eq_ignore_ascii_case(model)).then(|| {
            format!("\"{shape}\" has {has} GPUs, not {model}: write a number, or another shape")
        })
    }
}

/// A machine that can be rented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloudShape {
    pub name: &'static str,
    pub model: &'static str,
    pub gpus: u64,
    /// Of the whole machine for an hour, in millionths of a US dollar.
    pub micros: u64,
}

const fn shape(name: &'static str, model: &'static str, gpus: u64, micros: u64) -> CloudShape {
    CloudShape { name, model, gpus, micros }
}

/// List prices on demand in the region that is usually the cheapest, as of 2025, without any discount.
/// They change; who pays something else writes that.
pub const CLOUD_SHAPES: [CloudShape; 12] = [
    shape("aws p6-b200.48xlarge", "b200", 8, 113_932_800),
    shape("aws p5en.48xlarge", "h200", 8, 63_296_000),
    shape("aws p5.48xlarge", "h100", 8, 55_040_000),
    shape("aws p4de.24xlarge", "a100", 8, 27_447_050),
    shape("aws p4d.24xlarge", "a100", 8, 21_957_640),
    shape("aws g6e.xlarge", "l40s", 1, 1_861_000),
    shape("aws g6.xlarge", "l4", 1, 804_800),
    shape("aws g5.xlarge", "a10g", 1, 1_006_000),
    shape("gcp a3-highgpu-8g", "h100", 8, 88_250_000),
    shape("gcp a2-highgpu-1g", "a100", 1, 3_673_000),
    shape("azure nd96isr-h100-v5", "h100", 8, 98_320_000),
    shape("azure nc24ads-a100-v4", "a100", 1, 3_673_000),
];

impl CloudShape {
    pub fn named(name: &str) -> Option<CloudShape> {
        let same = |shape: &CloudShape| shape.name.eq_ignore_ascii_case(name.trim());
        CLOUD_SHAPES.into_iter().find(same)
    }
}

impl Price {
    /// By the name of a cloud shape.
    pub fn of_shape(name: &str) -> Option<Price> {
        let shape = CloudShape::named(name)?;
        Some(Price { micros: shape.micros / shape.gpus, shape: Some(shape.name.to_owned()) })
    }
}
