//! With keys and values kept, in pieces and side by side, against the trainer's own forward pass of
//! the whole sequence.

use super::*;
use crate::config::{OptimConfig, Precision, TrainConfig};
use crate::nn::Geometry;
use crate::nn::attention::{self, Tables};
use crate::tensor;

fn weights(kv_heads: usize, tied: bool) -> Weights {
    let mut weights = Weights::initial(TrainConfig {
        model: ModelConfig { layers: 2, dim: 32, heads: 4, kv_heads, ffn: 48, tied },
        optim: OptimConfig::default(),
        steps: 1,
        batch: 1,
        micro_batch: 1,
        seq: 32,
        seed: 9,
        precision: Precision::F32,
        recompute: false,
        bucket_bytes: 1 << 20,
    });
    // First values are so small that attention would hardly matter.
    weights.values.iter_mut().flatten().for_each(|value| *value *= 8.0);
    weights
}

fn decoder(weights: &Weights, padded: bool) -> Decoder {
    let device = tensor::cpu();
    let dtype = FloatDType::F32;
    Decoder::new(weights, DecoderOptions { slots: 3, context: 300, dtype, device, padded })
}

/// Logits behind the last token, as the trainer computes them.
fn whole(weights: &Weights, tokens: &[u8]) -> Vec<f32> {
    let decoder = decoder(weights, false);
    let Heads { heads, kv_heads, head_dim, dtype } = decoder.heads;
    let seq = tokens.len();
    let geometry = Geometry { batch: 1, seq, heads, kv_heads, head_dim, dtype };
    let tables = Tables::new(seq, head_dim, &tensor::cpu());
    let ids = decoder.ints(tokens.iter().map(|&token| i32::from(token)).collect());
    let mut x = decoder.weight(decoder.roles.embedding.unwrap()).select(0, ids);
    for roles in &decoder.roles.layers {
        let normed = decoder.norm(x.clone(), roles.attention_norm);
        let (qkv, out) = (decoder.weight(roles.qkv), decoder.weight(roles.out));
        let (part, _) = attention::forward(geometry, &tables, normed, qkv, out);
        let middle = x.add(part);
        let normed = decoder.norm(middle.clone(), roles.mlp_norm);
        let (gate_up, down) = (decoder.weight(roles.gate_up), decoder.weight(roles.down));
        x = middle.add(mlp::forward(normed, gate_up, down).0);
    }
    to_host(decoder.head(x.narrow(0, seq - 1, 1)))
}

fn assert_close(found: &[f32], expected: &[f32], what: &str) {
    let largest = expected.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    let off = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert_eq!(found.len(), expected.len());
    assert!(off < 1e-4 * largest, "{what}: {off} of {largest}");
}

const TEXT: &[u8] = b"the quick brown fox jumps over the lazy dog";

#[test]
fn pieces_of_a_sequence_give_what_the_whole_gives() {
    for (kv_heads, tied, padded) in [(4, true, false), (2, false, false), (1, true, true)] {
        let weights = weights(kv_heads, tied);
        let mut decoder = decoder(&weights, padded);
        assert_eq!(decoder.prefill(1, 0, &TEXT[..7], false), None);
        decoder.prefill(1, 7, &TEXT[7..20], false);
        let logits = decoder.prefill(1, 20, &TEXT[20..21], true).unwrap();
        assert_close(&logits, &whole(&weights, &TEXT[..21]), "prefill");
        for at in 21..30 {
            let row = Row { slot: 1, token: TEXT[at], position: at };
            let logits = decoder.decode(&[row]);
            assert_close(&logits, &whole(&weights, &TEXT[..=at]), "decode");
        }
    }
}

#[test]
fn sequences_side_by_side_do_not_see_each_other() {
    for padded in [false, true] {
        let weights = weights(2, true);
        let mut decoder = decoder(&weights, padded);
        decoder.prefill(2, 0, &TEXT[..9], false);
        // Left over from somebody, and longer than what comes.
        decoder.prefill(0, 0, &TEXT[10..40], false);
        decoder.prefill(0, 0, &TEXT[3..8], false);
        let rows = [
            Row { slot: 0, token: TEXT[8], position: 5 },
            Row { slot: 2, token: TEXT[9], position: 9 },
        ];
        let logits = decoder.decode(&rows);
        assert_close(&logits[..VOCAB], &whole(&weights, &TEXT[3..9]), "slot 0");
        assert_close(&logits[VOCAB..], &whole(&weights, &TEXT[..10]), "slot 2");
    }
}

#[test]
fn a_copied_beginning_is_as_good_as_a_computed_one() {
    let weights = weights(2, true);
    let mut decoder = decoder(&weights, false);
    decoder.prefill(0, 0, &TEXT[..20], false);
    decoder.copy(0, 1, 12);
    let logits = decoder.prefill(1, 12, b"XYZ", true).unwrap();
    let expected = whole(&weights, &[&TEXT[..12], b"XYZ"].concat());
    assert_close(&logits, &expected, "behind the copy");
}

#[test]
fn warming_up_meets_every_shape_and_harms_nothing() {
    let weights = weights(2, true);
    let mut decoder = decoder(&weights, true);
    decoder.warm_up(64);
    let logits = decoder.prefill(0, 0, TEXT, true).unwrap();
    assert_close(&logits, &whole(&weights, TEXT), "after warming up");
    assert_eq!(steps(1, 4, 32), [1, 4, 16, 32]);
    assert_eq!((step_up(5, 1, 4), step_up(16, 16, 4), step_up(300, 256, 2)), (16, 16, 512));
}

#[test]
fn what_is_no_number_is_gone_from_a_cleared_slot() {
    let (weights, tokens) = (weights(2, false), b"score");
    for padded in [false, true] {
        let mut decoder = decoder(&weights, padded);
        let expected = decoder.prefill(0, 0, tokens, true).unwrap();
        for cache in &mut decoder.caches {
            cache.spoil();
        }
        let spoiled = decoder.prefill(1, 1, tokens, true).unwrap();
        assert!(spoiled.iter().any(|logit| logit.is_nan()), "the test spoils nothing");
        decoder.clear(1);
        let found = decoder.prefill(1, 0, tokens, true).unwrap();
        assert_close(&found, &expected, "a cleared slot");
    }
}
