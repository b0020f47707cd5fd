//! The rows of one job, put together again.

use tutti_model::{JobState, TaskId};
use tutti_wire::api::{ArrayCounts, JobRow};

use crate::jobs::JobEntry;

/// A job of which some rows have been seen.
pub(crate) struct Fold {
    row: JobRow,
    array: Option<ArrayCounts>,
}

impl Fold {
    pub(crate) fn of(entry: JobEntry) -> Fold {
        let is_array = entry.row.id.index.is_some() || entry.indices.is_some();
        if !is_array {
            return Fold { row: entry.row, array: None };
        }
        let first = entry.row.clone();
        let mut row = JobRow { id: TaskId::single(first.id.job), note: String::new(), ..first };
        row.node_names.clear();
        (row.suspended_for, row.between_attempts) = Default::default();
        (row.restarts, row.exit_code) = (0, None);
        let mut fold = Fold { row, array: Some(ArrayCounts::default()) };
        fold.add(&entry);
        fold
    }

    /// A task by itself, as it is.
    pub(crate) fn task(entry: JobEntry) -> Fold {
        Fold { row: entry.row, array: None }
    }

    /// One more task of the same array.
    pub(crate) fn add(&mut self, entry: &JobEntry) {
        let (Some(array), more) = (&mut self.array, &entry.row) else { return };
        let count = match more.state {
            JobState::Completed => &mut array.completed,
            JobState::Cancelled => &mut array.cancelled,
            _ => &mut array.failed,
        };
        *count += entry.tasks;
        let row = &mut self.row;
        row.started_at = [row.started_at, more.started_at].into_iter().flatten().min();
        row.ended_at = row.ended_at.max(more.ended_at);
        row.restarts = row.restarts.saturating_add(more.restarts);
        // One that did not complete and has no code counts as 1.
        let failed = (more.state != JobState::Completed).then_some(1);
        row.exit_code = row.exit_code.max(more.exit_code.or(failed));
    }

    /// The row of the whole: the worst of its tasks says how it ended.
    pub(crate) fn row(self) -> JobRow {
        let Some(array) = self.array else { return self.row };
        let state = if array.failed > 0 {
            JobState::Failed
        } else if array.cancelled > 0 {
            JobState::Cancelled
        } else {
            JobState::Completed
        };
        JobRow { state, array: Some(array), ..self.row }
    }
}
