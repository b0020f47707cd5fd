//! Moving a running program's GPU state to host memory and back, by the CUDA driver's checkpoint
//! functions. The driver's library is loaded when it is asked for, so the same binary runs where
//! there is none.
//!
//! ```text
//!            lock                checkpoint
//!  running ───────► locked ──────────────────► checkpointed: nothing of it is on a GPU
//!     ▲  unlock        ▲         restore            │
//!     └────────────────┴────────────────────────────┘
//! ```
//!
//! The driver works through a thread of the target, so the target must be able to run while any of
//! these is called: on a stopped process each of them waits for ever. Call them from a process of
//! their own, which can be killed.

mod driver;

use std::fmt;
use std::time::Duration;

pub use driver::Driver;

/// What the driver does with other processes. Tests bring their own.
pub trait Checkpointer: Sync {
    /// Fails for a process that does not use CUDA.
    fn state(&self, pid: i32) -> Result<ProcessState, CudaError>;
    /// Waits until the work that the process has submitted is done, and lets it submit no more.
    fn lock(&self, pid: i32, within: Duration) -> Result<(), CudaError>;
    fn checkpoint(&self, pid: i32) -> Result<(), CudaError>;
    /// Onto the GPUs where it was, or where `moves` says. All of its GPUs are named there, or none.
    fn restore(&self, pid: i32, moves: &[Move]) -> Result<(), CudaError>;
    fn unlock(&self, pid: i32) -> Result<(), CudaError>;
}

/// Where a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    Running,
    Locked,
    Checkpointed,
    /// An error it can't be brought back from.
    Failed,
    /// One that this program does not know yet.
    Other(i32),
}

impl ProcessState {
    pub fn from_raw(raw: i32) -> ProcessState {
        match raw {
            0 => ProcessState::Running,
            1 => ProcessState::Locked,
            2 => ProcessState::Checkpointed,
            3 => ProcessState::Failed,
            other => ProcessState::Other(other),
        }
    }
}

/// What was on one GPU goes to another of the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    pub from: GpuUuid,
    pub to: GpuUuid,
}

/// 16 bytes, as the driver wants them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuUuid(pub [u8; 16]);

impl GpuUuid {
    /// `GPU-9d1bb0a3-…`, as NVML and nvidia-smi say it.
    pub fn parse(text: &str) -> Option<GpuUuid> {
        let digits = text.strip_prefix("GPU-").unwrap_or(text).replace('-', "");
        if digits.len() != 32 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let mut bytes = [0; 16];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok()?;
        }
        Some(GpuUuid(bytes))
    }
}

impl fmt::Display for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU-")?;
        for (at, byte) in self.0.iter().enumerate() {
            let dash = if matches!(at, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    #[error("libcuda.so.1 can't be loaded: is an NVIDIA driver installed?")]
    NoLibrary(#[source] libloading::Error),
    #[error("the CUDA driver has no {0}: suspending needs driver 570 or newer")]
    TooOld(&'static str),
    #[error("the CUDA driver has no {0}: it is too old to compute anything here")]
    Lacks(&'static str),
    /// In the driver's own words.
    #[error("{call}: {name} ({code}): {words}")]
    Driver { call: &'static str, code: i32, name: String, words: String },
}

impl CudaError {
    /// The driver's number for it.
    pub fn code(&self) -> Option<i32> {
        match self {
            CudaError::Driver { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// The same with more words.
    pub(crate) fn with(mut self, more: &str) -> CudaError {
        if let CudaError::Driver { words, .. } = &mut self
            && !more.is_empty()
        {
            *words = format!("{words}: {more}");
        }
        self
    }

    /// The time was too short; it may work later.
    pub fn is_timeout(&self) -> bool {
        matches!(self, CudaError::Driver { code: driver::NOT_READY, .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_read_as_the_driver_writes_them() {
        let text = "GPU-9d1bb0a3-00ff-4c11-8899-aabbccddeeff";
        let uuid = GpuUuid::parse(text).unwrap();
        assert_eq!(uuid.to_string(), text);
        assert_eq!((uuid.0[0], uuid.0[15]), (0x9d, 0xff));
        for wrong in ["", "GPU-1", "SIM-h100-0", "GPU-9d1bb0a3-00ff-4c11-8899-aabbccddeefg"] {
            assert_eq!(GpuUuid::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn states_have_the_drivers_numbers() {
        let states = [0, 1, 2, 3, 4].map(ProcessState::from_raw);
        use ProcessState::*;
        assert_eq!(states, [Running, Locked, Checkpointed, Failed, Other(4)]);
    }

    #[test]
    fn a_machine_without_a_driver_says_so() {
        // Where there is one, loading it must work.
        if let Err(error) = Driver::load() {
            assert!(matches!(error, CudaError::NoLibrary(_) | CudaError::TooOld(_)), "{error}");
        }
    }
}
