//! What it costs a gang to be spread out.

use std::collections::BTreeMap;

use crate::trace::{BadLine, Problem, Table};

/// Speed of a gang that spans more racks or nodes than it had to, against one that does not, by its
/// number of GPUs.
///
/// From Gavel's measurements: for each number of GPUs the mean over all models and GPUs of
/// `spread_over_consolidated`, where a measurement above 1 counts as 1 (spreading never helps). A
/// gang takes the row of the largest measured number that is not above its own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spreading {
    speeds: BTreeMap<u32, f64>,
}

impl Spreading {
    pub fn read(text: &str) -> Result<Spreading, BadLine> {
        let table = Table::new(text, ',')?;
        table.need(&["n_gpus", "spread_over_consolidated"])?;
        let mut sums: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
        for row in table.rows() {
            let row = row?;
            let ratio: f64 = row.number("spread_over_consolidated")?;
            if !(0.001..1000.0).contains(&ratio) {
                let column = "spread_over_consolidated".to_owned();
                let value = ratio.to_string();
                return Err(row.bad(Problem::NotA { column, value, wanted: "a ratio above 0" }));
            }
            let (sum, count) = sums.entry(row.count("n_gpus")?).or_default();
            *sum += ratio.min(1.0);
            *count += 1.0;
        }
        Ok(Spreading { speeds: sums.into_iter().map(|(n, (sum, of))| (n, sum / of)).collect() })
    }

    pub fn speed(&self, gpus: u32) -> f64 {
        let measured = self.speeds.range(..=gpus).next_back().or(self.speeds.first_key_value());
        // A single GPU has nobody to talk to.
        measured.filter(|_| gpus > 1).map_or(1.0, |(_, speed)| *speed)
    }

    pub fn slowest(&self) -> f64 {
        self.speeds.values().copied().fold(1.0, f64::min)
    }

    pub fn table(&self) -> &BTreeMap<u32, f64> {
        &self.speeds
    }
}
