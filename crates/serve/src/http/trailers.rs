//! Which trailers of a request a replica may see. Some servers read them as headers, so they must bring nothing
//! that a header may not: no key of this cluster's, and nothing that is read, counted or left out before.

use super::fields::Known;
use super::framing::Malformed;
use crate::access::holds_token;

/// `tutti_s` and the like: what stands before the last byte by which a token is known.
pub const TOKEN_START: usize = "tutti_s".len();

pub fn check_name(name: &[u8]) -> Result<(), Malformed> {
    // `Authorization : x` is another header for some and the same one for others.
    if name.is_empty() || !name.iter().all(|b| is_name(*b)) {
        return Err(Malformed::Trailer("its name"));
    }
    match Known::of(name) {
        Known::Other => Ok(()),
        _ => Err(Malformed::Trailer("it counts only as a header before the body")),
    }
}

pub fn check_value(value: &[u8]) -> Result<(), Malformed> {
    match holds_token(value) {
        true => Err(Malformed::Trailer("it holds a key: send that as a header before the body")),
        false => Ok(()),
    }
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
