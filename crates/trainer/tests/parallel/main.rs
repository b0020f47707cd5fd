//! Many ranks, as threads of one process.
//!
//! | file | what must hold |
//! |---|---|
//! | `layouts` | the same losses, however the ranks divide the work |
//! | `resume` | a checkpoint of one layout loads under any other, bit by bit |

mod layouts;
mod ranks;
mod resume;
