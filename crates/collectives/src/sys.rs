//! The few system calls that std does not have.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

/// Waits until something can be read (or is closed); false when the time is over.
pub(crate) fn wait_readable(fd: &impl AsRawFd, wait: Duration) -> bool {
    let mut fds = [pollfd(fd.as_raw_fd(), libc::POLLIN)];
    poll(&mut fds, wait);
    fds[0].revents != 0
}

pub(crate) fn pollfd(fd: RawFd, events: i16) -> libc::pollfd {
    libc::pollfd { fd, events, revents: 0 }
}

/// `poll`; an interruption by a signal counts as nothing happened.
pub(crate) fn poll(fds: &mut [libc::pollfd], wait: Duration) {
    let ms = i32::try_from(wait.as_millis()).unwrap_or(i32::MAX);
    // At least one millisecond, else the last part of a wait would spin.
    let ms = if wait.is_zero() { 0 } else { ms.max(1) };
    // SAFETY: a slice of pollfd and its length.
    let n = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, ms) };
    if n < 0 {
        fds.iter_mut().for_each(|f| f.revents = 0);
    }
}

/// `Ok(None)` when it would block. `Ok(Some(0))` of a read is the end of the stream.
fn outcome(n: isize) -> io::Result<Option<usize>> {
    if n >= 0 {
        return Ok(Some(n as usize));
    }
    let e = io::Error::last_os_error();
    match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
        _ => Err(e),
    }
}

pub(crate) fn send_now(fd: RawFd, head: &[u8], data: &[u8]) -> io::Result<Option<usize>> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    if head.is_empty() {
        // SAFETY: the slice is valid for its length.
        return outcome(unsafe { libc::send(fd, data.as_ptr().cast(), data.len(), flags) });
    }
    let mut parts = [
        libc::iovec { iov_base: head.as_ptr().cast_mut().cast(), iov_len: head.len() },
        libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() },
    ];
    // SAFETY: all zeros is a valid msghdr.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = parts.as_mut_ptr();
    msg.msg_iovlen = parts.len() as _;
    // SAFETY: the parts are valid for their lengths, and only read.
    outcome(unsafe { libc::sendmsg(fd, &msg, flags) })
}

pub(crate) fn recv_now(fd: RawFd, head: &mut [u8], data: &mut [u8]) -> io::Result<Option<usize>> {
    let flags = libc::MSG_DONTWAIT;
    if head.is_empty() {
        // SAFETY: the slice is valid for its length.
        return outcome(unsafe { libc::recv(fd, data.as_mut_ptr().cast(), data.len(), flags) });
    }
    let mut parts = [
        libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: head.len() },
        libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() },
    ];
    // SAFETY: all zeros is a valid msghdr.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = parts.as_mut_ptr();
    msg.msg_iovlen = parts.len() as _;
    // SAFETY: the parts are valid for their lengths.
    outcome(unsafe { libc::recvmsg(fd, &mut msg, flags) })
}

/// How many cores this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The core that the calling thread runs on.
pub(crate) fn core() -> u32 {
    // SAFETY: no arguments. An error is -1, which is no core.
    unsafe { libc::sched_getcpu() as u32 }
}

/// Moves the calling thread to the `index`th core that it may use, and leaves it free to go on from
/// there.
pub(crate) fn step_onto(index: usize) {
    step(|cores| cores[index % cores.len()..].iter().take(1).copied().collect());
}

/// Moves it to any other core than this one.
pub(crate) fn step_off(core: u32) {
    step(|cores| cores.iter().filter(|c| **c != core as usize).copied().collect());
}

/// Restricts the thread to some of its cores for a moment. Where the system does not allow it, the
/// thread stays where it is.
fn step(choose: impl FnOnce(&[usize]) -> Vec<usize>) {
    // SAFETY: all zeros is a valid, empty set; the calls get its size and this thread.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        let size = size_of::<libc::cpu_set_t>();
        if libc::sched_getaffinity(0, size, &mut allowed) != 0 {
            return;
        }
        let cores = 0..libc::CPU_SETSIZE as usize;
        let cores: Vec<usize> = cores.filter(|c| libc::CPU_ISSET(*c, &allowed)).collect();
        let mut some: libc::cpu_set_t = std::mem::zeroed();
        choose(&cores).into_iter().for_each(|c| libc::CPU_SET(c, &mut some));
        // An empty set is refused.
        if libc::sched_setaffinity(0, size, &some) == 0 {
            libc::sched_setaffinity(0, size, &allowed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stepping_onto_a_core_leaves_all_of_them_allowed() {
        let before = cores();
        for index in 0..before + 1 {
            step_onto(index);
            assert_eq!(cores(), before);
            step_off(core());
            assert_eq!(cores(), before);
        }
    }
}
