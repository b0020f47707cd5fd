//! Where a key of the policy stands in the file.

use crate::textfile::tree::{Entry, Node, Place, Value};

/// The place of `teams.vision.parent`, `spares.0.per` or `reservations.power work.until` (an item of
/// a list goes by its number or its name); of the nearest key around it that is in the file, if that
/// one is not.
pub(super) fn place(root: &Node, path: &str) -> Place {
    let (mut node, mut at, mut rest) = (root, root.at, path);
    while let Some((found, left)) = step(node, rest.trim_start_matches('.')) {
        at = match (found, &found.node().value) {
            (Found::Entry(e), Value::Table(_)) => e.key_at,
            (found, _) => found.node().at,
        };
        (node, rest) = (found.node(), left);
    }
    at
}

#[derive(Clone, Copy)]
enum Found<'t> {
    Entry(&'t Entry),
    Item(&'t Node),
}

impl<'t> Found<'t> {
    fn node(self) -> &'t Node {
        match self {
            Found::Entry(e) => &e.node,
            Found::Item(n) => n,
        }
    }
}

/// One step down, and what is left of the path.
fn step<'t, 'p>(node: &'t Node, path: &'p str) -> Option<(Found<'t>, &'p str)> {
    match &node.value {
        // Names may hold dots, so the longest key that the path starts with is the one.
        Value::Table(entries) => entries
            .iter()
            .filter_map(|e| Some((e, after(path, &e.key)?)))
            .max_by_key(|(e, _)| e.key.len())
            .map(|(e, left)| (Found::Entry(e), left)),
        Value::List(items) => {
            if let Some((index, left)) = path.strip_prefix('[').and_then(|p| p.split_once(']')) {
                return Some((Found::Item(items.get(index.parse::<usize>().ok()?)?), left));
            }
            items
                .iter()
                .enumerate()
                .filter_map(|(i, item)| {
                    let left = name_of(item).and_then(|n| Some((n.len(), after(path, n)?)));
                    let (len, left) = left.or_else(|| Some((0, after(path, &i.to_string())?)))?;
                    Some((len, item, left))
                })
                // Of two items with one name, the later is the one too many.
                .max_by_key(|(len, ..)| *len)
                .map(|(_, item, left)| (Found::Item(item), left))
        }
        _ => None,
    }
}

fn name_of(item: &Node) -> Option<&str> {
    match &item.get("name")?.node.value {
        Value::Text(name) => Some(name),
        _ => None,
    }
}

fn after<'p>(path: &'p str, key: &str) -> Option<&'p str> {
    let left = path.strip_prefix(key).filter(|_| !key.is_empty())?;
    (left.is_empty() || left.starts_with(['.', '['])).then_some(left)
}
