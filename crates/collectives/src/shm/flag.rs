//! A counter in shared memory that others wait for.

use std::ptr::null;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

#[repr(C)]
pub(crate) struct Flag {
    value: AtomicU32,
    sleepers: AtomicU32,
}

impl Flag {
    /// Counts on, and wakes whoever sleeps. What was written before is seen by those who see it.
    pub fn set(&self, value: u32) {
        self.value.store(value, Ordering::Release);
        // Either this sees the sleeper, or the sleeper sees the new value.
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            self.futex(libc::FUTEX_WAKE, i32::MAX as u32, null());
        }
    }

    /// Counters go round; no two members are ever half a round apart.
    pub fn has_reached(&self, target: u32) -> bool {
        self.value.load(Ordering::Acquire).wrapping_sub(target) as i32 >= 0
    }

    /// Sleeps until the target is reached or the time is over; whether it is reached.
    pub fn sleep(&self, target: u32, at_most: Duration) -> bool {
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let seen = self.value.load(Ordering::Acquire);
        if (seen.wrapping_sub(target) as i32) < 0 && !at_most.is_zero() {
            let time = libc::timespec {
                tv_sec: at_most.as_secs() as libc::time_t,
                tv_nsec: i64::from(at_most.subsec_nanos()) as _,
            };
            self.futex(libc::FUTEX_WAIT, seen, &time);
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        self.has_reached(target)
    }

    fn futex(&self, call: i32, value: u32, time: *const libc::timespec) {
        // SAFETY: the word is valid; the flag is shared between processes, so not a private futex.
        // Its result does not matter: the value is looked at again in any case.
        unsafe { libc::syscall(libc::SYS_futex, self.value.as_ptr(), call, value, time) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[test]
    fn a_sleeper_is_woken_and_counting_goes_round() {
        let start = u32::MAX - 5;
        let flag = |v| Flag { value: AtomicU32::new(v), sleepers: AtomicU32::new(0) };
        let (ping, pong) = (Arc::new(flag(start)), Arc::new(flag(start)));
        let (theirs, ours) = (Arc::clone(&ping), Arc::clone(&pong));
        let turn = move |i: u32| start.wrapping_add(i);
        let other = thread::spawn(move || {
            for i in 1..500 {
                while !theirs.sleep(turn(i), Duration::from_secs(60)) {}
                ours.set(turn(i));
            }
        });
        for i in 1..500 {
            assert!(!pong.has_reached(turn(i)));
            ping.set(turn(i));
            while !pong.sleep(turn(i), Duration::from_secs(60)) {}
        }
        other.join().unwrap();
        assert!(!ping.sleep(turn(500), Duration::from_millis(1)), "the time is over");
    }
}
