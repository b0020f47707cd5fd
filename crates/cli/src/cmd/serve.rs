//! `tutti serve`: a job file with a `[service]` table becomes an endpoint.
//!
//! ```text
//! describe (file, flags) ─► Client::serve ─► name on stdout
//!                                        └─► follow ─ standing (pure) ─► URLs, or why not
//! ```

mod follow;
mod standing;
mod view;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tutti_model::JobSpec;
use tutti_wire::api::{Serve, Serving};
use tutti_wire::client::Client;
use tutti_wire::jobfile::Parsed;

use super::job_args::{JobArgs, variable};
use super::submit::read;
use crate::fail::Fail;
use crate::local::StopSignals;
use crate::{file, session, terminal};

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  tutti serve examples/serve/http.toml\n  \
    tutti serve chat.toml --update --canary 10\n  tutti serve chat.toml --detach && tutti endpoints")]
pub struct ServeArgs {
    /// A job file with a [service] table; - reads standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Take the place of what is served under this name, replica by replica
    #[arg(long)]
    update: bool,
    /// Per cent of the requests that the new revision gets first; 100 goes on with the rest
    #[arg(long, value_name = "PCT", requires = "update", value_parser = clap::value_parser!(u32).range(0..=100))]
    canary: Option<u32>,
    #[command(flatten)]
    common: CommonArgs,
    /// What it is called [default: the file's name key, else the file's own name]
    #[arg(long, short = 'J', value_name = "NAME")]
    name: Option<String>,
}

/// Of `serve` and of `endpoints update`.
#[derive(clap::Args)]
pub struct CommonArgs {
    /// Return at once, without waiting until it answers
    #[arg(long, short = 'd', visible_alias = "no-wait")]
    detach: bool,
    /// Set a variable; may be repeated
    #[arg(long, short = 'e', value_name = "K=V", value_parser = variable)]
    env: Vec<(String, String)>,
    /// Print a JSON object with name and revision
    #[arg(long)]
    json: bool,
}

/// What is served how.
pub struct Wanted {
    pub file: PathBuf,
    pub name: Option<String>,
    pub update: bool,
    /// Something is served under its name already.
    pub must_exist: bool,
    pub canary: Option<u32>,
    pub common: CommonArgs,
}

pub fn run(cluster: Option<&str>, args: ServeArgs) -> Result<ExitCode, Fail> {
    let ServeArgs { file, update, canary, common, name } = args;
    serve(cluster, Wanted { file, name, update, must_exist: false, canary, common })
}

pub fn serve(cluster: Option<&str>, wanted: Wanted) -> Result<ExitCode, Fail> {
    let client = session::open(cluster)?;
    let (detach, json) = (wanted.common.detach, wanted.common.json);
    let serve = describe(&client, wanted)?;
    // Before any other thread exists.
    let stop = if detach { None } else { Some(StopSignals::watch()?) };
    let name = serve.spec.name.clone().unwrap_or_default();
    let serving = client.serve(&serve).map_err(|e| session::perhaps_done(e, || look(&name)))?;
    if json {
        terminal::json(&serving)?;
    } else {
        terminal::say(&serving.name);
    }
    if !serving.passed_over.is_empty() {
        terminal::warn(&replaced(&serving));
    }
    match stop {
        Some(stop) => follow::until_it_answers(&client, &serving, &stop),
        None => {
            terminal::complain(&left(&serving));
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Where to see whether it was done, when no answer came.
pub fn look(name: &str) -> String {
    format!("it may be done all the same: tutti endpoints show {name} says")
}

/// Said now, and not only when somebody has gone back too far.
fn replaced(serving: &Serving) -> String {
    format!(
        "{} had not passed its probation: a rollback of {} passes over it, unless --to names it",
        super::endpoints::count_of_revisions(&serving.passed_over),
        serving.name
    )
}

fn left(serving: &Serving) -> String {
    format!("tutti endpoints show {} says how far revision {} is", serving.name, serving.revision)
}

fn describe(client: &Client, wanted: Wanted) -> Result<Serve, Fail> {
    let parsed = read(&wanted.file).map_err(|fail| misnamed(fail, &wanted.file))?;
    parsed.warnings.iter().for_each(|w| terminal::warn(w));
    let Parsed { mut spec, inherit, .. } = parsed;
    need_service(&spec, &wanted.file)?;
    let name = name(wanted.name, &spec, &wanted.file)?;
    let flags = JobArgs { name: Some(name), env: wanted.common.env, ..JobArgs::default() };
    flags.apply(&mut spec, inherit)?;
    let user = session::on_behalf(client);
    let Wanted { update, must_exist, canary, .. } = wanted;
    Ok(Serve { spec, user, update, must_exist, canary })
}

/// Some give the name of what they serve.
fn misnamed(fail: Fail, path: &Path) -> Fail {
    match file::is_stdin(path) || path.exists() {
        true => fail,
        false => fail.hint(
            "write the path of a job file with a [service] table, such as examples/serve/http.toml; \
             tutti endpoints lists what is served",
        ),
    }
}

fn need_service(spec: &JobSpec, path: &Path) -> Result<(), Fail> {
    if spec.service.is_some() {
        return Ok(());
    }
    let shown = file::name(path);
    Err(Fail::usage(format!("{shown} has no [service] table, so it is a job and not an endpoint"))
        .hint(format!(
            "add [service] with what is not as usual (port, health, replicas), or run it with \
             tutti submit {shown}"
        )))
}

/// The flag, the file's key, else the file's own name as far as an endpoint can have it.
fn name(flag: Option<String>, spec: &JobSpec, path: &Path) -> Result<String, Fail> {
    if let Some(name) = flag.or_else(|| spec.name.clone()) {
        return Ok(name);
    }
    let stem = path.file_stem().and_then(|s| s.to_str()).filter(|_| !file::is_stdin(path));
    let fitting: String = stem
        .unwrap_or_default()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
        .collect();
    let fitting = fitting.trim_matches('-');
    if fitting.is_empty() {
        return Err(Fail::usage("an endpoint needs a name")
            .hint("give --name, or write name = \"chat\" at the top of the file"));
    }
    Ok(fitting.to_owned())
}

#[cfg(test)]
mod tests;
