//! A part inside an image: with which runtime, and what goes in with it.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tutti_model::{Blame, Launch, PartError};

use super::Node;
use crate::container::{self, Found, Inside, Runtime};
use crate::env::DEFAULT_PATH;
use crate::plan::{Identity, Plan, Workdir};
use crate::user::Account;

/// Where podman keeps what must not outlive the machine, one directory for each user. Not in `/tmp`, which
/// each part has for itself: podman would take a missing one for a restart of the machine.
const RUNTIME_DIRS: &str = "/run/tutti-containers";

impl Node {
    /// Known before any process exists: whether this node can run the image at all.
    pub(super) fn check_image(&self, launch: &Launch) -> Result<(), PartError> {
        let Some(image) = &launch.spec.image else { return Ok(()) };
        let found = self.runtime(image)?;
        let inside = self.inside(launch, image);
        container::command(found, &inside).map(drop).map_err(|why| self.cannot(image, &why))
    }

    fn cannot(&self, image: &str, why: &str) -> PartError {
        let message = format!("node {} can't run image '{image}': {why}", self.config.name);
        PartError { message, blame: Blame::Node }
    }

    fn runtime(&self, image: &str) -> Result<&Found, PartError> {
        let preferred = self.config.runtime;
        container::choose(&self.runtimes, preferred).ok_or_else(|| {
            let names = preferred.map_or("podman, apptainer or enroot", Runtime::name);
            self.cannot(image, &format!("it has no {names}"))
        })
    }

    fn inside(&self, launch: &Launch, image: &str) -> Inside {
        let part = self.parts.stem(launch.lease).display().to_string();
        let mut inside = Inside { image: image.to_owned(), part, ..Inside::default() };
        let hardware = self.config.hardware.as_deref().filter(|_| !self.config.simulated);
        inside.give(hardware, &self.config.gpus, &launch.gpus);
        inside
    }

    /// A runtime that was killed removes nothing. What it left is removed by its own user, off this
    /// thread.
    pub(super) fn remove_containers(&self, launch: &Launch) {
        let Some(image) = &launch.spec.image else { return };
        let Ok(found) = self.runtime(image).cloned() else { return };
        let Ok(account) = self.lookups.account(&launch.user) else { return };
        if found.runtime != Runtime::Podman {
            return;
        }
        let part = self.parts.stem(launch.lease).display().to_string();
        tokio::task::spawn_blocking(move || {
            if let Err(why) = remove_leftovers(&found.path, &part, &account) {
                tracing::warn!("containers of {part} may be left: {why}");
            }
        });
    }

    /// Puts the part's ranks into their image, if they have one.
    pub(super) fn contain(&self, launch: &Launch, mut plan: Plan) -> Result<Plan, PartError> {
        let Some(image) = &launch.spec.image else { return Ok(plan) };
        let found = self.runtime(image)?;
        let mut inside = self.inside(launch, image);
        let name = |var: &String| var.split_once('=').map(|(name, _)| name.to_owned());
        inside.variables = plan.env.iter().filter_map(name).collect();
        let by_rank = plan.by_rank.global.iter().chain(&plan.by_rank.local);
        inside.variables.extend(by_rank.cloned());
        inside.own = launch.spec.env.keys().cloned().collect();
        let of = |name: &str| plan.env.iter().find_map(|var| var.strip_prefix(name));
        let home = of("HOME=").map(PathBuf::from);
        // Where the programs on a shared GPU meet.
        let pipe = of("CUDA_MPS_PIPE_DIRECTORY=").map(PathBuf::from);
        let workdir = match &plan.workdir {
            Workdir::Asked(dir) | Workdir::Home(dir) => dir.clone(),
        };
        let mut paths = vec![PathBuf::from("/tmp"), plan.progress.clone()];
        paths.extend([PathBuf::from(&workdir)].into_iter().chain(home).chain(pipe));
        inside.paths = outermost(paths).into_iter().map(|path| (path, false)).collect();
        inside.paths.push((PathBuf::from(&self.program), true));
        inside.workdir = workdir;
        inside.as_root = plan.identity.is_none() && nix::unistd::Uid::effective().is_root();
        plan.container =
            container::command(found, &inside).map_err(|why| self.cannot(image, &why))?;
        if let (Runtime::Podman, Some(identity)) = (found.runtime, &plan.identity) {
            // Its helpers give a user its range of ids, and are set-uid for that.
            plan.new_privileges = true;
            let dir = runtime_dir(identity).map_err(|e| {
                self.cannot(image, &format!("no directory of the user below {RUNTIME_DIRS}: {e}"))
            })?;
            plan.env.retain(|var| !var.starts_with("XDG_RUNTIME_DIR="));
            plan.env.push(format!("XDG_RUNTIME_DIR={}", dir.display()));
        }
        Ok(plan)
    }
}

fn remove_leftovers(podman: &Path, part: &str, account: &Account) -> Result<(), String> {
    let [list, remove] = container::leftovers(part);
    let run = |words: &[String]| -> Result<String, String> {
        let mut command = std::process::Command::new(podman);
        command.args(words).env("HOME", &account.home).env("PATH", DEFAULT_PATH).current_dir("/");
        if let Some(identity) = &account.identity {
            let dir = runtime_dir(identity).map_err(|e| e.to_string())?;
            command.uid(identity.uid).gid(identity.gid).env("XDG_RUNTIME_DIR", dir);
        }
        let output = command.stdin(Stdio::null()).output().map_err(|e| e.to_string())?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    };
    let left = run(&list)?;
    let ids = left.split_whitespace().map(str::to_owned);
    let words: Vec<String> = remove.iter().cloned().chain(ids).collect();
    if words.len() > remove.len() { run(&words).map(drop) } else { Ok(()) }
}

/// Without those that lie inside of another, and `/` itself, which no image can be given.
fn outermost(mut paths: Vec<PathBuf>) -> Vec<PathBuf> {
    paths.retain(|path| path.is_absolute() && path != Path::new("/"));
    paths.sort();
    let mut kept: Vec<PathBuf> = Vec::new();
    for path in paths {
        if !kept.iter().any(|outer| path.starts_with(outer)) {
            kept.push(path);
        }
    }
    kept
}

fn runtime_dir(identity: &Identity) -> std::io::Result<PathBuf> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    let base = Path::new(RUNTIME_DIRS);
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(base)?;
    let dir = base.join(identity.uid.to_string());
    match std::fs::DirBuilder::new().mode(0o700).create(&dir) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    if std::fs::symlink_metadata(&dir)?.uid() != identity.uid {
        std::os::unix::fs::lchown(&dir, Some(identity.uid), Some(identity.gid))?;
    }
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_bound_once() {
        let paths = ["/tmp", "/home/ada/train", "/home/ada", "/tmp/x", "/", "/run/t/1@1"];
        let kept = outermost(paths.iter().map(PathBuf::from).collect());
        assert_eq!(kept, ["/home/ada", "/run/t/1@1", "/tmp"].map(PathBuf::from));
    }
}
