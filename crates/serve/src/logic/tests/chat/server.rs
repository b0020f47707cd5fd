//! A server as vLLM is one, in rough: so many requests in a batch, prefill one after another, a prefix
//! cache of blocks from which the least recently used go. Shares no code with what it is a test of.
//!
//! Not in it: prefill slows the decoding of others down, running requests pin their blocks. Both make
//! misses dearer than they are here.

use std::collections::{HashMap, VecDeque};

pub const TOKENS_PER_BLOCK: usize = 32;
/// 404,000 tokens: an 8B model in 16 bits on an A100 with 80 GB. vLLM takes nine tenths of it, 16 GB are
/// weights, 3 for activations, and a token needs 128 KiB.
pub const CACHE_BLOCKS: usize = 12_600;
const SLOTS: usize = 64;
/// 16 GFLOP a token, at half of such a card's 312 TFLOP/s.
const PREFILL_TOKENS_PER_S: f64 = 9750.0;
const PREFILL_OVERHEAD_S: f64 = 0.01;
/// Of a token: reading the weights, and for each in the batch its part of the cache.
const DECODE_S: (f64, f64) = (0.012, 0.0002);

struct Request {
    talk: usize,
    blocks: Vec<u64>,
}

/// A prefill that is done.
pub struct Done {
    pub talk: usize,
    pub blocks: usize,
    pub cached: usize,
}

#[derive(Default)]
pub struct Server {
    cache: Cache,
    waiting: VecDeque<Request>,
    running: usize,
    prefill: Option<Done>,
}

impl Server {
    pub fn arrives(&mut self, talk: usize, blocks: Vec<u64>) {
        self.waiting.push_back(Request { talk, blocks });
    }

    /// How long the next prefill takes, if one may begin.
    pub fn start_prefill(&mut self) -> Option<f64> {
        if self.prefill.is_some() || self.running >= SLOTS {
            return None;
        }
        let request = self.waiting.pop_front()?;
        self.running += 1;
        let cached = self.cache.matched(&request.blocks);
        self.cache.touch(&request.blocks);
        let tokens = ((request.blocks.len() - cached) * TOKENS_PER_BLOCK) as f64;
        self.prefill = Some(Done { talk: request.talk, blocks: request.blocks.len(), cached });
        Some(PREFILL_OVERHEAD_S + tokens / PREFILL_TOKENS_PER_S)
    }

    pub fn prefilled(&mut self) -> Done {
        self.prefill.take().expect("a prefill was under way")
    }

    pub fn decode_s(&self, tokens: f64) -> f64 {
        tokens * (DECODE_S.0 + DECODE_S.1 * self.running as f64)
    }

    /// A request leaves; its answer is in the cache like its prompt.
    pub fn leaves(&mut self, blocks: Vec<u64>) {
        self.running -= 1;
        self.cache.touch(&blocks);
    }
}

#[derive(Default)]
struct Cache {
    used: HashMap<u64, u64>,
    /// Uses in their order; one that is not its block's last says nothing.
    uses: VecDeque<(u64, u64)>,
    clock: u64,
}

impl Cache {
    fn matched(&self, blocks: &[u64]) -> usize {
        blocks.iter().take_while(|block| self.used.contains_key(block)).count()
    }

    fn touch(&mut self, blocks: &[u64]) {
        for block in blocks.iter().rev() {
            self.clock += 1;
            self.used.insert(*block, self.clock);
            self.uses.push_back((self.clock, *block));
        }
        while self.used.len() > CACHE_BLOCKS {
            let (at, block) = self.uses.pop_front().expect("every block was used");
            if self.used.get(&block) == Some(&at) {
                self.used.remove(&block);
            }
        }
    }
}
