//! `tutti submit`. Runs thousands of times in a script, so: no runtime, no tables, one request.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tutti_model::{ArraySpec, Command, JobSpec, TaskId};
use tutti_wire::api::{JobRow, Submit};
use tutti_wire::client::{Client, new_key};
use tutti_wire::jobfile::{self, Inherit};

use super::job_args::{JobArgs, set_array};
use super::plan;
use crate::fail::{Fail, job_exit};
use crate::show::job::quoted;
use crate::{file, session, terminal};

const VERB: &str = "submit";

#[derive(clap::Args)]
#[command(override_usage = "tutti submit [OPTIONS] FILE [ARGS]...\n       \
    tutti submit [OPTIONS] --wrap 'CMD'\n       tutti submit [OPTIONS] -- CMD...")]
#[command(
    after_help = "FILE is TOML, YAML, JSON or a script with #SBATCH lines; - reads standard input.\n\
    Flags override the file. A script runs once on every node."
)]
pub struct SubmitArgs {
    /// The job file, and arguments if it is a script
    #[arg(value_name = "FILE", conflicts_with = "wrap")]
    file: Option<PathBuf>,
    #[arg(value_name = "ARGS", hide = true)]
    arguments: Vec<String>,
    /// A shell line to run
    #[arg(long, value_name = "CMD")]
    wrap: Option<String>,
    /// Words to run without a shell; with FILE, more arguments of the script
    #[arg(last = true, value_name = "CMD", conflicts_with = "wrap")]
    command: Vec<String>,
    #[command(flatten)]
    job: JobArgs,
    /// Many tasks from one job: 0-999, 1,3,5, 0-99:2, with %N for at most N at once
    #[arg(long, short = 'a', value_name = "INDICES")]
    array: Option<ArraySpec>,
    /// Wait for tutti release
    #[arg(long)]
    hold: bool,
    /// Wait for the end and exit with the job's code
    #[arg(long, short = 'W')]
    wait: bool,
    /// Print a JSON object with the id
    #[arg(long)]
    json: bool,
    /// Submitting twice with the same key makes one job
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
}

pub fn run(cluster: Option<&str>, args: SubmitArgs) -> Result<ExitCode, Fail> {
    let (wait, json) = (args.wait, args.json);
    let client = session::open(cluster)?;
    let submit = describe(&client, args)?;
    let submitted = client
        .submit(&submit)
        .map_err(|e| session::perhaps_done(e, || again(submit.key.as_deref(), &words())))?;
    submitted.warnings.iter().for_each(|w| terminal::warn(w));
    if json {
        terminal::json(&submitted)?;
    } else {
        terminal::say(&submitted.id.to_string());
    }
    // Who reads only the id has it by now.
    plan::check::warnings(&client, &submit.spec).iter().for_each(|w| terminal::warn(w));
    if !wait {
        return Ok(ExitCode::SUCCESS);
    }
    let row = wait_for(&client, submitted.id)?;
    Ok(job_exit(exit_code(&row)))
}

fn describe(client: &Client, args: SubmitArgs) -> Result<Submit, Fail> {
    let parsed = match (args.file, args.wrap, args.command) {
        (Some(file), _, words) => {
            let mut parsed = read(&file)?;
            let arguments: Vec<String> = args.arguments.into_iter().chain(words).collect();
            give_arguments(&mut parsed, arguments, &file)?;
            refuse_service(&parsed.spec, &file)?;
            parsed
        }
        (None, Some(line), _) => plain(JobSpec::shell(line)),
        (None, None, words) if !words.is_empty() => plain(JobSpec::new(Command::Argv(words))),
        (None, None, _) => {
            return Err(Fail::usage("nothing to submit").hint(
                "tutti submit train.toml, tutti submit --wrap 'CMD', or tutti submit -- CMD",
            ));
        }
    };
    parsed.warnings.iter().for_each(|w| terminal::warn(w));
    let mut spec = parsed.spec;
    args.job.apply(&mut spec, parsed.inherit)?;
    set_array(&mut spec, args.array);
    spec.hold |= args.hold;
    // Known here, and not made by the client: whoever gives up is told it.
    let key = Some(args.key.map_or_else(new_key, Ok)?);
    Ok(Submit { spec, user: session::on_behalf(client), key })
}

/// The command line that we were called with.
fn words() -> Vec<String> {
    std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// How to submit the same once more, and yet only once.
fn again(key: Option<&str>, words: &[String]) -> String {
    let at = words.iter().position(|word| word == VERB);
    let (Some(key), Some(at)) = (key, at) else { return String::new() };
    let (before, after) = words.split_at(at + 1);
    let own = ["--key".to_owned(), key.to_owned()];
    // `--` ends the flags: behind it the word is the command's.
    let mut flags = after.iter().take_while(|word| *word != "--");
    let given = flags.any(|word| word == "--key" || word.starts_with("--key="));
    let program = "tutti".to_owned();
    let line: Vec<String> = [&program]
        .into_iter()
        .chain(before.iter().skip(1))
        .chain(own.iter().filter(|_| !given))
        .chain(after)
        .map(|word| quoted(word))
        .collect();
    format!(
        "the job may have been taken all the same; this gives its id, and submits it if it was not:\n  {}",
        line.join(" ")
    )
}

/// As a job it would run once, and nobody would reach it.
fn refuse_service(spec: &JobSpec, path: &Path) -> Result<(), Fail> {
    if spec.service.is_none() {
        return Ok(());
    }
    let shown = file::name(path);
    Err(Fail::usage(format!("{shown} has a [service] table, so it is an endpoint and not a job"))
        .hint(format!("serve it with tutti serve {shown}")))
}

fn plain(spec: JobSpec) -> jobfile::Parsed {
    jobfile::Parsed { spec, warnings: Vec::new(), inherit: Inherit::Usual, takes_arguments: false }
}

pub fn read(path: &Path) -> Result<jobfile::Parsed, Fail> {
    let name = path.to_string_lossy();
    let text = file::read(path, "job file")?;
    Ok(jobfile::parse(Some(&name).filter(|_| !file::is_stdin(path)).map(AsRef::as_ref), &text)?)
}

fn give_arguments(
    parsed: &mut jobfile::Parsed,
    arguments: Vec<String>,
    file: &Path,
) -> Result<(), Fail> {
    if arguments.is_empty() {
        return Ok(());
    }
    match &mut *parsed.spec.run {
        Command::Argv(words) if parsed.takes_arguments => {
            words.extend(arguments);
            Ok(())
        }
        _ => Err(Fail::usage(format!("{} takes no arguments: only a script does", file.display()))
            .hint("put them into its 'run'")),
    }
}

/// Asks until the job has ended, over restarts of the controller too.
pub fn wait_for(client: &Client, id: TaskId) -> Result<JobRow, Fail> {
    loop {
        // Not longer at a time: a controller that hangs is noticed only after this.
        match client.wait(id, 15) {
            Ok(row) if row.state.is_final() => return Ok(row),
            Ok(_) => {}
            Err(e) if e.is_unreachable() => {
                // The job runs on without its controller, so its end can still be learnt.
                std::thread::sleep(std::time::Duration::from_millis(500));
            }
            Err(e) => return Err(e.into()),
        }
    }
}

/// The job's own code, but 0 only for one that completed: the tasks of an array that returned 0 do
/// not make up for those that were cancelled.
pub fn exit_code(row: &JobRow) -> i32 {
    let code = row.exit_code.unwrap_or(0);
    if row.state == tutti_model::JobState::Completed { code } else { code.max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::jobs::tests::row;
    use tutti_model::JobState;

    #[test]
    fn exit_codes_are_the_jobs() {
        let ended = |state, exit_code| exit_code_of(JobRow { exit_code, ..row("1", state) });
        fn exit_code_of(row: JobRow) -> i32 {
            exit_code(&row)
        }
        assert_eq!(ended(JobState::Completed, Some(0)), 0);
        assert_eq!(ended(JobState::Failed, Some(137)), 137);
        assert_eq!(ended(JobState::Completed, None), 0);
        assert_eq!(ended(JobState::Cancelled, None), 1);
        assert_eq!(ended(JobState::Cancelled, Some(0)), 1);
        assert_eq!(ended(JobState::Failed, Some(0)), 1);
    }

    #[test]
    fn a_service_is_not_submitted() {
        let spec = |text: &str| jobfile::parse(Some("x.toml"), text.as_bytes()).unwrap().spec;
        let fail = refuse_service(&spec("run = 'x'\n[service]"), "x.toml".as_ref()).unwrap_err();
        assert_eq!(fail.exit, 2);
        assert_eq!(fail.hint.unwrap(), "serve it with tutti serve x.toml");
        assert_eq!(refuse_service(&spec("run = 'x'"), "x.toml".as_ref()), Ok(()));
    }

    #[test]
    fn a_submission_whose_answer_was_lost_can_be_repeated_word_for_word() {
        let said = |line: &[&str]| {
            let words: Vec<String> = line.iter().map(|w| (*w).to_owned()).collect();
            again(Some("k1"), &words).lines().last().unwrap().trim().to_owned()
        };
        assert_eq!(
            said(&["/usr/bin/tutti", "--cluster", "/d", "submit", "--wrap", "sleep 1"]),
            "tutti --cluster /d submit --key k1 --wrap 'sleep 1'"
        );
        let given = ["tutti", "submit", "--key=k1", "a.toml"];
        assert_eq!(said(&given), "tutti submit --key=k1 a.toml");
        assert_eq!(
            said(&["tutti", "submit", "--", "x", "--key", "y"]),
            "tutti submit --key k1 -- x --key y"
        );
    }

    #[test]
    fn only_scripts_take_arguments() {
        let mut script = jobfile::parse(Some("x.sh"), b"#!/bin/sh\necho $1").unwrap();
        give_arguments(&mut script, vec!["a".into()], "x.sh".as_ref()).unwrap();
        let Command::Argv(words) = script.spec.run.into_inner() else { panic!() };
        assert_eq!(words[3..], ["x.sh", "a"]);
        let mut toml = jobfile::parse(Some("x.toml"), b"run = 'x'").unwrap();
        let fail = give_arguments(&mut toml, vec!["a".into()], "x.toml".as_ref()).unwrap_err();
        assert_eq!(fail.exit, 2);
    }
}
