use std::collections::BTreeMap;

use proptest::prelude::*;
use serde::Deserialize;
use tutti_model::*;

use super::*;
use crate::stream::*;

fn lease() -> LeaseId {
    LeaseId { task: TaskId::of_array(JobId(12), 3), generation: Generation(9) }
}

fn report() -> PartReport {
    let exits = vec![
        RankExit { rank: Rank(0), status: ExitStatus::Code(-1), at: Time(u64::MAX) },
        RankExit { rank: Rank(1), status: ExitStatus::Signal(9), at: Time(5) },
    ];
    let error = Some(PartError { message: "no such program".into(), blame: Blame::Job });
    PartReport::new(lease(), ReportedPhase::Done { exits, error })
}

fn greeting() -> Greeting {
    let gpu = Gpu {
        index: GpuIndex(0),
        model: "h100".into(),
        uuid: "u".into(),
        mem: Bytes::gib(80),
        island: None,
    };
    let facts = NodeFacts {
        name: "knoten-ä".into(),
        address: "127.0.0.2".into(),
        cpus: 8,
        mem: Bytes::gib(64),
        gpus: vec![gpu],
        simulated: true,
        isolation: "process group".into(),
        agent_version: "0.1.0".into(),
        labels: BTreeMap::from([("rack".into(), "r1".into())]),
        ..NodeFacts::default()
    };
    let running = PartReport {
        port_owner: Some(PortOwner::Stranger { who: "process 1 (x) of user eve".into() }),
        limit: Some(LimitReport::Left { left: Span::secs(5) }),
        ..PartReport::new(lease(), ReportedPhase::Running { exits: vec![] })
    };
    let prepared = PartReport::new(lease(), ReportedPhase::Prepared { port: 29_500 });
    Greeting::new(facts, vec![running, prepared, report()])
}

fn launch() -> Launch {
    let spec: JobSpec = serde_json::from_value(serde_json::json!({
        "run": "true", "nodes": 2, "gpus_per_node": "h100:8", "time": "2h", "array": "0-9%2",
        "env": {"A": "b"}, "after": ["ok:41"], "gpu_share": 0.25,
    }))
    .unwrap();
    Launch {
        lease: lease(),
        attempt: 1,
        restarts: Restarts::default(),
        user: "ada".into(),
        spec: spec.into(),
        submitted_at: Time(7),
        gpus: vec![GpuIndex(1)],
        cpus: 1,
        mem: Bytes(1),
        first_rank: Rank(0),
        ranks: 1,
        world_size: 2,
        node_rank: 0,
        hosts: vec![Host {
            name: "a".into(),
            address: "127.0.0.1".into(),
            gpus: 1,
            ranks: 1,
            rack: None,
        }],
        wait_for_go: true,
        array_tasks: Some(10),
        saved: None,
        key: None,
        limit: Some(limit()),
    }
}

fn limit() -> TimeLimit {
    TimeLimit { left: Span::secs(7200), grace: Span::secs(30), signal: Some("USR1".into()) }
}

fn from_agents() -> Vec<ToController> {
    let data = vec![0, 255, b'\n'];
    let line =
        LogLine { at: 1, stream: LogStream::Err, text: b"\xff text".to_vec(), partial: true };
    let piece = LogReply::Piece { lines: vec![line], next: 7, end: true, skipped: 3 };
    vec![
        ToController::Hello {
            protocol: PROTOCOL,
            greeting: Box::new(greeting()),
            epoch: Epoch(2),
            renew: Some("PEM".into()),
            instance: Some("a1".into()),
        },
        ToController::Heartbeat { parts: vec![report(); 3] },
        ToController::Report { report: report() },
        ToController::Log { request: 4, reply: piece },
        ToController::Log { request: 5, reply: LogReply::Missing { reason: "gone".into() } },
        ToController::Output {
            request: 6,
            output: ExecOutput::Data { stream: LogStream::Out, data },
        },
        ToController::Output {
            request: 6,
            output: ExecOutput::Exited { status: ExitStatus::Signal(15) },
        },
        ToController::Output { request: 6, output: ExecOutput::Failed { reason: "x".into() } },
    ]
}

fn to_agents() -> Vec<ToAgent> {
    let read = |from| LogRead {
        task: TaskId::single(JobId(1)),
        attempt: None,
        rank: Rank(2),
        from,
        max_bytes: 4096,
        wait: true,
    };
    let task = TaskId::single(JobId(1));
    vec![
        ToAgent::Welcome {
            node: NodeId(1),
            epoch: Epoch(3),
            heartbeat: Span::secs(2),
            certificate: None,
        },
        ToAgent::Refused { reason: "too old".into() },
        ToAgent::Order(Order::Start(Box::new(launch()))),
        ToAgent::Order(Order::Go { lease: lease(), master_port: 1, ports: vec![1, 2] }),
        ToAgent::Order(Order::Stop {
            lease: lease(),
            grace: Span::millis(1),
            signal: Some("USR1".into()),
        }),
        ToAgent::Order(Order::Limit { lease: lease(), limit: Some(limit()) }),
        ToAgent::Order(Order::Limit { lease: lease(), limit: None }),
        ToAgent::Order(Order::Forget { lease: lease() }),
        ToAgent::ReadLog { request: 1, read: read(LogFrom::Offset(u64::MAX)) },
        ToAgent::ReadLog { request: 1, read: read(LogFrom::Tail(10)) },
        ToAgent::Exec { request: 2, exec: Exec { task, rank: Rank(0), argv: vec!["ls".into()] } },
        ToAgent::Stdin { task, rank: Rank(0), data: vec![0, 200], eof: false },
        ToAgent::ExecInput { request: 2, data: vec![], eof: true },
        ToAgent::Abandon { request: 2 },
    ]
}

#[tokio::test]
async fn every_message_comes_back_as_it_went() {
    let mut bytes = Vec::new();
    for message in from_agents() {
        append(&mut bytes, &message).unwrap();
    }
    let mut reader = FrameReader::new(bytes.as_slice());
    for message in from_agents() {
        assert_eq!(reader.next::<ToController>().await.unwrap(), Some(message));
    }
    assert!(reader.next::<ToController>().await.unwrap().is_none());

    let mut bytes = Vec::new();
    for message in to_agents() {
        write(&mut bytes, &message).await.unwrap();
    }
    let mut reader = bytes.as_slice();
    for message in to_agents() {
        assert_eq!(read::<ToAgent, _>(&mut reader).await.unwrap(), Some(message));
    }
    assert!(read::<ToAgent, _>(&mut reader).await.unwrap().is_none());
}

/// A newer peer may say more than an older one knows.
#[test]
fn unknown_fields_are_passed_over() {
    #[derive(Serialize)]
    struct Newer {
        say: &'static str,
        request: u64,
        since_version_2: Vec<&'static str>,
    }
    let newer = Newer { say: "abandon", request: 7, since_version_2: vec!["x"] };
    let frame = encode(&newer).unwrap();
    assert_eq!(decode::<ToAgent>(&frame[4..]).unwrap(), ToAgent::Abandon { request: 7 });
}

#[tokio::test]
async fn one_system_call_brings_many_frames() {
    let mut bytes = Vec::new();
    for request in 0..500 {
        append(&mut bytes, &ToAgent::Abandon { request }).unwrap();
    }
    let mut reader = FrameReader::new(bytes.as_slice());
    reader.next::<ToAgent>().await.unwrap().unwrap();
    let mut buffered = 1;
    while reader.buffered::<ToAgent>().unwrap().is_some() {
        buffered += 1;
    }
    assert_eq!(buffered, 500);
}

#[tokio::test]
async fn a_frame_may_come_byte_by_byte() {
    let frame = encode(&ToAgent::Abandon { request: 1 }).unwrap();
    let (near, mut far) = tokio::io::duplex(1);
    let writing = async {
        far.write_all(&frame).await.unwrap();
        drop(far);
    };
    let reading = async {
        let mut reader = FrameReader::new(near);
        assert!(reader.next::<ToAgent>().await.unwrap().is_some());
        assert!(reader.next::<ToAgent>().await.unwrap().is_none());
    };
    tokio::join!(writing, reading);
}

#[tokio::test]
async fn an_end_inside_a_frame_is_an_error() {
    let frame = encode(&ToAgent::Abandon { request: 1 }).unwrap();
    for cut in 1..frame.len() {
        let mut part = &frame[..cut];
        assert!(matches!(read::<ToAgent, _>(&mut part).await, Err(FrameError::Truncated)));
        let mut reader = FrameReader::new(&frame[..cut]);
        assert!(matches!(reader.next::<ToAgent>().await, Err(FrameError::Truncated)));
    }
}

#[tokio::test]
async fn too_long_a_frame_is_refused_by_both_ends() {
    let head = (FRAME_MAX as u32 + 1).to_be_bytes();
    assert!(matches!(read::<ToAgent, _>(&mut &head[..]).await, Err(FrameError::TooLong(_))));
    let mut decoder = Decoder::new();
    decoder.push(&u32::MAX.to_be_bytes());
    assert!(matches!(decoder.take::<ToAgent>(), Err(FrameError::TooLong(_))));

    let mut out = b"before".to_vec();
    let huge = ToAgent::Refused { reason: "x".repeat(FRAME_MAX) };
    assert!(matches!(append(&mut out, &huge), Err(FrameError::TooLong(_))));
    assert_eq!(out, b"before");
}

#[test]
fn announced_memory_is_not_taken() {
    let mut decoder = Decoder::new();
    decoder.push(&(FRAME_MAX as u32).to_be_bytes());
    assert!(decoder.take::<ToAgent>().unwrap().is_none());
    assert!(decoder.buffer.capacity() < 1 << 20);
    // An array and a text that claim four billion entries.
    for claim in [[0xdd, 0xff, 0xff, 0xff, 0xff], [0xdb, 0xff, 0xff, 0xff, 0xff]] {
        assert!(decode::<ToController>(&claim).is_err());
        assert!(decode::<Vec<u64>>(&claim).is_err());
    }
}

#[test]
fn deep_nesting_is_an_error_and_not_a_full_stack() {
    for byte in [0x91u8, 0x81] {
        let mut payload = b"\x82\xa3say\xa6report\xa6report".to_vec();
        payload.extend(std::iter::repeat_n(byte, 1 << 20));
        assert!(decode::<ToController>(&payload).is_err());
    }
}

#[test]
fn after_a_bad_frame_the_next_is_read() {
    let mut decoder = Decoder::new();
    decoder.push(&[0, 0, 0, 1, 0xc1]);
    decoder.push(&encode(&ToAgent::Abandon { request: 1 }).unwrap());
    assert!(matches!(decoder.take::<ToAgent>(), Err(FrameError::Decode(_))));
    assert_eq!(decoder.take::<ToAgent>().unwrap(), Some(ToAgent::Abandon { request: 1 }));
}

/// Reads until nothing is left or the bytes are refused.
fn drain<T: for<'de> Deserialize<'de>>(decoder: &mut Decoder) {
    while let Ok(Some(_)) | Err(FrameError::Decode(_)) = decoder.take::<T>() {}
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        let _ = decode::<ToController>(&bytes);
        let _ = decode::<ToAgent>(&bytes);
        let mut decoder = Decoder::new();
        decoder.push(&bytes);
        drain::<ToController>(&mut decoder);
        let mut framed = (bytes.len() as u32).to_be_bytes().to_vec();
        framed.extend_from_slice(&bytes);
        let mut decoder = Decoder::new();
        decoder.push(&framed);
        drain::<ToAgent>(&mut decoder);
    }

    /// Nearly right bytes reach deeper than random ones.
    #[test]
    fn damaged_messages_never_panic(
        which in any::<prop::sample::Index>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        keep in any::<prop::sample::Index>(),
    ) {
        let mut frames: Vec<Vec<u8>> = Vec::new();
        frames.extend(from_agents().iter().map(|m| encode(m).unwrap()));
        frames.extend(to_agents().iter().map(|m| encode(m).unwrap()));
        let mut payload = which.get(&frames)[4..].to_vec();
        for (at, byte) in damage {
            let at = at.index(payload.len());
            payload[at] = byte;
        }
        let _ = decode::<ToController>(&payload);
        let _ = decode::<ToAgent>(&payload);
        payload.truncate(keep.index(payload.len()));
        let _ = decode::<ToController>(&payload);
        let _ = decode::<ToAgent>(&payload);
    }

    /// However the stream is cut, the same messages come out.
    #[test]
    fn pieces_do_not_matter(cuts in prop::collection::vec(1usize..64, 1..40)) {
        let mut bytes = Vec::new();
        for message in to_agents() {
            append(&mut bytes, &message).unwrap();
        }
        let (mut decoder, mut got, mut rest) = (Decoder::new(), Vec::new(), bytes.as_slice());
        for cut in cuts.iter().cycle() {
            let (piece, after) = rest.split_at((*cut).min(rest.len()));
            decoder.push(piece);
            while let Some(message) = decoder.take::<ToAgent>().unwrap() {
                got.push(message);
            }
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert!(decoder.is_empty());
        prop_assert_eq!(got, to_agents());
    }
}
