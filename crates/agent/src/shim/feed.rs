//! Input on its way to a program that may not read it yet. What does not fit in memory goes to a
//! file without a name, so that a program that never reads its input costs disk, not memory.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

const MEMORY_MAX: usize = 1 << 20;
/// As much as the log of a rank may take. What comes when so much waits is cut off.
const SPOOL_MAX: u64 = 256 << 20;

/// Input did not fit.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    #[error("{} MiB of it wait and were not read", SPOOL_MAX >> 20)]
    Full,
    #[error("it can't be kept: {0}")]
    Io(#[from] io::Error),
}

pub struct Feed {
    pipe: OwnedFd,
    memory: Vec<u8>,
    /// How much of `memory` is written already.
    written: usize,
    spool: Option<Spool>,
    eof: bool,
}

struct Spool {
    file: File,
    read: u64,
    len: u64,
}

impl Feed {
    /// `pipe` is the writing end, non-blocking.
    pub fn new(pipe: OwnedFd) -> Feed {
        Feed { pipe, memory: Vec::new(), written: 0, spool: None, eof: false }
    }

    /// After [`FeedError::Full`] the program gets what came before, and then the end.
    pub fn push(&mut self, data: &[u8], eof: bool) -> Result<(), FeedError> {
        if self.eof {
            return Ok(());
        }
        self.eof = eof;
        if self.spool.is_none() && self.memory.len() + data.len() <= MEMORY_MAX {
            self.memory.extend_from_slice(data);
            return Ok(());
        }
        if self.spool.is_none() {
            self.spool = Some(Spool { file: unnamed()?, read: 0, len: 0 });
        }
        let spool = self.spool.as_mut().expect("made above");
        if spool.len - spool.read + data.len() as u64 > SPOOL_MAX {
            self.eof = true;
            return Err(FeedError::Full);
        }
        spool.file.write_all_at(data, spool.len)?;
        spool.len += data.len() as u64;
        Ok(())
    }

    pub fn wants_write(&self) -> bool {
        self.written < self.memory.len() || self.spool.is_some() || self.eof
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }

    /// Writes what the pipe takes. True when the pipe is to be closed: all is written and no more
    /// will come, or nobody reads any more.
    pub fn pump(&mut self) -> io::Result<bool> {
        loop {
            if self.written == self.memory.len() && !self.refill()? {
                return Ok(self.eof);
            }
            match nix::unistd::write(&self.pipe, &self.memory[self.written..]) {
                Ok(n) => self.written += n,
                Err(nix::Error::EAGAIN) => return Ok(false),
                Err(nix::Error::EINTR) => {}
                Err(nix::Error::EPIPE) => return Ok(true),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Takes the next piece from the spool. False: nothing waits.
    fn refill(&mut self) -> io::Result<bool> {
        self.memory.clear();
        self.written = 0;
        let Some(spool) = &mut self.spool else { return Ok(false) };
        let want = (spool.len - spool.read).min(MEMORY_MAX as u64) as usize;
        if want == 0 {
            self.spool = None;
            return Ok(false);
        }
        self.memory.resize(want, 0);
        spool.file.read_exact_at(&mut self.memory, spool.read)?;
        spool.read += want as u64;
        spool.release();
        Ok(true)
    }
}

impl Spool {
    /// Gives the disk back what was read. A file system that can't has it back at the end.
    fn release(&self) {
        use std::os::fd::AsRawFd;
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: a plain system call on a file that is ours alone.
        unsafe { libc::fallocate(self.file.as_raw_fd(), mode, 0, self.read as libc::off_t) };
    }
}

/// In the shim's own directory, the agent's data dir, where only the agent's user may look.
fn unnamed() -> io::Result<File> {
    let name = format!("stdin-{}", std::process::id());
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.read(true).write(true).create_new(true).mode(0o600).open(&name)?;
    std::fs::remove_file(&name)?;
    file.flush()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::OFlag;
    use std::io::Read;

    #[test]
    fn input_that_nobody_reads_is_cut_and_then_ends() {
        let (_read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).unwrap();
        let mut feed = Feed::new(write);
        feed.push(&vec![0; MEMORY_MAX], false).unwrap();
        // As if that much had come.
        feed.spool = Some(Spool { file: unnamed().unwrap(), read: 0, len: SPOOL_MAX });
        assert!(matches!(feed.push(b"x", false), Err(FeedError::Full)));
        assert!(feed.push(b"y", false).is_ok(), "dropped without another word");
        assert!(feed.eof);
    }

    #[test]
    fn more_than_memory_holds_comes_out_in_order() {
        let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).unwrap();
        let mut feed = Feed::new(write);
        let input: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
        for piece in input.chunks(100_000) {
            feed.push(piece, false).unwrap();
        }
        feed.push(b"", true).unwrap();
        let (mut reader, mut got) = (File::from(read), Vec::new());
        loop {
            let done = feed.pump().unwrap();
            let mut buf = vec![0; 65536];
            while let Ok(n @ 1..) = reader.read(&mut buf) {
                got.extend_from_slice(&buf[..n]);
            }
            if done {
                break;
            }
        }
        assert_eq!(got, input);
    }
}
