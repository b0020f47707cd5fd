//! A mapping of an anonymous file.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::{NonNull, null_mut};

use crate::span::Span;

/// After the boards: proves that the file opened by number is the one that was meant.
const SECRET: usize = 4096;

pub(super) struct Segment {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: plain memory; what is done to it from several threads and processes is ordered by flags.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    fn map(file: &File, bytes: usize) -> io::Result<Self> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the system's choice.
        let at =
            unsafe { libc::mmap(null_mut(), bytes, rights, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(at.cast()).expect("a mapping is not at 0");
        Ok(Self { base, bytes })
    }

    pub fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset + len <= self.bytes, "{offset} + {len} of {}", self.bytes);
        // SAFETY: in bounds, as just checked.
        unsafe { self.base.as_ptr().add(offset) }
    }

    pub fn span(&self, offset: usize, len: usize) -> Span {
        Span::raw(self.at(offset, len), len)
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and no span of it outlives the team.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Makes the memory. The file must stay open until the others have opened it.
pub(super) fn create(bytes: usize, secret: &[u8]) -> io::Result<(File, Segment)> {
    // SAFETY: a name and flags.
    let fd = unsafe { libc::memfd_create(c"tutti-collectives".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, and owned by nobody else.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len((bytes + SECRET) as u64)?;
    let segment = Segment::map(&file, bytes + SECRET)?;
    // SAFETY: nobody else has the memory yet.
    unsafe { segment.span(bytes, secret.len()).get_mut() }.copy_from_slice(secret);
    Ok((file, segment))
}

/// The same memory in another process; none if it is not that file.
pub(super) fn open(file: &File, bytes: usize, secret: &[u8]) -> Option<Segment> {
    let long_enough = file.metadata().ok()?.len() == (bytes + SECRET) as u64;
    let segment = long_enough.then(|| Segment::map(file, bytes + SECRET).ok()).flatten()?;
    // SAFETY: the secret is written once, before the file is offered.
    let found = unsafe { segment.span(bytes, secret.len()).get() };
    (found == secret).then_some(segment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_are_the_same_memory_and_another_file_is_refused() {
        let (file, one) = create(4096, b"secret").unwrap();
        let two = open(&file, 4096, b"secret").unwrap();
        // SAFETY: one thread.
        unsafe { one.span(100, 3).get_mut().copy_from_slice(b"abc") };
        // SAFETY: as above.
        assert_eq!(unsafe { two.span(100, 3).get() }, b"abc");
        assert!(open(&file, 4096, b"other!").is_none());
        assert!(open(&file, 8192, b"secret").is_none());
    }
}
