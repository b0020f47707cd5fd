//! One Parquet file: reading parts of it, and writing it group by group.

use std::collections::BTreeSet;
use std::fs::File;
use std::marker::PhantomData;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, ZstdLevel};
use parquet::column::reader::ColumnReader;
use parquet::column::writer::ColumnCloseResult;
use parquet::data_type::{ByteArrayType, DataType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, RowGroupMetaData};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use parquet::file::statistics::Statistics;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};

use crate::table::{BadContent, Columns, Field, Key, Kind, Row, Values, schema};

/// Rows in a group: what is read or filled at once.
pub(crate) const GROUP_ROWS: usize = 20_000;

/// Which version of the columns' meaning a file has. New columns do not change it.
pub(crate) const VERSION_KEY: &str = "tutti.version";
pub(crate) const VERSION: &str = "1";

/// A file as it was when it was opened: one that is put in its place meanwhile changes nothing.
pub(crate) struct Reader<R> {
    inner: SerializedFileReader<File>,
    /// To copy from.
    raw: File,
    row: PhantomData<R>,
}

impl<R: Row> Reader<R> {
    pub(crate) fn open(path: &Path) -> Result<Reader<R>, BadContent> {
        let file = File::open(path).map_err(ParquetError::from)?;
        let raw = file.try_clone().map_err(ParquetError::from)?;
        let inner = SerializedFileReader::new(file)?;
        let reader = Reader { inner, raw, row: PhantomData };
        match reader.version() {
            Some(VERSION) => Ok(reader),
            other => {
                let value = other.unwrap_or("nothing").to_owned();
                Err(BadContent::Value { column: VERSION_KEY, value })
            }
        }
    }

    fn version(&self) -> Option<&str> {
        let pairs = self.inner.metadata().file_metadata().key_value_metadata()?;
        pairs.iter().find(|kv| kv.key == VERSION_KEY)?.value.as_deref()
    }

    pub(crate) fn groups(&self) -> usize {
        self.inner.num_row_groups()
    }

    pub(crate) fn group_rows(&self, group: usize) -> usize {
        usize::try_from(self.meta(group).num_rows()).unwrap_or(0)
    }

    pub(crate) fn rows(&self) -> usize {
        (0..self.groups()).map(|g| self.group_rows(g)).sum()
    }

    fn meta(&self, group: usize) -> &RowGroupMetaData {
        self.inner.metadata().row_group(group)
    }

    /// The smallest and the largest number in a column of this group, if they are known.
    pub(crate) fn range(&self, group: usize, column: &str) -> Option<(i64, i64)> {
        let place = self.place(column)?;
        match self.meta(group).column(place).statistics()? {
            Statistics::Int64(stats) => Some((*stats.min_opt()?, *stats.max_opt()?)),
            _ => None,
        }
    }

    fn place(&self, column: &str) -> Option<usize> {
        let schema = self.inner.metadata().file_metadata().schema_descr();
        schema.columns().iter().position(|c| c.name() == column)
    }

    /// Adds columns of this group to those that are read already.
    pub(crate) fn read(
        &self,
        group: usize,
        wanted: impl Fn(&Field) -> bool,
        into: &mut Columns,
    ) -> Result<(), BadContent> {
        self.read_rows(group, 0..self.group_rows(group), wanted, into)
    }

    /// One row, with all that there is.
    pub(crate) fn one(&self, group: usize, row: usize) -> Result<R, BadContent> {
        let mut columns = Columns::default();
        self.read_rows(group, row..row + 1, |_| true, &mut columns)?;
        R::read(&columns, 0)
    }

    fn read_rows(
        &self,
        group: usize,
        rows: Range<usize>,
        wanted: impl Fn(&Field) -> bool,
        into: &mut Columns,
    ) -> Result<(), BadContent> {
        into.rows = rows.len();
        let reader = self.inner.get_row_group(group)?;
        for field in R::FIELDS.iter().filter(|f| wanted(f)) {
            if into.has(field.name) {
                continue;
            }
            let values = match self.place(field.name) {
                None => Values::none(field.kind, rows.len()),
                Some(place) => column(reader.as_ref(), place, field, &rows)?,
            };
            into.values.insert(field.name, values);
        }
        Ok(())
    }

    pub(crate) fn all(&self, group: usize) -> Result<Vec<R>, BadContent> {
        let mut columns = Columns::default();
        self.read(group, |_| true, &mut columns)?;
        (0..columns.rows).map(|row| R::read(&columns, row)).collect()
    }

    /// Which of these are in the file.
    pub(crate) fn known(&self, keys: &BTreeSet<Key>) -> Result<BTreeSet<Key>, BadContent> {
        let mut known = BTreeSet::new();
        let first = R::FIELDS[0].name;
        for group in 0..self.groups() {
            let (min, max) = self.range(group, first).unwrap_or((i64::MIN, i64::MAX));
            if keys.range((min, i64::MIN)..=(max, i64::MAX)).next().is_none() {
                continue;
            }
            let mut columns = Columns::default();
            let of_key = |f: &Field| R::FIELDS[..R::KEYS].iter().any(|k| k.name == f.name);
            self.read(group, of_key, &mut columns)?;
            for row in 0..columns.rows {
                let key = columns.key::<R>(row)?;
                if keys.contains(&key) {
                    known.insert(key);
                }
            }
        }
        Ok(known)
    }

    /// Groups can be copied as they are only between files of the same columns.
    fn has_todays_columns(&self) -> Result<bool, ParquetError> {
        let file = self.inner.metadata().file_metadata();
        Ok(*file.schema() == *schema::<R>()?)
    }
}

fn column(
    group: &dyn RowGroupReader,
    place: usize,
    field: &Field,
    rows: &Range<usize>,
) -> Result<Values, BadContent> {
    let (skip, take) = (rows.start, rows.len());
    let optional = group.metadata().column(place).column_descr().max_def_level() > 0;
    let values = match (group.get_column_reader(place)?, field.kind) {
        (ColumnReader::Int64ColumnReader(mut reader), Kind::Int | Kind::Time) => {
            let (mut levels, mut values) = (Vec::new(), Vec::with_capacity(take));
            reader.skip_records(skip)?;
            reader.read_records(take, Some(&mut levels), None, &mut values)?;
            Values::Int(spread(optional, &levels, values))
        }
        (ColumnReader::ByteArrayColumnReader(mut reader), Kind::Text | Kind::Json) => {
            let (mut levels, mut values) = (Vec::new(), Vec::with_capacity(take));
            reader.skip_records(skip)?;
            reader.read_records(take, Some(&mut levels), None, &mut values)?;
            Values::Text(spread(optional, &levels, values))
        }
        _ => return Err(BadContent::Kind(field.name)),
    };
    Ok(values)
}

/// Puts nothing back where nothing was.
fn spread<T>(optional: bool, levels: &[i16], values: Vec<T>) -> Vec<Option<T>> {
    if !optional {
        return values.into_iter().map(Some).collect();
    }
    let mut values = values.into_iter();
    levels.iter().map(|&level| if level > 0 { values.next() } else { None }).collect()
}

/// Writes a file from its beginning.
pub(crate) struct Writer<R> {
    inner: SerializedFileWriter<File>,
    pending: Vec<Values>,
    rows: usize,
    row: PhantomData<R>,
}

impl<R: Row> Writer<R> {
    pub(crate) fn new(file: File) -> Result<Writer<R>, BadContent> {
        let version = KeyValue::new(VERSION_KEY.to_owned(), VERSION.to_owned());
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?))
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_offset_index_disabled(true)
            .set_created_by(concat!("tutti ", env!("CARGO_PKG_VERSION")).to_owned())
            .set_key_value_metadata(Some(vec![version]))
            .build();
        let inner = SerializedFileWriter::new(file, schema::<R>()?, Arc::new(properties))?;
        Ok(Writer { inner, pending: blank::<R>(), rows: 0, row: PhantomData })
    }

    /// Takes over what the file has. Full groups are copied as they are; the last one is filled up.
    pub(crate) fn take_over(&mut self, old: &Reader<R>) -> Result<(), BadContent> {
        let copy = old.has_todays_columns()?;
        for group in 0..old.groups() {
            if copy && self.rows == 0 && old.group_rows(group) >= GROUP_ROWS {
                self.copy(old, group)?;
            } else {
                old.all(group)?.into_iter().try_for_each(|row| self.push(&row))?;
            }
        }
        Ok(())
    }

    fn copy(&mut self, old: &Reader<R>, group: usize) -> Result<(), BadContent> {
        let meta = old.meta(group);
        let mut writer = self.inner.next_row_group()?;
        for column in meta.columns() {
            let close = ColumnCloseResult {
                bytes_written: column.compressed_size() as u64,
                rows_written: meta.num_rows() as u64,
                metadata: column.clone(),
                bloom_filter: None,
                column_index: None,
                offset_index: None,
            };
            writer.append_column(&old.raw, close)?;
        }
        writer.close()?;
        Ok(())
    }

    pub(crate) fn push(&mut self, row: &R) -> Result<(), BadContent> {
        let cells = row.cells();
        debug_assert_eq!(cells.len(), R::FIELDS.len());
        for ((values, field), cell) in self.pending.iter_mut().zip(R::FIELDS).zip(cells) {
            values.push(field, cell)?;
        }
        self.rows += 1;
        if self.rows >= GROUP_ROWS { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), BadContent> {
        if self.rows == 0 {
            return Ok(());
        }
        let columns = std::mem::replace(&mut self.pending, blank::<R>());
        self.rows = 0;
        let mut group = self.inner.next_row_group()?;
        for (values, field) in columns.into_iter().zip(R::FIELDS) {
            match values {
                Values::Int(list) => put::<Int64Type>(&mut group, field, list)?,
                Values::Text(list) => put::<ByteArrayType>(&mut group, field, list)?,
            }
        }
        group.close()?;
        Ok(())
    }

    /// The file, with everything in it. It is not on disk for good yet.
    pub(crate) fn finish(mut self) -> Result<File, BadContent> {
        self.flush()?;
        Ok(self.inner.into_inner()?)
    }
}

fn blank<R: Row>() -> Vec<Values> {
    R::FIELDS.iter().map(|f| Values::empty(f.kind)).collect()
}

fn put<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, File>,
    field: &Field,
    list: Vec<Option<T::T>>,
) -> Result<(), BadContent> {
    let mut column = group.next_column()?.ok_or(BadContent::Missing(field.name))?;
    let levels: Vec<i16> = list.iter().map(|v| i16::from(v.is_some())).collect();
    let values: Vec<T::T> = list.into_iter().flatten().collect();
    let levels = field.optional.then_some(levels.as_slice());
    column.typed::<T>().write_batch(&values, levels, None)?;
    column.close()?;
    Ok(())
}
