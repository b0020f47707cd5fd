//! `tutti ckpt register`: a directory of another framework becomes a checkpoint, of a job if one is
//! named.

use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};
use tutti_checkpoint::{Acting, Attempt, Manifest, Options, Store, Writer};
use tutti_model::TaskId;

use super::args::RegisterArgs;
use super::bar::Bar;
use super::output;
use crate::cmd::progress::from_here;
use crate::fail::{Fail, NOT_FOUND};
use crate::{session, terminal};

pub fn run(cluster: Option<&str>, args: &RegisterArgs) -> Result<ExitCode, Fail> {
    let (job, dir) = match &args.what[..] {
        [job, dir] => (Some(parse_job(job)?), dir),
        [dir, ..] => (None, dir),
        [] => return Err(Fail::usage("name a directory")),
    };
    let path = from_here(dir.clone())?;
    // A job that is not there is told before a manifest says that it is its own.
    let client = match job {
        Some(id) => {
            let client = session::open(cluster)?;
            client.job(id)?;
            Some(client)
        }
        None => None,
    };
    let manifest = match (args.by_name, job) {
        (true, None) => return Err(Fail::usage("--by-name needs a job: nothing else would know")),
        (true, Some(_)) => None,
        (false, _) => Some(hash_visibly(Path::new(&path), args, job)?),
    };
    if let (Some(id), Some(client)) = (job, &client) {
        client.register(id, args.step, path.clone())?;
    }
    if args.json {
        let told = json!({ "job": job, "step": args.step, "path": path, "manifest": manifest });
        return terminal::json(&told).map(|()| ExitCode::SUCCESS);
    }
    let of = job.map_or_else(String::new, |id| format!(" of job {id}"));
    let about = match &manifest {
        Some(manifest) => format!(
            "{}, {}",
            crate::show::count(manifest.files.len() as u64, "file"),
            output::size(manifest.bytes())
        ),
        None => "not looked at".to_owned(),
    };
    terminal::complain(&format!("registered {path} as step {}{of}: {about}", args.step));
    Ok(ExitCode::SUCCESS)
}

fn parse_job(text: &str) -> Result<TaskId, Fail> {
    text.parse().map_err(|_| Fail::usage(format!("{text} is no job: give JOB DIR, or DIR alone")))
}

fn hash_visibly(path: &Path, args: &RegisterArgs, job: Option<TaskId>) -> Result<Manifest, Fail> {
    if !path.exists() {
        let fail = Fail::new(format!("there is no {}", path.display())).exit(NOT_FOUND);
        return Err(match job {
            Some(_) => fail.hint("--by-name tells the job of it without looking"),
            None => fail,
        });
    }
    let bar = Bar::new("hashing", 0);
    let location = args.location.as_deref();
    let manifest = hash(path, location, args.step, job, Acting::Owner, &|n| bar.add(n));
    bar.done();
    manifest
}

/// Hashes it into a manifest beside it, or in `location` above it.
pub fn hash(
    path: &Path,
    location: Option<&Path>,
    step: u64,
    job: Option<TaskId>,
    acting: Acting,
    reading: &(dyn Fn(u64) + Sync),
) -> Result<Manifest, Fail> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    let location = location.or(parent).unwrap_or(Path::new("."));
    // By hand there is no attempt that could be replaced by another.
    let attempt = Attempt { owner: "registered".into(), generation: 0 };
    let writer = Some(Writer { rank: 0, world: 1, attempt });
    let store = Store::open(&text(location)?, Options { writer, acting, ..Options::default() })?;
    let meta = job.map_or(Value::Null, |id| json!({ "job": id }));
    Ok(store.register(location, path, step, meta, reading)?)
}

fn text(path: &Path) -> Result<String, Fail> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| Fail::usage(format!("{} is not text", path.display())))
}
