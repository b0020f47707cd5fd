//! What became of the GPU-time of whole jobs, with hardly anything else of them: a report over months
//! looks at all there were.

use std::ops::RangeInclusive;

use tutti_model::{Amounts, Day, JobId};

use crate::file::Reader;
use crate::jobs::{JobEntry, TIMES, time};
use crate::store::{ArchiveError, Table};
use crate::table::{BadContent, Columns, Field};

/// A job and where its time went.
#[derive(Clone, Debug, PartialEq)]
pub struct JobTime<'a> {
    pub job: JobId,
    pub name: &'a str,
    pub user: &'a str,
    pub team: &'a str,
    /// Of the GPUs that it had; empty if nobody knows.
    pub gpu_model: &'a str,
    pub time: Amounts,
}

/// What is read beside the amounts.
const NAMES: [&str; 5] = ["job", "name", "user", "team", "gpu_model"];

impl Table<JobEntry> {
    /// Every job that ended on these days, once, if its file knows where its time went.
    pub fn times(
        &self,
        days: RangeInclusive<Day>,
        mut visit: impl FnMut(JobTime<'_>),
    ) -> Result<(), ArchiveError> {
        for &day in self.days()?.range(days) {
            let Some(reader) = self.open(day)? else { continue };
            for group in 0..reader.groups() {
                let bad = |source| ArchiveError::Read { path: self.path(day), source };
                of_group(&reader, group, &mut visit).map_err(bad)?;
            }
        }
        Ok(())
    }
}

fn of_group(
    reader: &Reader<JobEntry>,
    group: usize,
    visit: &mut impl FnMut(JobTime<'_>),
) -> Result<(), BadContent> {
    let mut columns = Columns::default();
    let is_amount = |f: &Field| TIMES.iter().any(|(_, column)| *column == f.name);
    reader.read(group, |f| NAMES.contains(&f.name) || is_amount(f), &mut columns)?;
    for row in 0..columns.rows() {
        let Some(time) = time(&columns, row)? else { continue };
        visit(JobTime {
            job: JobId(columns.number("job", row)?),
            name: columns.text("name", row)?,
            user: columns.text("user", row)?,
            team: columns.text_or_none("team", row)?.unwrap_or_default(),
            gpu_model: columns.text_or_none("gpu_model", row)?.unwrap_or_default(),
            time,
        });
    }
    Ok(())
}
