//! Nodes that `tutti nodes remove` took out of the cluster. Their keys open nothing, so whoever starts
//! them waits for ever.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tutti_wire::client::{Client, ClientError};

use super::{NodePlan, names};
use crate::fail::Fail;

/// Of these, whose key the cluster refuses. One without a key joins anew, whatever was before.
pub fn of(client: &Client, dir: &Path, nodes: &[NodePlan]) -> Result<BTreeSet<String>, Fail> {
    let known: BTreeSet<String> = client.nodes()?.into_iter().map(|node| node.name).collect();
    let away = nodes.iter().filter(|n| !known.contains(&n.name) && has_key(dir, &n.name));
    let mut removed = BTreeSet::new();
    for node in away {
        match client.node(&node.name) {
            Err(e) if e.is_node_removed() => drop(removed.insert(node.name.clone())),
            // It has joined and was not heard yet.
            Ok(_) | Err(ClientError::Api(_)) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(removed)
}

/// Whoever deletes the key of a node lets it join again.
pub fn has_key(dir: &Path, node: &str) -> bool {
    key_file(dir, node).exists()
}

pub fn key_file(dir: &Path, node: &str) -> PathBuf {
    dir.join(tutti_controller::NODES_DIR).join(node).join("node.pem")
}

/// For those who started the others.
pub fn in_words(dir: &Path, removed: &BTreeSet<String>) -> Option<String> {
    let first = removed.first()?;
    let mut sorted: Vec<&String> = removed.iter().collect();
    sorted.sort_by_cached_key(|name| tutti_controller::views::counted(name));
    let (was, it, its) = match removed.len() {
        1 => ("was", "it is", "its key"),
        _ => ("were", "they are", "their keys"),
    };
    let more = if removed.len() > 1 { " and so on" } else { "" };
    Some(format!(
        "{} {was} removed from the cluster, so {it} not started; to let such a node join again, \
         delete {its} ({}{more}) and run tutti up again",
        names::list(&sorted),
        key_file(dir, first).display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_who_was_removed_and_how_they_come_back() {
        let words = |names: &[&str]| {
            in_words("/d".as_ref(), &names.iter().map(|n| (*n).to_owned()).collect())
        };
        assert_eq!(words(&[]), None);
        assert_eq!(
            words(&["n2"]).unwrap(),
            "n2 was removed from the cluster, so it is not started; to let such a node join again, \
             delete its key (/d/nodes/n2/node.pem) and run tutti up again"
        );
        let several = words(&["n10", "n2"]).unwrap();
        assert!(several.starts_with("n2, n10 were removed from the cluster, so they are"));
    }
}
