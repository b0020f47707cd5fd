//! JSON into the tree. serde_json judges the syntax; the walk after it only finds positions,
//! which serde_json does not tell.

use std::collections::BTreeSet;

use serde::de::IgnoredAny;

use super::error::{FileError, Problem};
use super::tree::{Entry, Lines, Node, Place, Value};

const DEPTH_MAX: usize = 64;

pub(crate) fn parse(text: &str) -> Result<Node, FileError> {
    let lines = Lines::new(text);
    serde_json::from_str::<IgnoredAny>(text)
        .map_err(|e| syntax(lines.place_of(e.line(), e.column()), &e))?;
    let mut walk = Walk { text, lines: &lines, at: 0 };
    walk.value(0)
}

fn syntax(at: Place, error: &serde_json::Error) -> FileError {
    let message = error.to_string();
    let message = message.split(" at line ").next().unwrap_or(&message).to_owned();
    FileError::new(at, Problem::Syntax { format: "JSON", message })
}

/// Stands on a text that is known to be JSON.
struct Walk<'t> {
    text: &'t str,
    lines: &'t Lines<'t>,
    at: usize,
}

impl Walk<'_> {
    fn value(&mut self, depth: usize) -> Result<Node, FileError> {
        self.skip_space();
        let at = self.lines.place(self.at);
        if depth > DEPTH_MAX {
            return Err(FileError::new(at, Problem::TooDeep));
        }
        let value = match self.peek() {
            b'{' => self.table(depth)?,
            b'[' => self.list(depth)?,
            b'"' => Value::Text(self.string()?),
            _ => self.word(at)?,
        };
        Ok(Node { at, value })
    }

    fn table(&mut self, depth: usize) -> Result<Value, FileError> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut keys = BTreeSet::new();
        while self.enter_item(b'}') {
            let key_at = self.lines.place(self.at);
            let key = self.string()?;
            if !keys.insert(key.clone()) {
                return Err(FileError::of_key(key_at, key, Problem::Duplicate));
            }
            self.skip_space();
            self.at += 1; // the colon
            entries.push(Entry { key, key_at, node: self.value(depth + 1)? });
        }
        Ok(Value::Table(entries))
    }

    fn list(&mut self, depth: usize) -> Result<Value, FileError> {
        let mut items = Vec::new();
        while self.enter_item(b']') {
            items.push(self.value(depth + 1)?);
        }
        Ok(Value::List(items))
    }

    /// Steps over the opening bracket or comma; false after the closing bracket.
    fn enter_item(&mut self, close: u8) -> bool {
        self.skip_space();
        if self.peek() != close {
            self.at += 1;
            self.skip_space();
        }
        let more = self.peek() != close;
        if !more {
            self.at += 1;
        }
        more
    }

    fn string(&mut self) -> Result<String, FileError> {
        let start = self.at;
        self.at += 1;
        while self.peek() != b'"' {
            self.at += if self.peek() == b'\\' { 2 } else { 1 };
        }
        self.at += 1;
        // Half of a surrogate pair passes the first look at the syntax, and fails here.
        serde_json::from_str(self.text.get(start..self.at).unwrap_or_default())
            .map_err(|e| syntax(self.lines.place(start), &e))
    }

    fn word(&mut self, at: Place) -> Result<Value, FileError> {
        let rest = &self.text[self.at..];
        let end = rest.find([',', ']', '}', ' ', '\t', '\r', '\n']).unwrap_or(rest.len());
        let word = &rest[..end];
        self.at += end;
        Ok(match word {
            "null" => Value::Nothing,
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            number => match (number.parse(), number.parse::<f64>()) {
                (Ok(i), _) => Value::Int(i, number.to_owned()),
                (_, Ok(f)) => Value::Float(f, number.to_owned()),
                _ => {
                    let message = format!("{number} is no number");
                    return Err(FileError::new(at, Problem::Syntax { format: "JSON", message }));
                }
            },
        })
    }

    fn peek(&self) -> u8 {
        // Past the end only on a text that is not JSON, where any closing mark ends the walk.
        self.text.as_bytes().get(self.at).copied().unwrap_or(b'"')
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), b' ' | b'\t' | b'\r' | b'\n') {
            self.at += 1;
        }
    }
}
