use std::path::PathBuf;

use tutti_wire::stream::LogStream;

use super::*;
use crate::logs::LogLimits;
use crate::logs::write::LogWriter;

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("tutti-log-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        Dir(dir)
    }
    fn writer(&self, segment_bytes: u64, segments: u32) -> LogWriter {
        LogWriter::new(self.0.clone(), Rank(0), LogLimits { segment_bytes, segments })
    }
    fn read(&self, from: LogFrom) -> Piece {
        piece(&self.0, Rank(0), from, 1 << 20).unwrap()
    }
    fn all(&self) -> (String, u64) {
        let (mut text, mut next, mut skipped) = (String::new(), 0, 0);
        loop {
            let p = self.read(LogFrom::Offset(next));
            skipped += p.skipped;
            if p.lines.is_empty() {
                return (text, skipped);
            }
            next = p.next;
            for line in p.lines {
                text.push_str(std::str::from_utf8(&line.text).unwrap());
                text.push_str(if line.partial { "" } else { "\n" });
            }
        }
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn texts(p: &Piece) -> Vec<&str> {
    p.lines.iter().map(|l| std::str::from_utf8(&l.text).unwrap()).collect()
}

#[test]
fn nothing_written_is_an_empty_piece() {
    let dir = Dir::new("empty");
    assert_eq!(dir.read(LogFrom::Offset(0)), Piece::default());
    assert_eq!(dir.read(LogFrom::Tail(10)), Piece::default());
}

#[test]
fn what_a_program_wrote_comes_back_byte_for_byte() {
    let dir = Dir::new("bytes");
    let mut w = dir.writer(1 << 20, 4);
    w.output(7, LogStream::Out, b"one\ntwo");
    assert_eq!(texts(&dir.read(LogFrom::Offset(0))), ["one"]);
    w.flush_pending(8);
    let p = dir.read(LogFrom::Offset(0));
    assert_eq!(texts(&p), ["one", "two"]);
    assert!(p.lines[1].partial && !p.lines[0].partial);
    w.output(9, LogStream::Out, b"\nthree");
    w.flush_pending(9);
    assert_eq!(dir.all(), ("one\ntwo\nthree".to_owned(), 0));
}

#[test]
fn the_two_streams_do_not_mix_their_lines() {
    let dir = Dir::new("streams");
    let mut w = dir.writer(1 << 20, 4);
    w.output(1, LogStream::Out, b"he");
    w.output(1, LogStream::Err, b"oops\n");
    w.output(1, LogStream::Out, b"llo\n");
    assert_eq!(texts(&dir.read(LogFrom::Offset(0))), ["oops", "hello"]);
}

#[test]
fn offsets_go_on_over_rotation_and_count_what_is_gone() {
    let dir = Dir::new("rotate");
    let mut w = dir.writer(1000, 3);
    for i in 0..500 {
        w.output(1, LogStream::Out, format!("line {i}\n").as_bytes());
    }
    assert_eq!(segments(&dir.0, Rank(0)).unwrap().len(), 3);
    let (text, skipped) = dir.all();
    let kept: Vec<&str> = text.lines().collect();
    assert_eq!(*kept.last().unwrap(), "line 499");
    let first: usize = kept[0].strip_prefix("line ").unwrap().parse().unwrap();
    assert_eq!(kept.len(), 500 - first, "no gap inside what is kept");
    let gone: u64 = (0..first).map(|i| format!("1 o line {i}\n").len() as u64).sum();
    assert_eq!(skipped, gone);
}

#[test]
fn a_reader_that_follows_misses_nothing() {
    let dir = Dir::new("follow");
    let mut w = dir.writer(300, 100);
    let (mut next, mut seen) = (0, Vec::new());
    for i in 0..200 {
        w.output(1, LogStream::Out, format!("{i}\n").as_bytes());
        if i % 7 == 0 {
            let p = dir.read(LogFrom::Offset(next));
            next = p.next;
            seen.extend(texts(&p).iter().map(|t| t.parse::<u32>().unwrap()));
        }
    }
    loop {
        let p = dir.read(LogFrom::Offset(next));
        if p.lines.is_empty() {
            break;
        }
        next = p.next;
        seen.extend(texts(&p).iter().map(|t| t.parse::<u32>().unwrap()));
    }
    assert_eq!(seen, (0..200).collect::<Vec<_>>());
    assert_eq!(next, w.offset());
}

#[test]
fn the_tail_is_the_last_lines() {
    let dir = Dir::new("tail");
    let mut w = dir.writer(200, 100);
    for i in 0..50 {
        w.output(1, LogStream::Out, format!("{i}\n").as_bytes());
    }
    for n in [1u32, 3, 17, 40, 50, 80] {
        let mut seen = Vec::new();
        let mut from = LogFrom::Tail(n);
        loop {
            let p = dir.read(from);
            if p.lines.is_empty() {
                break;
            }
            from = LogFrom::Offset(p.next);
            seen.extend(texts(&p).iter().map(|t| t.parse::<u32>().unwrap()));
        }
        assert_eq!(seen, (50 - n.min(50)..50).collect::<Vec<_>>(), "tail {n}");
    }
    assert!(dir.read(LogFrom::Tail(0)).lines.is_empty());
}

#[test]
fn an_offset_in_the_middle_of_a_record_goes_on_with_the_next() {
    let dir = Dir::new("middle");
    let mut w = dir.writer(1 << 20, 4);
    w.output(1, LogStream::Out, b"first\nsecond\n");
    assert_eq!(texts(&dir.read(LogFrom::Offset(3))), ["second"]);
}

#[test]
fn small_limits_give_small_pieces() {
    let dir = Dir::new("small");
    let mut w = dir.writer(1 << 20, 4);
    w.output(1, LogStream::Out, b"aaaa\nbbbb\ncccc\n");
    let p = piece(&dir.0, Rank(0), LogFrom::Offset(0), 10).unwrap();
    assert_eq!(texts(&p), ["aaaa"]);
    let long = vec![b'x'; 200 << 10];
    w.output(1, LogStream::Out, &long);
    w.output(1, LogStream::Out, b"\n");
    let (text, _) = dir.all();
    assert_eq!(text.len(), 15 + long.len() + 1);
}
