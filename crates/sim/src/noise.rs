//! Values that look random and are the same every time: of what they are about, and nothing else.

/// A well mixed number of a list of numbers.
pub fn hash(of: &[u64]) -> u64 {
    of.iter().fold(0x9e37_79b9_7f4a_7c15, |seed, value| {
        let mut x = (seed ^ value).wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    })
}

/// From 0 to below 1.
pub fn unit(of: &[u64]) -> f64 {
    (hash(of) >> 11) as f64 / (1u64 << 53) as f64
}

/// From -1 to below 1, most of it in the middle.
pub fn wobble(of: &[u64]) -> f64 {
    let (a, b) = (unit(&[hash(of), 1]), unit(&[hash(of), 2]));
    a + b - 1.0
}

/// How much longer or shorter one task of an array takes than another.
pub fn around_one(job: u64, task: u64) -> f64 {
    1.0 + 0.35 * wobble(&[job, task])
}

/// A loss that falls quickly, then slowly, and trembles.
pub fn loss(job: u64, step: u64) -> f64 {
    let floor = 1.7 + 0.5 * unit(&[job, 11]);
    let scale = 30.0 + 170.0 * unit(&[job, 12]);
    let fallen = (1.0 + step as f64 / scale).powf(-0.42);
    let value = floor + (10.9 - floor) * fallen;
    value * (1.0 + 0.012 * wobble(&[job, step, 13]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stay_in_their_range_and_spread() {
        let units: Vec<f64> = (0..1000).map(|n| unit(&[n, 7])).collect();
        assert!(units.iter().all(|u| (0.0..1.0).contains(u)));
        let mean = units.iter().sum::<f64>() / 1000.0;
        assert!((mean - 0.5).abs() < 0.05, "{mean}");
        assert!((0..1000).all(|n| (-1.0..1.0).contains(&wobble(&[n]))));
    }

    #[test]
    fn a_loss_falls() {
        for job in 1..20 {
            assert!(loss(job, 0) > 9.0 && loss(job, 100_000) < 3.5, "{job}");
        }
    }
}
