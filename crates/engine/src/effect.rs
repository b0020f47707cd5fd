//! What the shell must do after records are durable. Doing it twice is harmless.

use tutti_model::{NodeId, Order};

#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send this over the node's stream; drop it if there is none (reconciling sends it again).
    Tell { node: NodeId, order: Order },
}
