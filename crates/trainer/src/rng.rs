//! Random numbers by counter: the n-th number of a stream is a function of seed, stream and n.
//!
//! Whoever holds a part of a tensor makes that part alone, and gets what he would have cut out of
//! the whole. The arithmetic is on integers until the last step, so every machine agrees.

/// One stream of numbers.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    key: u64,
}

impl Stream {
    pub fn new(seed: u64, name: &str) -> Self {
        let mut key = mix(seed ^ 0x9e37_79b9_7f4a_7c15);
        for chunk in name.as_bytes().chunks(8) {
            let mut word = [0_u8; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            key = mix(key ^ u64::from_le_bytes(word)).wrapping_add(chunk.len() as u64);
        }
        Stream { key: mix(key) }
    }

    pub fn bits(self, index: u64) -> u64 {
        mix(self.key ^ mix(index.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1)))
    }

    /// Evenly from 0 to `bound`, not included.
    pub fn below(self, index: u64, bound: u64) -> u64 {
        ((u128::from(self.bits(index)) * u128::from(bound)) >> 64) as u64
    }

    /// Nearly normal, mean 0, deviation 1: a sum of four even numbers, so that no machine's `ln`
    /// or `cos` has a say.
    pub fn normal(self, index: u64) -> f32 {
        let bits = self.bits(index);
        let sum = (0..4).map(|lane| (bits >> (16 * lane)) & 0xffff).sum::<u64>();
        // Four even numbers below 65536 have mean 131070 and deviation 65536 / sqrt(3).
        (sum as f32 - 131_070.0) * (1.732_050_8 / 65_536.0)
    }
}

/// The finaliser of SplitMix64: each bit of the result depends on every bit of the input.
fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_numbers_have_mean_zero_and_deviation_one() {
        let stream = Stream::new(7, "layers.0.wq");
        let numbers: Vec<f64> = (0..100_000).map(|i| f64::from(stream.normal(i))).collect();
        let mean = numbers.iter().sum::<f64>() / 1e5;
        let variance = numbers.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / 1e5;
        assert!(mean.abs() < 0.01, "{mean}");
        assert!((variance - 1.0).abs() < 0.02, "{variance}");
    }

    #[test]
    fn streams_differ_by_seed_and_by_name_and_never_change() {
        assert_ne!(Stream::new(1, "a").bits(0), Stream::new(2, "a").bits(0));
        assert_ne!(Stream::new(1, "a").bits(0), Stream::new(1, "b").bits(0));
        assert_ne!(Stream::new(1, "a").bits(0), Stream::new(1, "a\0").bits(0));
        // A resumed run must see the numbers that the run before it saw.
        assert_eq!(Stream::new(1, "data").bits(5), Stream::new(1, "data").bits(5));
        assert!((0..1000).all(|i| Stream::new(3, "x").below(i, 10) < 10));
    }
}
