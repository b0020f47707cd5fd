use tutti_model::{Epoch, NodeId, Rank, Span, TaskId};
use tutti_wire::stream::{Exec, ExecOutput, LogStream, ToAgent};

use super::link::{Greeting, Link};
use super::*;

fn greeting() -> Greeting {
    Greeting { epoch: Epoch(1), heartbeat: Span::secs(1), certificate: None }
}

fn exec(request: u64) -> ToAgent {
    let task = TaskId::single(tutti_model::JobId(1));
    ToAgent::Exec { request, exec: Exec { task, rank: Rank(0), argv: vec!["id".into()] } }
}

fn data(len: usize) -> Answer {
    Answer::Output(ExecOutput::Data { stream: LogStream::Out, data: vec![0; len] })
}

#[tokio::test]
async fn a_client_that_leaves_takes_its_request_along() {
    let (link, mut outgoing) = Link::new(1, "n".into(), greeting());
    let mut finished = link.request(exec);
    let left = link.request(exec);
    let (first, second) = (finished.id(), left.id());
    link.answer(first, Answer::Output(ExecOutput::Failed { reason: "no".into() }));
    finished.next().await.unwrap();
    drop((finished, left));
    let mut said = Vec::new();
    while let Ok(out) = outgoing.try_recv() {
        said.push(out.message);
    }
    assert_eq!(said, [exec(first), exec(second), ToAgent::Abandon { request: second }]);
}

#[tokio::test]
async fn output_that_nobody_reads_is_bounded() {
    let (link, _outgoing) = Link::new(1, "n".into(), greeting());
    let mut answers = link.request(exec);
    let id = answers.id();
    (0..40).for_each(|_| link.answer(id, data(1 << 20)));
    let mut got = 0;
    loop {
        match answers.next().await.unwrap() {
            Answer::Overflow => break,
            _ => got += 1,
        }
    }
    assert_eq!(got, 16);
    assert_eq!(answers.next().await, Err(LinkGone));
}

#[tokio::test]
async fn tiny_messages_are_bounded_too() {
    let (link, _outgoing) = Link::new(1, "n".into(), greeting());
    let mut answers = link.request(exec);
    (0..1 << 17).for_each(|_| link.answer(answers.id(), data(1)));
    let mut got = 0;
    while answers.next().await != Ok(Answer::Overflow) {
        got += 1;
    }
    assert_eq!(got, (16 << 20) / 256);
    // Input that the agent does not take waits long before the queue is full.
    let mut sent = 0;
    let pour = async {
        loop {
            link.send_input(1, exec(0)).await.unwrap();
            sent += 1;
        }
    };
    // Tokio would have it make a pause before that.
    let pour = tokio::task::unconstrained(pour);
    let _ = futures_util::future::select(Box::pin(pour), std::future::ready(())).await;
    assert_eq!(sent, (1 << 20) / 256);
    assert!(link.closed().borrow().is_none());
}

#[tokio::test]
async fn an_agent_that_does_not_read_loses_its_stream_and_nobody_waits() {
    let links = Links::new(GangKeys::fixed(1));
    let (link, _outgoing) = Link::new(1, "n".into(), greeting());
    links.attach(NodeId(1), Arc::clone(&link));
    let mut waiting = link.request(exec);
    for _ in 0..20_000 {
        link.send(exec(0));
    }
    assert!(link.closed().borrow().is_some());
    assert_eq!(waiting.next().await, Err(LinkGone));
    assert_eq!(link.request(exec).next().await, Err(LinkGone));
    assert_eq!(link.send_input(1, exec(0)).await, Err(LinkGone));
}

#[tokio::test]
async fn a_newer_stream_replaces_an_older_one() {
    let links = Links::new(GangKeys::fixed(1));
    let (old, _old_out) = Link::new(1, "n".into(), greeting());
    let (new, mut new_out) = Link::new(2, "n".into(), greeting());
    links.attach(NodeId(1), Arc::clone(&old));
    links.attach(NodeId(1), Arc::clone(&new));
    assert!(old.closed().borrow().is_some());
    links.detach(NodeId(1), 1);
    assert_eq!(links.get(NodeId(1)).unwrap().session, 2);
    let welcome = new_out.try_recv().unwrap().message;
    assert!(matches!(welcome, ToAgent::Welcome { node: NodeId(1), .. }));
    links.close(NodeId(1), 1, "not this one");
    assert!(new.closed().borrow().is_none());
}
