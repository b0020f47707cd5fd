//! What must be true of checkpoints, on real file systems, sockets and servers.
//!
//! One program, since linking is what takes time. `crash` and `full_disk` start it once more as the
//! process to kill or to confine.

mod common;
mod crash;
mod damage;
mod foreign;
mod full_disk;
mod peers;
mod publish;
mod reshard;
mod retention;
#[cfg(feature = "cloud")]
mod s3;
mod scattered;
