//! Many ranks, as threads of one process.
//!
//! | file | what must hold |
//! |---|---|
//! | `layouts` | the same losses, however the ranks divide the work |
//! | `resume` | a checkpoint of one layout loads under any other, bit by bit |
//! | `risk` | a failure at any moment costs no more steps than was said |

mod layouts;
mod ranks;
mod resume;
mod risk;
