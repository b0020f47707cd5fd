//! The gang's nodes as a file: `n1 slots=8` for each. It is in memory and lives as long as the
//! process that made it, so that none is ever left behind or found by somebody else.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use nix::sys::memfd::{MFdFlags, memfd_create};

use super::place::Place;
use super::{HelperError, io_error};

pub const VARIABLE: &str = "TUTTI_HOSTFILE";

pub struct Hostfile {
    memory: OwnedFd,
}

impl Hostfile {
    pub fn new(place: &Place) -> Result<Hostfile, HelperError> {
        let name = CString::new("hostfile").expect("no zero byte");
        let failed = || io_error("make the host file");
        let memory = memfd_create(name.as_c_str(), MFdFlags::empty());
        let memory = memory.map_err(|e| failed()(e.into()))?;
        let lines = place.nodes.iter().map(|n| format!("{} slots={}\n", n.name, n.slots));
        let text: String = lines.collect();
        nix::unistd::write(&memory, text.as_bytes()).map_err(|e| failed()(e.into()))?;
        Ok(Hostfile { memory })
    }

    /// Other processes of this user can open it.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.memory.as_raw_fd())
    }
}

/// Becomes the command, which keeps the file.
pub fn run(command: &[String]) -> Result<ExitCode, HelperError> {
    let hostfile = Hostfile::new(&Place::from_env()?)?;
    let mut program = std::process::Command::new(&command[0]);
    let error = program.args(&command[1..]).env(VARIABLE, hostfile.path()).exec();
    Err(io_error(format!("run '{}'", command[0]))(error))
}
