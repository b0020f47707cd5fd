//! From logits to a token. The same numbers and the same draw give the same token.

/// How a sequence's tokens are picked.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the likeliest.
    pub temperature: f32,
    /// Only the likeliest tokens that together have this probability.
    pub top_p: f32,
    /// Only so many of the likeliest; 0 is all.
    pub top_k: usize,
    pub seed: u64,
}

/// Below this a temperature would only overflow.
const GREEDY: f32 = 1e-4;

/// The token, by 64 random bits.
pub fn pick(logits: &[f32], sampling: &Sampling, bits: u64) -> u8 {
    let order = by_likelihood(logits);
    if sampling.temperature < GREEDY {
        return order[0];
    }
    let largest = logits[usize::from(order[0])];
    let weight =
        |token: u8| f64::from((logits[usize::from(token)] - largest) / sampling.temperature).exp();
    let count = if sampling.top_k == 0 { order.len() } else { sampling.top_k.min(order.len()) };
    let weights: Vec<f64> = order[..count].iter().map(|&token| weight(token)).collect();
    let kept = nucleus(&weights, f64::from(sampling.top_p));
    // 53 bits make an even number from 0 to 1.
    let even = (bits >> 11) as f64 / (1_u64 << 53) as f64;
    let mut left = even * weights[..kept].iter().sum::<f64>();
    for (token, weight) in order.iter().zip(&weights[..kept]) {
        left -= weight;
        if left < 0.0 {
            return *token;
        }
    }
    order[kept - 1]
}

/// How many of the weights, largest first, make up this part of their sum.
fn nucleus(weights: &[f64], part: f64) -> usize {
    let wanted = part * weights.iter().sum::<f64>();
    let mut sum = 0.0;
    for (at, weight) in weights.iter().enumerate() {
        sum += weight;
        if sum >= wanted {
            return at + 1;
        }
    }
    weights.len()
}

/// All tokens, the likeliest first; of equals the smaller.
fn by_likelihood(logits: &[f32]) -> Vec<u8> {
    let mut order: Vec<u8> = (0..=u8::MAX).take(logits.len()).collect();
    order.sort_by(|&a, &b| {
        let (one, other) = (logits[usize::from(a)], logits[usize::from(b)]);
        other.total_cmp(&one).then(a.cmp(&b))
    });
    order
}

/// Natural logarithms of probabilities.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    pub chosen: f32,
    /// The likeliest, with theirs.
    pub top: Vec<(u8, f32)>,
}

pub fn logprobs(logits: &[f32], chosen: u8, top: usize) -> Logprobs {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    let of = |token: u8| (f64::from(logits[usize::from(token)] - largest) - sum.ln()) as f32;
    let top = by_likelihood(logits).into_iter().take(top).map(|token| (token, of(token)));
    Logprobs { chosen: of(chosen), top: top.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampling(temperature: f32, top_p: f32, top_k: usize) -> Sampling {
        Sampling { temperature, top_p, top_k, seed: 0 }
    }

    fn logits(likely: &[(u8, f32)]) -> Vec<f32> {
        let mut logits = vec![-20.0; 256];
        likely.iter().for_each(|&(token, logit)| logits[usize::from(token)] = logit);
        logits
    }

    #[test]
    fn without_temperature_the_likeliest_wins_whatever_is_drawn() {
        let logits = logits(&[(7, 2.0), (9, 3.0), (11, 3.0)]);
        for bits in [0, u64::MAX / 2, u64::MAX] {
            assert_eq!(pick(&logits, &sampling(0.0, 1.0, 0), bits), 9);
        }
    }

    #[test]
    fn draws_follow_the_probabilities() {
        // Three times as likely.
        let logits = logits(&[(1, 3.0_f32.ln()), (2, 0.0)]);
        let draws = (0..1000_u64).map(|n| n * (u64::MAX / 1000));
        let ones = draws.filter(|&bits| pick(&logits, &sampling(1.0, 1.0, 0), bits) == 1).count();
        assert!((745..=755).contains(&ones), "{ones}");
    }

    #[test]
    fn unlikely_tokens_are_cut_off() {
        let logits = logits(&[(1, 2.0), (2, 1.0), (3, 0.0)]);
        let last = |s: Sampling| pick(&logits, &s, u64::MAX);
        assert_eq!(last(sampling(1.0, 1.0, 2)), 2);
        assert_eq!(last(sampling(1.0, 0.5, 0)), 1, "0.67 of it is the first alone");
        assert_eq!(last(sampling(1.0, 0.9, 0)), 2);
        assert_eq!(last(sampling(1.0, 0.0, 0)), 1, "there is always one");
    }

    #[test]
    fn logprobs_are_of_the_model_and_add_up_to_one() {
        let logits = logits(&[(1, 1.0), (2, 0.0)]);
        let all = logprobs(&logits, 2, 256);
        let sum: f32 = all.top.iter().map(|(_, logprob)| logprob.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-4, "{sum}");
        assert_eq!(all.top[0].0, 1);
        assert_eq!(all.chosen, all.top[1].1);
    }
}
