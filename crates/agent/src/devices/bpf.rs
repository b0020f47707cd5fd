//! The three words with the kernel: load a device program, attach it to a cgroup, and say what it
//! had against it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::{Instruction, Rules};

const PROG_LOAD: libc::c_int = 5;
const PROG_ATTACH: libc::c_int = 8;
const TYPE_CGROUP_DEVICE: u32 = 15;
const ATTACH_CGROUP_DEVICE: u32 = 6;
/// Programs of the groups above are asked as well, and each may refuse.
const ALLOW_MULTI: u32 = 2;
const REPLACE: u32 = 1 << 2;
const LOG_SIZE: usize = 64 << 10;

#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    #[error("the kernel takes no device program{}", said(.log))]
    Load {
        log: String,
        #[source]
        source: io::Error,
    },
    #[error("the device program can't be attached to the cgroup")]
    Attach(#[source] io::Error),
}

fn said(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!(" ({log})") }
}

#[repr(C)]
struct LoadArgs {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
}

#[repr(C)]
struct AttachArgs {
    target: u32,
    program: u32,
    kind: u32,
    flags: u32,
    replaced: u32,
}

/// From now on these rules hold for every process in the group, and for what they start. They stay
/// for as long as the group does. With `instead`, they take the place of those.
pub fn restrict(
    cgroup: BorrowedFd<'_>,
    rules: &Rules,
    instead: Option<BorrowedFd<'_>>,
) -> Result<OwnedFd, BpfError> {
    let program = load(&rules.program())?;
    let args = AttachArgs {
        target: cgroup.as_raw_fd() as u32,
        program: program.as_raw_fd() as u32,
        kind: ATTACH_CGROUP_DEVICE,
        flags: if instead.is_some() { ALLOW_MULTI | REPLACE } else { ALLOW_MULTI },
        replaced: instead.map_or(0, |old| old.as_raw_fd() as u32),
    };
    bpf(PROG_ATTACH, &args).map_err(BpfError::Attach)?;
    Ok(program)
}

/// The log costs the kernel time, so it is asked for only after a refusal.
fn load(program: &[Instruction]) -> Result<OwnedFd, BpfError> {
    let source = match try_load(program, &mut []) {
        Ok(loaded) => return Ok(loaded),
        Err(e) => e,
    };
    let mut log = vec![0u8; LOG_SIZE];
    match try_load(program, &mut log) {
        Ok(loaded) => Ok(loaded),
        Err(_) => {
            let text = log.split(|&b| b == 0).next().unwrap_or_default();
            let text = String::from_utf8_lossy(text);
            let last: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
            let log = last[last.len().saturating_sub(4)..].join("; ");
            Err(BpfError::Load { log, source })
        }
    }
}

fn try_load(program: &[Instruction], log: &mut [u8]) -> io::Result<OwnedFd> {
    let mut name = [0; 16];
    name[..12].copy_from_slice(b"tutti_device");
    let args = LoadArgs {
        kind: TYPE_CGROUP_DEVICE,
        count: program.len() as u32,
        instructions: program.as_ptr() as u64,
        license: c"Apache-2.0".as_ptr() as u64,
        log_level: u32::from(!log.is_empty()),
        log_size: log.len() as u32,
        log: if log.is_empty() { 0 } else { log.as_mut_ptr() as u64 },
        kernel_version: 0,
        flags: 0,
        name,
    };
    let fd = bpf(PROG_LOAD, &args)?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn bpf<T>(command: libc::c_int, args: &T) -> io::Result<libc::c_int> {
    // SAFETY: `args` is laid out as the kernel reads it for this command, is as long as we say, and
    // what it points to outlives the call.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(args), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as libc::c_int) }
}
