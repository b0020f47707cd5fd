//! What goes over the network, and how: the REST shapes ([`api`]), the agent stream ([`stream`]).
pub mod api;
pub mod frame;
pub mod jobfile;
pub mod pki;
pub mod stream;
pub mod tls;
pub mod token;
