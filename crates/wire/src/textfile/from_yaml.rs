//! YAML into the tree.
//!
//! `yes` and `no` are text, as YAML 1.2 says; only `true` and `false` are truth values.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

use super::error::{FileError, Problem};
use super::tree::{Entry, Lines, Node, Place, Value};

/// Deeper files are refused before the parser's own recursion can matter.
const DEPTH_MAX: usize = 64;

pub(crate) fn parse(text: &str) -> Result<Node, FileError> {
    let lines = Lines::new(text);
    let mut options = serde_saphyr::Options::default();
    options.strict_booleans = true;
    options.with_snippet = false;
    if let Some(budget) = &mut options.budget {
        budget.max_depth = DEPTH_MAX;
    }
    let root: Spanned<Raw> =
        serde_saphyr::from_str_with_options(text, options).map_err(|e| syntax(&e, &lines))?;
    let root = node(root, text, &lines);
    match root.value {
        Value::Nothing => Ok(Node { at: Place::START, value: Value::Table(Vec::new()) }),
        _ => Ok(root),
    }
}

fn syntax(error: &serde_saphyr::Error, lines: &Lines<'_>) -> FileError {
    let at = error.location().filter(|l| l.line() > 0).map_or(lines.end(), |l| place(l, lines));
    let message = error.without_snippet().to_string();
    let message = message.lines().next().unwrap_or("unreadable");
    // The position is said once, by us.
    let message = message.split(" at line ").next().unwrap_or(message).to_owned();
    FileError::new(at, Problem::Syntax { format: "YAML", message })
}

/// To YAML a lone carriage return ends a line, to editors and to us it does not.
fn place(location: Location, lines: &Lines<'_>) -> Place {
    let offset = location.span().byte_offset().and_then(|at| usize::try_from(at).ok());
    let said =
        Place { line: (location.line() as u32).max(1), column: (location.column() as u32).max(1) };
    match offset {
        Some(offset) => lines.place(offset),
        None if said.line > lines.end().line => lines.end(),
        None => said,
    }
}

enum Raw {
    Nothing,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    List(Vec<Spanned<Raw>>),
    Table(Vec<(Spanned<String>, Spanned<Raw>)>),
}

fn node(raw: Spanned<Raw>, text: &str, lines: &Lines<'_>) -> Node {
    let at = place(raw.referenced, lines);
    let spelled = |fallback: String| spelling(raw.referenced, text).unwrap_or(fallback);
    let value = match raw.value {
        Raw::Nothing => Value::Nothing,
        Raw::Bool(b) => Value::Bool(b),
        Raw::Int(i) => Value::Int(i, spelled(i.to_string())),
        Raw::Float(f) => Value::Float(f, spelled(f.to_string())),
        Raw::Text(t) => Value::Text(t),
        Raw::List(items) => Value::List(items.into_iter().map(|i| node(i, text, lines)).collect()),
        Raw::Table(pairs) => Value::Table(
            pairs
                .into_iter()
                .map(|(k, v)| Entry {
                    key_at: place(k.referenced, lines),
                    key: k.value,
                    node: node(v, text, lines),
                })
                .collect(),
        ),
    };
    Node { at, value }
}

/// The number as it stands in the file; none behind an alias, where something else stands.
fn spelling(at: Location, text: &str) -> Option<String> {
    let start = usize::try_from(at.span().byte_offset()?).ok()?;
    let end = start.checked_add(usize::try_from(at.span().byte_len()?).ok()?)?;
    let raw = text.get(start..end)?.trim();
    raw.parse::<f64>().is_ok().then(|| raw.to_owned())
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }
    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Nothing)
    }
    fn visit_none<E>(self) -> Result<Raw, E> {
        Ok(Raw::Nothing)
    }
    fn visit_some<D: Deserializer<'de>>(self, d: D) -> Result<Raw, D::Error> {
        d.deserialize_any(RawVisitor)
    }
    fn visit_bool<E>(self, b: bool) -> Result<Raw, E> {
        Ok(Raw::Bool(b))
    }
    fn visit_i64<E>(self, n: i64) -> Result<Raw, E> {
        Ok(Raw::Int(n.into()))
    }
    fn visit_u64<E>(self, n: u64) -> Result<Raw, E> {
        Ok(Raw::Int(n.into()))
    }
    fn visit_i128<E>(self, n: i128) -> Result<Raw, E> {
        Ok(Raw::Int(n))
    }
    fn visit_f64<E>(self, n: f64) -> Result<Raw, E> {
        Ok(Raw::Float(n))
    }
    fn visit_str<E>(self, s: &str) -> Result<Raw, E> {
        Ok(Raw::Text(s.to_owned()))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Raw, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Raw::List(items))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
        }
        Ok(Raw::Table(pairs))
    }
}
