//! What a type can't say: values that go together, and bounds. The engine checks again; here the
//! same mistakes are told with their place in the file.

mod service;

use std::collections::BTreeMap;

use tutti_model::{Command, JobSpec, Topology, name_problem, variable_name_problem};

use super::script::SCRIPT_BYTES_MAX;
use crate::textfile::error::{FileError, Problem};
use crate::textfile::tree::{Node, Value};

/// Checks that give a better message than the reader would.
pub(super) fn before(root: &Node) -> Result<(), FileError> {
    if !matches!(root.value, Value::Table(_)) {
        let problem =
            Problem::WrongType { wanted: "a table of keys".to_owned(), found: root.describe() };
        return Err(FileError::new(root.at, problem));
    }
    let Some(run) = root.get("run").map(|e| &e.node) else { return Ok(()) };
    let wrong = |node: &Node| {
        let wanted = "a shell line, or a list of words".to_owned();
        let problem = Problem::WrongType { wanted, found: node.describe() };
        Err(FileError::of_key(node.at, "run", problem))
    };
    match &run.value {
        Value::Text(_) => Ok(()),
        Value::List(words) => match words.iter().find(|w| !matches!(w.value, Value::Text(_))) {
            Some(word) => wrong(word),
            None => Ok(()),
        },
        _ => wrong(run),
    }
}

pub(super) fn after(root: &Node, spec: &JobSpec) -> Result<(), FileError> {
    let refuse = |key: &'static str, why: &str| {
        let at = root.get(key).map_or(root.at, |e| e.node.at);
        Err(FileError::of_key(at, key, Problem::BadValue(why.to_owned())))
    };
    let empty = match &*spec.run {
        Command::Shell(line) => line.trim().is_empty(),
        Command::Argv(words) => words.first().is_none_or(|w| w.is_empty()),
    };
    if empty {
        return refuse("run", "the command is empty");
    }
    if let Command::Shell(line) = &*spec.run
        && line.len() > SCRIPT_BYTES_MAX
    {
        let at = root.get("run").map_or(root.at, |e| e.node.at);
        let problem = Problem::ScriptTooLong { bytes: line.len(), max: SCRIPT_BYTES_MAX };
        return Err(FileError::of_key(at, "run", problem));
    }
    if let Some((key, why)) = spec.watch.iter().flat_map(|watch| watch.problems()).next() {
        let at = root.get("watch").map_or(root.at, |e| e.node.at);
        return Err(FileError::of_key(at, format!("watch.{key}"), Problem::BadValue(why)));
    }
    if let Some((key, why)) = spec.plan.iter().flat_map(|plan| plan.problems()).next() {
        let at = root.get("plan").map_or(root.at, |e| e.node.at);
        return Err(FileError::of_key(at, format!("plan.{key}"), Problem::BadValue(why)));
    }
    if spec.default_time_of.is_some() {
        return refuse("default_time_of", "the cluster says this: write 'time' for a limit");
    }
    for (key, name) in [("name", &spec.name), ("team", &spec.team)] {
        if let Some(why) = name.as_deref().and_then(name_problem) {
            return refuse(key, &why);
        }
    }
    if let Some((key, why)) = contradiction(spec) {
        return refuse(key, why);
    }
    service::check(root, spec)?;
    strings(root)?;
    environment(root)
}

/// Values that are out of bounds or do not go together: the key to blame, and why.
fn contradiction(spec: &JobSpec) -> Option<(&'static str, &'static str)> {
    for (key, value) in [
        ("nodes", spec.nodes),
        ("gpus", spec.gpus),
        ("cpus_per_gpu", spec.cpus_per_gpu),
        ("cpus_per_node", spec.cpus_per_node),
        ("ranks_per_node", spec.ranks_per_node),
    ] {
        if value == Some(0) {
            return Some((key, "must be at least 1; leave the key out for none"));
        }
    }
    if spec.gpus_per_node.as_ref().is_some_and(|g| g.model.is_some() && g.count == 0) {
        return Some(("gpus_per_node", "0 of a model: at least 1, or leave the key out for none"));
    }
    if spec.gpus.is_some() && spec.nodes.is_some() {
        return Some(("gpus", "not together with 'nodes': write nodes and gpus_per_node, or gpus"));
    }
    let empty = |labels: &BTreeMap<String, String>| labels.keys().any(String::is_empty);
    if empty(&spec.labels) {
        return Some(("labels", "a label has a name"));
    }
    if empty(&spec.avoid_labels) {
        return Some(("avoid_labels", "a label has a name"));
    }
    share(spec).or_else(|| size(spec))
}

fn share(spec: &JobSpec) -> Option<(&'static str, &'static str)> {
    let share = spec.gpu_share?;
    let several = spec.gpus.is_some() || spec.gpus_per_node.as_ref().is_some_and(|g| g.count > 1);
    if !(0.001..=1.0).contains(&share) {
        return Some(("gpu_share", "must be at least 0.001 and at most 1"));
    }
    (share < 1.0 && several).then_some(("gpu_share", "a part of a GPU is of one GPU per node"))
}

fn size(spec: &JobSpec) -> Option<(&'static str, &'static str)> {
    if let Some(elastic) = &spec.elastic {
        let (least, most) = (elastic.min_nodes, elastic.max_nodes);
        if least == 0 || least > most {
            return Some(("elastic", "min_nodes must be at least 1 and at most max_nodes"));
        }
        if spec.gpus.is_some() {
            return Some(("elastic", "not together with 'gpus': it counts nodes"));
        }
        if spec.nodes.is_some_and(|n| !(least..=most).contains(&n)) {
            return Some(("nodes", "not between min_nodes and max_nodes of 'elastic'"));
        }
    }
    let nodes = spec.elastic.as_ref().map_or(spec.nodes.unwrap_or(1), |e| e.max_nodes);
    let one_node = matches!(spec.topology, Some(Topology::Island | Topology::Node));
    (one_node && nodes > 1).then_some(("topology", "several nodes can't stay inside one"))
}

fn environment(root: &Node) -> Result<(), FileError> {
    let Some(Value::Table(entries)) = root.get("env").map(|e| &e.node.value) else {
        return Ok(());
    };
    for entry in entries {
        if let Some(why) = variable_name_problem(&entry.key) {
            let (key, problem) = (format!("env.{}", entry.key), Problem::BadValue(why.to_owned()));
            return Err(FileError::of_key(entry.key_at, key, problem));
        }
    }
    Ok(())
}

/// No text may hold NUL: it would be cut off there on its way to a program.
fn strings(node: &Node) -> Result<(), FileError> {
    match &node.value {
        Value::Text(t) if t.contains('\0') => Err(FileError::new(node.at, Problem::NulByte)),
        Value::List(items) => items.iter().try_for_each(strings),
        Value::Table(entries) => entries.iter().try_for_each(|e| {
            if e.key.contains('\0') {
                return Err(FileError::new(e.key_at, Problem::NulByte));
            }
            strings(&e.node).map_err(|mut err| {
                err.key.get_or_insert_with(|| e.key.clone());
                err
            })
        }),
        _ => Ok(()),
    }
}
