//! Builders for this crate's own tests.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tutti_model::{
    Bytes, Generation, GpuIndex, Host, JobSpec, Launch, LeaseId, Rank, Restarts, Time,
};

pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new(name: &str) -> TempDir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("tutti-{name}-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("the temporary directory is writable");
        TempDir(dir)
    }
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// One rank of `true` on one GPU of node `n1`.
pub fn launch(task: &str, generation: u64) -> Launch {
    Launch {
        lease: LeaseId { task: task.parse().unwrap(), generation: Generation(generation) },
        attempt: 1,
        restarts: Restarts::default(),
        user: "root".into(),
        spec: Arc::new(JobSpec::shell("true")),
        submitted_at: Time(0),
        gpus: vec![GpuIndex(0)],
        cpus: 1,
        mem: Bytes::gib(1),
        first_rank: Rank(0),
        ranks: 1,
        world_size: 1,
        node_rank: 0,
        hosts: vec![Host {
            name: "n1".into(),
            address: "127.0.0.1".into(),
            gpus: 1,
            ranks: 1,
            rack: None,
        }],
        wait_for_go: false,
        array_tasks: None,
        saved: None,
        key: None,
        limit: None,
    }
}
