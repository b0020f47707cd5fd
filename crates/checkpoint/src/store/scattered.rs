//! A home on every node: no directory that all of them share.
//!
//! Each writer's shards are in its own node's home and in the copies that it made; the manifest is in
//! all of them. What one place does not know another does, so everything is looked for everywhere,
//! and of two manifests of one step that of the newer attempt counts.
//!
//! ```text
//!  node 0  shards of 0, copies of 2, manifest      lose any one node, and every
//!  node 1  shards of 1, copies of 0, manifest      shard is still in some place
//!  node 2  shards of 2, copies of 1, manifest
//! ```

use std::collections::BTreeSet;
use std::ops::Range;

use bytes::Bytes;

use super::sweep::Swept;
use super::{Listed, Registered, Store};
use crate::error::Error;
use crate::load::LoadReport;
use crate::manifest::{Entry, Manifest};
use crate::retention::{Candidate, Keep};
use crate::tier::TierError;

impl Store {
    pub(crate) fn is_scattered(&self) -> bool {
        self.0.options.scattered
    }

    /// Steps that any place has a directory for, oldest first.
    pub(crate) fn steps_anywhere(&self, report: &mut LoadReport) -> Vec<u64> {
        let mut found = BTreeSet::new();
        for tier in self.tiers() {
            match self.steps(&**tier) {
                Ok(steps) => found.extend(steps),
                Err(e) => report.unreachable(tier.label(), &e),
            }
        }
        found.into_iter().collect()
    }

    /// What the newest attempt published for a step, wherever that is known.
    pub(crate) fn newest_anywhere(
        &self,
        step: u64,
        report: &mut LoadReport,
    ) -> Result<Option<Manifest>, Error> {
        let own = self.writer().ok().map(|writer| writer.attempt.owner.clone());
        let mut best: Option<(_, Manifest)> = None;
        let mut problem = None;
        for tier in self.tiers() {
            match self.registered(&**tier, step) {
                Ok(Some(Registered { entry: Entry::Published(manifest), revision })) => {
                    // Generations of another owner have no order with ours.
                    let is_own = own.as_ref().is_none_or(|own| manifest.attempt.owner == *own);
                    let key = (is_own, manifest.attempt.generation, revision);
                    if best.as_ref().is_none_or(|(known, _)| key > *known) {
                        best = Some((key, manifest));
                    }
                }
                Ok(_) => {}
                Err(e @ Error::Manifest { .. }) => {
                    report.bad_manifest(step, &e);
                    problem = Some(e);
                }
                Err(e) => report.unreachable(tier.label(), &e),
            }
        }
        match (best, problem) {
            (Some((_, manifest)), _) => Ok(Some(manifest)),
            (None, Some(e)) => Err(e),
            (None, None) => Ok(None),
        }
    }

    pub(super) fn list_anywhere(&self) -> Vec<Listed> {
        let mut report = LoadReport::default();
        let steps = self.steps_anywhere(&mut report);
        let mut found = Vec::new();
        for step in steps {
            match self.newest_anywhere(step, &mut report) {
                Ok(Some(manifest)) => found.push(Listed { step, manifest: Ok(manifest) }),
                Ok(None) => {}
                Err(e) => found.push(Listed { step, manifest: Err(e) }),
            }
        }
        found
    }

    /// Whether some node has a file at its full length. A node that does not answer has nothing.
    pub(super) fn is_anywhere(&self, path: &str, bytes: u64) -> bool {
        self.kept().any(|tier| tier.size(path).is_ok_and(|size| size == Some(bytes)))
    }

    pub(super) fn read_anywhere(&self, path: &str, range: Range<u64>) -> Result<Bytes, TierError> {
        let mut last = None;
        for tier in self.kept() {
            match tier.read(path, range.clone()) {
                Ok(bytes) => return Ok(bytes),
                Err(e) => last = Some(e),
            }
        }
        Err(last.expect("there is a home"))
    }

    /// Removes what is not to be kept from every node that answers, and what dead attempts left there.
    pub(super) fn retain_anywhere(&self, keep: &Keep) -> Vec<u64> {
        let listed = self.list_anywhere();
        let manifests: Vec<Manifest> = listed.into_iter().filter_map(|l| l.manifest.ok()).collect();
        let is_complete = |m: &Manifest| m.files.iter().all(|f| self.is_anywhere(&f.path, f.bytes));
        let candidate = |m: &Manifest| Candidate {
            step: m.step,
            pinned: m.pinned.is_some(),
            complete: is_complete(m),
        };
        let candidates: Vec<Candidate> = manifests.iter().map(candidate).collect();
        let doomed = keep.doomed(&candidates);
        for manifest in &manifests {
            if doomed.contains(&manifest.step) {
                self.remove_anywhere(manifest);
            } else {
                let named = manifest.files.iter().map(|f| f.path.clone()).collect();
                self.sweep_anywhere(manifest.step, &named);
            }
        }
        self.sweep_unpublished();
        doomed
    }

    /// Steps of which some node has shards and no place has a manifest. Those of a save that is under
    /// way are nobody's garbage yet: `collect` knows them.
    fn sweep_unpublished(&self) {
        let mut report = LoadReport::default();
        for step in self.steps_anywhere(&mut report) {
            let found = self.newest_anywhere(step, &mut report);
            // A place that does not answer may have the manifest that names them.
            if !report.is_clean() {
                return;
            }
            if let Ok(None) = found {
                self.sweep_anywhere(step, &BTreeSet::new());
            }
        }
    }

    /// Takes this owner's checkpoints away from all nodes, but for pinned ones: the work is somewhere
    /// else now.
    pub fn clear_nodes(&self) -> Vec<u64> {
        let Ok(writer) = self.writer() else { return Vec::new() };
        let all = self.list_anywhere().into_iter().filter_map(|l| l.manifest.ok());
        let is_own = |m: &Manifest| m.attempt.owner == writer.attempt.owner;
        let doomed: Vec<Manifest> = all.filter(|m| m.pinned.is_none() && is_own(m)).collect();
        doomed.iter().for_each(|manifest| self.remove_anywhere(manifest));
        doomed.iter().map(|manifest| manifest.step).collect()
    }

    /// The manifests go first, everywhere: nobody shall find half of it.
    fn remove_anywhere(&self, manifest: &Manifest) {
        for tier in self.kept() {
            if let Err(e) = super::remove::remove_register(&**tier, manifest.step) {
                tracing::warn!("step {} is left: {}", manifest.step, crate::chain(&e));
                return;
            }
        }
        for tier in self.kept() {
            if let Err(e) = self.remove_copy(&**tier, manifest.step, manifest) {
                tracing::warn!("files of step {} are left: {}", manifest.step, crate::chain(&e));
            }
        }
    }

    /// Files of dead attempts that are not named.
    fn sweep_anywhere(&self, step: u64, named: &BTreeSet<String>) {
        let Ok(writer) = self.writer() else { return };
        let attempts = [writer.attempt.clone()];
        for tier in self.kept() {
            let mut swept = Swept::default();
            if let Err(e) = self.collect(&**tier, step, named, &attempts, &mut swept) {
                tracing::warn!("not swept: {}", crate::chain(&e));
            }
        }
    }
}
