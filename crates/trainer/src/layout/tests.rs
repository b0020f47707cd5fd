use super::*;
use crate::config::{ModelConfig, OptimConfig, Precision};

fn config() -> TrainConfig {
    TrainConfig {
        model: ModelConfig { layers: 5, dim: 32, heads: 4, kv_heads: 2, ffn: 64, tied: true },
        optim: OptimConfig::default(),
        steps: 1,
        batch: 8,
        micro_batch: 1,
        seq: 16,
        seed: 0,
        precision: Precision::F32,
        recompute: false,
        bucket_bytes: 1 << 20,
    }
}

fn layout(world: usize, dp: Option<usize>, tp: usize, pp: usize) -> Result<Layout, LayoutError> {
    Layout::new(world, (dp, tp, pp), false, None, &config())
}

#[test]
fn places_and_ranks_are_each_others_inverse() {
    let layout = layout(8, None, 2, 2).unwrap();
    assert_eq!(layout.dp, 2);
    for rank in 0..8 {
        assert_eq!(layout.rank(layout.place(rank)), rank);
    }
    assert_eq!(layout.place(1), Place { tensor: 1, data: 0, pipe: 0 });
    assert_eq!(layout.place(2), Place { tensor: 0, data: 1, pipe: 0 });
    assert_eq!(layout.place(4), Place { tensor: 0, data: 0, pipe: 1 });
}

#[test]
fn stages_need_not_be_even() {
    assert_eq!(layout(4, None, 1, 4).unwrap().stages, [1, 1, 2, 1]);
    let given = Layout::new(2, (None, 1, 2), false, Some(vec![2, 3]), &config()).unwrap();
    assert_eq!(given.layers(0), 0..2);
    assert_eq!(given.layers(1), 2..5);
    let error = Layout::new(2, (None, 1, 2), false, Some(vec![2, 2]), &config()).unwrap_err();
    assert_eq!(error.to_string(), "--stages 2,2 adds up to 4 layers, but --layers is 5");
}

#[test]
fn an_impossible_layout_says_which_number_is_wrong() {
    let say = |result: Result<Layout, LayoutError>| result.unwrap_err().to_string();
    assert_eq!(
        say(layout(8, Some(2), 2, 1)),
        "--dp 2 x --tp 2 x --pp 1 is 4 ranks, but the gang has 8: the product must be 8"
    );
    assert_eq!(
        say(layout(8, None, 3, 1)),
        "--tp 3 x --pp 1 does not divide the 8 ranks of the gang"
    );
    assert_eq!(say(layout(8, None, 8, 1)), "--tp 8 does not divide --heads 4: choose a multiple");
    assert_eq!(
        say(layout(6, None, 1, 6)),
        "--pp 6 is more stages than --layers 5: each stage needs a layer"
    );
    assert_eq!(say(layout(3, None, 1, 1)), "--dp 3 does not divide --batch 8: choose a multiple");
}
