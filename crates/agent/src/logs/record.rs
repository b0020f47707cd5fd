//! One line of a log file.

use tutti_wire::stream::{LogLine, LogStream};

/// Appends a record. `whole` is false when no newline followed the text yet.
pub fn put(out: &mut Vec<u8>, at: u64, stream: LogStream, text: &[u8], whole: bool) {
    use std::io::Write;
    let letter = match (stream, whole) {
        (LogStream::Out, true) => 'o',
        (LogStream::Out, false) => 'O',
        (LogStream::Err, true) => 'e',
        (LogStream::Err, false) => 'E',
    };
    write!(out, "{at} {letter} ").expect("a vector takes every write");
    out.extend_from_slice(text);
    out.push(b'\n');
}

/// Reads a record without its newline. A line that is none (torn by a full disk) is shown as it
/// is rather than dropped.
pub fn parse(line: &[u8]) -> LogLine {
    well_formed(line).unwrap_or_else(|| LogLine {
        at: 0,
        stream: LogStream::Err,
        text: line.to_vec(),
        partial: false,
    })
}

fn well_formed(line: &[u8]) -> Option<LogLine> {
    let space = line.iter().take(21).position(|&b| b == b' ')?;
    let at = std::str::from_utf8(&line[..space]).ok()?.parse().ok()?;
    let (stream, partial) = match line.get(space + 1)? {
        b'o' => (LogStream::Out, false),
        b'O' => (LogStream::Out, true),
        b'e' => (LogStream::Err, false),
        b'E' => (LogStream::Err, true),
        _ => return None,
    };
    if line.get(space + 2) != Some(&b' ') {
        return None;
    }
    Some(LogLine { at, stream, text: line[space + 3..].to_vec(), partial })
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn what_is_put_is_parsed(
            at in 0u64..1 << 50,
            err: bool,
            whole: bool,
            text in proptest::collection::vec(proptest::prelude::any::<u8>().prop_filter("no newline", |b| *b != b'\n'), 0..80),
        ) {
            let stream = if err { LogStream::Err } else { LogStream::Out };
            let mut out = Vec::new();
            put(&mut out, at, stream, &text, whole);
            proptest::prop_assert_eq!(out.pop(), Some(b'\n'));
            proptest::prop_assert_eq!(parse(&out), LogLine { at, stream, text, partial: !whole });
        }

        #[test]
        fn any_bytes_are_a_line(line in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..60)) {
            parse(&line);
        }
    }
    use proptest::strategy::Strategy;
}
