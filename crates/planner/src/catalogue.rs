//! Machines that can be bought or rented.

pub(crate) mod gpus;
