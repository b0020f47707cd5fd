//! Which slot a prompt goes to, and how much of it is there already.
//!
//! A slot that is free still holds the keys and values of its last sequence. A prompt that begins the
//! same way takes them over where they are, or gets a copy of them, also from a slot that is in use.

/// A slot as it is now.
#[derive(Clone, Copy, Debug)]
pub struct Held<'a> {
    /// Tokens whose keys and values are there.
    pub tokens: &'a [u8],
    pub free: bool,
    /// The larger, the later it was used.
    pub used: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    pub slot: usize,
    /// Tokens of the prompt that need not be computed: never all, since the last one's logits are
    /// wanted.
    pub reuse: usize,
    /// They are copied from there; None if they are in the slot.
    pub from: Option<usize>,
}

/// A copy takes a kernel per layer: not for less than this.
const WORTH_A_COPY: usize = 16;

/// None if no slot is free.
pub fn choose(slots: &[Held<'_>], prompt: &[u8]) -> Option<Choice> {
    let shared = |at: usize| common(slots[at].tokens, &prompt[..prompt.len().saturating_sub(1)]);
    let free = || (0..slots.len()).filter(|&at| slots[at].free);
    // What is given up: an empty slot first, then the one that was used longest ago.
    let worth = |at: usize| (!slots[at].tokens.is_empty(), slots[at].used, at);
    let victim = free().min_by_key(|&at| worth(at))?;
    let best = (0..slots.len()).max_by_key(|&at| (shared(at), slots[at].free, at))?;
    let reuse = shared(best);
    // Taking it over loses what the slot holds beyond the common beginning: not if that is most of it.
    let takes_over = slots[best].free && (2 * reuse >= slots[best].tokens.len() || victim == best);
    if takes_over && reuse > 0 {
        return Some(Choice { slot: best, reuse, from: None });
    }
    if reuse >= WORTH_A_COPY && best != victim {
        return Some(Choice { slot: victim, reuse, from: Some(best) });
    }
    Some(Choice { slot: victim, reuse: shared(victim), from: None })
}

fn common(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: &[u8] = b"a system prompt that all have in common. And then: ";

    fn free(tokens: &[u8], used: u64) -> Held<'_> {
        Held { tokens, free: true, used }
    }

    fn busy(tokens: &[u8]) -> Held<'_> {
        Held { tokens, free: false, used: 0 }
    }

    #[test]
    fn nobody_gets_a_slot_that_is_in_use() {
        assert_eq!(choose(&[busy(b"abc")], b"abc"), None);
        assert_eq!(choose(&[], b"abc"), None);
    }

    #[test]
    fn a_conversation_goes_on_where_it_was() {
        let slots = [free(b"", 0), free(b"hello, you", 5), free(b"hello", 9)];
        let choice = choose(&slots, b"hello, you there").unwrap();
        assert_eq!(choice, Choice { slot: 1, reuse: 10, from: None });
    }

    #[test]
    fn the_last_token_is_always_computed() {
        let choice = choose(&[free(b"hello", 0)], b"hello").unwrap();
        assert_eq!(choice, Choice { slot: 0, reuse: 4, from: None });
        assert_eq!(choose(&[free(b"h", 0)], b"h").unwrap().reuse, 0);
    }

    #[test]
    fn a_common_beginning_is_copied_from_a_slot_in_use() {
        let other = [LONG, b"one thing".as_slice()].concat();
        let prompt = [LONG, b"another".as_slice()].concat();
        let choice = choose(&[busy(&other), free(b"x", 0)], &prompt).unwrap();
        assert_eq!(choice, Choice { slot: 1, reuse: LONG.len(), from: Some(0) });
        let short = choose(&[busy(b"abcd"), free(b"", 0)], b"abcx").unwrap();
        assert_eq!(short, Choice { slot: 1, reuse: 0, from: None }, "not worth a copy");
    }

    #[test]
    fn a_long_sequence_is_not_given_up_for_a_short_beginning() {
        let long = [LONG, vec![b'y'; 200].as_slice()].concat();
        let prompt = [LONG, b"z".as_slice()].concat();
        let choice = choose(&[free(&long, 9), free(b"", 0)], &prompt).unwrap();
        assert_eq!(choice, Choice { slot: 1, reuse: LONG.len(), from: Some(0) });
        let only = choose(&[free(&long, 9)], &prompt).unwrap();
        assert_eq!(
            only,
            Choice { slot: 0, reuse: LONG.len(), from: None },
            "but if there is no other"
        );
    }

    #[test]
    fn otherwise_the_slot_that_was_used_longest_ago_is_given_up() {
        let slots = [free(b"abc", 7), free(b"def", 3), busy(b"")];
        assert_eq!(choose(&slots, b"xyz").unwrap().slot, 1);
        let slots = [free(b"abc", 1), free(b"", 3)];
        assert_eq!(choose(&slots, b"xyz").unwrap().slot, 1, "an empty one costs nothing");
    }
}
