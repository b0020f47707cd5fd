//! A result in lines that a log holds.

use serde::Serialize;
use serde::de::DeserializeOwned;

const RESULT: &str = "result ";
/// Every pair of a thousand ranks is megabytes, and a line of a log holds 64 KiB.
const PIECE: usize = 32 << 10;

/// `result 1/3 {…`, and so on.
pub fn write<T: Serialize>(value: &T) -> Result<Vec<String>, serde_json::Error> {
    let text = serde_json::to_string(value)?;
    let mut pieces = Vec::new();
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (piece, more) = rest.split_at(rest.floor_char_boundary(PIECE));
        pieces.push(piece);
        rest = more;
    }
    let count = pieces.len();
    let line = |(i, piece): (usize, &&str)| format!("{RESULT}{}/{count} {piece}", i + 1);
    Ok(pieces.iter().enumerate().map(line).collect())
}

/// From the lines of a log, among whatever else is there. None if a part is missing.
pub fn read<'a, T: DeserializeOwned>(lines: impl Iterator<Item = &'a str>) -> Option<T> {
    let mut text = String::new();
    let mut seen = 0;
    for line in lines.filter_map(|line| line.strip_prefix(RESULT)) {
        let (place, piece) = line.split_once(' ')?;
        let (i, count) = place.split_once('/')?;
        seen += 1;
        if i.parse() != Ok(seen) {
            return None;
        }
        text.push_str(piece);
        if count.parse() == Ok(seen) {
            return serde_json::from_str(&text).ok();
        }
    }
    None
}
