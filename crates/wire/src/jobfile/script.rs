//! A script with `#SBATCH` lines as a job.
//!
//! The text itself becomes the command, so the file need not exist on the nodes and may change
//! after submission: `bash -c TEXT NAME`, `python3 -c TEXT`, `perl -e TEXT`. An interpreter that
//! takes no program on its command line gets the text as a temporary file.

use tutti_model::{Command, JobSpec};

use super::options::{Chosen, Request};
use super::{Inherit, Parsed};
use crate::textfile::error::{FileError, Problem};
use crate::textfile::tree::{Lines, Place};

/// Linux gives one argument at most 128 KiB, its closing NUL included.
pub const SCRIPT_BYTES_MAX: usize = 128 * 1024 - 1;

/// Runs an interpreter, given as its words in one argument, on a text that it must have as a file.
const BY_FILE: &str = "f=$(mktemp) || exit 126; trap 'rm -f \"$f\"' EXIT; \
    printf '%s' \"$1\" >\"$f\" || exit 126; i=$2; shift 2; $i \"$f\" \"$@\"";

pub(super) fn parse(name: Option<&str>, text: &str) -> Result<Parsed, FileError> {
    if let Some(nul) = text.find('\0') {
        return Err(FileError::new(Lines::new(text).place(nul), Problem::NulByte));
    }
    let mut warnings = Vec::new();
    let unix;
    let text = if text.contains("\r\n") {
        warnings.push("the script has DOS line ends; they are read as Unix ones".to_owned());
        unix = text.replace("\r\n", "\n");
        unix.as_str()
    } else {
        text
    };
    if text.len() > SCRIPT_BYTES_MAX {
        let problem = Problem::ScriptTooLong { bytes: text.len(), max: SCRIPT_BYTES_MAX };
        return Err(FileError::new(Place::START, problem));
    }
    let mut request = Request::default();
    for chosen in header(text)? {
        request.take(&chosen)?;
    }
    let base = name.and_then(|n| n.rsplit('/').next()).filter(|n| !n.is_empty());
    let mut spec = JobSpec::new(command(text, base.unwrap_or("script")));
    spec.name = base.map(str::to_owned);
    let inherit = request.inherit.clone();
    request.fill(&mut spec, &mut warnings)?;
    Ok(Parsed { spec, warnings, inherit: inherit.unwrap_or(Inherit::All), takes_arguments: true })
}

/// The options of the `#SBATCH` lines. As with sbatch, the first line that is no comment ends them.
fn header(text: &str) -> Result<Vec<Chosen>, FileError> {
    let mut chosen = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        if !trimmed.is_empty() && !trimmed.starts_with('#') {
            break;
        }
        let Some(rest) = line.strip_prefix("#SBATCH") else { continue };
        if rest.starts_with(|c: char| !c.is_whitespace()) {
            continue;
        }
        let words = words(rest, Place { line: n as u32 + 1, column: "#SBATCH".len() as u32 + 1 })?;
        chosen.extend(Chosen::from_words(&words)?);
    }
    Ok(chosen)
}

pub(super) struct Word {
    pub at: Place,
    pub text: String,
}

/// Splits as a shell would, without expanding anything; `#` before a word starts a comment.
fn words(line: &str, start: Place) -> Result<Vec<Word>, FileError> {
    let mut words: Vec<Word> = Vec::new();
    let mut open: Option<Word> = None;
    let mut quote: Option<char> = None;
    let mut chars = line.chars().enumerate();
    while let Some((i, c)) = chars.next() {
        let at = Place { column: start.column + i as u32, ..start };
        let word = |open: &mut Option<Word>, c: Option<char>| {
            open.get_or_insert_with(|| Word { at, text: String::new() }).text.extend(c);
        };
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some('"') | None, '\\') => word(&mut open, chars.next().map(|(_, c)| c)),
            (Some(_), c) => word(&mut open, Some(c)),
            (None, '"' | '\'') => {
                quote = Some(c);
                word(&mut open, None);
            }
            (None, '#') if open.is_none() => break,
            (None, c) if c.is_whitespace() => words.extend(open.take()),
            (None, c) => word(&mut open, Some(c)),
        }
    }
    match (quote, open) {
        (Some(_), Some(word)) => Err(FileError::new(word.at, Problem::OpenQuote)),
        (_, last) => {
            words.extend(last);
            Ok(words)
        }
    }
}

/// How to run `text` as its `#!` line asks.
fn command(text: &str, name: &str) -> Command {
    let first = text.lines().next().unwrap_or_default();
    let mut words: Vec<&str> =
        first.strip_prefix("#!").map(|l| l.split_whitespace().collect()).unwrap_or_default();
    if words.is_empty() {
        words.push("/bin/sh");
    }
    let base = |w: &str| w.rsplit('/').next().unwrap_or_default().to_owned();
    let by_env = base(words[0]) == "env";
    if by_env {
        words.retain(|w| *w != "-S");
    }
    let program = words.get(usize::from(by_env)).map_or_else(String::new, |w| base(w));
    let mut argv: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
    let mut give = |rest: &[&str]| argv.extend(rest.iter().map(|w| (*w).to_owned()));
    match program.as_str() {
        "sh" | "bash" | "dash" | "ash" | "ksh" | "zsh" => give(&["-c", text, name]),
        "csh" | "tcsh" | "fish" => give(&["-c", text]),
        p if p.starts_with("python") || p.starts_with("pypy") => give(&["-c", text]),
        "perl" | "ruby" | "node" | "Rscript" => give(&["-e", text]),
        _ => {
            let interpreter = words.join(" ");
            argv = ["/bin/sh", "-c", BY_FILE, name, text, &interpreter].map(str::to_owned).into();
        }
    }
    Command::Argv(argv)
}
