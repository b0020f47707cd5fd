//! Whether the controller answers, said once when that changes.

use std::sync::{Mutex, PoisonError};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Unknown,
    Here,
    Away,
}

/// Shared by those who ask it.
#[derive(Debug, Default)]
pub struct Contact {
    state: Mutex<State>,
}

impl Contact {
    /// True if it was away.
    pub fn answered(&self) -> bool {
        self.becomes(State::Here) == State::Away
    }

    /// True if it was not away before.
    pub fn failed(&self) -> bool {
        self.becomes(State::Away) != State::Away
    }

    pub fn is_here(&self) -> bool {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) == State::Here
    }

    fn becomes(&self, state: State) -> State {
        std::mem::replace(&mut *self.state.lock().unwrap_or_else(PoisonError::into_inner), state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_said_once() {
        let contact = Contact::default();
        assert!(!contact.answered(), "the first answer is nothing to tell");
        assert!(contact.is_here());
        assert_eq!([contact.failed(), contact.failed(), contact.failed()], [true, false, false]);
        assert!(!contact.is_here());
        assert_eq!([contact.answered(), contact.answered()], [true, false]);
        assert!(Contact::default().failed(), "away from the start is told");
    }
}
