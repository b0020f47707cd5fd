//! The table of the ledger: where the GPU-time of each day went. A day is written at once, when nothing
//! of it can change any more.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use tutti_model::{Day, LedgerRow, TimeClass};

use crate::store::{ArchiveError, Table};
use crate::table::{BadContent, Cell, Columns, Field, Key, Kind, Row, must};

impl Row for LedgerRow {
    const TABLE: &'static str = "ledger";
    /// All rows of a day come together.
    const KEYS: usize = 1;

    const FIELDS: &'static [Field] = &[
        must("day", Kind::Time),
        must("team", Kind::Text),
        must("user", Kind::Text),
        must("gpu_model", Kind::Text),
        must("class", Kind::Text),
        must("gpu_micros", Kind::Int),
    ];

    fn key(&self) -> Key {
        key(self.day)
    }

    fn cells(&self) -> Vec<Cell> {
        vec![
            Cell::large(self.day.begins().0),
            Cell::text(&self.team),
            Cell::text(&self.user),
            Cell::text(&self.model),
            Cell::text(self.class.as_str()),
            Cell::large(self.gpu_micros),
        ]
    }

    fn read(c: &Columns, row: usize) -> Result<LedgerRow, BadContent> {
        let text = |column| c.text(column, row).map(str::to_owned);
        let class = c.text("class", row)?;
        let named = TimeClass::ALL.into_iter().find(|known| known.as_str() == class);
        let bad = || BadContent::Value { column: "class", value: class.to_owned() };
        Ok(LedgerRow {
            day: Day::of(tutti_model::Time(c.number("day", row)?)),
            team: text("team")?,
            user: text("user")?,
            model: text("gpu_model")?,
            class: named.ok_or_else(bad)?,
            gpu_micros: c.number("gpu_micros", row)?,
        })
    }
}

fn key(day: Day) -> Key {
    (i64::try_from(day.begins().0).unwrap_or(i64::MAX), 0)
}

impl Table<LedgerRow> {
    /// The whole of a day. The same a second time changes nothing. Anything else is refused: whoever
    /// adds a day forgets it then, and it would be nowhere.
    pub fn add_day(&self, day: Day, rows: Vec<LedgerRow>) -> Result<u64, ArchiveError> {
        if rows.is_empty() {
            return Ok(0);
        }
        let mut there = Vec::new();
        self.each(day..=day, &BTreeSet::new(), |row| there.push(row))?;
        if !there.is_empty() && there != rows {
            return Err(ArchiveError::Differs { path: self.path(day), day });
        }
        self.add(day, &BTreeSet::from([key(day)]), rows)
    }

    /// Every row of these days, oldest first, without those of `but`. Other files are not opened.
    pub fn each(
        &self,
        days: RangeInclusive<Day>,
        but: &BTreeSet<Day>,
        mut visit: impl FnMut(LedgerRow),
    ) -> Result<(), ArchiveError> {
        for &day in self.days()?.range(days).filter(|day| !but.contains(*day)) {
            let Some(reader) = self.open(day)? else { continue };
            for group in 0..reader.groups() {
                let bad = |source| ArchiveError::Read { path: self.path(day), source };
                reader.all(group).map_err(bad)?.into_iter().for_each(&mut visit);
            }
        }
        Ok(())
    }
}
