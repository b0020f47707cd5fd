//! The demo's cluster and the directory it lives in. Whatever happens, both are gone afterwards,
//! unless somebody wants them to stay.

use std::path::{Path, PathBuf};

use super::{GPU_MODEL, GPUS_PER_NODE, NODES};
use crate::fail::Fail;
use crate::local::hardware::Hardware;
use crate::local::{self, RouterSetup, RunningCluster, UpOptions};

pub struct House {
    dir: PathBuf,
    /// The directory was ours to make, so it is ours to remove; else only what is in it.
    made_dir: bool,
    cluster: Option<RunningCluster>,
    /// Nothing left to clean up.
    closed: bool,
}

impl House {
    /// A new or empty directory: the demo removes what is in it, so nobody else's may be.
    pub fn open(wanted: Option<&Path>) -> Result<House, Fail> {
        let (dir, made_dir) = match wanted {
            None => (local::temporary_dir("tutti-demo")?, true),
            Some(dir) => claim(dir)?,
        };
        Ok(House { dir, made_dir, cluster: None, closed: false })
    }

    pub fn start(&mut self) -> Result<(), Fail> {
        let hardware = Hardware::simulated(GPUS_PER_NODE, GPU_MODEL);
        let options = UpOptions {
            data_dir: self.dir.clone(),
            // Any free port: the usual one belongs to the user's own cluster.
            listen: Some(([127, 0, 0, 1], 0).into()),
            nodes: local::imagined_nodes(NODES, &hardware),
            node_timeout: None,
            policy: None,
            router: Some(RouterSetup::any_port()),
        };
        self.cluster = Some(local::start(&options)?);
        Ok(())
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn cluster(&mut self) -> Result<&mut RunningCluster, Fail> {
        self.cluster.as_mut().ok_or_else(|| Fail::new("the cluster is not up"))
    }

    /// Everything stays up without us. Says where.
    pub fn leave(mut self) -> Result<PathBuf, Fail> {
        self.cluster()?.leave()?;
        self.closed = true;
        Ok(self.dir.clone())
    }

    /// For a look at what went wrong.
    pub fn stop_and_leave_data(&mut self) -> PathBuf {
        self.stop();
        self.closed = true;
        self.dir.clone()
    }

    pub fn close(&mut self) -> Result<(), Fail> {
        self.stop();
        self.closed = true;
        self.remove().map_err(|e| {
            Fail::new(format!("can't remove {}: {e}", self.dir.display()))
                .hint("nothing runs there any more; remove it by hand")
        })
    }

    fn stop(&mut self) {
        if let Some(mut cluster) = self.cluster.take() {
            cluster.stop();
        }
    }

    fn remove(&self) -> std::io::Result<()> {
        if self.made_dir {
            return std::fs::remove_dir_all(&self.dir);
        }
        for entry in std::fs::read_dir(&self.dir)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                std::fs::remove_dir_all(entry.path())?;
            } else {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

impl Drop for House {
    fn drop(&mut self) {
        if !self.closed
            && let Err(fail) = self.close()
        {
            crate::terminal::complain(&fail.to_string());
        }
    }
}

/// The directory, and whether it had to be made.
fn claim(dir: &Path) -> Result<(PathBuf, bool), Fail> {
    let failed = |e: std::io::Error| Fail::usage(format!("can't use {}: {e}", dir.display()));
    match std::fs::read_dir(dir) {
        Ok(mut entries) => {
            if entries.next().is_some() {
                return Err(Fail::usage(format!("{} is not empty", dir.display()))
                    .hint("the demo removes what is in its data dir: give it a new one"));
            }
            Ok((dir.to_owned(), false))
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            std::fs::create_dir_all(dir).map_err(failed)?;
            Ok((dir.to_owned(), true))
        }
        Err(e) => Err(failed(e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_new_or_empty_dir_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let full = dir.path().join("full");
        std::fs::create_dir(&full).unwrap();
        std::fs::write(full.join("journal.redb"), "precious").unwrap();
        let fail = House::open(Some(&full)).err().unwrap();
        assert_eq!(fail.exit, 2);
        assert!(fail.message.contains("is not empty"), "{fail}");
        assert!(full.join("journal.redb").exists());
    }

    #[test]
    fn what_was_made_is_removed_and_what_was_there_stays() {
        let dir = tempfile::tempdir().unwrap();
        let new = dir.path().join("a/new");
        House::open(Some(&new)).unwrap().close().unwrap();
        assert!(!new.exists());
        let empty = dir.path().join("empty");
        std::fs::create_dir(&empty).unwrap();
        let house = House::open(Some(&empty)).unwrap();
        std::fs::create_dir(empty.join("logs")).unwrap();
        std::fs::write(empty.join("endpoint"), "x").unwrap();
        drop(house);
        assert_eq!(std::fs::read_dir(&empty).unwrap().count(), 0);
    }
}
