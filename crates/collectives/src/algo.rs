//! The algorithms. Each is written as one member sees it: which parts it sends and receives, step by
//! step. They move bytes; what the bytes are only the reducer knows.
//!
//! Every element is reduced by one member in an order that the algorithm fixes, and then handed out,
//! so all ranks hold the same bits, in every run.

pub(crate) mod direct;
pub(crate) mod halving;
pub(crate) mod hierarchical;
pub(crate) mod pairwise;
pub(crate) mod ring;
pub(crate) mod tree;
