//! Boxes in tensors: what a piece covers, what two have in common, and which bytes that is.
//!
//! All of it is pure, and all tensors are row-major.

use serde::{Deserialize, Serialize};

/// A box in a tensor: where it begins and how far it goes, for each axis.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Region {
    pub offset: Vec<u64>,
    pub extent: Vec<u64>,
}

/// So many bytes that lie together both in the source and in the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub src: u64,
    pub dst: u64,
    pub len: u64,
}

/// Elements in a box of this extent; none if the number is beyond 64 bits.
pub fn volume(extent: &[u64]) -> Option<u64> {
    if extent.contains(&0) {
        return Some(0);
    }
    extent.iter().try_fold(1u64, |n, &e| n.checked_mul(e))
}

impl Region {
    pub fn new(offset: &[u64], extent: &[u64]) -> Region {
        Region { offset: offset.to_vec(), extent: extent.to_vec() }
    }

    /// All of a tensor.
    pub fn whole(shape: &[u64]) -> Region {
        Region { offset: vec![0; shape.len()], extent: shape.to_vec() }
    }

    pub fn is_empty(&self) -> bool {
        self.extent.contains(&0)
    }

    pub fn is_within(&self, shape: &[u64]) -> bool {
        self.offset.len() == shape.len()
            && self.extent.len() == shape.len()
            && self
                .axes()
                .zip(shape)
                .all(|((o, e), &s)| o.checked_add(e).is_some_and(|end| end <= s))
    }

    /// What both cover; none if that is nothing.
    pub fn common(&self, other: &Region) -> Option<Region> {
        let mut found = Region { offset: Vec::new(), extent: Vec::new() };
        for ((a, a_len), (b, b_len)) in self.axes().zip(other.axes()) {
            let begin = a.max(b);
            let end = (a + a_len).min(b + b_len);
            if begin >= end {
                return None;
            }
            found.offset.push(begin);
            found.extent.push(end - begin);
        }
        Some(found)
    }

    fn axes(&self) -> impl Iterator<Item = (u64, u64)> {
        self.offset.iter().copied().zip(self.extent.iter().copied())
    }

    /// The position of an element of the tensor among the elements of this box.
    fn index(&self, at: &[u64]) -> u64 {
        self.axes().zip(at).fold(0, |n, ((o, e), &i)| n * e + (i - o))
    }
}

/// Which bytes of `src` go where in `dst` so that what they have in common is copied, in the order of
/// `src`. Both boxes are stored densely.
pub fn runs(src: &Region, dst: &Region, item: u64) -> Runs {
    let common = src.common(dst);
    // The last axes that are whole in both boxes lie together: one run spans them all.
    let mut joined = 1;
    let mut axis = src.extent.len();
    if let Some(common) = &common {
        while axis > 0 {
            axis -= 1;
            joined *= common.extent[axis];
            let whole = |r: &Region| common.extent[axis] == r.extent[axis];
            if !(whole(src) && whole(dst)) {
                break;
            }
        }
    }
    let at = common.as_ref().map(|c| c.offset.clone());
    Runs { src: src.clone(), dst: dst.clone(), common, at, axis, len: joined * item, item }
}

pub struct Runs {
    src: Region,
    dst: Region,
    common: Option<Region>,
    /// Where the next run begins, in the whole tensor.
    at: Option<Vec<u64>>,
    /// Axes from here on are inside a run.
    axis: usize,
    len: u64,
    item: u64,
}

impl Iterator for Runs {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        let common = self.common.as_ref()?;
        let at = self.at.as_mut()?;
        let run = Run {
            src: self.src.index(at) * self.item,
            dst: self.dst.index(at) * self.item,
            len: self.len,
        };
        let mut axis = self.axis;
        loop {
            if axis == 0 {
                self.at = None;
                break;
            }
            axis -= 1;
            at[axis] += 1;
            if at[axis] < common.offset[axis] + common.extent[axis] {
                break;
            }
            at[axis] = common.offset[axis];
        }
        Some(run)
    }
}

/// Two pieces that claim the same elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlap {
    pub first: usize,
    pub second: usize,
}

/// The first two of these boxes that overlap. They are swept along the first axis, so that a tensor
/// cut into thousands of rows is not compared pair by pair.
pub fn overlap(regions: &[Region]) -> Option<Overlap> {
    let mut order: Vec<usize> = (0..regions.len()).filter(|&i| !regions[i].is_empty()).collect();
    order.sort_by_key(|&i| (regions[i].offset.first().copied(), i));
    for (n, &first) in order.iter().enumerate() {
        let end = regions[first].axes().next().map(|(o, e)| o + e);
        for &second in &order[n + 1..] {
            if end.is_some() && regions[second].offset.first().copied() >= end {
                break;
            }
            if regions[first].common(&regions[second]).is_some() {
                return Some(Overlap { first: first.min(second), second: first.max(second) });
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(src: &Region, dst: &Region, from: &[u8], to: &mut [u8]) {
        for run in runs(src, dst, 1) {
            let (s, d, n) = (run.src as usize, run.dst as usize, run.len as usize);
            to[d..d + n].copy_from_slice(&from[s..s + n]);
        }
    }

    #[test]
    fn a_column_is_taken_row_by_row_and_a_row_at_once() {
        let whole = Region::whole(&[3, 4]);
        let column = Region::new(&[0, 2], &[3, 1]);
        let found: Vec<Run> = runs(&whole, &column, 2).collect();
        let want = [(4, 0), (12, 2), (20, 4)].map(|(src, dst)| Run { src, dst, len: 2 });
        assert_eq!(found, want);
        let rows = Region::new(&[1, 0], &[2, 4]);
        assert_eq!(runs(&whole, &rows, 2).collect::<Vec<_>>(), [Run { src: 8, dst: 0, len: 16 }]);
        assert_eq!(runs(&whole, &Region::new(&[0, 0], &[0, 4]), 2).count(), 0);
    }

    #[test]
    fn a_scalar_is_one_run() {
        let scalar = Region::whole(&[]);
        assert_eq!(runs(&scalar, &scalar, 8).collect::<Vec<_>>(), [Run { src: 0, dst: 0, len: 8 }]);
        assert_eq!(overlap(&[scalar.clone(), scalar]), Some(Overlap { first: 0, second: 1 }));
    }

    #[test]
    fn elements_keep_their_place() {
        let shape = [4u64, 5, 6];
        let all: Vec<u8> = (0..120).collect();
        let piece = Region::new(&[1, 0, 2], &[3, 5, 3]);
        let mut bytes = vec![0; 45];
        copy(&Region::whole(&shape), &piece, &all, &mut bytes);
        let mut back = vec![0xff; 120];
        copy(&piece, &Region::whole(&shape), &bytes, &mut back);
        for (i, (&was, &now)) in all.iter().zip(&back).enumerate() {
            let (a, c) = (i / 30, i % 6);
            let inside = a >= 1 && (2..5).contains(&c);
            assert_eq!(now, if inside { was } else { 0xff }, "{i}");
        }
    }

    #[test]
    fn overlaps_are_found_and_neighbours_are_none() {
        let grid: Vec<Region> = (0..4)
            .flat_map(|r| (0..2).map(move |c| Region::new(&[r * 2, c * 3], &[2, 3])))
            .collect();
        assert_eq!(overlap(&grid), None);
        let mut bad = grid;
        bad.push(Region::new(&[3, 2], &[1, 1]));
        assert_eq!(overlap(&bad), Some(Overlap { first: 2, second: 8 }));
    }
}
