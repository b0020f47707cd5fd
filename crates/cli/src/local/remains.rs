//! What there is of a cluster whose controller can't be found: that decides what to say and to do.
//!
//! | journal | processes | other files | so |
//! |---|---|---|---|
//! | there | | | it is not running |
//! | gone | some | | it was deleted while it ran |
//! | gone | none | some | it was deleted or moved away |
//! | gone | none | none | there is no cluster, or no longer |

use std::path::Path;

use super::{CONTROLLER, names, stop};
use crate::fail::{Fail, UNREACHABLE};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remains {
    pub journal: bool,
    /// A CA, or what `tutti up` keeps.
    pub other_files: bool,
    /// Agents and the router, by name.
    pub running: Vec<String>,
}

impl Remains {
    pub fn of(dir: &Path) -> Remains {
        let there = dir.canonicalize().ok().or_else(|| stop::where_it_was(dir));
        let has = |name: &str| dir.join(name).exists();
        let running = there.map_or_else(Vec::new, |dir| stop::running(&dir, None));
        let mut running: Vec<String> = running.into_iter().map(|(name, _)| name).collect();
        running.retain(|name| name != CONTROLLER);
        running.sort_by_cached_key(|name| tutti_controller::views::counted(name));
        Remains {
            journal: has(tutti_controller::JOURNAL_FILE),
            other_files: ["ca.key", "setup.json", tutti_controller::NODES_DIR]
                .iter()
                .any(|name| has(name)),
            running,
        }
    }

    /// It had a journal once, and has none now.
    pub fn lost_its_journal(&self) -> bool {
        !self.journal && (self.other_files || !self.running.is_empty())
    }

    /// What is the case, for whoever looked for the controller.
    pub fn fail(&self, dir: &Path) -> Fail {
        let shown = dir.display();
        let fail = if self.journal {
            Fail::new(format!("the cluster in {shown} is not running"))
                .hint(format!("start it with tutti up --data-dir {shown}"))
        } else if self.lost_its_journal() {
            Fail::new(format!("the cluster in {shown} has lost its journal: {}", self.lost(dir)))
                .hint(self.way_out(dir))
        } else {
            Fail::new(format!("there is no cluster in {shown}, or its directory was deleted")).hint(
                format!(
                    "start one with tutti up --data-dir {shown}, or name another with --cluster or \
                     TUTTI_CLUSTER (a data directory or host:port)"
                ),
            )
        };
        fail.exit(UNREACHABLE)
    }

    fn lost(&self, dir: &Path) -> String {
        let journal = dir.join(tutti_controller::JOURNAL_FILE);
        let gone = format!("{} was deleted or moved away", journal.display());
        match self.still_run() {
            Some(running) => format!("{gone}, and without a controller {running}"),
            None => gone,
        }
    }

    /// `n1, n2 and router still run`, if any do.
    pub fn still_run(&self) -> Option<String> {
        let run = if self.running.len() == 1 { "runs" } else { "run" };
        (!self.running.is_empty()).then(|| format!("{} still {run}", names::list(&self.running)))
    }

    pub fn way_out(&self, dir: &Path) -> String {
        let shown = dir.display();
        let stop = match self.running.is_empty() {
            true => String::new(),
            false => format!("tutti down --data-dir {shown} stops what still runs; "),
        };
        format!(
            "{stop}put the journal back, or a copy of the whole directory and run \
             tutti restore --data-dir {shown}; a new cluster needs another --data-dir, or an empty one"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(remains: &Remains) -> String {
        let fail = remains.fail("/d".as_ref());
        assert_eq!(fail.exit, UNREACHABLE);
        assert!(!fail.to_string().contains("never"), "nobody can know that: {fail}");
        fail.to_string()
    }

    #[test]
    fn what_is_left_decides_what_is_said() {
        let nothing = Remains::default();
        assert!(said(&nothing).contains("there is no cluster in /d, or its directory was deleted"));
        let at_rest = Remains { journal: true, other_files: true, ..nothing.clone() };
        assert!(said(&at_rest).contains("the cluster in /d is not running"));
        let lost = Remains { other_files: true, ..nothing.clone() };
        assert!(said(&lost).contains("/d/journal.redb was deleted or moved away\n"));
        assert!(said(&lost).contains("tutti restore --data-dir /d"));
        let running = vec!["n1".to_owned(), "router".to_owned()];
        let deleted = said(&Remains { running, ..nothing });
        assert!(deleted.contains("without a controller n1, router still run"), "{deleted}");
        assert!(deleted.contains("tutti down --data-dir /d stops what still runs"), "{deleted}");
    }

    #[test]
    fn files_tell_what_there_was() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Remains::of(dir.path()), Remains::default());
        assert_eq!(Remains::of(&dir.path().join("deleted")), Remains::default());
        std::fs::write(dir.path().join("ca.key"), "").unwrap();
        assert!(Remains::of(dir.path()).lost_its_journal());
        std::fs::write(dir.path().join(tutti_controller::JOURNAL_FILE), "").unwrap();
        assert!(!Remains::of(dir.path()).lost_its_journal());
    }
}
