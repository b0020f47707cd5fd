//! `tutti ckpt`: checkpoints, wherever they are.

mod advise;
mod args;
mod bar;
mod known;
mod output;
mod register;
#[cfg(test)]
mod tests;
mod whereabouts;

use std::path::Path;
use std::process::ExitCode;

use tutti_checkpoint::{
    Acting, Error, ExportError, ForeignError, Keep, Kind, Listed, Loaded, Manifest, Options,
    Selector, Store,
};

use self::bar::Bar;
use self::known::{Known, Standing};
use self::whereabouts::{Place, Whereabouts};
pub use args::CkptArgs;
use args::{CkptVerb, RestoreArgs, RmArgs, VerifyArgs, Which};

use crate::fail::{Fail, NOT_FOUND, chain};
use crate::style::Style;
use crate::terminal;

pub fn run(cluster: Option<&str>, args: CkptArgs) -> Result<ExitCode, Fail> {
    super::log_to_stderr("warn");
    match args.verb {
        CkptVerb::Ls { at, json } => list(cluster, &at, json),
        CkptVerb::Show { at, step, tensors, json } => show(cluster, &at, step, tensors, json),
        CkptVerb::Verify(args) => verify(cluster, &args),
        CkptVerb::Pin { at, steps, why } => {
            let store = open(cluster, &at)?;
            for step in steps {
                store.pin(step, &why)?;
                terminal::complain(&format!("pinned step {step}: {why}"));
            }
            Ok(ExitCode::SUCCESS)
        }
        CkptVerb::Unpin { at, steps } => {
            let store = open(cluster, &at)?;
            for step in steps {
                store.unpin(step)?;
                terminal::complain(&format!("unpinned step {step}"));
            }
            Ok(ExitCode::SUCCESS)
        }
        CkptVerb::Rm(args) => remove(cluster, &args),
        CkptVerb::Restore(args) => restore(cluster, &args),
        CkptVerb::Register(args) => register::run(cluster, &args),
        CkptVerb::Advise(args) => advise::run(cluster, &args),
    }
}

fn open(cluster: Option<&str>, at: &Whereabouts) -> Result<Store, Fail> {
    let place = at.find(cluster)?;
    open_at(at, place.location()?, &place.acting)
}

fn open_at(at: &Whereabouts, location: &str, acting: &Acting) -> Result<Store, Fail> {
    let (replicas, acting) = (at.replica.clone(), acting.clone());
    Ok(Store::open(location, Options { replicas, acting, ..Options::default() })?)
}

/// What a place has, and what only its job knows of.
fn survey(at: &Whereabouts, place: &Place) -> Result<(Vec<Listed>, Vec<Known>), Fail> {
    let listed = match (place.known_location(), &place.job) {
        (Some(location), _) => open_at(at, location, &place.acting)?.list()?,
        (None, Some(_)) => Vec::new(),
        (None, None) => open_at(at, place.location()?, &place.acting)?.list()?,
    };
    let steps: Vec<u64> = listed.iter().map(|l| l.step).collect();
    let unlisted = |job| known::unlisted(job, &steps, &place.acting);
    let known = place.job.as_ref().map_or_else(Vec::new, unlisted);
    Ok((listed, known))
}

fn list(cluster: Option<&str>, at: &Whereabouts, json: bool) -> Result<ExitCode, Fail> {
    let (listed, known) = survey(at, &at.find(cluster)?)?;
    let rows = output::rows(&listed, &known);
    if json {
        terminal::json(&rows)?;
    } else {
        terminal::say(&output::table(&rows, Style::of_stdout()));
    }
    Ok(ExitCode::SUCCESS)
}

fn show(
    cluster: Option<&str>,
    at: &Whereabouts,
    which: Which,
    tensors: bool,
    json: bool,
) -> Result<ExitCode, Fail> {
    let place = at.find(cluster)?;
    let (listed, known) = survey(at, &place)?;
    let newest = listed.iter().filter(|l| l.manifest.is_ok()).map(|l| l.step).max();
    let wanted = match which {
        Which::Step(step) => Some(step),
        Which::Latest => newest.max(known.last().map(|k| k.step)),
    };
    if let Some(found) = known.iter().find(|k| Some(k.step) == wanted) {
        match json {
            true => terminal::json(&output::Row::known(found))?,
            false => terminal::say(&output::known(found, place.job.as_ref())),
        }
        return Ok(ExitCode::SUCCESS);
    }
    let location = place.location()?;
    let step = wanted.ok_or_else(|| Error::Nothing { place: location.to_owned() })?;
    let manifest = open_at(at, location, &place.acting)?.published(step)?;
    if json {
        terminal::json(&manifest)?;
    } else {
        terminal::say(&output::detail(&manifest, tensors, Style::of_stdout()));
    }
    Ok(ExitCode::SUCCESS)
}

fn verify(cluster: Option<&str>, args: &VerifyArgs) -> Result<ExitCode, Fail> {
    let place = args.at.find(cluster)?;
    let (listed, known) = survey(&args.at, &place)?;
    let all = || listed.iter().map(|l| l.step).chain(known.iter().map(|k| k.step)).collect();
    let steps: Vec<u64> = if args.steps.is_empty() { all() } else { args.steps.clone() };
    let bytes_of = |l: &Listed| l.manifest.as_ref().map_or(0, Manifest::bytes);
    let bytes = listed.iter().filter(|l| steps.contains(&l.step)).map(bytes_of).sum();
    let bar = Bar::new("reading", bytes);
    let mut found = Vec::new();
    for &step in &steps {
        found.push(match known.iter().find(|k| k.step == step) {
            Some(known) => first_reading(known, &place, &bar)?,
            None => {
                let store = open_at(&args.at, place.location()?, &place.acting)?;
                read_again(&store, step, args.mend, &bar)?
            }
        });
    }
    bar.done();
    if args.json {
        terminal::json(&found)?;
    } else {
        terminal::say(&output::checked(&found, Style::of_stdout()));
    }
    let good = found.iter().all(output::Checked::is_good);
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn read_again(store: &Store, step: u64, mend: bool, bar: &Bar) -> Result<output::Checked, Fail> {
    match store.verify(step, mend, &|n| bar.add(n)) {
        Ok(found) => Ok(output::Checked::Read(found)),
        Err(e @ Error::Manifest { .. }) => Ok(output::Checked::Unreadable { step, why: chain(&e) }),
        Err(e) => Err(e.into()),
    }
}

/// Nothing to compare with yet: what is read now is what it has to be from now on.
fn first_reading(known: &Known, place: &Place, bar: &Bar) -> Result<output::Checked, Fail> {
    let step = known.step;
    let path = match (&known.path, &known.standing) {
        (Some(path), Standing::NotHashed { .. }) => Path::new(path),
        _ => {
            let why = output::whereabouts(known);
            return Ok(output::Checked::Unreadable { step, why });
        }
    };
    let id = place.job.as_ref().map(|job| job.row.id);
    let acting = place.acting.clone();
    let manifest = register::hash(path, None, step, id, acting, &|n| bar.add(n))?;
    let (files, bytes) = (manifest.files.len(), manifest.bytes());
    Ok(output::Checked::Recorded { step, recorded: path.display().to_string(), files, bytes })
}

fn remove(cluster: Option<&str>, args: &RmArgs) -> Result<ExitCode, Fail> {
    let store = open(cluster, &args.at)?;
    for &step in &args.steps {
        store.remove(step, args.force)?;
        terminal::complain(&format!("removed step {step}"));
    }
    if let Some(last) = args.keep_last {
        for step in store.retain(&Keep { last, every: args.keep_every })? {
            terminal::complain(&format!("removed step {step}"));
        }
    }
    let swept = store.sweep()?;
    for step in &swept.finished {
        terminal::complain(&format!("removed what was left of step {step}"));
    }
    if !swept.files.is_empty() {
        let count = crate::show::count(swept.files.len() as u64, "file");
        terminal::complain(&format!("removed {count} that dead attempts left"));
    }
    Ok(ExitCode::SUCCESS)
}

fn restore(cluster: Option<&str>, args: &RestoreArgs) -> Result<ExitCode, Fail> {
    let store = open(cluster, &args.at)?;
    let selector = match args.step {
        Which::Latest => Selector::Latest,
        Which::Step(step) => Selector::Step(step),
    };
    let mut copy = |loaded: &Loaded| {
        let bar = Bar::new("copying", loaded.manifest().bytes());
        let done = copy_out(loaded, args, &bar);
        bar.done();
        match done {
            // Damage is for the store to deal with; all else is the end.
            Err(ExportError::Load(e)) => Err(e),
            Err(e) => Ok(Err(Fail::new(chain(&e)))),
            Ok(()) => Ok(Ok(loaded.step())),
        }
    };
    let (step, report) = store.load_with(selector, &mut copy)?;
    for line in report.lines() {
        terminal::warn(&line);
    }
    terminal::complain(&format!("restored step {} to {}", step?, args.to));
    Ok(ExitCode::SUCCESS)
}

fn copy_out(loaded: &Loaded, args: &RestoreArgs, bar: &Bar) -> Result<(), ExportError> {
    let moved = |n| bar.add(n);
    let to = Path::new(&args.to);
    if args.single {
        return loaded.export(to, &Acting::Owner, &moved);
    }
    if loaded.manifest().kind == Kind::Foreign && !args.to.contains("://") {
        return loaded.restore_files(to, &Acting::Owner, &moved);
    }
    let options = Options { acting: Acting::Owner, ..Options::default() };
    Store::open(&args.to, options)?.receive(loaded, &moved)?;
    Ok(())
}

impl From<Error> for Fail {
    fn from(e: Error) -> Fail {
        let fail = Fail::new(chain(&e));
        match &e {
            Error::Nothing { .. } => fail.exit(NOT_FOUND),
            Error::NoSuchStep { .. } => {
                fail.exit(NOT_FOUND).hint("tutti ckpt ls shows what there is")
            }
            Error::Newest { .. } | Error::Manifest { .. } => {
                fail.hint("--force removes it all the same")
            }
            Error::Pinned { step, .. } => fail.hint(format!("tutti ckpt unpin WHERE {step}")),
            Error::Location(_) => fail.exit(crate::fail::USAGE),
            _ => fail,
        }
    }
}

impl From<ForeignError> for Fail {
    fn from(e: ForeignError) -> Fail {
        match e {
            ForeignError::Store(e) => e.into(),
            e => Fail::new(chain(&e)),
        }
    }
}
