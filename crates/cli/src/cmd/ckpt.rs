//! `tutti ckpt`: checkpoints, wherever they are.

mod advise;
mod args;
mod bar;
mod output;
#[cfg(test)]
mod tests;
mod whereabouts;

use std::path::Path;
use std::process::ExitCode;

use tutti_checkpoint::{
    Attempt, Error, ExportError, ForeignError, Keep, Kind, Listed, Loaded, Manifest, Options,
    Selector, Store, Writer,
};

use self::bar::Bar;
use self::whereabouts::Whereabouts;
pub use args::CkptArgs;
use args::{CkptVerb, RegisterArgs, RestoreArgs, RmArgs, VerifyArgs, Which};

use crate::fail::{Fail, NOT_FOUND, chain};
use crate::style::Style;
use crate::terminal;

pub fn run(cluster: Option<&str>, args: CkptArgs) -> Result<ExitCode, Fail> {
    match args.verb {
        CkptVerb::Ls { at, json } => {
            let store = open(cluster, &at, None)?;
            let found = store.list()?;
            if json {
                terminal::json(&found.iter().map(output::Row::of).collect::<Vec<_>>())?;
            } else {
                terminal::say(&output::table(&found, Style::of_stdout()));
            }
            Ok(ExitCode::SUCCESS)
        }
        CkptVerb::Show { at, step, tensors, json } => {
            let manifest = pick(&open(cluster, &at, None)?, step)?;
            if json {
                terminal::json(&manifest)?;
            } else {
                terminal::say(&output::detail(&manifest, tensors, Style::of_stdout()));
            }
            Ok(ExitCode::SUCCESS)
        }
        CkptVerb::Verify(args) => verify(cluster, &args),
        CkptVerb::Pin { at, steps, why } => {
            let store = open(cluster, &at, None)?;
            for step in steps {
                store.pin(step, &why)?;
                terminal::complain(&format!("pinned step {step}: {why}"));
            }
            Ok(ExitCode::SUCCESS)
        }
        CkptVerb::Unpin { at, steps } => {
            let store = open(cluster, &at, None)?;
            for step in steps {
                store.unpin(step)?;
                terminal::complain(&format!("unpinned step {step}"));
            }
            Ok(ExitCode::SUCCESS)
        }
        CkptVerb::Rm(args) => remove(cluster, &args),
        CkptVerb::Restore(args) => restore(cluster, &args),
        CkptVerb::Register(args) => register(&args),
        CkptVerb::Advise(args) => advise::run(cluster, &args),
    }
}

fn open(cluster: Option<&str>, at: &Whereabouts, writer: Option<Writer>) -> Result<Store, Fail> {
    let location = at.location(cluster)?;
    let options = Options { writer, replicas: at.replica.clone(), ..Options::default() };
    Ok(Store::open(&location, options)?)
}

fn pick(store: &Store, which: Which) -> Result<Manifest, Fail> {
    match which {
        Which::Step(step) => Ok(store.published(step)?),
        Which::Latest => {
            let listed = store.list()?.into_iter().rev().find_map(|l| l.manifest.ok());
            let place = store.label().to_owned();
            listed.ok_or_else(|| Error::Nothing { place }.into())
        }
    }
}

fn verify(cluster: Option<&str>, args: &VerifyArgs) -> Result<ExitCode, Fail> {
    let store = open(cluster, &args.at, None)?;
    let listed = store.list()?;
    let steps: Vec<u64> = match &args.steps[..] {
        [] => listed.iter().map(|l| l.step).collect(),
        steps => steps.to_vec(),
    };
    let bytes_of = |l: &Listed| l.manifest.as_ref().map_or(0, Manifest::bytes);
    let bytes = listed.iter().filter(|l| steps.contains(&l.step)).map(bytes_of).sum();
    let bar = Bar::new("reading", bytes);
    let mut found = Vec::new();
    for &step in &steps {
        found.push(match store.verify(step, args.mend, &|n| bar.add(n)) {
            Ok(found) => output::Checked::Read(found),
            Err(e @ Error::Manifest { .. }) => output::Checked::Unreadable { step, why: chain(&e) },
            Err(e) => return Err(e.into()),
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

fn remove(cluster: Option<&str>, args: &RmArgs) -> Result<ExitCode, Fail> {
    let store = open(cluster, &args.at, None)?;
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
    let store = open(cluster, &args.at, None)?;
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
        return loaded.export(to, &moved);
    }
    if loaded.manifest().kind == Kind::Foreign && !args.to.contains("://") {
        return loaded.restore_files(to, &moved);
    }
    Store::open(&args.to, Options::default())?.receive(loaded, &moved)?;
    Ok(())
}

fn register(args: &RegisterArgs) -> Result<ExitCode, Fail> {
    let parent = args.dir.parent().filter(|p| !p.as_os_str().is_empty());
    let location = args.location.as_deref().or(parent).unwrap_or(Path::new("."));
    let Some(text) = location.to_str() else {
        return Err(Fail::usage(format!("{} is not text", location.display())));
    };
    // By hand there is no attempt that could be replaced by another.
    let attempt = Attempt { owner: "registered".into(), generation: 0 };
    let writer = Some(Writer { rank: 0, world: 1, attempt });
    let store = Store::open(text, Options { writer, ..Options::default() })?;
    let bar = Bar::new("hashing", 0);
    let registered =
        store.register(location, &args.dir, args.step, serde_json::Value::Null, &|n| bar.add(n));
    bar.done();
    let manifest = registered?;
    if args.json {
        return terminal::json(&manifest).map(|()| ExitCode::SUCCESS);
    }
    terminal::complain(&format!(
        "registered {} as step {}: {}, {}",
        args.dir.display(),
        args.step,
        crate::show::count(manifest.files.len() as u64, "file"),
        output::size(manifest.bytes()),
    ));
    Ok(ExitCode::SUCCESS)
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
