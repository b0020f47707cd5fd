//! What one policy has that another has not, in the words of the file.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use toml::{Table, Value};
use tutti_model::Policy;
use utoipa::ToSchema;

use super::shape::PolicyShape;

/// One key that differs. `None` on one side: it is not there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = PolicyChange)]
pub struct Change {
    /// Such as `teams.vision.limit`.
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<String>,
}

/// In the order of their keys. Teams, classes, racks and reservations that are new or gone are one
/// change each.
pub fn changes(old: &Policy, new: &Policy) -> Result<Vec<Change>, toml::ser::Error> {
    let (old, new) = (as_table(old)?, as_table(new)?);
    let mut found = Vec::new();
    compare("", &Value::Table(old), &Value::Table(new), &mut found);
    Ok(found)
}

fn as_table(policy: &Policy) -> Result<Table, toml::ser::Error> {
    let mut table = Table::try_from(PolicyShape::of(policy))?;
    if let Some(Value::Array(list)) = table.remove("reservations") {
        table.insert("reservations".to_owned(), Value::Table(by_name(list)));
    }
    Ok(table)
}

/// By its name a reservation is known again when others come or go before it.
fn by_name(list: Vec<Value>) -> Table {
    list.into_iter()
        .map(|item| {
            let name = item.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
            (name, item)
        })
        .collect()
}

fn compare(path: &str, old: &Value, new: &Value, found: &mut Vec<Change>) {
    let (Value::Table(a), Value::Table(b)) = (old, new) else {
        if old != new {
            let (old, new) = (Some(old.to_string()), Some(new.to_string()));
            found.push(Change { path: path.to_owned(), old, new });
        }
        return;
    };
    for key in a.keys().chain(b.keys()).collect::<BTreeSet<_>>() {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        match (a.get(key), b.get(key)) {
            (Some(a), Some(b)) => compare(&path, a, b, found),
            (None, Some(Value::Table(b))) if is_group(&path) => {
                compare(&path, &Value::Table(Table::new()), &Value::Table(b.clone()), found);
            }
            (Some(Value::Table(a)), None) if is_group(&path) => {
                compare(&path, &Value::Table(a.clone()), &Value::Table(Table::new()), found);
            }
            (a, b) => {
                let text = |v: Option<&Value>| v.map(ToString::to_string);
                found.push(Change { path, old: text(a), new: text(b) });
            }
        }
    }
}

/// Left out of the file when it is empty.
fn is_group(path: &str) -> bool {
    let groups = ["teams", "gpu_weights", "reservations", "prices", "prices.gpus", "watch"];
    groups.contains(&path) || ["topology.racks", "topology.nodes"].contains(&path)
}
