//! A disk in memory that remembers every write, may be full, and may lose power.

use std::io::{Error, ErrorKind, Result};
use std::sync::{Arc, Mutex};

use rand::{Rng, RngExt};
use redb::StorageBackend;
use tutti_model::Seq;

use super::super::{Guard, Options, RedbJournal, open};

#[derive(Clone, Debug)]
pub enum Op {
    Write {
        offset: u64,
        data: Vec<u8>,
    },
    SetLen(u64),
    Sync,
    /// The journal said that everything up to here is durable.
    Acknowledged(Seq),
}

#[derive(Clone, Debug, Default)]
pub struct Disk {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    bytes: Vec<u8>,
    ops: Vec<Op>,
    full: bool,
}

impl Disk {
    pub fn with(bytes: Vec<u8>) -> Disk {
        let disk = Disk::default();
        disk.inner.lock().unwrap().bytes = bytes;
        disk
    }

    pub fn journal(&self) -> RedbJournal {
        let guard = Guard::new("disk".into());
        let backend = self.clone();
        let (db, recovery) =
            open::create(&guard, &Options::default(), |b| b.create_with_backend(backend)).unwrap();
        RedbJournal::from_database(db, "disk".into(), recovery).unwrap()
    }

    pub fn fill_up(&self) {
        self.inner.lock().unwrap().full = true;
    }
    pub fn make_room(&self) {
        self.inner.lock().unwrap().full = false;
    }
    pub fn acknowledged(&self, seq: Seq) {
        self.inner.lock().unwrap().ops.push(Op::Acknowledged(seq));
    }
    pub fn ops(&self) -> Vec<Op> {
        self.inner.lock().unwrap().ops.clone()
    }
    pub fn syncs(&self) -> usize {
        self.ops().iter().filter(|op| matches!(op, Op::Sync)).count()
    }
}

/// What is left when power fails after `ops`: everything before the last sync, and of what came
/// after it any sectors in any mixture.
pub fn after_power_loss(ops: &[Op], rng: &mut impl Rng) -> Vec<u8> {
    const SECTOR: usize = 512;
    let synced = ops.iter().rposition(|op| matches!(op, Op::Sync)).map_or(0, |at| at + 1);
    let keep = rng.random_range(0.0..=1.0);
    let resized = rng.random_bool(0.5);
    let mut bytes = Vec::new();
    for (at, op) in ops.iter().enumerate() {
        let certain = at < synced;
        match op {
            Op::SetLen(len) if certain || resized => bytes.resize(*len as usize, 0),
            Op::Write { offset, data } => {
                for (n, sector) in data.chunks(SECTOR).enumerate() {
                    let from = *offset as usize + n * SECTOR;
                    let to = from + sector.len();
                    if to <= bytes.len() && (certain || rng.random_bool(keep)) {
                        bytes[from..to].copy_from_slice(sector);
                    }
                }
            }
            _ => {}
        }
    }
    bytes
}

impl StorageBackend for Disk {
    fn len(&self) -> Result<u64> {
        Ok(self.inner.lock().unwrap().bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let inner = self.inner.lock().unwrap();
        let from = offset as usize;
        let there = inner.bytes.get(from..from + out.len());
        out.copy_from_slice(there.ok_or(Error::from(ErrorKind::UnexpectedEof))?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        let mut inner = self.inner.lock().unwrap();
        inner.bytes.resize(len as usize, 0);
        inner.ops.push(Op::SetLen(len));
        Ok(())
    }

    fn sync_data(&self) -> Result<()> {
        self.inner.lock().unwrap().ops.push(Op::Sync);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let mut inner = self.inner.lock().unwrap();
        if inner.full {
            return Err(Error::from(ErrorKind::StorageFull));
        }
        let from = offset as usize;
        inner.bytes[from..from + data.len()].copy_from_slice(data);
        inner.ops.push(Op::Write { offset, data: data.to_vec() });
        Ok(())
    }
}
