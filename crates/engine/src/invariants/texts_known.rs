//! Every stored text is there as long as a spec has it, and no longer.

use std::collections::BTreeSet;

use tutti_model::{State, TextDigest};

pub(super) fn check(state: &State) -> Result<(), String> {
    let jobs = state.jobs.values().flat_map(|job| job.texts.iter());
    let revisions = state.endpoints.values().flat_map(|e| e.revisions.values());
    let wanted: BTreeSet<&TextDigest> =
        jobs.chain(revisions.flat_map(|r| r.texts.iter())).map(|text| &text.digest).collect();
    let there: BTreeSet<&TextDigest> = state.texts.keys().collect();
    if wanted == there {
        return Ok(());
    }
    let missing: Vec<_> = wanted.difference(&there).collect();
    let unused: Vec<_> = there.difference(&wanted).collect();
    Err(format!("missing {missing:?}, unused {unused:?}"))
}
