//! Sweeping: what dead writers and half-done removals left behind.
//!
//! A file that no manifest names is garbage only if nobody can still publish it. That is known of
//! attempts that a newer generation has replaced, and of steps that this very process has left
//! behind. Age proves nothing, so it is never asked.

use std::collections::BTreeSet;

use serde::Serialize;

use super::{Registered, Store, revisions_of};
use crate::error::Error;
use crate::layout::{self, Attempt, AttemptDir};
use crate::manifest::Entry;
use crate::tier::Tier;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Swept {
    /// Steps whose removal was taken up again.
    pub finished: Vec<u64>,
    /// Files of dead attempts that were removed, with their place.
    pub files: Vec<String>,
}

impl Store {
    /// Removes garbage from every place that answers.
    pub fn sweep(&self) -> Result<Swept, Error> {
        let mut swept = Swept::default();
        let home = &**self.home();
        let mut attempts: Vec<Attempt> =
            self.writer().ok().map(|w| w.attempt.clone()).into_iter().collect();
        let mut entries = Vec::new();
        for step in self.steps(home)? {
            match self.registered(home, step) {
                Ok(Some(found)) => entries.push((step, Some(found))),
                Ok(None) => entries.push((step, None)),
                // Its files are left alone: what it names is not known.
                Err(Error::Manifest { .. }) => {}
                Err(e) => return Err(e),
            }
        }
        let newest = entries.iter().rev().find_map(|(step, found)| {
            let found = found.as_ref()?;
            matches!(found.entry, Entry::Published(_)).then_some(*step)
        });
        for (_, found) in &entries {
            attempts.extend(found.iter().map(|f| f.entry.manifest().attempt.clone()));
        }
        for (step, found) in &entries {
            self.sweep_step(*step, found.as_ref(), &attempts, &mut swept)?;
        }
        let known: BTreeSet<u64> = self.steps(home)?.into_iter().collect();
        for tier in self.followers() {
            self.sweep_copies(&**tier, &known, newest, &mut swept);
        }
        Ok(swept)
    }

    fn sweep_step(
        &self,
        step: u64,
        found: Option<&Registered>,
        attempts: &[Attempt],
        swept: &mut Swept,
    ) -> Result<(), Error> {
        let mut named = BTreeSet::new();
        match found {
            Some(Registered { entry: Entry::Retracted(manifest), .. }) => {
                self.finish_removal(step, manifest)?;
                swept.finished.push(step);
            }
            Some(Registered { entry: Entry::Published(manifest), revision }) => {
                self.drop_before(&**self.home(), step, *revision);
                named.extend(manifest.files.iter().map(|f| f.path.clone()));
            }
            None => {}
        }
        for tier in self.kept() {
            let collected = self.collect(&**tier, step, &named, attempts, swept);
            match collected {
                Err(e) if !std::ptr::eq(&**tier, &**self.home()) => {
                    tracing::warn!("not swept: {}", crate::chain(&e));
                }
                collected => collected?,
            }
        }
        Ok(())
    }

    /// Removes files of dead attempts that are not named.
    pub(super) fn collect(
        &self,
        tier: &dyn Tier,
        step: u64,
        named: &BTreeSet<String>,
        attempts: &[Attempt],
        swept: &mut Swept,
    ) -> Result<(), Error> {
        let step_dir = layout::step_dir(step);
        for item in tier.list(&step_dir)?.into_iter().filter(|i| i.is_dir) {
            let Some(dir) = AttemptDir::parse(&item.name) else { continue };
            if !self.is_dead(step, &dir, attempts) {
                continue;
            }
            let path = format!("{step_dir}/{}", item.name);
            for file in tier.list(&path)? {
                let file = format!("{path}/{}", file.name);
                if !named.contains(&file) {
                    tier.remove(&file)?;
                    swept.files.push(format!("{file} in {}", tier.label()));
                }
            }
            tier.prune(&path)?;
        }
        tier.prune(&step_dir)?;
        Ok(())
    }

    fn is_dead(&self, step: u64, dir: &AttemptDir, attempts: &[Attempt]) -> bool {
        let replaced = attempts.iter().any(|a| dir.is_of(a) && dir.generation < a.generation);
        let own = self.writer().is_ok_and(|w| *dir == AttemptDir::of(&w.attempt));
        replaced || (own && self.has_left_behind(step))
    }

    /// Copies of what the home has removed. A copy whose manifest is beside it was published once, so
    /// it is nobody's work in progress.
    fn sweep_copies(
        &self,
        tier: &dyn Tier,
        known: &BTreeSet<u64>,
        newest: Option<u64>,
        swept: &mut Swept,
    ) {
        let sweep = || -> Result<Vec<u64>, Error> {
            let mut gone = Vec::new();
            for step in self.steps(tier)? {
                let is_old = newest.is_some_and(|newest| step < newest);
                if known.contains(&step) || !is_old || revisions_of(tier, step)?.is_empty() {
                    continue;
                }
                if let Some(found) = self.registered(tier, step)? {
                    self.remove_copy(tier, step, found.entry.manifest())?;
                    gone.push(step);
                }
            }
            Ok(gone)
        };
        match sweep() {
            Ok(gone) => swept.files.extend(
                gone.into_iter().map(|s| format!("{} in {}", layout::step_dir(s), tier.label())),
            ),
            Err(e) => tracing::warn!("not swept: {}", crate::chain(&e)),
        }
    }
}
