//! The tree into a type, by its own serde derive. Unlike serde's usual way, unknown keys are errors
//! at every depth, and every error knows its place.

use std::fmt;

use serde::de::{
    self, DeserializeOwned, DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};

use super::error::{FileError, Problem, nearest};
use super::tree::{Entry, Node, Place, Value};

pub(crate) fn tree<T: DeserializeOwned>(root: &Node) -> Result<T, FileError> {
    T::deserialize(Reader::of(root)).map_err(|fault| {
        let at = fault.at.unwrap_or(root.at);
        match fault.path() {
            Some(key) => FileError::of_key(at, key, fault.problem),
            None => FileError::new(at, fault.problem),
        }
    })
}

/// An error on its way up: gets its place and its path from the values that it passes.
#[derive(Debug)]
struct Fault {
    at: Option<Place>,
    /// Innermost first.
    steps: Vec<Step>,
    problem: Box<Problem>,
}

#[derive(Debug)]
enum Step {
    Key(String),
    Index(usize),
}

impl Fault {
    fn of(problem: Problem) -> Fault {
        Fault { at: None, steps: Vec::new(), problem: Box::new(problem) }
    }
    fn at(mut self, at: Place) -> Fault {
        self.at.get_or_insert(at);
        self
    }
    fn under(mut self, step: Step) -> Fault {
        self.steps.push(step);
        self
    }
    fn path(&self) -> Option<String> {
        let mut path = String::new();
        for step in self.steps.iter().rev() {
            match step {
                Step::Index(i) => path.push_str(&format!("[{i}]")),
                Step::Key(k) if path.is_empty() => path.push_str(k),
                Step::Key(k) => path.push_str(&format!(".{k}")),
            }
        }
        Some(path).filter(|p| !p.is_empty())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.problem.fmt(f)
    }
}

impl std::error::Error for Fault {}

impl de::Error for Fault {
    fn custom<T: fmt::Display>(message: T) -> Fault {
        Fault::of(Problem::BadValue(message.to_string()))
    }
    fn invalid_type(found: de::Unexpected<'_>, wanted: &dyn de::Expected) -> Fault {
        Fault::of(Problem::WrongType { wanted: plain(wanted), found: found.to_string() })
    }
    fn invalid_value(found: de::Unexpected<'_>, wanted: &dyn de::Expected) -> Fault {
        Fault::of(Problem::WrongType { wanted: plain(wanted), found: found.to_string() })
    }
    fn unknown_variant(found: &str, known: &'static [&'static str]) -> Fault {
        Fault::of(Problem::UnknownWord {
            found: found.to_owned(),
            suggestion: nearest(found, known.iter().copied()),
            known: known.to_vec(),
        })
    }
    fn missing_field(key: &'static str) -> Fault {
        Fault::of(Problem::Missing { key: key.to_owned() })
    }
}

/// serde's names of types, in words for people.
fn plain(wanted: &dyn de::Expected) -> String {
    let text = wanted.to_string();
    match text.as_str() {
        "u8" | "u16" | "u32" | "u64" => "a whole number, not negative".to_owned(),
        "i8" | "i16" | "i32" | "i64" => "a whole number".to_owned(),
        "f32" | "f64" => "a number".to_owned(),
        "a string" => "text".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a sequence" => "a list".to_owned(),
        "a map" => "a table".to_owned(),
        t if t.starts_with("struct ") => "a table".to_owned(),
        _ => text,
    }
}

#[derive(Clone, Copy)]
struct Reader<'t> {
    node: &'t Node,
    /// In `env`, `N = 4` means the text "4".
    numbers_as_text: bool,
}

impl<'t> Reader<'t> {
    fn of(node: &'t Node) -> Self {
        Reader { node, numbers_as_text: false }
    }

    fn wants(&self, wanted: &dyn de::Expected) -> Fault {
        Fault::of(Problem::WrongType { wanted: plain(wanted), found: self.node.describe() })
            .at(self.node.at)
    }
}

/// Runs `read` and makes sure that what it complains about has this node's place. A wrong type is
/// described by the file's value, which reads better than serde's.
fn placed<'t, T>(
    reader: Reader<'t>,
    read: impl FnOnce(Reader<'t>) -> Result<T, Fault>,
) -> Result<T, Fault> {
    read(reader).map_err(|mut fault| {
        if fault.at.is_none()
            && let Problem::WrongType { found, .. } = fault.problem.as_mut()
        {
            *found = reader.node.describe();
        }
        fault.at(reader.node.at)
    })
}

impl<'de> de::Deserializer<'de> for Reader<'de> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        placed(self, |r| match &r.node.value {
            Value::Nothing => visitor.visit_unit(),
            Value::Bool(b) => visitor.visit_bool(*b),
            Value::Int(i, _) => match (u64::try_from(*i), i64::try_from(*i)) {
                (Ok(n), _) => visitor.visit_u64(n),
                (_, Ok(n)) => visitor.visit_i64(n),
                _ => Err(r.wants(&visitor)),
            },
            Value::Float(f, _) => visitor.visit_f64(*f),
            Value::Text(t) => visitor.visit_borrowed_str(t),
            Value::List(items) => visitor.visit_seq(Items { items: items.iter().enumerate() }),
            Value::Table(entries) => visitor.visit_map(Entries {
                entries: entries.iter(),
                next: None,
                numbers_as_text: false,
            }),
        })
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.node.value {
            Value::Int(_, raw) | Value::Float(_, raw) if self.numbers_as_text => {
                visitor.visit_borrowed_str(raw)
            }
            Value::Bool(b) if self.numbers_as_text => visitor.visit_string(b.to_string()),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.node.value {
            Value::Nothing => visitor.visit_none(),
            _ => placed(self, |r| visitor.visit_some(r)),
        }
    }

    /// A map with keys of its own choosing, such as `env`.
    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        placed(self, |r| match &r.node.value {
            Value::Table(entries) => visitor.visit_map(Entries {
                entries: entries.iter(),
                next: None,
                numbers_as_text: true,
            }),
            _ => Err(r.wants(&visitor)),
        })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let Value::Table(entries) = &self.node.value else {
            return Err(self.wants(&visitor));
        };
        if let Some(entry) = entries.iter().find(|e| !fields.contains(&e.key.as_str())) {
            let problem = Problem::UnknownKey {
                suggestion: nearest(&entry.key, fields.iter().copied()),
                known: fields.to_vec(),
            };
            return Err(Fault::of(problem).at(entry.key_at).under(Step::Key(entry.key.clone())));
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        placed(self, |r| match &r.node.value {
            Value::Text(word) => visitor.visit_enum(word.as_str().into_deserializer()),
            _ => Err(r.wants(&"a word")),
        })
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str bytes byte_buf unit
        unit_struct newtype_struct seq tuple tuple_struct identifier ignored_any
    }
}

struct Items<'t> {
    items: std::iter::Enumerate<std::slice::Iter<'t, Node>>,
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = Fault;
    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Fault> {
        let Some((i, node)) = self.items.next() else { return Ok(None) };
        seed.deserialize(Reader::of(node)).map(Some).map_err(|f| f.under(Step::Index(i)))
    }
}

struct Entries<'t> {
    entries: std::slice::Iter<'t, Entry>,
    next: Option<&'t Entry>,
    numbers_as_text: bool,
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = Fault;
    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Fault> {
        self.next = self.entries.next();
        let Some(entry) = self.next else { return Ok(None) };
        seed.deserialize(entry.key.as_str().into_deserializer())
            .map(Some)
            .map_err(|f: Fault| f.at(entry.key_at))
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Fault> {
        let entry = self.next.take().expect("a key is read before its value");
        let reader = Reader { node: &entry.node, numbers_as_text: self.numbers_as_text };
        placed(reader, |r| seed.deserialize(r)).map_err(|f| f.under(Step::Key(entry.key.clone())))
    }
}
