//! TOML into the tree.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{FileError, Problem};
use super::tree::{Entry, Lines, Node, Place, Value};

pub(crate) fn parse(text: &str) -> Result<Node, FileError> {
    let lines = Lines::new(text);
    let table = DeTable::parse(text).map_err(|e| {
        let at = e.span().map_or(lines.end(), |s| lines.place(s.start));
        let message = e.message().trim().replace('\n', "; ");
        FileError::new(at, Problem::Syntax { format: "TOML", message })
    })?;
    Ok(Node { at: Place::START, value: table_value(table.get_ref(), &lines)? })
}

fn table_value(table: &DeTable<'_>, lines: &Lines<'_>) -> Result<Value, FileError> {
    let mut entries = Vec::with_capacity(table.len());
    for (key, value) in table.iter() {
        let key_at = lines.place(key.span().start);
        entries.push(Entry { key: key.get_ref().to_string(), key_at, node: node(value, lines)? });
    }
    // The order of the file, so that the first of several problems is the one reported.
    entries.sort_by_key(|e| e.key_at);
    Ok(Value::Table(entries))
}

fn node(value: &Spanned<DeValue<'_>>, lines: &Lines<'_>) -> Result<Node, FileError> {
    let at = lines.place(value.span().start);
    let bad = |what: &str| {
        FileError::new(
            at,
            Problem::Syntax { format: "TOML", message: format!("{what} is too large") },
        )
    };
    let value = match value.get_ref() {
        DeValue::String(s) => Value::Text(s.to_string()),
        DeValue::Integer(i) => {
            let number =
                i128::from_str_radix(i.as_str(), i.radix()).map_err(|_| bad(i.as_str()))?;
            Value::Int(number, i.to_string())
        }
        DeValue::Float(f) => {
            Value::Float(f.as_str().parse().map_err(|_| bad(f.as_str()))?, f.to_string())
        }
        DeValue::Boolean(b) => Value::Bool(*b),
        DeValue::Datetime(d) => Value::Text(d.to_string()),
        DeValue::Array(items) => {
            Value::List(items.iter().map(|i| node(i, lines)).collect::<Result<_, _>>()?)
        }
        DeValue::Table(t) => table_value(t, lines)?,
    };
    Ok(Node { at, value })
}
