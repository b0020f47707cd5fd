//! A table: named columns of three kinds, and rows that are taken apart and put together again.
//!
//! Every whole number is an INT64: encodings make the narrow ones small again, and nothing ever has to
//! be widened. A column that a file does not have reads as nothing, so that columns can be added.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::schema::types::{Type, TypePtr};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Int,
    /// Milliseconds since 1970, UTC.
    Time,
    Text,
    Json,
}

#[derive(Clone, Copy, Debug)]
pub struct Field {
    pub name: &'static str,
    pub kind: Kind,
    /// May be nothing.
    pub optional: bool,
}

pub(crate) const fn must(name: &'static str, kind: Kind) -> Field {
    Field { name, kind, optional: false }
}

pub(crate) const fn may(name: &'static str, kind: Kind) -> Field {
    Field { name, kind, optional: true }
}

/// One value of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    Null,
    Int(i64),
    Text(Bytes),
}

impl Cell {
    pub fn text(text: &str) -> Cell {
        Cell::Text(Bytes::copy_from_slice(text.as_bytes()))
    }
    pub fn some(text: Option<&str>) -> Cell {
        text.map_or(Cell::Null, Cell::text)
    }
    pub fn int(n: impl Into<i64>) -> Cell {
        Cell::Int(n.into())
    }
    /// Beyond 2^63 is no number that anybody has.
    pub fn large(n: u64) -> Cell {
        Cell::Int(i64::try_from(n).unwrap_or(i64::MAX))
    }
}

/// What is wrong with the content of a file.
#[derive(Debug, thiserror::Error)]
pub enum BadContent {
    #[error("the column '{0}' is missing or has holes")]
    Missing(&'static str),
    #[error("the column '{0}' is of another kind")]
    Kind(&'static str),
    #[error("'{value}' in the column '{column}' is not understood")]
    Value { column: &'static str, value: String },
    #[error(transparent)]
    Parquet(#[from] ParquetError),
}

/// Rows of one table.
pub trait Row: Sized {
    /// The folder that its files are in.
    const TABLE: &'static str;
    const FIELDS: &'static [Field];
    /// How many columns make the key; they are the first ones, and numbers.
    const KEYS: usize = 2;
    /// What the rows of one thing have in common; it is written once.
    fn key(&self) -> Key;
    /// One for each field, in their order.
    fn cells(&self) -> Vec<Cell>;
    fn read(columns: &Columns, row: usize) -> Result<Self, BadContent>;
}

/// For a job its id and when it was submitted: a cluster that begins anew counts its jobs from 1 again.
/// A key of one column has 0 behind it.
pub type Key = (i64, i64);

pub(crate) fn schema<R: Row>() -> Result<TypePtr, ParquetError> {
    let fields = R::FIELDS.iter().map(|f| column_type(f).map(Arc::new));
    let fields = fields.collect::<Result<Vec<_>, _>>()?;
    Type::group_type_builder(R::TABLE).with_fields(fields).build().map(Arc::new)
}

fn column_type(field: &Field) -> Result<Type, ParquetError> {
    let (physical, logical) = match field.kind {
        Kind::Int => (Physical::INT64, None),
        Kind::Time => (Physical::INT64, Some(LogicalType::timestamp(true, TimeUnit::MILLIS))),
        Kind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        Kind::Json => (Physical::BYTE_ARRAY, Some(LogicalType::Json)),
    };
    let repetition = if field.optional { Repetition::OPTIONAL } else { Repetition::REQUIRED };
    Type::primitive_type_builder(field.name, physical)
        .with_repetition(repetition)
        .with_logical_type(logical)
        .build()
}

/// The values of a column, with nothing where there is none.
#[derive(Clone, Debug)]
pub(crate) enum Values {
    Int(Vec<Option<i64>>),
    Text(Vec<Option<ByteArray>>),
}

impl Values {
    pub(crate) fn none(kind: Kind, rows: usize) -> Values {
        match kind {
            Kind::Int | Kind::Time => Values::Int(vec![None; rows]),
            Kind::Text | Kind::Json => Values::Text(vec![None; rows]),
        }
    }

    pub(crate) fn empty(kind: Kind) -> Values {
        Values::none(kind, 0)
    }

    pub(crate) fn push(&mut self, field: &Field, cell: Cell) -> Result<(), BadContent> {
        match (self, cell) {
            (_, Cell::Null) if !field.optional => return Err(BadContent::Missing(field.name)),
            (Values::Int(list), Cell::Null) => list.push(None),
            (Values::Text(list), Cell::Null) => list.push(None),
            (Values::Int(list), Cell::Int(n)) => list.push(Some(n)),
            (Values::Text(list), Cell::Text(t)) => list.push(Some(t.into())),
            _ => return Err(BadContent::Kind(field.name)),
        }
        Ok(())
    }
}

/// Some columns of some rows, as they were read.
#[derive(Clone, Debug, Default)]
pub struct Columns {
    pub(crate) values: BTreeMap<&'static str, Values>,
    pub(crate) rows: usize,
}

impl Columns {
    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn has(&self, column: &str) -> bool {
        self.values.contains_key(column)
    }

    /// Nothing also where the column was not read.
    pub fn int_or_none(&self, column: &'static str, row: usize) -> Result<Option<i64>, BadContent> {
        match self.values.get(column) {
            None => Ok(None),
            Some(Values::Int(list)) => Ok(list.get(row).copied().flatten()),
            Some(Values::Text(_)) => Err(BadContent::Kind(column)),
        }
    }

    pub fn int(&self, column: &'static str, row: usize) -> Result<i64, BadContent> {
        self.int_or_none(column, row)?.ok_or(BadContent::Missing(column))
    }

    pub fn number<T: TryFrom<i64>>(
        &self,
        column: &'static str,
        row: usize,
    ) -> Result<T, BadContent> {
        self.number_or_none(column, row)?.ok_or(BadContent::Missing(column))
    }

    pub fn number_or_none<T: TryFrom<i64>>(
        &self,
        column: &'static str,
        row: usize,
    ) -> Result<Option<T>, BadContent> {
        let Some(n) = self.int_or_none(column, row)? else { return Ok(None) };
        let bad = |_| BadContent::Value { column, value: n.to_string() };
        T::try_from(n).map(Some).map_err(bad)
    }

    pub fn text_or_none(
        &self,
        column: &'static str,
        row: usize,
    ) -> Result<Option<&str>, BadContent> {
        let list = match self.values.get(column) {
            None => return Ok(None),
            Some(Values::Text(list)) => list,
            Some(Values::Int(_)) => return Err(BadContent::Kind(column)),
        };
        let Some(text) = list.get(row).and_then(Option::as_ref) else { return Ok(None) };
        Ok(Some(text.as_utf8()?))
    }

    pub fn text(&self, column: &'static str, row: usize) -> Result<&str, BadContent> {
        self.text_or_none(column, row)?.ok_or(BadContent::Missing(column))
    }

    pub(crate) fn key<R: Row>(&self, row: usize) -> Result<Key, BadContent> {
        let second = if R::KEYS > 1 { self.int(R::FIELDS[1].name, row)? } else { 0 };
        Ok((self.int(R::FIELDS[0].name, row)?, second))
    }
}
