//! Who computes next. Knows slots and tokens, and nothing of tensors or time.
//!
//! ```text
//! add ─► waiting ─► plan ─► [Copy] [Prefill …] [Decode: a token for each that is under way]
//!                    ▲                  │               │ logits
//!                    └──── advance: a token is picked; it goes on, or is done and leaves
//! ```
//!
//! Prompts are taken in one after the other, at most a chunk of tokens between two decodes: a long one
//! does not hold up those that are under way, and one that begins like the one before it finds that
//! beginning already there.

use std::collections::VecDeque;

use tutti_trainer::Row;
use tutti_trainer::rng::Stream;

use crate::prefix::{self, Held};
use crate::request::{Emission, Finish, Reason, Request, SequenceId};
use crate::sampling;
use crate::text::Text;

/// What to compute, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// The first tokens of one slot are those of another, too.
    Copy { from: usize, to: usize, len: usize },
    /// With `last`, [`Schedule::advance`] gets the logits behind the last token.
    Prefill { slot: usize, start: usize, tokens: Vec<u8>, last: bool },
    /// [`Schedule::advance`] gets the logits of each row.
    Decode(Vec<Row>),
}

/// What prompts found already there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reuse {
    pub prompts: u64,
    /// Prompts that found something.
    pub hits: u64,
    pub tokens: u64,
}

pub struct Schedule {
    slots: Vec<Slot>,
    waiting: VecDeque<Request>,
    /// Tokens of prompts that are taken in between two decodes.
    chunk: usize,
    /// Counts admissions, to know which slot was used last.
    admitted: u64,
    reuse: Reuse,
}

#[derive(Default)]
struct Slot {
    /// Tokens whose keys and values are there, or will be when what was planned is done.
    tokens: Vec<u8>,
    used: u64,
    active: Option<Active>,
}

struct Active {
    request: Request,
    text: Text,
    draws: Stream,
    made: usize,
    /// The token that was picked and not yet computed with.
    next: Option<u8>,
    cached: usize,
}

impl Active {
    fn new(request: Request, cached: usize) -> Self {
        Active {
            text: Text::new(&request.stops),
            draws: Stream::new(request.sampling.seed, &format!("choice {}", request.choice)),
            request,
            made: 0,
            next: None,
            cached,
        }
    }
}

impl Schedule {
    pub fn new(slots: usize, chunk: usize) -> Self {
        Schedule {
            slots: (0..slots).map(|_| Slot::default()).collect(),
            waiting: VecDeque::new(),
            chunk: chunk.max(1),
            admitted: 0,
            reuse: Reuse::default(),
        }
    }

    pub fn add(&mut self, request: Request) {
        self.waiting.push_back(request);
    }

    /// Nobody wants it any more. Whether it was there.
    pub fn cancel(&mut self, id: SequenceId) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|request| request.id != id);
        let slot = self.slots.iter_mut().find(|slot| slot.id() == Some(id));
        slot.map(|slot| slot.active = None).is_some() || self.waiting.len() < before
    }

    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running() == 0
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub fn running(&self) -> usize {
        self.slots.iter().filter(|slot| slot.active.is_some()).count()
    }

    /// Tokens that sequences under way hold.
    pub fn tokens(&self) -> usize {
        let active = self.slots.iter().filter(|slot| slot.active.is_some());
        active.map(|slot| slot.tokens.len()).sum()
    }

    pub fn reuse(&self) -> Reuse {
        self.reuse
    }

    /// One step: a chunk's room for prompts, then a token for each that has one.
    pub fn plan(&mut self) -> Vec<Work> {
        let mut work = Vec::new();
        let mut room = self.chunk;
        while room > 0 {
            let Some(slot) = self.prefilling().or_else(|| self.admit(&mut work)) else { break };
            let piece = self.slots[slot].piece(slot, room);
            if let Work::Prefill { tokens, .. } = &piece {
                room -= tokens.len();
            }
            work.push(piece);
        }
        // Planned last, as they are computed last: no copy may count on their keys.
        let rows = self.rows();
        if !rows.is_empty() {
            work.push(Work::Decode(rows));
        }
        work
    }

    /// The next token of each that has one. Its key will be there when the step is done.
    fn rows(&mut self) -> Vec<Row> {
        let mut rows = Vec::new();
        for (at, slot) in self.slots.iter_mut().enumerate() {
            let Some(token) = slot.active.as_mut().and_then(|active| active.next.take()) else {
                continue;
            };
            rows.push(Row { slot: at, token, position: slot.tokens.len() });
            slot.tokens.push(token);
        }
        rows
    }

    fn prefilling(&self) -> Option<usize> {
        self.slots.iter().position(Slot::is_prefilling)
    }

    /// Gives the first who waits a slot.
    fn admit(&mut self, work: &mut Vec<Work>) -> Option<usize> {
        let prompt = &self.waiting.front()?.prompt;
        let held = self.slots.iter().map(|slot| Held {
            tokens: &slot.tokens,
            free: slot.active.is_none(),
            used: slot.used,
        });
        let choice = prefix::choose(&held.collect::<Vec<_>>(), prompt)?;
        let request = self.waiting.pop_front()?;
        self.admitted += 1;
        self.reuse.prompts += 1;
        self.reuse.hits += u64::from(choice.reuse > 0);
        self.reuse.tokens += choice.reuse as u64;
        if let Some(from) = choice.from {
            work.push(Work::Copy { from, to: choice.slot, len: choice.reuse });
        }
        let slot = &mut self.slots[choice.slot];
        slot.tokens.clear();
        slot.tokens.extend_from_slice(&request.prompt[..choice.reuse]);
        slot.used = self.admitted;
        slot.active = Some(Active::new(request, choice.reuse));
        Some(choice.slot)
    }

    /// Nothing of what is in a slot is of use. Whose it was.
    pub fn forget(&mut self, slot: usize) -> Option<SequenceId> {
        let slot = &mut self.slots[slot];
        slot.tokens.clear();
        slot.active.take().map(|active| active.request.id)
    }

    /// Picks the next token of a slot by its logits. None if the slot is empty: its sequence was
    /// cancelled while it was computed.
    pub fn advance(&mut self, slot: usize, logits: &[f32]) -> Option<Emission> {
        let slot = &mut self.slots[slot];
        let active = slot.active.as_mut()?;
        let request = &active.request;
        let bits = active.draws.bits(active.made as u64);
        let token = sampling::pick(logits, &request.sampling, bits);
        let logprobs = request.logprobs.map(|top| sampling::logprobs(logits, token, top));
        active.made += 1;
        let mut pushed = active.text.push(token);
        let reason = match (pushed.stopped, active.made >= request.max_tokens) {
            (true, _) => Some(Reason::Stop),
            (false, true) => {
                pushed.text.push_str(&active.text.finish());
                Some(Reason::Length)
            }
            (false, false) => None,
        };
        active.next = Some(token);
        let finish =
            reason.map(|reason| Finish { reason, tokens: active.made, cached: active.cached });
        let id = request.id;
        if finish.is_some() {
            slot.active = None;
        }
        Some(Emission { id, text: pushed.text, token, logprobs, finish })
    }
}

impl Slot {
    fn id(&self) -> Option<SequenceId> {
        self.active.as_ref().map(|active| active.request.id)
    }

    fn is_prefilling(&self) -> bool {
        let prompt = self.active.as_ref().map_or(0, |active| active.request.prompt.len());
        self.tokens.len() < prompt
    }

    /// The next piece of its prompt, no larger than there is room for.
    fn piece(&mut self, slot: usize, room: usize) -> Work {
        let active = self.active.as_ref().expect("only a slot in use is taken in");
        let prompt = &active.request.prompt;
        let start = self.tokens.len();
        let end = prompt.len().min(start + room);
        let tokens = prompt[start..end].to_vec();
        let last = end == prompt.len();
        self.tokens.extend_from_slice(&tokens);
        Work::Prefill { slot, start, tokens, last }
    }
}

#[cfg(test)]
mod tests;
