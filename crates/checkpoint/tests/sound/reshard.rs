//! A checkpoint that was saved under one layout and is loaded under another holds the same bits.

use crate::common::{bytes_of, options, text};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use tutti_checkpoint::{Dtype, Options, Region, Selector, Store, Tensor};

/// A random grid over a shape: each axis cut at random places.
fn grid(rng: &mut ChaCha8Rng, shape: &[u64]) -> Vec<Region> {
    let mut cells = vec![Region::new(&[], &[])];
    for &len in shape {
        let mut cuts: Vec<u64> =
            (0..rng.random_range(0..3)).map(|_| rng.random_range(0..=len)).collect();
        cuts.extend([0, len]);
        cuts.sort_unstable();
        cells = cells
            .iter()
            .flat_map(|cell| {
                cuts.windows(2).map(|pair| {
                    let mut cell = cell.clone();
                    cell.offset.push(pair[0]);
                    cell.extent.push(pair[1] - pair[0]);
                    cell
                })
            })
            .collect();
    }
    cells
}

/// Element by element, as slowly and plainly as can be.
fn cut(all: &[u8], shape: &[u64], cell: &Region, item: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let count: u64 = cell.extent.iter().product();
    for n in 0..count {
        let mut rest = n;
        let mut at = vec![0; shape.len()];
        for axis in (0..shape.len()).rev() {
            at[axis] = cell.offset[axis] + rest % cell.extent[axis];
            rest /= cell.extent[axis];
        }
        let index = at.iter().zip(shape).fold(0, |i, (&a, &s)| i * s + a) as usize;
        out.extend_from_slice(&all[index * item..(index + 1) * item]);
    }
    out
}

#[test]
fn any_grid_loads_under_any_other() {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    let dtypes = [Dtype::U8, Dtype::Bf16, Dtype::F32, Dtype::I64];
    for round in 0..25u64 {
        let world = rng.random_range(1..=4u32);
        let open = |rank| {
            let options = Options { shard_bytes: 4000, ..options(rank, world, 1) };
            Store::open(text(dir.path()), options).unwrap()
        };
        let stores: Vec<Store> = (0..world).map(open).collect();
        let mut saves: Vec<_> = stores.iter().map(|s| s.save(round).unwrap()).collect();
        let mut tensors = Vec::new();
        for t in 0..rng.random_range(1..5u64) {
            let rank = rng.random_range(0..4);
            let shape: Vec<u64> = (0..rank).map(|_| rng.random_range(0..14)).collect();
            let dtype = dtypes[rng.random_range(0..dtypes.len())];
            let item = dtype.size() as usize;
            let all = bytes_of(round * 100 + t, shape.iter().product::<u64>() as usize * item);
            for cell in grid(&mut rng, &shape) {
                let data = cut(&all, &shape, &cell, item);
                if data.is_empty() && rng.random_bool(0.7) {
                    continue;
                }
                let by = rng.random_range(0..world) as usize;
                let tensor =
                    Tensor::piece(format!("t{t}"), dtype, &shape, &cell.offset, &cell.extent, data);
                // A cell without elements may come twice.
                if saves[by].add(tensor).is_err() {
                    assert!(cell.extent.contains(&0));
                }
            }
            tensors.push((format!("t{t}"), shape, item, all));
        }
        let reports = saves.into_iter().map(|s| s.finish().wait().unwrap()).collect();
        stores[0].publish(round, reports, serde_json::Value::Null).unwrap();
        let loaded = stores[0].load(Selector::Step(round)).unwrap();
        for (name, shape, item, all) in &tensors {
            if loaded.entry(name).is_err() {
                assert!(all.is_empty());
                continue;
            }
            assert_eq!(&loaded.tensor(name).unwrap().bytes, all);
            for cell in grid(&mut rng, shape) {
                let found = loaded.slice(name, &cell.offset, &cell.extent).unwrap();
                assert_eq!(found.bytes, cut(all, shape, &cell, *item), "{name} {cell:?}");
            }
        }
        assert!(loaded.report().is_clean());
    }
}

#[test]
fn pieces_larger_than_chunks_are_read_in_parallel() {
    let dir = tempfile::tempdir().unwrap();
    let shape = [1000u64, 9000];
    let all = bytes_of(1, 9_000_000);
    let stores: Vec<Store> =
        (0..2).map(|r| Store::open(text(dir.path()), options(r, 2, 1)).unwrap()).collect();
    let halves = [Region::new(&[0, 0], &[1000, 5100]), Region::new(&[0, 5100], &[1000, 3900])];
    let reports = stores
        .iter()
        .zip(&halves)
        .map(|(store, half)| {
            let mut save = store.save(1).unwrap();
            let data = cut(&all, &shape, half, 1);
            save.add(Tensor::piece("w", Dtype::U8, &shape, &half.offset, &half.extent, data))
                .unwrap();
            save.finish().wait().unwrap()
        })
        .collect();
    stores[0].publish(1, reports, serde_json::Value::Null).unwrap();
    let loaded = stores[1].load(Selector::Latest).unwrap();
    assert_eq!(loaded.tensor("w").unwrap().bytes, all);
    let rows = Region::new(&[300, 4000], &[500, 2500]);
    let found = loaded.slice("w", &rows.offset, &rows.extent).unwrap();
    assert_eq!(found.bytes, cut(&all, &shape, &rows, 1));
}
