//! One matrix product by its shape.

use super::machine::Machine;

/// `groups` products of m × k by k × n at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub groups: f64,
    pub m: f64,
    pub n: f64,
    pub k: f64,
}

/// Rows and columns of the tiles that products are cut into.
const TILE: f64 = 128.0;

impl Product {
    pub(super) fn new(m: f64, n: f64, k: f64) -> Product {
        Product { groups: 1.0, m, n, k }
    }

    /// The gradient of its input.
    pub(super) fn input_gradient(self) -> Product {
        Product { n: self.k, k: self.n, ..self }
    }

    /// The gradient of its weights.
    pub(super) fn weight_gradient(self) -> Product {
        Product { m: self.n, n: self.k, k: self.m, ..self }
    }

    pub(super) fn flops(&self) -> f64 {
        2.0 * self.groups * self.m * self.n * self.k
    }

    /// Seconds at this rate, with operands of so many bytes, and so many bytes for each result.
    pub(super) fn seconds(
        &self,
        machine: &Machine,
        rate: f64,
        value_bytes: f64,
        result_bytes: f64,
    ) -> f64 {
        let operands = self.groups * (self.m + self.n) * self.k * value_bytes;
        let results = self.groups * self.m * self.n * result_bytes;
        let profile = &machine.profile;
        self.flops() / rate * self.lost()
            + profile.operands_seen * machine.stream(operands + results)
            + profile.ramp
    }

    /// Tiles that hang over the edge, and sides that kernels do not like. Waves of tiles that do not fill the processors
    /// were tried and explained nothing: libraries cut along k where tiles are few.
    fn lost(&self) -> f64 {
        let over = |side: f64| (side / TILE).ceil() * TILE / side;
        (over(self.m) * over(self.n)).min(4.0) * odd(self.n) * odd(self.k)
    }
}

/// Sides that are no multiple of 64 take slower kernels.
fn odd(side: f64) -> f64 {
    if side % 64.0 == 0.0 {
        1.0
    } else if side % 8.0 == 0.0 {
        1.08
    } else {
        1.3
    }
}
