//! Moves messages both ways until one side has enough.

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tutti_engine::Command;
use tutti_model::NodeId;
use tutti_wire::frame::{self, FrameError, FrameReader};
use tutti_wire::stream::{ToAgent, ToController};

use super::hello::AgentConfig;
use super::link::{Answer, Link, Outgoing};
use crate::clock::now;

/// Messages put into one write.
const WRITE_MAX: usize = 512;

/// Bytes put into one write, give or take a message.
const WRITE_BYTES: usize = 256 << 10;

/// Commands handed to the engine at once.
const READ_MAX: usize = 256;

/// Returns why it ended.
pub(super) async fn run<R, W>(
    config: &AgentConfig,
    link: &Arc<Link>,
    node: NodeId,
    reader: FrameReader<R>,
    writer: W,
    outgoing: mpsc::Receiver<Outgoing>,
) -> String
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut closed = link.closed();
    tokio::select! {
        why = read(config, link, node, reader) => why,
        why = write(config, writer, outgoing) => why,
        why = closed.wait_for(Option::is_some) => {
            why.ok().and_then(|w| *w).unwrap_or("the controller stops").to_owned()
        }
    }
}

async fn write<W: AsyncWrite + Unpin>(
    config: &AgentConfig,
    mut writer: W,
    mut outgoing: mpsc::Receiver<Outgoing>,
) -> String {
    let mut taken = Vec::with_capacity(WRITE_MAX);
    let mut bytes = Vec::new();
    while outgoing.recv_many(&mut taken, WRITE_MAX).await > 0 {
        let mut last = false;
        for out in taken.drain(..) {
            last |= matches!(out.message, ToAgent::Refused { .. });
            if let Err(error) = frame::append(&mut bytes, &out.message) {
                return format!("a message can't be sent: {}", crate::error::chain(&error));
            }
            if bytes.len() >= WRITE_BYTES
                && let Err(why) = write_out(config, &mut writer, &mut bytes).await
            {
                return why;
            }
        }
        if let Err(why) = write_out(config, &mut writer, &mut bytes).await {
            return why;
        }
        if last {
            return "the controller wants nothing more of it".to_owned();
        }
    }
    "the controller has nothing more to say".to_owned()
}

async fn write_out<W: AsyncWrite + Unpin>(
    config: &AgentConfig,
    writer: &mut W,
    bytes: &mut Vec<u8>,
) -> Result<(), String> {
    let written = async {
        writer.write_all(bytes).await?;
        writer.flush().await
    };
    match tokio::time::timeout(config.write_max, written).await {
        Ok(Ok(())) => {
            bytes.clear();
            Ok(())
        }
        Ok(Err(error)) => Err(format!("can't write: {error}")),
        Err(_) => Err(format!("took nothing for {} s: hung?", config.write_max.as_secs())),
    }
}

async fn read<R: AsyncRead + Unpin>(
    config: &AgentConfig,
    link: &Link,
    node: NodeId,
    mut reader: FrameReader<R>,
) -> String {
    loop {
        let first = match tokio::time::timeout(config.silence_max, reader.next()).await {
            Ok(Ok(Some(message))) => message,
            Ok(Ok(None)) => return "the agent closed".to_owned(),
            Ok(Err(error)) => return bad_frame(&error),
            Err(_) => return format!("silent for {} s", config.silence_max.as_secs()),
        };
        link.note_heard();
        let mut commands = Vec::new();
        let mut next = Some(first);
        while let Some(message) = next {
            if let Err(why) = take(config, link, node, message, &mut commands) {
                return why;
            }
            if commands.len() >= READ_MAX {
                break;
            }
            next = match reader.buffered() {
                Ok(next) => next,
                Err(error) => return bad_frame(&error),
            };
        }
        if commands.is_empty() {
            continue;
        }
        let reported = config.core.report(node, link.session, commands);
        if reported.await.is_err() {
            return "the controller stops".to_owned();
        }
    }
}

fn bad_frame(error: &FrameError) -> String {
    // An agent that ends takes no leave of TLS.
    if matches!(error, FrameError::Io(e) if e.kind() == std::io::ErrorKind::UnexpectedEof) {
        return "the agent closed its stream".to_owned();
    }
    format!("not understood: {}", crate::error::chain(error))
}

fn take(
    config: &AgentConfig,
    link: &Link,
    node: NodeId,
    message: ToController,
    commands: &mut Vec<Command>,
) -> Result<(), String> {
    let session = link.session;
    match message {
        ToController::Heartbeat { parts } => {
            commands.push(Command::Heartbeat { node, session, parts });
        }
        ToController::Report { report } => {
            commands.push(Command::Report { node, session, report });
        }
        ToController::Telemetry { sample } => config.telemetry.push(link.name(), *sample, now()),
        ToController::Findings { findings } => {
            commands.push(Command::Findings { node, session, findings });
        }
        ToController::Health { request, reply } => link.answer(request, Answer::Health(reply)),
        ToController::Clock { sent } => link.send(ToAgent::Clock { sent, now: now() }),
        ToController::Log { request, reply } => link.answer(request, Answer::Log(reply)),
        ToController::Output { request, output } => {
            link.answer(request, Answer::Output(output));
        }
        ToController::Hello { .. } => return Err("said hello twice".to_owned()),
    }
    Ok(())
}
