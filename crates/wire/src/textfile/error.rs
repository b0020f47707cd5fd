//! What can be wrong with a file, and where.

use std::fmt;

use super::tree::Place;

/// A problem with its position. Shown as `train.toml:7:9: gpus_per_node: ...`; what to do about
/// it is in [`FileError::hint`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct FileError {
    /// Its name, or what it is where it has none.
    pub file: String,
    /// Counts from 1.
    pub line: u32,
    /// In characters, counts from 1.
    pub column: u32,
    /// The path of the key, such as `checkpoint.signal`, or the option of a script.
    pub key: Option<String>,
    pub problem: Box<Problem>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("not UTF-8 text")]
    NotUtf8,
    #[error("not valid {format}: {message}")]
    Syntax { format: &'static str, message: String },
    #[error("unknown key{}", did_you_mean(.suggestion))]
    UnknownKey { suggestion: Option<String>, known: Vec<&'static str> },
    #[error("given twice")]
    Duplicate,
    #[error("wants {wanted}, found {found}")]
    WrongType { wanted: String, found: String },
    #[error("'{found}' is not known here{}", did_you_mean(.suggestion))]
    UnknownWord { found: String, suggestion: Option<String>, known: Vec<&'static str> },
    /// The words of the value's own parser.
    #[error("{0}")]
    BadValue(String),
    #[error("'{key}' is missing")]
    Missing { key: String },
    #[error("nested too deeply")]
    TooDeep,
    #[error("unknown option{}", did_you_mean(.suggestion))]
    UnknownOption { suggestion: Option<String> },
    #[error("not supported: {why}")]
    Unsupported { why: &'static str },
    #[error("needs a value")]
    NeedsValue,
    #[error("takes no value")]
    TakesNoValue,
    #[error("a quote is opened and never closed")]
    OpenQuote,
    #[error("the script has {bytes} bytes; the longest that fits on a command line has {max}")]
    ScriptTooLong { bytes: usize, max: usize },
    #[error("holds a NUL byte, which no program can be given")]
    NulByte,
}

fn did_you_mean(suggestion: &Option<String>) -> String {
    suggestion.as_ref().map_or_else(String::new, |s| format!(", did you mean '{s}'?"))
}

impl FileError {
    pub(crate) fn new(at: Place, problem: impl Into<Box<Problem>>) -> Self {
        let problem = problem.into();
        FileError { file: String::new(), line: at.line, column: at.column, key: None, problem }
    }

    pub(crate) fn of_key(
        at: Place,
        key: impl Into<String>,
        problem: impl Into<Box<Problem>>,
    ) -> Self {
        FileError { key: Some(key.into()), ..FileError::new(at, problem) }
    }

    pub(crate) fn in_file(self, name: &str) -> Self {
        FileError { file: name.to_owned(), ..self }
    }

    /// What to do about it, in one line.
    pub fn hint(&self) -> Option<String> {
        Some(match self.problem.as_ref() {
            Problem::UnknownKey { known, .. } if known.is_empty() => return None,
            Problem::UnknownKey { known, .. } => format!("keys here: {}", known.join(", ")),
            Problem::UnknownWord { known, .. } => format!("write one of: {}", known.join(", ")),
            Problem::Missing { key } if key == "run" => {
                "every job file needs a command: run = \"python train.py\"".to_owned()
            }
            Problem::UnknownOption { .. } => {
                "remove the line, or write the job as TOML (see 'tutti help submit')".to_owned()
            }
            Problem::ScriptTooLong { .. } => {
                "put the script on a shared disk and run it by its path".to_owned()
            }
            Problem::NotUtf8 => "is this the file that you meant?".to_owned(),
            _ => return None,
        })
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: ", self.file, self.line, self.column)?;
        if let Some(key) = &self.key {
            write!(f, "{key}: ")?;
        }
        self.problem.fmt(f)
    }
}

/// The known word nearest to what was written, if it is near enough to be meant.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    known
        .into_iter()
        .map(|k| (strsim::damerau_levenshtein(word, k), k))
        .filter(|&(distance, k)| distance <= 1 + k.len().min(word.len()) / 4)
        .min()
        .map(|(_, k)| k.to_owned())
}
