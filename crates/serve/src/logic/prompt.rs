//! A prompt as a chain of hashes of its blocks: two prompts share their first n hashes exactly if they
//! share their first n blocks.

use twox_hash::XxHash3_64;

/// About 32 tokens of English. Servers share whole blocks of 16 tokens or so; finer ones would cost
/// more here and tell little more.
pub const BLOCK_BYTES: usize = 128;
/// Longer prompts are known by their first 256 KiB.
pub const BLOCKS_MAX: usize = 2048;

/// The blocks of one prompt. A last block that is not full is left out, as servers do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptBlocks {
    hashes: Vec<u64>,
    /// The beginning of the next block.
    part: [u8; BLOCK_BYTES],
    part_len: usize,
}

impl Default for PromptBlocks {
    fn default() -> Self {
        PromptBlocks { hashes: Vec::new(), part: [0; BLOCK_BYTES], part_len: 0 }
    }
}

impl PromptBlocks {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn of(bytes: &[u8]) -> Self {
        let mut blocks = Self::default();
        blocks.push(bytes);
        blocks
    }

    /// Adds to the end of the prompt. It makes no difference how the bytes are cut into pieces.
    pub fn push(&mut self, mut bytes: &[u8]) {
        if self.part_len > 0 {
            let more = bytes.len().min(BLOCK_BYTES - self.part_len);
            self.part[self.part_len..self.part_len + more].copy_from_slice(&bytes[..more]);
            self.part_len += more;
            bytes = &bytes[more..];
            if self.part_len < BLOCK_BYTES {
                return;
            }
            let block = self.part;
            self.close(&block);
            self.part_len = 0;
        }
        while self.hashes.len() < BLOCKS_MAX && bytes.len() >= BLOCK_BYTES {
            let (block, rest) = bytes.split_at(BLOCK_BYTES);
            self.close(block);
            bytes = rest;
        }
        if self.hashes.len() < BLOCKS_MAX {
            self.part[..bytes.len()].copy_from_slice(bytes);
            self.part_len = bytes.len();
        }
    }

    /// Makes all blocks differ from those of the same text under another salt: for what comes before the
    /// prompt on the server but anywhere in the request, such as the tools and an adapter's name.
    pub fn salt(&mut self, salt: u64) {
        for hash in &mut self.hashes {
            *hash = (*hash ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            *hash ^= *hash >> 32;
        }
    }

    pub fn hashes(&self) -> &[u64] {
        &self.hashes
    }

    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// From hashes made elsewhere, for tests with imagined prompts.
    #[cfg(test)]
    pub fn from_hashes(hashes: Vec<u64>) -> Self {
        PromptBlocks { hashes, ..Self::default() }
    }

    fn close(&mut self, block: &[u8]) {
        let before = self.hashes.last().copied().unwrap_or(0);
        if self.hashes.len() < BLOCKS_MAX {
            self.hashes.push(XxHash3_64::oneshot_with_seed(before, block));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(len: usize) -> Vec<u8> {
        (0..len).map(|n| (n * 7 % 251) as u8).collect()
    }

    #[test]
    fn pieces_make_no_difference() {
        let whole = PromptBlocks::of(&text(1000));
        assert_eq!(whole.len(), 1000 / BLOCK_BYTES);
        for piece in [1, 3, 127, 128, 129, 400] {
            let mut pieces = PromptBlocks::new();
            text(1000).chunks(piece).for_each(|bytes| pieces.push(bytes));
            assert_eq!(pieces.hashes(), whole.hashes(), "in pieces of {piece}");
        }
    }

    #[test]
    fn a_block_covers_all_before_it() {
        let one = PromptBlocks::of(&text(1024));
        let mut other = text(1024);
        other[130] ^= 1;
        let other = PromptBlocks::of(&other);
        assert_eq!(one.hashes()[0], other.hashes()[0]);
        for n in 1..8 {
            assert_ne!(one.hashes()[n], other.hashes()[n], "block {n}");
        }
    }

    #[test]
    fn another_salt_shares_nothing() {
        let plain = PromptBlocks::of(&text(512));
        let mut salted = plain.clone();
        salted.salt(7);
        assert!(plain.hashes().iter().zip(salted.hashes()).all(|(a, b)| a != b));
        let mut again = plain.clone();
        again.salt(7);
        assert_eq!(salted, again);
    }

    #[test]
    fn a_huge_prompt_is_cut_off() {
        let huge = PromptBlocks::of(&text(BLOCK_BYTES * (BLOCKS_MAX + 10) + 5));
        assert_eq!(huge.len(), BLOCKS_MAX);
        let mut pieces = PromptBlocks::new();
        text(BLOCK_BYTES * (BLOCKS_MAX + 10) + 5).chunks(100).for_each(|bytes| pieces.push(bytes));
        assert_eq!(pieces.hashes(), huge.hashes());
    }
}
