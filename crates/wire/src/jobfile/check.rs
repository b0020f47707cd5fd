//! What a type can't say: values that go together, and bounds. The engine checks again; here the
//! same mistakes are told with their place in the file.

use tutti_model::{Command, JobSpec};

use super::error::{JobFileError, Problem};
use super::script::SCRIPT_BYTES_MAX;
use super::tree::{Node, Value};

/// Checks that give a better message than the reader would.
pub(super) fn before(root: &Node) -> Result<(), JobFileError> {
    if !matches!(root.value, Value::Table(_)) {
        let problem =
            Problem::WrongType { wanted: "a table of keys".to_owned(), found: root.describe() };
        return Err(JobFileError::new(root.at, problem));
    }
    let Some(run) = root.get("run").map(|e| &e.node) else { return Ok(()) };
    let wrong = |node: &Node| {
        let wanted = "a shell line, or a list of words".to_owned();
        let problem = Problem::WrongType { wanted, found: node.describe() };
        Err(JobFileError::of_key(node.at, "run", problem))
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

pub(super) fn after(root: &Node, spec: &JobSpec) -> Result<(), JobFileError> {
    let refuse = |key: &'static str, why: &str| {
        let at = root.get(key).map_or(root.at, |e| e.node.at);
        Err(JobFileError::of_key(at, key, Problem::BadValue(why.to_owned())))
    };
    let empty = match &spec.run {
        Command::Shell(line) => line.trim().is_empty(),
        Command::Argv(words) => words.first().is_none_or(|w| w.is_empty()),
    };
    if empty {
        return refuse("run", "the command is empty");
    }
    if let Command::Shell(line) = &spec.run
        && line.len() > SCRIPT_BYTES_MAX
    {
        let at = root.get("run").map_or(root.at, |e| e.node.at);
        let problem = Problem::ScriptTooLong { bytes: line.len(), max: SCRIPT_BYTES_MAX };
        return Err(JobFileError::of_key(at, "run", problem));
    }
    for (key, value) in [
        ("nodes", spec.nodes),
        ("gpus", spec.gpus),
        ("cpus_per_gpu", spec.cpus_per_gpu),
        ("cpus_per_node", spec.cpus_per_node),
        ("ranks_per_node", spec.ranks_per_node),
    ] {
        if value == Some(0) {
            return refuse(key, "must be at least 1; leave the key out for none");
        }
    }
    if spec.gpus.is_some() && spec.nodes.is_some() {
        return refuse("gpus", "not together with 'nodes': write nodes and gpus_per_node, or gpus");
    }
    if spec.gpu_share.is_some_and(|s| !(s > 0.0 && s <= 1.0)) {
        return refuse("gpu_share", "must be more than 0 and at most 1");
    }
    if spec.elastic.as_ref().is_some_and(|e| e.min_nodes == 0 || e.min_nodes > e.max_nodes) {
        return refuse("elastic", "min_nodes must be at least 1 and at most max_nodes");
    }
    strings(root)?;
    environment(root)
}

fn environment(root: &Node) -> Result<(), JobFileError> {
    let Some(Value::Table(entries)) = root.get("env").map(|e| &e.node.value) else {
        return Ok(());
    };
    match entries.iter().find(|e| e.key.is_empty() || e.key.contains('=')) {
        None => Ok(()),
        Some(e) => {
            let why = "a variable's name is not empty and has no '='".to_owned();
            Err(JobFileError::of_key(e.key_at, format!("env.{}", e.key), Problem::BadValue(why)))
        }
    }
}

/// No text may hold NUL: it would be cut off there on its way to a program.
fn strings(node: &Node) -> Result<(), JobFileError> {
    match &node.value {
        Value::Text(t) if t.contains('\0') => Err(JobFileError::new(node.at, Problem::NulByte)),
        Value::List(items) => items.iter().try_for_each(strings),
        Value::Table(entries) => entries.iter().try_for_each(|e| {
            if e.key.contains('\0') {
                return Err(JobFileError::new(e.key_at, Problem::NulByte));
            }
            strings(&e.node).map_err(|mut err| {
                err.key.get_or_insert_with(|| e.key.clone());
                err
            })
        }),
        _ => Ok(()),
    }
}
