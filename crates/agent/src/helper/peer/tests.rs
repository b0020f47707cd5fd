use super::*;

const KEY: GangKey = GangKey([7; 32]);

/// A server on a free port that answers requests, and tells which.
fn server() -> (Node, mpsc::Receiver<Request>, mpsc::Receiver<Result<(), HelperError>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let node = Node { name: "n1".into(), address: "127.0.0.1".into(), port, slots: 1 };
    let (asked, requests) = mpsc::channel();
    let left = Server { listener, key: KEY }.serve(move |request, mut stream| {
        asked.send(request).unwrap();
        Piece::Out(b"to ".to_vec()).write(&mut stream).unwrap();
        Piece::Err(b"you".to_vec()).write(&mut stream).unwrap();
        Piece::Exit(3).write(&mut stream).unwrap();
    });
    (node, requests, left)
}

/// Everything that came before this was dealt with.
fn nothing_was_asked(node: &Node, requests: &mpsc::Receiver<Request>) {
    ask(node, &KEY, &Request::Ready).unwrap();
    assert_eq!(requests.recv().unwrap(), Request::Ready);
}

#[test]
fn who_knows_the_key_is_answered() {
    let (node, requests, left) = server();
    for request in [Request::Run("orted -x 'é'".into()), Request::Ready] {
        let mut stream = ask(&node, &KEY, &request).unwrap();
        let pieces: Vec<Piece> = (0..3).map(|_| Piece::read(&mut stream).unwrap()).collect();
        let wanted = [Piece::Out(b"to ".into()), Piece::Err(b"you".into()), Piece::Exit(3)];
        assert_eq!(pieces, wanted);
        assert_eq!(requests.recv().unwrap(), request);
    }
    ask(&node, &KEY, &Request::Leave).unwrap();
    left.recv().unwrap().unwrap();
}

#[test]
fn who_does_not_know_the_key_is_neither_asked_nor_answered() {
    let (node, requests, _left) = server();
    let error = ask(&node, &GangKey([8; 32]), &Request::Leave).err().unwrap();
    assert!(matches!(error, HelperError::Stranger(_)), "{error:?}");
    nothing_was_asked(&node, &requests);
}

#[test]
fn a_request_can_not_be_sent_again() {
    let (node, requests, _left) = server();
    let mut stream = TcpStream::connect((node.address.as_str(), node.port)).unwrap();
    let (own, body) = ([1; 32], Request::Run("true".into()).encode());
    stream.write_all(&own).unwrap();
    read_array::<64>(&mut stream).unwrap();
    // What was right for another nonce of the server.
    let mac = digest(&KEY, b"client", &own, &[2; 32], &body);
    stream.write_all(mac.as_bytes()).unwrap();
    stream.write_all(&(body.len() as u32).to_le_bytes()).unwrap();
    stream.write_all(&body).unwrap();
    // It hangs up.
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    nothing_was_asked(&node, &requests);
}
