//! One sequence that is wanted, and what comes of it.

use std::sync::Arc;

use crate::sampling::{Logprobs, Sampling};

/// Which sequence; never the same twice in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

/// A prompt to be continued.
#[derive(Clone, Debug)]
pub struct Request {
    pub id: SequenceId,
    /// At least one token.
    pub prompt: Arc<[u8]>,
    /// At least one, and with the prompt no more than the context.
    pub max_tokens: usize,
    pub sampling: Sampling,
    /// Which of several sequences with the same seed.
    pub choice: usize,
    pub stops: Arc<[String]>,
    /// How many of the likeliest tokens are told with each.
    pub logprobs: Option<usize>,
}

/// A token, or the end, of a sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Emission {
    pub id: SequenceId,
    /// Whole characters; often none, when bytes are held back.
    pub text: String,
    pub token: u8,
    pub logprobs: Option<Logprobs>,
    pub finish: Option<Finish>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finish {
    pub reason: Reason,
    /// Tokens that were made, those of a stop string among them.
    pub tokens: usize,
    /// Tokens of the prompt that were not computed again.
    pub cached: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A stop string came.
    Stop,
    /// As many tokens as were wanted.
    Length,
}

impl Reason {
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Stop => "stop",
            Reason::Length => "length",
        }
    }
}
