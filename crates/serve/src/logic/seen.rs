//! What a replica's prefix cache probably holds, told by what was sent there.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};

/// Blocks' hashes are even enough already. What clients write decides them, though, so a secret keeps
/// anybody from writing prompts that all fall into one place.
#[derive(Clone, Copy)]
struct Secret(u64);

struct Mixed {
    secret: u64,
    value: u64,
}

impl BuildHasher for Secret {
    type Hasher = Mixed;
    fn build_hasher(&self) -> Mixed {
        Mixed { secret: self.0, value: 0 }
    }
}

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.value
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }
    fn write_u64(&mut self, n: u64) {
        let wide = u128::from(n ^ self.value ^ self.secret) * 0x9e37_79b9_7f4a_7c15_u128;
        self.value = (wide as u64) ^ (wide >> 64) as u64;
    }
}

const NIL: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Node {
    hash: u64,
    newer: u32,
    older: u32,
}

/// Blocks in the order of their last use; beyond the capacity the oldest is forgotten, as the server
/// forgets it. A prompt's blocks are touched from the last to the first. So a block is never newer than
/// those before it, and if one is known, all before it are: a prompt's match is found by bisection.
pub struct SeenBlocks {
    at: HashMap<u64, u32, Secret>,
    nodes: Vec<Node>,
    newest: u32,
    oldest: u32,
    capacity: usize,
}

impl SeenBlocks {
    pub fn new(capacity: usize, secret: u64) -> Self {
        SeenBlocks {
            at: HashMap::with_hasher(Secret(secret)),
            nodes: Vec::new(),
            newest: NIL,
            oldest: NIL,
            capacity: capacity.max(1),
        }
    }

    pub fn len(&self) -> usize {
        self.at.len()
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// A smaller one forgets what is too much at once.
    pub fn set_capacity(&mut self, capacity: usize) {
        let capacity = capacity.max(1);
        if capacity < self.len() {
            let mut kept = Vec::with_capacity(capacity);
            let mut at = self.newest;
            while at != NIL && kept.len() < capacity {
                kept.push(self.nodes[at as usize].hash);
                at = self.nodes[at as usize].older;
            }
            *self = SeenBlocks::new(capacity, self.at.hasher().0);
            kept.iter().rev().for_each(|&hash| self.touch_one(hash));
        }
        self.capacity = capacity;
    }

    /// The server was started anew, with nothing in its cache.
    pub fn clear(&mut self) {
        *self = SeenBlocks::new(self.capacity, self.at.hasher().0);
    }

    /// How many blocks from the beginning are known.
    pub fn matched(&self, hashes: &[u64]) -> usize {
        hashes.partition_point(|hash| self.at.contains_key(hash))
    }

    /// The prompt was sent there. Of one larger than the cache, the beginning is kept.
    pub fn touch(&mut self, hashes: &[u64]) {
        let fits = &hashes[..hashes.len().min(self.capacity)];
        fits.iter().rev().for_each(|&hash| self.touch_one(hash));
    }

    fn touch_one(&mut self, hash: u64) {
        if let Some(&at) = self.at.get(&hash) {
            if at != self.newest {
                self.unlink(at);
                self.link(at);
            }
            return;
        }
        let at = if self.nodes.len() < self.capacity {
            self.nodes.push(Node { hash, newer: NIL, older: NIL });
            (self.nodes.len() - 1) as u32
        } else {
            let at = self.oldest;
            self.at.remove(&self.nodes[at as usize].hash);
            self.unlink(at);
            self.nodes[at as usize].hash = hash;
            at
        };
        self.at.insert(hash, at);
        self.link(at);
    }

    fn unlink(&mut self, at: u32) {
        let Node { newer, older, .. } = self.nodes[at as usize];
        match newer {
            NIL => self.newest = older,
            newer => self.nodes[newer as usize].older = older,
        }
        match older {
            NIL => self.oldest = newer,
            older => self.nodes[older as usize].newer = newer,
        }
    }

    fn link(&mut self, at: u32) {
        let before = self.newest;
        self.nodes[at as usize].newer = NIL;
        self.nodes[at as usize].older = before;
        match before {
            NIL => self.oldest = at,
            before => self.nodes[before as usize].newer = at,
        }
        self.newest = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_prompt_loses_its_end_first() {
        let mut seen = SeenBlocks::new(6, 5);
        seen.touch(&[1, 2, 3]);
        seen.touch(&[11, 12, 13]);
        assert_eq!(seen.matched(&[1, 2, 3, 4]), 3);
        seen.touch(&[21, 22]);
        assert_eq!(seen.matched(&[1, 2, 3]), 1, "2 and 3 went, 1 is newer than they");
        assert_eq!(seen.matched(&[11, 12, 13]), 3);
        assert_eq!(seen.len(), 6);
    }

    #[test]
    fn what_is_used_again_stays() {
        let mut seen = SeenBlocks::new(4, 5);
        seen.touch(&[1, 2]);
        seen.touch(&[3, 4]);
        seen.touch(&[1, 2]);
        seen.touch(&[5, 6]);
        assert_eq!(seen.matched(&[1, 2]), 2);
        assert_eq!(seen.matched(&[3, 4]), 0);
    }

    #[test]
    fn a_prompt_larger_than_the_cache_leaves_its_beginning() {
        let mut seen = SeenBlocks::new(3, 5);
        let long: Vec<u64> = (1..10).collect();
        seen.touch(&long);
        assert_eq!(seen.matched(&long), 3);
    }

    #[test]
    fn a_smaller_capacity_keeps_the_newest() {
        let mut seen = SeenBlocks::new(8, 5);
        seen.touch(&[1, 2, 3, 4]);
        seen.touch(&[5, 6, 7, 8]);
        seen.set_capacity(5);
        assert_eq!((seen.len(), seen.matched(&[5, 6, 7, 8])), (5, 4));
        seen.touch(&[9]);
        assert_eq!((seen.len(), seen.matched(&[1, 2, 3, 4])), (5, 0));
    }

    proptest::proptest! {
        /// Bisection is only right if every known block has all before it known too.
        #[test]
        fn known_blocks_have_known_ancestors(
            capacity in 1usize..40,
            prompts in proptest::collection::vec((0u64..4, 0u64..4, 1usize..12), 1..60),
        ) {
            let mut seen = SeenBlocks::new(capacity, 5);
            let chain = |(a, b, len): (u64, u64, usize)| -> Vec<u64> {
                (0..len as u64).map(|n| if n < 4 { a * 100 + n } else { a * 100 + b * 10_000 + n }).collect()
            };
            for prompt in prompts {
                seen.touch(&chain(prompt));
                proptest::prop_assert!(seen.len() <= capacity && seen.nodes.len() <= capacity);
                for a in 0..4 {
                    for b in 0..4 {
                        let known: Vec<bool> =
                            chain((a, b, 12)).iter().map(|h| seen.at.contains_key(h)).collect();
                        proptest::prop_assert!(known.is_sorted_by(|x, y| x >= y), "{:?}", known);
                    }
                }
            }
        }
    }
}
