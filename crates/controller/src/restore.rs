//! A data dir that was put back from a copy: what is in it, and the mark that tells the next controller.

use std::path::Path;

use serde::Serialize;
use tutti_journal::RedbJournal;
use tutti_model::{Job, JobState, Seq, Time};
use tutti_wire::pki::replace_file;

use crate::core::{self, LoadError};
use crate::error::ControllerError;
use crate::start::{JOURNAL_FILE, RESTORED_FILE};

/// What the journal of a controller that does not run knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AtRest {
    /// The last record, and when it was made. Record 0: there is none.
    pub last: Seq,
    pub at: Time,
    pub running: u64,
    pub waiting: u64,
    pub ended: u64,
    pub nodes: Vec<String>,
    pub endpoints: Vec<String>,
}

/// Reads the whole journal, as a start would.
pub fn look(data_dir: &Path) -> Result<AtRest, ControllerError> {
    let path = data_dir.join(JOURNAL_FILE);
    if !path.exists() {
        return Err(ControllerError::JournalMissing { path });
    }
    let mut journal = RedbJournal::open(&path, &Default::default())?;
    let world =
        core::load(&mut journal, Default::default()).map_err(|LoadError::Journal(error)| error)?;
    let state = world.engine.state();
    let of = |wanted: &dyn Fn(JobState) -> bool| {
        state.jobs.values().map(|job| Job::state(job)).filter(|s| wanted(*s)).count() as u64
    };
    Ok(AtRest {
        last: state.seq,
        at: state.at,
        running: of(&|s| !s.is_final() && s != JobState::Pending),
        waiting: of(&|s| s == JobState::Pending),
        ended: of(&JobState::is_final),
        nodes: state.nodes.values().map(|n| n.facts.name.clone()).collect(),
        endpoints: state.endpoints.keys().cloned().collect(),
    })
}

/// The next controller in this data dir goes on above every number that may have been given away
/// since.
pub fn mark(data_dir: &Path) -> Result<(), ControllerError> {
    let words =
        b"The journal here is a copy that was put back. The next controller removes this.\n";
    Ok(replace_file(&data_dir.join(RESTORED_FILE), words, 0o600)?)
}
