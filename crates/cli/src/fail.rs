//! How a command fails: a sentence, a hint, an exit code.

use std::fmt;
use std::process::ExitCode;

use tutti_wire::api::ApiError;
use tutti_wire::policyfile::BadPolicyFile;
use tutti_wire::textfile::FileError;

pub const USAGE: u8 = 2;
pub const NOT_FOUND: u8 = 3;
pub const DENIED: u8 = 4;
pub const IMPOSSIBLE: u8 = 5;
/// The controller's journal was deleted or replaced while it ran.
pub const JOURNAL_GONE: u8 = 74;
pub const UNREACHABLE: u8 = 75;
/// Another rank of the gang died or hangs.
pub const PEER_FAILED: u8 = 76;

/// What the user sees on stderr, and what the process exits with.
#[derive(Debug, PartialEq, Eq)]
pub struct Fail {
    pub exit: u8,
    pub message: String,
    pub hint: Option<String>,
}

impl Fail {
    pub fn new(message: impl Into<String>) -> Fail {
        Fail { exit: 1, message: message.into(), hint: None }
    }
    pub fn usage(message: impl Into<String>) -> Fail {
        Fail { exit: USAGE, ..Fail::new(message) }
    }
    pub fn hint(self, hint: impl Into<String>) -> Fail {
        Fail { hint: Some(hint.into()), ..self }
    }
    pub fn exit(self, exit: u8) -> Fail {
        Fail { exit, ..self }
    }

    pub fn report(&self) -> ExitCode {
        crate::terminal::complain(&self.to_string());
        ExitCode::from(self.exit)
    }
}

impl fmt::Display for Fail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.message)?;
        self.hint.as_ref().map_or(Ok(()), |h| write!(f, "\n  {h}"))
    }
}

impl From<ApiError> for Fail {
    fn from(e: ApiError) -> Fail {
        let by_code = match e.code.as_str() {
            "not_found" => NOT_FOUND,
            "denied" | "unauthorized" | "unauthenticated" | "forbidden" => DENIED,
            "impossible" => IMPOSSIBLE,
            "invalid" => USAGE,
            "unavailable" => UNREACHABLE,
            _ => 1,
        };
        let exit = u8::try_from(e.exit).ok().filter(|&x| x != 0).unwrap_or(by_code);
        Fail { exit, message: e.message, hint: e.hint }
    }
}

impl From<FileError> for Fail {
    fn from(e: FileError) -> Fail {
        Fail { exit: USAGE, message: e.to_string(), hint: e.hint() }
    }
}

/// Every problem on a line of its own.
impl From<BadPolicyFile> for Fail {
    fn from(e: BadPolicyFile) -> Fail {
        Fail { exit: USAGE, message: e.to_string(), hint: e.hint() }
    }
}

/// An error with everything that caused it, in one line.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

/// A job's own exit code as ours. Codes beyond a byte can't be passed on and count as failure.
pub fn job_exit(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api(code: &str, exit: i32) -> ApiError {
        ApiError {
            code: code.into(),
            message: "there is no job 9".into(),
            hint: None,
            exit,
            problems: Vec::new(),
        }
    }

    #[test]
    fn exit_codes_follow_the_api() {
        for (code, exit, want) in [
            ("not_found", 0, 3),
            ("denied", 0, 4),
            ("impossible", 0, 5),
            ("invalid", 0, 2),
            ("whatever", 0, 1),
            ("whatever", 75, 75),
            ("not_found", 3, 3),
        ] {
            assert_eq!(Fail::from(api(code, exit)).exit, want, "{code} {exit}");
        }
    }

    #[test]
    fn errors_read_well() {
        let fail = Fail::from(api("not_found", 3)).hint("tutti ps --all lists every job");
        assert_eq!(fail.to_string(), "error: there is no job 9\n  tutti ps --all lists every job");
        let bad = tutti_wire::jobfile::parse(Some("a.toml"), b"run = 'x'\nnods = 2").unwrap_err();
        let fail = Fail::from(bad);
        assert_eq!(fail.exit, 2);
        assert!(fail.to_string().starts_with(
            "error: a.toml:2:1: nods: unknown key, did you mean 'nodes'?\n  keys here: name, run"
        ));
    }

    #[test]
    fn causes_are_told_once() {
        let io = std::io::Error::other("disk on fire");
        assert_eq!(chain(&io), "disk on fire");
    }
}
