//! Shell completions and manual pages, generated from the flags themselves.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::CommandFactory;

use crate::args::Cli;
use crate::fail::Fail;
use crate::terminal;

#[derive(clap::Args)]
pub struct CompletionsArgs {
    shell: clap_complete::Shell,
}

#[derive(clap::Args)]
pub struct ManArgs {
    /// Write one page per verb there
    dir: Option<PathBuf>,
}

pub fn completions(args: CompletionsArgs) -> Result<ExitCode, Fail> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut visible(), "tutti", &mut text);
    terminal::document(String::from_utf8_lossy(&text).trim_end());
    Ok(ExitCode::SUCCESS)
}

/// Without the verbs that tutti uses itself: completions would offer hidden ones.
fn visible() -> clap::Command {
    let all = Cli::command();
    clap::Command::new("tutti")
        .args(all.get_arguments().cloned())
        .subcommands(all.get_subcommands().filter(|verb| !verb.is_hide_set()).cloned())
}

pub fn man(args: ManArgs) -> Result<ExitCode, Fail> {
    let failed = |e: std::io::Error| Fail::new(format!("can't write the manual: {e}"));
    match args.dir {
        Some(dir) => {
            std::fs::create_dir_all(&dir).map_err(failed)?;
            clap_mangen::generate_to(Cli::command(), &dir).map_err(failed)?;
            terminal::complain(&format!("manual pages are in {}", dir.display()));
        }
        None => {
            let mut text = Vec::new();
            clap_mangen::Man::new(Cli::command()).render(&mut text).map_err(failed)?;
            terminal::document(String::from_utf8_lossy(&text).trim_end());
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_know_every_verb_that_help_shows() {
        let mut text = Vec::new();
        clap_complete::generate(clap_complete::Shell::Bash, &mut visible(), "tutti", &mut text);
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("submit") && text.contains("--cluster"));
        assert!(!text.contains("bench-rank") && !text.contains("bench__rank"));
    }

    #[test]
    fn every_verb_has_a_page() {
        let dir = tempfile::tempdir().unwrap();
        man(ManArgs { dir: Some(dir.path().to_owned()) }).unwrap();
        for verb in ["tutti.1", "tutti-submit.1", "tutti-token-create.1"] {
            assert!(dir.path().join(verb).exists(), "{verb}");
        }
    }
}
