//! Programs that the agent starts for an answer, and that may hang: waited for until a deadline,
//! then killed. One that hangs in the kernel is left behind, and ends when the kernel lets it.

use std::io;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

/// For one that was killed.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(5);

#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    #[error("no answer within {} s", .0.as_secs())]
    TooLong(Duration),
    #[error("it can't be waited for: {0}")]
    Wait(#[source] io::Error),
}

/// Its end, or why there is none; then it was killed.
pub fn finish(child: &mut Child, within: Duration) -> Result<ExitStatus, ChildError> {
    let why = match wait(child, within) {
        Ok(Some(status)) => return Ok(status),
        Ok(None) => ChildError::TooLong(within),
        Err(error) => ChildError::Wait(error),
    };
    end(child);
    Err(why)
}

/// Kills it, and takes its end so that no zombie stays.
pub fn end(child: &mut Child) {
    // It has ended, or it hangs: neither is changed by an error here.
    let _ = child.kill();
    let _ = wait(child, LEAVE_WITHIN);
}

fn wait(child: &mut Child, within: Duration) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + within;
    loop {
        match child.try_wait()? {
            None if Instant::now() < deadline => std::thread::sleep(LOOK_EVERY),
            ended => return Ok(ended),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn one_that_ends_is_heard() {
        let mut child = Command::new("/bin/sh").args(["-c", "exit 3"]).spawn().unwrap();
        let status = finish(&mut child, Duration::from_secs(60)).unwrap();
        assert_eq!(status.code(), Some(3));
    }

    #[test]
    fn one_that_stays_is_killed_and_leaves_no_zombie() {
        let mut child = Command::new("/bin/sleep").arg("600").spawn().unwrap();
        let why = finish(&mut child, Duration::from_millis(20)).unwrap_err();
        assert!(matches!(why, ChildError::TooLong(_)), "{why}");
        assert!(!std::path::Path::new(&format!("/proc/{}", child.id())).exists());
    }
}
