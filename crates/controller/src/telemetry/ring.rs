//! Rows of fixed size for the last so many moments. A moment that nobody wrote is empty: all bits
//! set. It grows to its size as it fills, and then stays.

/// What a missing row is made of.
pub const EMPTY: u8 = u8::MAX;

/// Room is made for so many rows at once.
const GROW: usize = 256;

#[derive(Clone, Debug)]
pub struct Ring {
    width: usize,
    /// Rows at most.
    capacity: usize,
    rows: Vec<u8>,
    /// The moment of the first row ever written, and of the newest.
    span: Option<(u64, u64)>,
}

impl Ring {
    pub fn new(width: usize, capacity: usize) -> Ring {
        Ring { width, capacity, rows: Vec::new(), span: None }
    }

    /// Older than what is kept, or than the first: dropped. Twice the same moment: the later wins.
    pub fn put(&mut self, slot: u64, row: &[u8]) {
        assert_eq!(row.len(), self.width, "a row has {} bytes", self.width);
        let newest = match self.span {
            Some((_, newest)) if slot <= newest + self.capacity as u64 => newest,
            // The first, or all that is kept is too old by now.
            _ => {
                self.rows.clear();
                self.span = Some((slot, slot));
                self.append(row);
                return;
            }
        };
        if slot <= newest {
            if let Some(at) = self.at(slot) {
                self.rows[at..at + self.width].copy_from_slice(row);
            }
            return;
        }
        let empty = vec![EMPTY; self.width];
        for between in newest + 1..=slot {
            self.advance(between, if between == slot { row } else { &empty });
        }
    }

    fn advance(&mut self, slot: u64, row: &[u8]) {
        let Some((first, newest)) = &mut self.span else { return };
        *newest = slot;
        if self.rows.len() < self.capacity * self.width {
            self.append(row);
        } else {
            let at = ((slot - *first) % self.capacity as u64) as usize * self.width;
            self.rows[at..at + self.width].copy_from_slice(row);
        }
    }

    fn append(&mut self, row: &[u8]) {
        if self.rows.len() == self.rows.capacity() {
            let left = self.capacity * self.width - self.rows.len();
            self.rows.reserve_exact(left.min(GROW * self.width));
        }
        self.rows.extend_from_slice(row);
    }

    /// Where the row of a moment is, if it is kept.
    fn at(&self, slot: u64) -> Option<usize> {
        let (first, newest) = self.span?;
        let kept = (self.rows.len() / self.width) as u64;
        let in_time = slot <= newest && slot + kept > newest;
        in_time.then(|| ((slot - first) % self.capacity as u64) as usize * self.width)
    }

    /// None if it is not kept, or empty.
    pub fn get(&self, slot: u64) -> Option<&[u8]> {
        let at = self.at(slot)?;
        let row = &self.rows[at..at + self.width];
        row.iter().any(|&byte| byte != EMPTY).then_some(row)
    }

    /// The moments that are kept, oldest and newest.
    pub fn range(&self) -> Option<(u64, u64)> {
        let (_, newest) = self.span?;
        Some((newest + 1 - (self.rows.len() / self.width) as u64, newest))
    }

    pub fn newest(&self) -> Option<u64> {
        self.span.map(|(_, newest)| newest)
    }

    /// Bytes taken.
    #[cfg(test)]
    pub fn size(&self) -> usize {
        self.rows.capacity()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const CAPACITY: usize = 7;

    proptest! {
        /// Whatever is written when, the ring knows what a map with all of it knows of the last
        /// moments.
        #[test]
        fn a_ring_is_the_end_of_a_map(steps in prop::collection::vec((0u64..12, 0u8..=250), 1..200)) {
            let mut ring = Ring::new(2, CAPACITY);
            let mut map: BTreeMap<u64, [u8; 2]> = BTreeMap::new();
            let mut now = 100u64;
            for (step, value) in steps {
                // Mostly forward, at times back.
                let back = step == 11 && ring.newest().is_some();
                let slot = if back { now - 3 } else { now + step };
                let newest = ring.newest();
                let row = [value, EMPTY];
                ring.put(slot, &row);
                let (oldest, _) = ring.range().unwrap();
                if newest.is_none_or(|newest| slot > newest) || slot >= oldest {
                    map.insert(slot, row);
                }
                now = now.max(slot);
                let newest = ring.newest().unwrap();
                prop_assert_eq!(newest, now);
                for slot in newest.saturating_sub(3 * CAPACITY as u64)..=newest + 3 {
                    let kept = slot >= oldest && slot <= newest;
                    let wanted = map.get(&slot).filter(|_| kept).map(|row| &row[..]);
                    prop_assert_eq!(ring.get(slot), wanted, "{}", slot);
                }
                prop_assert!(newest + 1 - oldest <= CAPACITY as u64);
                prop_assert!(ring.size() <= 2 * CAPACITY);
            }
        }
    }

    #[test]
    fn a_long_gap_starts_anew() {
        let mut ring = Ring::new(1, 5);
        for slot in 0..20 {
            ring.put(slot, &[slot as u8]);
        }
        assert_eq!((ring.get(15), ring.get(14)), (Some(&[15][..]), None));
        ring.put(1_000_000, &[9]);
        assert_eq!((ring.range(), ring.get(19)), (Some((1_000_000, 1_000_000)), None));
    }

    #[test]
    fn it_takes_no_more_than_its_size() {
        let mut ring = Ring::new(16, 3600);
        (0..10_000).for_each(|slot| ring.put(slot, &[1; 16]));
        assert_eq!(ring.size(), 16 * 3600);
    }
}
