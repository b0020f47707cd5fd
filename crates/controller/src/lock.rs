//! Locks of small tables.

use std::sync::{Mutex, MutexGuard};

/// For data that a panic elsewhere leaves whole, since every change of it is a single step.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
