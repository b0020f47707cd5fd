//! What podman itself is given. Where it runs as a user it may use set-uid programs, which the job may
//! not; so nothing in its environment is the job's to choose, and the job's variables reach the
//! container by files that the agent writes.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::unix::fs::fchown;
use std::path::{Path, PathBuf};

use tutti_files::Folder;
use tutti_model::{Blame, PartError, Rank};

use crate::container::{self, Found, Inside};
use crate::env::DEFAULT_PATH;
use crate::plan::{Identity, Plan, Podman};
use crate::user::Account;

/// Where podman keeps what must not outlive the machine, one directory for each user. Not in `/tmp`, which
/// each part has for itself: podman would take a missing one for a restart of the machine. Here is also a
/// directory for each part, which only root can write.
const BASE: &str = "/run/tutti-containers";

#[derive(Debug, thiserror::Error)]
pub enum PodmanError {
    #[error("{path}: {source}")]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{0}")]
    Variable(String),
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> PodmanError {
    let path = path.to_owned();
    move |source| PodmanError::Io { path, source }
}

/// Known before anything starts.
pub fn check_variables(env: &BTreeMap<String, String>) -> Result<(), PartError> {
    let vars = env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    match container::fits_no_line(vars) {
        None => Ok(()),
        Some(name) => Err(PartError { message: no_line(name), blame: Blame::Job }),
    }
}

fn no_line(name: &str) -> String {
    format!(
        "the variable '{name}' can't be given to podman, which reads one from each line of a file: \
         it has several lines, or its name has spaces; put it into a file of your own"
    )
}

pub fn prepare(
    found: &Found,
    plan: &Plan,
    account: &Account,
    inside: &Inside,
) -> Result<Podman, PodmanError> {
    let set = |name: &str, value: &str| format!("{name}={value}");
    let mut env = vec![
        set("PATH", DEFAULT_PATH),
        set("HOME", &account.home),
        set("USER", &account.name),
        set("LOGNAME", &account.name),
        set("LANG", "C.UTF-8"),
        // Should its shim be killed, it is found by that.
        set("TUTTI_PART", &plan.stem.display().to_string()),
    ];
    env.extend(container::for_pulling(&plan.env).cloned());
    let mut files = None;
    if let Some(identity) = &plan.identity {
        let base = Path::new(BASE);
        let own = Folder::make_own(base, 0o755).map_err(failed(base))?;
        let uid = identity.uid.to_string();
        let dir = base.join(&uid);
        user_dir(&own, &uid, identity).map_err(failed(&dir))?;
        env.push(set("XDG_RUNTIME_DIR", &dir.display().to_string()));
        files = Some(write_variables(&files_of(&plan.stem), plan, identity, inside)?);
    }
    let [list, remove] = container::leftovers(&found.path, &inside.part);
    Ok(Podman { env, files, list, remove })
}

fn user_dir(base: &Folder, name: &str, identity: &Identity) -> io::Result<()> {
    base.make_dir(name, 0o700)?;
    if base.folder(name)?.owner()? != identity.uid {
        base.give(name, identity.uid, identity.gid)?;
    }
    Ok(())
}

/// One directory for each part of each agent.
fn files_of(stem: &Path) -> PathBuf {
    let mark = blake3::hash(stem.as_os_str().as_encoded_bytes()).to_hex();
    Path::new(BASE).join(format!("env-{}", &mark[..16]))
}

fn write_variables(
    dir: &Path,
    plan: &Plan,
    identity: &Identity,
    inside: &Inside,
) -> Result<PathBuf, PodmanError> {
    forget(dir).map_err(failed(dir))?;
    let own = Folder::make_own(dir, 0o711).map_err(failed(dir))?;
    for rank in (plan.first_rank.0..plan.first_rank.0 + plan.ranks).map(Rank) {
        let text = variables(plan, rank, inside)?;
        let name = rank.to_string();
        let file = own.create_new(&name, 0o400);
        file.and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            fchown(&file, Some(identity.uid), Some(identity.gid))
        })
        .map_err(failed(&dir.join(&name)))?;
    }
    Ok(dir.to_owned())
}

/// A line for each that goes inside.
fn variables(plan: &Plan, rank: Rank, inside: &Inside) -> Result<String, PodmanError> {
    let passed: Vec<&String> = inside.passed().collect();
    let all = plan.env.iter().cloned().chain(plan.by_rank.values(rank, plan.first_rank));
    let goes = |var: &String| {
        var.split_once('=').is_some_and(|(name, _)| passed.iter().any(|p| *p == name))
    };
    let lines: Vec<String> = all.filter(goes).collect();
    match container::fits_no_line(lines.iter().filter_map(|line| line.split_once('='))) {
        None => Ok(lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect()),
        Some(name) => Err(PodmanError::Variable(no_line(name))),
    }
}

/// The part is over.
pub fn forget_variables(stem: &Path) {
    let dir = files_of(stem);
    if let Err(error) = forget(&dir) {
        tracing::warn!(%error, "variables of a job stay in {}", dir.display());
    }
}

/// Removes a part's directory, if there is one.
pub(crate) fn forget(dir: &Path) -> io::Result<()> {
    let (base, name) = (dir.parent().unwrap_or(dir), dir.file_name().unwrap_or_default());
    match Folder::open_own(base).and_then(|base| base.remove_tree(name)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}
