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
const TILES: [(f64, f64); 2] = [(128.0, 256.0), (128.0, 128.0)];

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
        self.flops() / rate * self.lost(machine)
            + profile.operands_seen * machine.stream(operands + results)
            + profile.ramp
    }

    /// Processors idle in the last wave of tiles, and tiles that hang over the edge.
    fn lost(&self, machine: &Machine) -> f64 {
        let profile = &machine.profile;
        let waste = |(rows, columns): (f64, f64)| {
            let tiles = self.groups * (self.m / rows).ceil() * (self.n / columns).ceil();
            let waves = tiles / profile.processors;
            // Products are cut along k too where tiles are too few to go round.
            let idle = (waves.ceil() / waves).min(profile.idle_most);
            let over = tiles * rows * columns / (self.groups * self.m * self.n);
            idle * over.min(4.0)
        };
        let [large, small] = TILES.map(waste);
        large.min(small / profile.small_tiles) * odd(self.n) * odd(self.k)
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
