use proptest::prelude::*;

use super::*;

fn parse(pieces: &[&[u8]]) -> Vec<SseEvent> {
    let (mut parser, mut out) = (SseParser::new(), Vec::new());
    for piece in pieces {
        parser.push(piece);
        while let Some(event) = parser.take().unwrap() {
            out.push(event);
        }
    }
    out
}

fn event(name: &str, data: &str) -> SseEvent {
    SseEvent { name: name.into(), data: data.into(), id: None }
}

#[test]
fn the_plain_case() {
    let got = parse(&[b"event: line\ndata: {\"a\":1}\n\ndata: x\n\n"]);
    assert_eq!(got, [event("line", "{\"a\":1}"), event("message", "x")]);
}

#[test]
fn every_line_end_and_every_cut() {
    for end in ["\n", "\r\n", "\r"] {
        let text = [": hi", "event: a", "data: one", "data:two", "", "data: ä", "", ""].join(end);
        let want = [event("a", "one\ntwo"), event("message", "ä")];
        assert_eq!(parse(&[text.as_bytes()]), want, "{end:?}");
        for cut in 0..text.len() {
            let (a, b) = text.as_bytes().split_at(cut);
            assert_eq!(parse(&[a, b]), want, "{end:?} at {cut}");
        }
        let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
        assert_eq!(parse(&bytes), want, "{end:?} byte by byte");
    }
}

#[test]
fn odd_fields_are_as_the_standard_says() {
    assert_eq!(parse(&[b": only a comment\n\n"]), []);
    assert_eq!(parse(&[b"event: x\n\ndata: y\n\n"]), [event("message", "y")], "no data, no event");
    assert_eq!(parse(&[b"data\n\n"]), [event("message", "")]);
    assert_eq!(parse(&[b"data:  two blanks\n\n"]), [event("message", " two blanks")]);
    assert_eq!(parse(&[b"data:\ndata:\n\n"]), [event("message", "\n")]);
    assert_eq!(parse(&[b"unknown: x\nretry: 5\ndata: a:b\n\n"]), [event("message", "a:b")]);
    assert_eq!(parse(&["\u{feff}data: marked\n\n".as_bytes()]), [event("message", "marked")]);
    assert_eq!(parse(&[b"data: cut off\n"]), []);
    let with_id = parse(&[b"id: 7\ndata: a\n\ndata: b\n\n"]);
    assert!(with_id.iter().all(|e| e.id.as_deref() == Some("7")));
}

#[test]
fn an_endless_event_is_refused() {
    let mut parser = SseParser::new();
    let piece = vec![b'x'; 1 << 20];
    parser.push(b"data: ");
    let refused = (0..40).any(|_| {
        parser.push(&piece);
        parser.take().is_err()
    });
    assert!(refused);

    let mut parser = SseParser::new();
    let line = [b"data: ".as_slice(), &piece, b"\n"].concat();
    let refused = (0..40).any(|_| {
        parser.push(&line);
        parser.take().is_err()
    });
    assert!(refused);
}

proptest! {
    #[test]
    fn random_bytes_never_panic(
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..20),
    ) {
        let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        parse(&pieces);
    }

    #[test]
    fn cuts_do_not_matter(text in "(data|event|id|:|: |\r|\n|\r\n|a|ä){0,60}", size in 1usize..9) {
        let pieces: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
        prop_assert_eq!(parse(&pieces), parse(&[text.as_bytes()]));
    }
}
