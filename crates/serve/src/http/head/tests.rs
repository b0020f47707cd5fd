use super::super::fields::CONNECTION_MAX;
use super::*;

fn request(text: &str) -> Result<RequestHead, BadHead> {
    let mut head = RequestHead::default();
    let len = head.read(text.as_bytes())?.expect("a whole head");
    assert_eq!(len, text.len());
    Ok(head)
}

fn upstream(text: &str) -> String {
    let mut out = Vec::new();
    request(text).unwrap().write_upstream(&mut out, 0, |_| false);
    String::from_utf8(out).unwrap()
}

#[test]
fn lines_are_passed_on_as_they_came_but_for_those_of_the_connection() {
    let text = "POST /v1/x?q=%20 HTTP/1.1\r\nHOST: a\r\nX-MiXed:   two  spaces \r\nx-mixed: again\r\n\
        Connection: keep-alive, X-Mine\r\nX-Mine: 1\r\nKeep-Alive: 5\r\nTE: trailers\r\nX-Empty:\r\n\
        Content-Length: 3\r\n\r\n";
    assert_eq!(
        upstream(text),
        "POST /v1/x?q=%20 HTTP/1.1\r\nHOST: a\r\nX-MiXed:   two  spaces\r\nx-mixed: again\r\n\
         X-Empty:\r\nContent-Length: 3\r\nx-tutti-router: 1\r\n\r\n"
    );
}

#[test]
fn connection_can_not_hide_where_the_body_ends() {
    let text = "POST / HTTP/1.1\r\nhost: a\r\nconnection: content-length, host\r\ncontent-length: 3\r\n\r\n";
    assert!(upstream(text).contains("content-length: 3\r\n"));
    assert!(upstream(text).contains("host: a\r\n"));
}

#[test]
fn upgrades_are_passed_on() {
    let text = "GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
    let head = request(text).unwrap();
    assert!(head.upgrade());
    assert!(upstream(text).contains("Upgrade: websocket\r\nConnection: Upgrade\r\n"));
    let plain = "GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n";
    assert!(!upstream(plain).contains("websocket"), "nobody asked for it on this connection");
}

#[test]
fn nobody_gets_an_http2_tunnel() {
    for lines in [
        "Upgrade: H2C\r\n",
        "Upgrade: websocket\r\nUpgrade: h2c\r\n",
        "Upgrade: websocket\r\nUpgrade: websocket\r\n",
        "Upgrade: websocket, h2c\r\n",
        "Upgrade: foo\r\n",
    ] {
        let text = format!(
            "GET / HTTP/1.1\r\nHost: a\r\n{lines}HTTP2-Settings: x\r\n\
             Connection: Upgrade, HTTP2-Settings\r\n\r\n"
        );
        assert!(!request(&text).unwrap().upgrade(), "{lines}");
        let passed = "GET / HTTP/1.1\r\nHost: a\r\nx-tutti-router: 1\r\n\r\n";
        assert_eq!(upstream(&text), passed, "{lines}");
    }
}

#[test]
fn keys_of_ours_are_not_passed_on() {
    let text = "GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer x\r\nX-Api-Key: y\r\n\r\n";
    let head = request(text).unwrap();
    let mut out = Vec::new();
    head.write_upstream(&mut out, 0, |value| value == b"Bearer x");
    let passed = b"GET / HTTP/1.1\r\nHost: a\r\nX-Api-Key: y\r\nx-tutti-router: 1\r\n\r\n";
    assert_eq!(out, passed);
}

#[test]
fn what_is_passed_on_says_so_whatever_the_client_says() {
    for lines in
        ["", "Connection: x-tutti-router\r\n", "X-Tutti-Router: 0\r\n", "Upgrade: websocket\r\n"]
    {
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        let once = upstream(&text);
        assert!(request(&once).unwrap().fields.get(Known::Forwarded).is_some(), "{lines}: {once}");
        let lines = |text: &str| text.matches("\r\n").count();
        assert_eq!(lines(&upstream(&once)), lines(&once) + 1, "each router adds one: {once}");
    }
}

#[test]
fn who_asks_and_for_what_is_said_once() {
    for name in ["Authorization", "X-API-Key", "x-tutti-endpoint"] {
        let lines = format!("{name}: a\r\nx-other: b\r\n{}: a\r\n", name.to_lowercase());
        let refused = request(&format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n")).unwrap_err();
        assert_eq!(refused.status(), 400, "{lines}: {refused}");
        assert!(refused.to_string().to_lowercase().contains(&name.to_lowercase()), "{refused}");
    }
}

#[test]
fn requests_that_could_be_smuggled_are_refused() {
    for (lines, status) in [
        ("Content-Length: 3\r\nContent-Length: 4\r\n", 400),
        ("Content-Length: 3\r\nContent-Length: 3\r\n", 400),
        ("Content-Length: 3, 3\r\n", 400),
        ("Content-Length: +3\r\n", 400),
        ("Content-Length: 0x3\r\n", 400),
        ("Content-Length:\r\n", 400),
        ("Content-Length: 99999999999999999999\r\n", 400),
        ("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", 400),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 400),
        ("Transfer-Encoding: gzip, chunked\r\n", 501),
        ("Transfer-Encoding: xchunked\r\n", 501),
        ("Transfer-Encoding : chunked\r\n", 400),
        ("Content-Length : 3\r\n", 400),
        ("X: a\r\n folded\r\n", 400),
        (" X: a\r\n", 400),
        ("X: a\nY: b\r\n", 400),
        ("X: a\rY: b\r\n", 400),
        ("X: a\0b\r\n", 400),
        ("Host: b\r\n", 400),
    ] {
        let refused = request(&format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n")).unwrap_err();
        assert_eq!(refused.status(), status, "{lines:?}: {refused}");
    }
    for (text, status) in [
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\nHost: a\r\n\r\n", 400),
        ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", 505),
        ("GET a HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET / HTTP/3.0\r\nHost: a\r\n\r\n", 505),
        ("CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 501),
        ("POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    ] {
        assert_eq!(request(text).unwrap_err().status(), status, "{text:?}");
    }
    let many = "x: 1\r\n".repeat(FIELDS_MAX + 1);
    let refused = request(&format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n")).unwrap_err();
    assert_eq!(refused.status(), 431);
}

#[test]
fn a_proxy_s_form_of_the_target_is_a_path() {
    let head = request("GET http://a:1/v1/models?x HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert_eq!((head.target(), head.path()), ("/v1/models?x", "/v1/models"));
}

#[test]
fn keeping_a_connection_depends_on_version_and_word() {
    let keeps = |version: &str, line: &str| {
        request(&format!("GET / HTTP/{version}\r\nHost: a\r\n{line}\r\n")).unwrap().keep_alive()
    };
    assert!(keeps("1.1", ""));
    assert!(!keeps("1.1", "Connection: close\r\n"));
    assert!(!keeps("1.0", ""));
    assert!(keeps("1.0", "Connection: Keep-Alive\r\n"));
}

fn answer(text: &str) -> ResponseHead {
    let mut head = ResponseHead::default();
    assert_eq!(head.read(text.as_bytes()), Ok(Some(text.len())));
    head
}

#[test]
fn some_answers_have_no_body_whatever_they_say() {
    let head = answer("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n");
    assert_eq!(head.framing("GET"), Framing::Length(9));
    assert_eq!(head.framing("HEAD"), Framing::EMPTY);
    let head = answer("HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n");
    assert_eq!(head.framing("GET"), Framing::EMPTY);
    let head = answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    assert_eq!(head.framing("GET"), Framing::chunked());
    let head = answer("HTTP/1.0 200 OK\r\n\r\n");
    assert_eq!(head.framing("GET"), Framing::UntilClose);
    assert!(!head.keep_alive());
}

#[test]
fn an_answer_keeps_its_reason_and_its_lines() {
    let head = answer("HTTP/1.1 418 I'm a teapot\r\nX-A: 1\r\nConnection: close\r\nx-b:2\r\n\r\n");
    let mut out = Vec::new();
    head.write_client(&mut out, &["Transfer-Encoding: chunked\r\n"]);
    let text = String::from_utf8(out).unwrap();
    assert_eq!(
        text,
        "HTTP/1.1 418 I'm a teapot\r\nX-A: 1\r\nx-b:2\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
}

#[test]
fn the_end_of_a_head_is_found_in_whatever_pieces_it_comes() {
    for end in ["\r\n\r\n", "\n\n", "\n\r\n", "\r\n\n"] {
        let text = format!("GET / HTTP/1.1\r\nHost: a{end}");
        for seen in 0..text.len() {
            assert!(ends_head(text.as_bytes(), seen), "{end:?} after {seen}");
            assert!(!ends_head(&text.as_bytes()[..text.len() - 1], seen.min(text.len() - 1)));
        }
        let body = format!("{text}body");
        assert!(!ends_head(body.as_bytes(), text.len() + 2), "it was there before");
    }
}

#[test]
fn connection_names_a_few_headers_at_most() {
    let named = |n: usize| {
        let names = vec!["x"; n].join(",");
        request(&format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: {names}\r\nX: 1\r\n\r\n"))
    };
    assert!(named(CONNECTION_MAX).is_ok());
    assert_eq!(named(CONNECTION_MAX + 1).unwrap_err().status(), 400);
    let lines = "Connection: x\r\n".repeat(CONNECTION_MAX + 1);
    assert!(request(&format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n")).is_err());
}
