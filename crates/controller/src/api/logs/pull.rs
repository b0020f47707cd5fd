//! One rank of one attempt: read piece by piece, until it has ended.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use tokio::sync::watch;
use tutti_model::{NodeId, Rank, Seq, TaskId, Time};
use tutti_wire::api::LogEvent;
use tutti_wire::stream::{LogFrom, LogLine, LogRead, LogReply, ToAgent};

use super::{Broken, note};
use crate::api::App;
use crate::api::sse::{Left, Sender};
use crate::links::{Answer, Link};

const PIECE_BYTES: u32 = 256 << 10;

pub(super) struct Pull {
    pub app: Arc<App>,
    pub sender: Sender,
    pub task: TaskId,
    pub attempt: u32,
    pub rank: Rank,
    pub nodes: Vec<NodeId>,
    pub follow: bool,
    pub tail: Option<u32>,
}

/// How asking one node went.
enum Asked {
    /// It says that the rank has ended and never printed.
    Quiet,
    /// Everything there is, or will be, has been sent.
    Finished,
    /// The node knows nothing of a part that is still to run: its order is on the way.
    NotYet,
    Missing(String),
    Unreachable,
}

/// How asking every node that may have the log went.
enum AskedAll {
    Finished,
    NotYet,
    Failed(String),
}

impl Pull {
    pub async fn run(self) -> Result<(), Broken> {
        let mut from = self.tail.map_or(LogFrom::Offset(0), LogFrom::Tail);
        let mut changes = self.app.core.feed().watch_job(self.task.job);
        let mut links = self.app.links.changes();
        let mut told = false;
        loop {
            changes.mark_unchanged();
            links.mark_unchanged();
            let why = match self.ask_all(&mut from).await? {
                AskedAll::Finished => return Ok(()),
                AskedAll::Failed(why) => why,
                AskedAll::NotYet => {
                    self.until_changed(&mut changes, &mut links).await?;
                    continue;
                }
            };
            let again = self.follow && self.is_current().await?;
            if !again || !told {
                told = true;
                let wait = if again { "; waiting for it" } else { "" };
                note(&self.sender, format!("rank {}: {why}{wait}", self.rank)).await?;
            }
            if !again {
                return Ok(());
            }
            self.until_changed(&mut changes, &mut links).await?;
        }
    }

    async fn ask_all(&self, from: &mut LogFrom) -> Result<AskedAll, Broken> {
        let mut why = "no node has its log".to_owned();
        let (mut quiet, mut away) = (false, None);
        for &node in &self.nodes {
            let name = self.app.core.peek(|w| w.engine.state().node_name(node))?;
            match self.ask(node, from).await? {
                Asked::Finished => return Ok(AskedAll::Finished),
                Asked::NotYet => return Ok(AskedAll::NotYet),
                // The rank printed nothing, or it ran elsewhere: of an older attempt only its
                // nodes know.
                Asked::Quiet => quiet = true,
                Asked::Missing(reason) => why = format!("{name} has no log of it: {reason}"),
                Asked::Unreachable => away = Some(name),
            }
        }
        if let Some(name) = away {
            let may = if self.nodes.len() == 1 { "is kept" } else { "may be" };
            why = format!(
                "node {name} is not connected; its log {may} there and can be read when it is back"
            );
            quiet = false;
        }
        Ok(if quiet { AskedAll::Finished } else { AskedAll::Failed(why) })
    }

    async fn ask(&self, node: NodeId, from: &mut LogFrom) -> Result<Asked, Broken> {
        loop {
            let Some(link) = self.app.links.get(node) else { return Ok(Asked::Unreachable) };
            match self.read(&link, *from).await {
                None => return Ok(Asked::Unreachable),
                Some(LogReply::Missing { reason }) => return Ok(Asked::Missing(reason)),
                Some(LogReply::Piece { lines, next, end, skipped }) => {
                    if skipped > 0 {
                        let bytes = tutti_model::count(skipped, "byte");
                        let text = format!("rank {}: rotation removed {bytes}", self.rank);
                        note(&self.sender, text).await?;
                    }
                    if end && next == 0 {
                        let waits = self.follow && !self.part_is_over().await?;
                        return Ok(if waits { Asked::NotYet } else { Asked::Quiet });
                    }
                    let nothing_new = lines.is_empty() && *from == LogFrom::Offset(next);
                    self.send(lines).await?;
                    *from = LogFrom::Offset(next);
                    if end || (!self.follow && nothing_new) {
                        return Ok(Asked::Finished);
                    }
                }
            }
        }
    }

    /// None when the link ended first.
    async fn read(&self, link: &Arc<Link>, from: LogFrom) -> Option<LogReply> {
        let read = LogRead {
            task: self.task,
            attempt: Some(self.attempt),
            rank: self.rank,
            from,
            max_bytes: PIECE_BYTES,
            wait: self.follow,
        };
        let mut answers = link.request(|request| ToAgent::ReadLog { request, read });
        match answers.next().await {
            Ok(Answer::Log(reply)) => Some(reply),
            Ok(Answer::Overflow) => {
                Some(LogReply::Missing { reason: "the agent sent too much at once".to_owned() })
            }
            Ok(Answer::Output(_) | Answer::Health(_)) => {
                Some(LogReply::Missing { reason: "the agent answered something else".to_owned() })
            }
            Err(_) => None,
        }
    }

    async fn send(&self, lines: Vec<LogLine>) -> Result<(), Left> {
        for LogLine { at, stream, text, partial } in lines {
            let (text, raw) = match String::from_utf8(text) {
                Ok(text) => (text, None),
                Err(bad) => {
                    let raw = BASE64.encode(bad.as_bytes());
                    (String::from_utf8_lossy(bad.as_bytes()).into_owned(), Some(raw))
                }
            };
            let (rank, at) = (self.rank.0, Time(at));
            let line = LogEvent::Line { rank, at, stream, text, raw, partial };
            self.sender.send("line", &line).await?;
        }
        Ok(())
    }

    /// The attempt still runs, so its log may yet come.
    async fn is_current(&self) -> Result<bool, Broken> {
        let look = |world: &crate::core::World| {
            let job = world.engine.state().job(self.task.job)?;
            let attempt = job.task(self.task.index)?.attempt()?;
            Some(attempt.number == self.attempt)
        };
        Ok(self.app.core.read(look).await?.unwrap_or(false))
    }

    /// Nothing of the rank's part is to come.
    async fn part_is_over(&self) -> Result<bool, Broken> {
        let rank = self.rank.0;
        let look = |world: &crate::core::World| {
            let job = world.engine.state().job(self.task.job)?;
            let attempt = job.task(self.task.index)?.attempt()?;
            let part = attempt.parts.iter().rfind(|p| p.first_rank.0 <= rank)?;
            Some(attempt.number != self.attempt || part.phase.is_over())
        };
        Ok(self.app.core.read(look).await?.unwrap_or(true))
    }

    async fn until_changed(
        &self,
        changes: &mut watch::Receiver<Seq>,
        links: &mut watch::Receiver<u64>,
    ) -> Result<(), Broken> {
        let mut stopping = self.app.stopping();
        tokio::select! {
            changed = changes.changed() => changed.map_err(|_| Broken::Stopped),
            changed = links.changed() => changed.map_err(|_| Broken::Stopped),
            _ = stopping.wait_for(|s| *s) => Err(Broken::Stopped),
        }
    }
}
