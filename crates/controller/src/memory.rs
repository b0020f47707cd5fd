//! What was freed goes back to the machine.

/// The allocator keeps what was freed for later, and much of it for ever: a controller that once had
/// many large jobs would look as if it still had them.
pub(crate) fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes no pointer, and any thread may call it at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
