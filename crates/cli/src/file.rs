//! Files that are named on the command line; `-` is standard input.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::fail::Fail;

/// Larger ones are not what they are taken for.
const FILE_MAX: u64 = 4 << 20;

pub fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// In messages.
pub fn name(path: &Path) -> String {
    if is_stdin(path) { "stdin".to_owned() } else { path.display().to_string() }
}

/// The whole of it. `what` it should be is said if it is too large for that.
pub fn read(path: &Path, what: &str) -> Result<Vec<u8>, Fail> {
    let mut text = Vec::new();
    let read = match is_stdin(path) {
        true => std::io::stdin().take(FILE_MAX + 1).read_to_end(&mut text),
        false => File::open(path).and_then(|f| f.take(FILE_MAX + 1).read_to_end(&mut text)),
    };
    read.map_err(|e| Fail::usage(format!("{}: {e}", name(path))))?;
    if text.len() as u64 > FILE_MAX {
        let most = FILE_MAX >> 20;
        return Err(Fail::usage(format!("{}: too large for a {what}", name(path)))
            .hint(format!("one has at most {most} MiB: is this the file that you meant?")));
    }
    Ok(text)
}

/// The same where only text makes sense.
pub fn read_text(path: &Path, what: &str) -> Result<String, Fail> {
    String::from_utf8(read(path, what)?)
        .map_err(|_| Fail::usage(format!("{}: is not UTF-8 text", name(path))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_large_is_not_read_to_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("policy.toml");
        std::fs::write(&path, "every = 1\n").unwrap();
        assert_eq!(read(&path, "policy").unwrap(), b"every = 1\n");
        assert_eq!(read_text(&path, "policy").unwrap(), "every = 1\n");
        // Gigabytes, and nobody waits for them.
        File::options().write(true).open(&path).unwrap().set_len(1 << 33).unwrap();
        let fail = read(&path, "policy").unwrap_err();
        assert_eq!(fail.exit, crate::fail::USAGE);
        assert_eq!(fail.message, format!("{}: too large for a policy", path.display()));
    }
}
