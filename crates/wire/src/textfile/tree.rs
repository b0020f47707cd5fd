//! Values with positions: what every format is read into first.

/// Both count from 1; columns count characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub line: u32,
    pub column: u32,
}

impl Place {
    pub const START: Place = Place { line: 1, column: 1 };
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub at: Place,
    pub value: Value,
}

/// Numbers and truth values keep their spelling: in `env` they are text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Nothing,
    Bool(bool),
    Int(i128, String),
    Float(f64, String),
    Text(String),
    List(Vec<Node>),
    Table(Vec<Entry>),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub key: String,
    pub key_at: Place,
    pub node: Node,
}

impl Node {
    pub fn get(&self, key: &str) -> Option<&Entry> {
        match &self.value {
            Value::Table(entries) => entries.iter().find(|e| e.key == key),
            _ => None,
        }
    }

    /// For error messages.
    pub fn describe(&self) -> String {
        match &self.value {
            Value::Nothing => "nothing".to_owned(),
            Value::Bool(b) => b.to_string(),
            Value::Int(_, raw) | Value::Float(_, raw) => format!("the number {raw}"),
            Value::Text(t) => format!("the text {t:?}"),
            Value::List(_) => "a list".to_owned(),
            Value::Table(_) => "a table".to_owned(),
        }
    }
}

/// Turns byte offsets into places.
pub(crate) struct Lines<'t> {
    text: &'t str,
    starts: Vec<usize>,
}

impl<'t> Lines<'t> {
    pub fn new(text: &'t str) -> Self {
        let ends = text.bytes().enumerate().filter(|&(_, b)| b == b'\n');
        let starts = std::iter::once(0).chain(ends.map(|(i, _)| i + 1)).collect();
        Lines { text, starts }
    }

    /// An offset inside a character, or past the end, counts as the nearest before it.
    pub fn place(&self, offset: usize) -> Place {
        let mut offset = offset.min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        let line = self.starts.partition_point(|&s| s <= offset) - 1;
        let column = self.text[self.starts[line]..offset].chars().count();
        Place { line: line as u32 + 1, column: column as u32 + 1 }
    }

    /// As some parsers count: line and byte column, both from 1 (0 for "before the line").
    pub fn place_of(&self, line: usize, byte_column: usize) -> Place {
        let line = line.clamp(1, self.starts.len());
        self.place(self.starts[line - 1] + byte_column.saturating_sub(1))
    }

    pub fn end(&self) -> Place {
        self.place(self.text.len())
    }
}
