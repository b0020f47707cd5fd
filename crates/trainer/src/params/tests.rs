use std::collections::BTreeMap;

use super::*;

fn model(tied: bool) -> ModelConfig {
    ModelConfig { layers: 3, dim: 32, heads: 8, kv_heads: 2, ffn: 48, tied }
}

fn layout(dp: usize, tp: usize, stages: Vec<usize>) -> Layout {
    Layout { dp, tp, pp: stages.len(), zero: false, stages }
}

/// How often each element of each tensor is owned, over all ranks of one data rank.
fn owners(model: &ModelConfig, layout: &Layout) -> BTreeMap<String, Vec<u32>> {
    let mut owners = BTreeMap::<String, Vec<u32>>::new();
    for rank in 0..layout.world() {
        let place = layout.place(rank);
        if place.data != 0 {
            continue;
        }
        for piece in parameters(model, layout, place).0.into_iter().flat_map(|p| p.pieces) {
            let len = piece.full[0] * piece.full[1];
            let counts = owners.entry(piece.name.clone()).or_insert_with(|| vec![0; len]);
            for row in piece.offset[0]..piece.offset[0] + piece.extent[0] {
                for column in piece.offset[1]..piece.offset[1] + piece.extent[1] {
                    counts[row * piece.full[1] + column] += u32::from(piece.owned);
                }
            }
        }
    }
    owners
}

#[test]
fn each_element_of_the_model_is_owned_by_exactly_one_rank_in_every_layout() {
    for tied in [true, false] {
        for (tp, stages) in [(1, vec![3]), (2, vec![1, 2]), (4, vec![3]), (8, vec![1, 1, 1])] {
            let owners = owners(&model(tied), &layout(2, tp, stages));
            let total: usize = owners.values().map(Vec::len).sum();
            assert_eq!(total, model(tied).parameters());
            for (name, counts) in owners {
                assert!(counts.iter().all(|&n| n == 1), "{name} tp {tp} tied {tied}: {counts:?}");
            }
        }
    }
}

#[test]
fn a_vocabulary_that_does_not_divide_is_padded() {
    let model = ModelConfig { heads: 6, kv_heads: 3, dim: 36, ..model(true) };
    let layout = layout(1, 3, vec![3]);
    let rows: Vec<_> = (0..3)
        .map(|rank| Local::new(&model, &layout, layout.place(rank)))
        .map(|local| (local.vocab, local.vocab_used()))
        .collect();
    assert_eq!(rows, [(86, 86), (86, 86), (86, 84)]);
    assert!(owners(&model, &layout).values().flatten().all(|&n| n == 1));
}

#[test]
fn first_values_do_not_depend_on_the_layout() {
    let find = |layout: &Layout, rank: usize, name: &str| {
        let (params, _) = parameters(&model(true), layout, layout.place(rank));
        let mut pieces = params.into_iter().flat_map(|param| param.pieces);
        pieces.find(|piece| piece.name == name).unwrap()
    };
    let values = |piece: &Piece| {
        let mut values = vec![0.0; piece.len()];
        piece.init(9, &mut values);
        values
    };
    let whole = find(&layout(1, 1, vec![3]), 0, "layers.1.w2");
    let part = find(&layout(1, 2, vec![3]), 1, "layers.1.w2");
    let (all, own) = (values(&whole), values(&part));
    for row in 0..part.extent[0] {
        let first = row * whole.full[1] + part.offset[1];
        assert_eq!(own[row * part.extent[1]..][..part.extent[1]], all[first..][..part.extent[1]]);
    }
}

#[test]
fn shared_key_heads_are_those_of_the_ranks_query_heads() {
    let layout = layout(1, 8, vec![3]);
    for rank in 0..8 {
        let (params, roles) = parameters(&model(true), &layout, layout.place(rank));
        let pieces = &params[roles.layers[0].qkv].pieces;
        assert_eq!(pieces[1].offset[0], if rank < 4 { 0 } else { 4 });
        assert!(pieces[1].shared && pieces[2].shared && !pieces[0].shared);
        assert_eq!(pieces[1].owned, rank % 4 == 0);
    }
}
