//! Copies on other nodes, for checkpoints in directories that each node has for itself.
//!
//! One rank of every node serves its node's directory to the gang, and only to the gang: both ends
//! prove that they have its key. Each rank's shards go to its own node's directory and to those of
//! nodes that are not likely to fail with it. When a node is lost, the gang that starts again finds
//! its shards on the nodes that are left.
//!
//! It does not outlive the gang: what is on a node that has no rank of the gang is not found.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tutti_checkpoint::peer::{self, Place, Server};
use tutti_checkpoint::tier::{Bounded, Dir};
use tutti_collectives::Group;

use crate::checkpoint::CheckpointError;

/// How this rank takes part.
#[derive(Clone, Debug)]
pub struct CopiesOptions {
    /// So many nodes keep a copy of each shard, or as many as there are.
    pub count: usize,
    /// A node's directory takes copies until it holds this much.
    pub max_bytes: u64,
    pub bind: IpAddr,
    pub key: [u8; 32],
    pub node: String,
    pub node_rank: usize,
    pub local_rank: usize,
    /// Of all nodes of the gang in the order of their ranks; empty where not known.
    pub racks: Vec<String>,
}

/// Where the copies of this rank go, and where those of others are.
pub struct Copies {
    pub replicas: Vec<String>,
    pub fellows: Vec<String>,
    /// Serves this node's directory until it is dropped.
    _server: Option<Server>,
}

/// What each rank tells the others.
#[derive(Serialize, Deserialize)]
struct Card {
    node: String,
    node_rank: usize,
    /// Of the rank that serves.
    door: Option<Door>,
}

#[derive(Serialize, Deserialize)]
struct Door {
    url: String,
    /// A file in the directory while the ranks meet: who else sees it has the same directory.
    mark: String,
}

impl Copies {
    /// All ranks call this together.
    pub fn meet(
        location: &str,
        options: &CopiesOptions,
        group: &Group,
    ) -> Result<Copies, CheckpointError> {
        let mut server = None;
        let mut door = None;
        let mut mark = None;
        if options.local_rank == 0 {
            let address = SocketAddr::new(options.bind, 0);
            let tier = Arc::new(Bounded::new(Dir::new(location), options.max_bytes));
            let fail = |source| CheckpointError::NoDoor { address, source };
            let opened =
                Server::bind_for(group.size(), address, options.key, tier).map_err(fail)?;
            let name = format!(".node-{}", opened.address().to_string().replace(':', "-"));
            let failed = |source| CheckpointError::NoMark { location: location.into(), source };
            mark = Some(Mark::leave(location, &name).map_err(failed)?);
            door = Some(Door { url: opened.url(), mark: name });
            server = Some(opened);
        }
        let card = Card { node: options.node.clone(), node_rank: options.node_rank, door };
        let bytes = serde_json::to_vec(&card).expect("plain data becomes JSON");
        let cards = read(&group.all_gather_bytes(&bytes)?)?;
        let same = card.door.as_ref().and_then(|own| shared_with(location, own, &cards));
        let verdict = serde_json::to_vec(&same).expect("plain data becomes JSON");
        let verdicts = group.all_gather_bytes(&verdict)?;
        drop(mark);
        for (card, verdict) in cards.iter().zip(&verdicts) {
            let other: Option<String> =
                serde_json::from_slice(verdict).map_err(CheckpointError::Card)?;
            if let Some(other) = other {
                let (location, one) = (location.to_owned(), card.node.clone());
                return Err(CheckpointError::OneDirectory { location, one, other });
            }
        }
        Ok(choose(options, &cards, server))
    }
}

/// Removed whichever way the meeting ends.
struct Mark(PathBuf);

impl Mark {
    fn leave(location: &str, name: &str) -> io::Result<Mark> {
        fs::create_dir_all(location)?;
        let path = Path::new(location).join(name);
        fs::write(&path, b"")?;
        Ok(Mark(path))
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // It is a dot file without a byte: if it can't be removed nothing is lost.
        let _ = fs::remove_file(&self.0);
    }
}

fn read(cards: &[Vec<u8>]) -> Result<Vec<Card>, CheckpointError> {
    cards.iter().map(|c| serde_json::from_slice(c).map_err(CheckpointError::Card)).collect()
}

/// Another node whose mark is in this node's directory.
fn shared_with(location: &str, own: &Door, cards: &[Card]) -> Option<String> {
    let has = |mark: &str| mark != own.mark && Path::new(location).join(mark).exists();
    let other = cards.iter().find(|c| c.door.as_ref().is_some_and(|door| has(&door.mark)))?;
    Some(other.node.clone())
}

fn choose(options: &CopiesOptions, cards: &[Card], server: Option<Server>) -> Copies {
    let mut doors: Vec<(usize, &str)> =
        cards.iter().filter_map(|c| Some((c.node_rank, c.door.as_ref()?.url.as_str()))).collect();
    doors.sort_unstable();
    let rack = |node: usize| options.racks.get(node).filter(|rack| !rack.is_empty()).cloned();
    let places: Vec<Place> = doors.iter().map(|&(node, _)| Place { rack: rack(node) }).collect();
    let own = doors.iter().position(|&(node, _)| node == options.node_rank);
    let chosen = own.map_or_else(Vec::new, |own| peer::peers_of(own, &places, options.count));
    let url = |index: usize| doors[index].1.to_owned();
    let replicas = chosen.iter().map(|&index| url(index)).collect();
    let is_other = |index: &usize| Some(*index) != own && !chosen.contains(index);
    let fellows = (0..doors.len()).filter(is_other).map(url).collect();
    Copies { replicas, fellows, _server: server }
}
