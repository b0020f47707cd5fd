//! Job files: TOML, YAML, JSON, or a script with `#SBATCH` lines, read into a [`JobSpec`].
//!
//! The spec's own serde derive is the schema; reading by it is [`crate::textfile`].
//!
//! Does not open files, does not look at the environment, does not know the cluster.
//!
//! ```text
//! toml ─┐
//! yaml ─┼─► tree (values + positions) ─► read ─► check ─► JobSpec
//! json ─┘                                                   ▲
//! #SBATCH script ─► words ─► options ───────────────────────┘
//! ```

mod check;
mod options;
mod script;

#[cfg(test)]
mod tests;

pub use crate::textfile::{FileError, Problem};
pub use script::SCRIPT_BYTES_MAX;

use crate::textfile::{from_json, from_toml, from_yaml, read, utf8};
use tutti_model::JobSpec;

#[derive(Clone, Debug, PartialEq)]
pub struct Parsed {
    pub spec: JobSpec,
    /// What was understood but has no effect, one sentence each.
    pub warnings: Vec<String>,
    pub inherit: Inherit,
    /// Whether words after the file's name may be appended to `run` as the script's arguments.
    pub takes_arguments: bool,
}

/// Which variables of the caller the job wants, besides those of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Inherit {
    /// What a program needs to be found and to find its libraries. The default of job files.
    #[default]
    Usual,
    /// Everything, as `sbatch` does unless told otherwise.
    All,
    Nothing,
    Only(Vec<String>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Toml,
    Yaml,
    Json,
    Script,
}

/// Reads a job file. `name` is shown in errors and its extension tells the format; without one
/// the content does.
pub fn parse(name: Option<&str>, text: &[u8]) -> Result<Parsed, FileError> {
    read_text(name, text).map_err(|e| e.in_file(name.unwrap_or("job file")))
}

fn read_text(name: Option<&str>, bytes: &[u8]) -> Result<Parsed, FileError> {
    let text = utf8(bytes)?;
    let root = match format_of(name, text) {
        Format::Script => return script::parse(name, text),
        Format::Toml => from_toml::parse(text)?,
        Format::Yaml => from_yaml::parse(text)?,
        Format::Json => from_json::parse(text)?,
    };
    check::before(&root)?;
    let spec: JobSpec = read::tree(&root)?;
    check::after(&root, &spec)?;
    Ok(Parsed { spec, warnings: Vec::new(), inherit: Inherit::Usual, takes_arguments: false })
}

/// The format by the file's extension, else by how the text looks.
pub fn format_of(name: Option<&str>, text: &str) -> Format {
    let extension = name.and_then(|n| std::path::Path::new(n).extension()).and_then(|e| e.to_str());
    match extension.map(str::to_ascii_lowercase).as_deref() {
        Some("toml") => return Format::Toml,
        Some("yaml" | "yml") => return Format::Yaml,
        Some("json") => return Format::Json,
        Some("sh" | "bash" | "sbatch" | "slurm") => return Format::Script,
        _ => {}
    }
    if text.starts_with("#!") || text.lines().any(|l| l.starts_with("#SBATCH")) {
        return Format::Script;
    }
    let Some(line) = text.lines().map(str::trim).find(|l| !l.is_empty() && !l.starts_with('#'))
    else {
        return Format::Toml;
    };
    if line.starts_with('{') {
        return Format::Json;
    }
    let first_of = |c| line.find(c).unwrap_or(usize::MAX);
    if line == "---" || first_of(':') < first_of('=') { Format::Yaml } else { Format::Toml }
}
