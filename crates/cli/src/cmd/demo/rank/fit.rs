//! A model small enough for any laptop: three weights, fitted by gradient descent to data that was
//! made with known ones, so that everybody can tell whether the result is right.

pub const WEIGHTS: usize = 3;
pub const TRUTH: [f64; WEIGHTS] = [3.0, -2.0, 0.5];

const SAMPLES: usize = 64;
/// With inputs in -1..1 this takes about a tenth off the error in each step.
const RATE: f64 = 0.15;

/// Sums over samples: the gradient, the squared error and the number of samples.
pub type Sums = [f64; WEIGHTS + 2];

pub struct Fit {
    pub weights: [f64; WEIGHTS],
    /// This rank's share of the data.
    inputs: Vec<[f64; WEIGHTS]>,
}

impl Fit {
    pub fn new(rank: u32) -> Fit {
        let mut random = Random(u64::from(rank) + 1);
        let inputs = (0..SAMPLES).map(|_| std::array::from_fn(|_| random.next())).collect();
        Fit { weights: [0.0; WEIGHTS], inputs }
    }

    pub fn gradient(&self) -> Sums {
        let mut sums = [0.0; WEIGHTS + 2];
        for input in &self.inputs {
            let error = dot(&self.weights, input) - dot(&TRUTH, input);
            for (sum, x) in sums.iter_mut().zip(input) {
                *sum += 2.0 * error * x;
            }
            sums[WEIGHTS] += error * error;
            sums[WEIGHTS + 1] += 1.0;
        }
        sums
    }

    /// One step down the gradient of all ranks. Returns the loss before it.
    pub fn descend(&mut self, sums: &Sums) -> f64 {
        let samples = sums[WEIGHTS + 1];
        for (weight, gradient) in self.weights.iter_mut().zip(sums) {
            *weight -= RATE * gradient / samples;
        }
        sums[WEIGHTS] / samples
    }
}

fn dot(a: &[f64; WEIGHTS], b: &[f64; WEIGHTS]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

pub fn distance_from_truth(weights: &[f64; WEIGHTS]) -> f64 {
    weights.iter().zip(TRUTH).map(|(w, t)| (w - t).abs()).fold(0.0, f64::max)
}

/// splitmix64, as numbers in -1..1: the same data for the same rank on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let unit = ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64;
        unit * 2.0 - 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_learns() {
        let mut fit = Fit::new(0);
        let losses: Vec<f64> = (0..60)
            .map(|_| {
                let sums = fit.gradient();
                fit.descend(&sums)
            })
            .collect();
        assert!(losses[0] > 1.0 && losses[59] < 1e-3, "{losses:?}");
        assert!(distance_from_truth(&fit.weights) < 0.05, "{:?}", fit.weights);
    }
}
