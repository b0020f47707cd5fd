//! `tutti policy show|check|apply`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tutti_model::{Policy, TopologyMap};
use tutti_wire::policyfile;

use crate::fail::Fail;
use crate::show::policy;
use crate::show::table::terminal_width;
use crate::style::Style;
use crate::{file, session, terminal};

/// What the files should be.
const WHAT: &str = "policy file";

#[derive(clap::Args)]
pub struct PolicyArgs {
    #[command(subcommand)]
    verb: PolicyVerb,
}

#[derive(clap::Subcommand)]
enum PolicyVerb {
    /// Print the running policy as a policy file
    Show {
        /// As the API has it
        #[arg(long)]
        json: bool,
        /// As a policy file, which is the default
        #[arg(long, conflicts_with = "json")]
        toml: bool,
    },
    /// Look for mistakes in a policy file; no cluster is needed
    Check(FileArgs),
    /// Make this the running policy and print what changed
    Apply(ApplyArgs),
}

#[derive(clap::Args)]
struct ApplyArgs {
    #[command(flatten)]
    file: FileArgs,
    /// Change nothing: print what would change, who would start, and who would be stopped for whom
    #[arg(long)]
    dry_run: bool,
    /// As the API has it
    #[arg(long, requires = "dry_run")]
    json: bool,
}

#[derive(clap::Args)]
struct FileArgs {
    /// A policy file; - is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// It holds only what stands under [topology]; the rest stays as it is
    #[arg(long)]
    topology: bool,
}

enum Given {
    Whole(Box<Policy>),
    Topology(TopologyMap),
}

pub fn run(cluster: Option<&str>, args: PolicyArgs) -> Result<ExitCode, Fail> {
    match args.verb {
        PolicyVerb::Show { json, toml: _ } => {
            let policy = session::open(cluster)?.policy()?;
            if json {
                terminal::json(&policy)?;
            } else {
                terminal::document(as_file(&policy)?.trim_end());
            }
        }
        PolicyVerb::Check(file) => {
            given(&file)?;
            terminal::complain(&format!("{} is fine", file.file.display()));
        }
        PolicyVerb::Apply(args) if args.dry_run => preview(cluster, &args)?,
        PolicyVerb::Apply(args) => apply(cluster, &args.file)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn apply(cluster: Option<&str>, file: &FileArgs) -> Result<(), Fail> {
    let given = given(file)?;
    let client = session::open(cluster)?;
    let (old, new, notes) = client.change_policy(|old| given.on(old))?;
    let changes = policyfile::changes(&old, &new).map_err(unwritable)?;
    terminal::say(&policy::changes(&changes, Style::of_stdout()));
    let now = session::now(&client);
    policy::notes(&notes, now).iter().for_each(|note| terminal::warn(note));
    Ok(())
}

/// What it would do, by the controller's own scheduler on a copy of the cluster.
fn preview(cluster: Option<&str>, args: &ApplyArgs) -> Result<(), Fail> {
    let given = given(&args.file)?;
    let client = session::open(cluster)?;
    let new = match &given {
        Given::Whole(policy) => Policy::clone(policy),
        Given::Topology(_) => given.on(&client.policy()?),
    };
    let preview = client.preview_policy(&new)?;
    if args.json {
        return terminal::json(&preview);
    }
    let now = session::now(&client);
    terminal::say(&policy::preview(&preview, now, Style::of_stdout(), terminal_width()));
    Ok(())
}

impl Given {
    /// The policy that it makes of the running one.
    fn on(&self, old: &Policy) -> Policy {
        match self {
            Given::Whole(policy) => Policy::clone(policy),
            Given::Topology(topology) => Policy { topology: topology.clone(), ..old.clone() },
        }
    }
}

/// Read before the cluster is looked for: a file that is wrong is wrong without one.
fn given(args: &FileArgs) -> Result<Given, Fail> {
    let (name, text) = (file::name(&args.file), file::read(&args.file, WHAT)?);
    Ok(if args.topology {
        Given::Topology(policyfile::parse_topology(Some(&name), &text)?)
    } else {
        Given::Whole(Box::new(policyfile::parse(Some(&name), &text)?))
    })
}

/// For `--policy` of the commands that start a controller.
pub fn read_whole(path: &Path) -> Result<Policy, Fail> {
    Ok(policyfile::parse(Some(&file::name(path)), &file::read(path, WHAT)?)?)
}

fn as_file(policy: &Policy) -> Result<String, Fail> {
    policyfile::write(policy).map_err(unwritable)
}

fn unwritable(error: impl std::fmt::Display) -> Fail {
    Fail::new(format!("the policy can't be written as a file: {error}"))
        .hint("tutti policy show --json prints it as it is")
}
