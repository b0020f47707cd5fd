//! From flat shards to boxes of named tensors, which is what a checkpoint knows.
//!
//! A shard of ZeRO-1 ends wherever it ends, in the middle of a row if need be: each piece of it is
//! at most three boxes, the rest of a row, whole rows, and the beginning of a row.

use std::ops::Range;

use crate::bucket::Bucket;
use crate::params::{Param, Piece};

/// A box of a named tensor that lies together in a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    pub name: String,
    pub shape: Vec<u64>,
    pub offset: Vec<u64>,
    pub extent: Vec<u64>,
    /// Where in the shard.
    pub at: Range<usize>,
    /// This rank speaks for it.
    pub owned: bool,
}

/// All boxes of `range` of a bucket. Padding is in none.
pub fn cuts(bucket: &Bucket, params: &[Param], range: &Range<usize>) -> Vec<Cut> {
    let mut cuts = Vec::new();
    for slot in &bucket.slots {
        for piece in &params[slot.param].pieces {
            let start = slot.offset + piece.at;
            let from = range.start.max(start);
            let to = range.end.min(start + piece.len());
            if from < to {
                let boxes = boxes(from - start..to - start, piece.extent[1]);
                cuts.extend(boxes.into_iter().map(|rows| cut(piece, rows, start, range.start)));
            }
        }
    }
    cuts
}

/// Part of a piece: elements from `first` on, so many rows of so many columns.
struct Rows {
    first: usize,
    rows: usize,
    columns: usize,
}

fn boxes(range: Range<usize>, columns: usize) -> Vec<Rows> {
    let mut boxes = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let left = range.end - at;
        let in_row = columns - at % columns;
        let (rows, wide) = if in_row < columns || left < columns {
            (1, in_row.min(left))
        } else {
            (left / columns, columns)
        };
        boxes.push(Rows { first: at, rows, columns: wide });
        at += rows * wide;
    }
    boxes
}

fn cut(piece: &Piece, rows: Rows, start: usize, shard_start: usize) -> Cut {
    let columns = piece.extent[1];
    let offset = [piece.offset[0] + rows.first / columns, piece.offset[1] + rows.first % columns];
    let extent = [rows.rows, rows.columns];
    let at = start + rows.first - shard_start;
    let dims = |pair: [usize; 2]| {
        let pair = pair.map(|n| n as u64);
        if piece.vector { pair[1..].to_vec() } else { pair.to_vec() }
    };
    Cut {
        name: piece.name.clone(),
        shape: dims(piece.full),
        offset: dims(offset),
        extent: dims(extent),
        at: at..at + rows.rows * rows.columns,
        owned: piece.owned,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::buckets;
    use crate::config::ModelConfig;
    use crate::layout::Layout;
    use crate::params::parameters;

    fn found(range: Range<usize>, columns: usize) -> Vec<(usize, usize, usize)> {
        boxes(range, columns).iter().map(|b| (b.first, b.rows, b.columns)).collect()
    }

    #[test]
    fn a_range_is_at_most_three_boxes() {
        assert_eq!(found(0..12, 4), [(0, 3, 4)]);
        assert_eq!(found(2..11, 4), [(2, 1, 2), (4, 1, 4), (8, 1, 3)]);
        assert_eq!(found(1..3, 4), [(1, 1, 2)]);
        assert_eq!(found(3..8, 4), [(3, 1, 1), (4, 1, 4)]);
    }

    #[test]
    fn shards_of_all_ranks_are_every_element_once() {
        let model = ModelConfig { layers: 2, dim: 12, heads: 4, kv_heads: 2, ffn: 20, tied: true };
        for (dp, tp, stages) in [(1, 1, vec![2]), (3, 2, vec![1, 1]), (5, 4, vec![2])] {
            let layout = Layout { dp, tp, pp: stages.len(), zero: true, stages };
            let mut total = 0;
            for rank in 0..layout.world() {
                let place = layout.place(rank);
                let (params, _) = parameters(&model, &layout, place);
                for bucket in buckets(&params, dp, 2000) {
                    let range = bucket.shard(place.data, dp);
                    let cuts = cuts(&bucket, &params, &range);
                    for cut in &cuts {
                        assert_eq!(cut.extent.iter().product::<u64>(), cut.at.len() as u64);
                    }
                    total += cuts.iter().filter(|c| c.owned).map(|c| c.at.len()).sum::<usize>();
                }
            }
            assert_eq!(total, model.parameters(), "{layout}");
        }
    }
}
