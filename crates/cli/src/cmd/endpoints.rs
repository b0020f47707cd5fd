//! `tutti endpoints`: what is served, and changes to it.

use std::path::PathBuf;
use std::process::ExitCode;

use tutti_wire::api::{ScaleRequest, Serving};
use tutti_wire::client::Client;

use super::serve::{CommonArgs, Wanted, look, serve};
use crate::fail::Fail;
use crate::show::table::terminal_width;
use crate::show::{endpoint, endpoints, served};
use crate::style::Style;
use crate::{session, terminal};

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct EndpointsArgs {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(clap::Args)]
struct ListArgs {
    /// Those that were stopped, with what each did and took
    #[arg(long)]
    stopped: bool,
    #[command(flatten)]
    how: HowArgs,
}

#[derive(clap::Args)]
struct HowArgs {
    #[arg(long)]
    json: bool,
    /// Show again every second
    #[arg(long, conflicts_with = "json")]
    watch: bool,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// List endpoints
    List(ListArgs),
    /// All about one endpoint: replicas, revisions, figures, what happened
    Show {
        name: String,
        #[command(flatten)]
        how: HowArgs,
    },
    /// Other bounds than the file's: 3, or 1..8 to follow the load
    Scale(ScaleArgs),
    /// A new revision takes the place of the one that serves
    Update {
        name: String,
        /// A job file with a [service] table; - reads standard input
        file: PathBuf,
        /// Per cent of the requests that the new revision gets first; 100 goes on with the rest
        #[arg(long, value_name = "PCT", value_parser = clap::value_parser!(u32).range(0..=100))]
        canary: Option<u32>,
        #[command(flatten)]
        common: CommonArgs,
    },
    /// Back to an earlier revision, replica by replica
    Rollback {
        name: String,
        /// Which one [default: the last good one]
        #[arg(long, value_name = "REVISION")]
        to: Option<u32>,
    },
    /// End it: replicas finish the requests they have
    Stop { name: String },
}

#[derive(clap::Args)]
struct ScaleArgs {
    name: String,
    #[arg(value_name = "N|MIN..MAX", value_parser = bounds, required_unless_present = "auto")]
    replicas: Option<Bounds>,
    /// As the file says again
    #[arg(long, conflicts_with = "replicas")]
    auto: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bounds {
    min: u32,
    max: u32,
}

pub fn run(cluster: Option<&str>, args: EndpointsArgs) -> Result<ExitCode, Fail> {
    match args.verb {
        None => list(&session::open(cluster)?, &args.list),
        Some(Verb::List(args)) => list(&session::open(cluster)?, &args),
        Some(Verb::Show { name, how }) => show(&session::open(cluster)?, &name, &how),
        Some(Verb::Scale(args)) => scale(&session::open(cluster)?, &args),
        Some(Verb::Update { name, file, canary, common }) => {
            let name = Some(name);
            serve(cluster, Wanted { file, name, update: true, must_exist: true, canary, common })
        }
        Some(Verb::Rollback { name, to }) => {
            // Done twice, it goes back twice.
            let lost = |e| session::perhaps_done(e, || look(&name));
            let there = session::open(cluster)?.rollback(&name, to).map_err(lost)?;
            terminal::complain(&going_back(&there));
            Ok(ExitCode::SUCCESS)
        }
        Some(Verb::Stop { name }) => {
            session::open(cluster)?.stop_endpoint(&name)?;
            terminal::complain(&format!("{name} stops when its requests are answered"));
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// With a word of what lies between: it answered, and somebody may want it.
fn going_back(there: &Serving) -> String {
    let (name, revision) = (&there.name, there.revision);
    let Some(last) = there.passed_over.last() else {
        return format!("{name} goes to revision {revision}");
    };
    format!(
        "{name} goes to revision {revision}, the last that passed its probation, and passes over {}; \
         `tutti endpoints rollback {name} --to {last}` goes to revision {last}",
        count_of_revisions(&there.passed_over)
    )
}

pub fn count_of_revisions(numbers: &[u32]) -> String {
    let words: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    let s = if words.len() == 1 { "" } else { "s" };
    format!("revision{s} {}", words.join(", "))
}

fn list(client: &Client, args: &ListArgs) -> Result<ExitCode, Fail> {
    if args.stopped {
        return list_stopped(client, &args.how);
    }
    if args.how.json {
        terminal::json(&client.endpoints()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let text = || Ok(endpoints::table(&client.endpoints()?, Style::of_stdout(), terminal_width()));
    say(&args.how, text)
}

fn list_stopped(client: &Client, how: &HowArgs) -> Result<ExitCode, Fail> {
    if how.json {
        terminal::json(&client.stopped_endpoints()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let text = || {
        let found = client.stopped_endpoints()?;
        let now = session::now(client);
        Ok(served::stopped(&found, now, Style::of_stdout(), terminal_width()))
    };
    say(how, text)
}

fn show(client: &Client, name: &str, how: &HowArgs) -> Result<ExitCode, Fail> {
    if how.json {
        terminal::json(&client.endpoint_detail(name)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let text = || {
        let detail = client.endpoint_detail(name)?;
        let now = session::now(client);
        Ok(endpoint::detail(&detail, now, Style::of_stdout(), terminal_width()))
    };
    say(how, text)
}

fn say(how: &HowArgs, text: impl Fn() -> Result<String, Fail> + Send) -> Result<ExitCode, Fail> {
    if how.watch {
        return terminal::watch(text);
    }
    terminal::say(&text()?);
    Ok(ExitCode::SUCCESS)
}

fn scale(client: &Client, args: &ScaleArgs) -> Result<ExitCode, Fail> {
    let request = match args.replicas {
        Some(Bounds { min, max }) => ScaleRequest { min: Some(min), max: Some(max) },
        None => ScaleRequest::default(),
    };
    client.scale(&args.name, &request)?;
    terminal::complain(&match args.replicas {
        Some(Bounds { min, max }) if min == max => format!("{} gets {min}", args.name),
        Some(Bounds { min, max }) => {
            format!("{} gets {min} to {max}, by how much is asked", args.name)
        }
        None => format!("{} gets what its file says", args.name),
    });
    Ok(ExitCode::SUCCESS)
}

/// `3`, or `1..8`.
fn bounds(text: &str) -> Result<Bounds, String> {
    let (min, max) = text.split_once("..").unwrap_or((text, text));
    let bad = || format!("'{text}' is no number of replicas: write 3, or 1..8");
    let [min, max] = [min, max].map(|n| n.parse::<u32>());
    match (min, max) {
        (Ok(_), Ok(0)) => {
            Err("0 would never answer anything: write 0..1 to let it sleep, or stop it".to_owned())
        }
        (Ok(min), Ok(max)) if min <= max => Ok(Bounds { min, max }),
        _ => Err(bad()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_a_number_or_a_range() {
        assert_eq!(bounds("3"), Ok(Bounds { min: 3, max: 3 }));
        assert_eq!(bounds("0..8"), Ok(Bounds { min: 0, max: 8 }));
        for text in ["", "8..1", "many", "1..", "-1", "1...3"] {
            let error = bounds(text).unwrap_err();
            assert!(error.contains("is no number of replicas"), "{text}: {error}");
        }
        assert!(bounds("0").unwrap_err().contains("0..1"));
    }
}
