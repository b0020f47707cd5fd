//! The policy file: how the operator wants the cluster shared, as TOML, read into a [`Policy`].
//!
//! A file is a whole policy: what it does not mention has its default. Problems come with line,
//! column and key, those of meaning (a team whose parent is not there) as well as those of
//! spelling. [`write`] makes a file that reads back to the same policy.
//!
//! ```text
//! toml ─► tree (values + positions) ─► shape ─► Policy ─► problems()
//!                    ▲                                        │
//!                    └────────── key to place ◄───────────────┘
//! ```

mod changes;
mod hosts;
mod locate;
mod shape;
mod values;

#[cfg(test)]
mod tests;

pub use changes::{Change, changes};
pub use hosts::compress as compress_hosts;

use std::fmt;

use tutti_model::{BadPolicy, Policy, TopologyMap};

use crate::textfile::error::{FileError, Problem};
use crate::textfile::tree::Node;
use crate::textfile::{from_json, from_toml, read, utf8};

/// Everything that is wrong with a file, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct BadPolicyFile(pub Vec<FileError>);

impl fmt::Display for BadPolicyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl BadPolicyFile {
    /// What to do about the first of them.
    pub fn hint(&self) -> Option<String> {
        self.0.first().and_then(FileError::hint)
    }
}

/// Reads a policy file. `name` is shown in errors.
pub fn parse(name: Option<&str>, text: &[u8]) -> Result<Policy, BadPolicyFile> {
    let read = |root: &Node| {
        let policy = read::tree::<shape::PolicyShape>(root)
            .map_err(|e| vec![e])?
            .into_policy()
            .map_err(|bad| placed(root, bad))?;
        sound(root, policy)
    };
    with_root(name, text, from_toml::parse, read)
}

/// Reads a policy as the API has it, with places of problems as in a file.
pub fn parse_json(text: &[u8]) -> Result<Policy, BadPolicyFile> {
    let read =
        |root: &Node| read::tree(root).map_err(|e| vec![e]).and_then(|policy| sound(root, policy));
    with_root(None, text, from_json::parse, read)
}

fn sound(root: &Node, policy: Policy) -> Result<Policy, Vec<FileError>> {
    match policy.problems() {
        bad if bad.is_empty() => Ok(policy),
        bad => Err(placed(root, bad)),
    }
}

/// Reads a file that holds only what stands under `[topology]` of a policy file.
pub fn parse_topology(name: Option<&str>, text: &[u8]) -> Result<TopologyMap, BadPolicyFile> {
    let read = |root: &Node| {
        let shape = read::tree::<shape::TopologyShape>(root).map_err(|e| vec![e])?;
        let topology = shape.into_map("").map_err(|bad| placed(root, bad))?;
        let policy = Policy { topology, ..Policy::default() };
        let bad: Vec<BadPolicy> = policy.problems().into_iter().filter_map(of_topology).collect();
        if bad.is_empty() { Ok(policy.topology) } else { Err(placed(root, bad)) }
    };
    with_root(name, text, from_toml::parse, read)
}

/// With the key that it has in a file of topology alone.
fn of_topology(bad: BadPolicy) -> Option<BadPolicy> {
    let path = bad.path.strip_prefix("topology.")?.to_owned();
    Some(BadPolicy { path, ..bad })
}

/// The policy as a file that reads back to the same.
pub fn write(policy: &Policy) -> Result<String, toml::ser::Error> {
    toml::to_string(&shape::PolicyShape::of(policy))
}

/// A short name of this very policy: equal policies have equal tags.
pub fn tag(policy: &Policy) -> Result<String, serde_json::Error> {
    let text = serde_json::to_vec(policy)?;
    Ok(blake3::hash(&text).to_hex()[..16].to_owned())
}

fn with_root<T>(
    name: Option<&str>,
    bytes: &[u8],
    parse: fn(&str) -> Result<Node, FileError>,
    read: impl FnOnce(&Node) -> Result<T, Vec<FileError>>,
) -> Result<T, BadPolicyFile> {
    let root = utf8(bytes).and_then(parse).map_err(|e| vec![e]);
    root.and_then(|root| read(&root)).map_err(|errors| {
        let name = name.unwrap_or("policy");
        BadPolicyFile(errors.into_iter().map(|e| e.in_file(name)).collect())
    })
}

/// Problems of meaning know their key; the tree knows where that stands.
fn placed(root: &Node, bad: Vec<BadPolicy>) -> Vec<FileError> {
    let mut errors: Vec<FileError> = bad
        .into_iter()
        .map(|b| {
            FileError::of_key(locate::place(root, &b.path), b.path, Problem::BadValue(b.problem))
        })
        .collect();
    errors.sort_by_key(|e| (e.line, e.column));
    errors
}
