//! HTTP/1.1 as far as a proxy needs it: heads, where bodies end, and bytes in between.

mod buffer;
mod fields;
mod framing;
mod head;
mod io;
mod ticker;
mod trailers;

pub use buffer::Buffer;
pub use fields::{BadHead, Known, PASSED_ON};
pub use framing::{Framing, Malformed};
pub use head::{RequestHead, ResponseHead, ends_head};
pub use io::Io;
pub use ticker::Ticker;
pub use trailers::{check_name as check_trailer_name, check_value as check_trailer_value};
