//! A part inside an image: with which runtime, and what goes in with it.

use std::path::{Path, PathBuf};

use tutti_model::{Blame, Launch, PartError};

use super::{Node, podman};
use crate::container::{self, Found, Inside, Runtime};
use crate::env::Sees;
use crate::plan::{Plan, Workdir};
use crate::progress::place;

impl Node {
    /// Known before any process exists: whether this node can run the image at all.
    pub(super) fn check_image(&self, launch: &Launch) -> Result<(), PartError> {
        let Some(image) = &launch.spec.image else { return Ok(()) };
        let found = self.runtime(image)?;
        let inside = self.inside(launch, image);
        container::command(found, &inside).map_err(|why| self.cannot(image, &why))?;
        let switches = nix::unistd::Uid::effective().is_root() && launch.user != "root";
        match found.runtime {
            Runtime::Podman if switches => podman::check_variables(&launch.spec.env),
            _ => Ok(()),
        }
    }

    /// Which of the node's GPUs the part's ranks see.
    pub(super) fn sees(&self, launch: &Launch) -> Sees {
        let image = launch.spec.image.as_ref().filter(|_| !self.config.simulated);
        let found = image.and_then(|image| self.runtime(image).ok());
        seen(self.isolation.confines(), found.map(|found| found.runtime))
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
        let warnings = place::warnings(&plan.progress);
        let mut paths = vec![PathBuf::from("/tmp"), plan.progress.clone(), warnings];
        paths.extend([PathBuf::from(&workdir)].into_iter().chain(home).chain(pipe));
        inside.paths = outermost(paths).into_iter().map(|path| (path, false)).collect();
        inside.paths.push((PathBuf::from(&self.program), true));
        inside.workdir = workdir;
        inside.as_root = plan.identity.is_none() && nix::unistd::Uid::effective().is_root();
        if found.runtime == Runtime::Podman {
            let account = self.lookups.account(&launch.user)?;
            let podman = podman::prepare(found, &plan, &account, &inside);
            let podman = podman.map_err(|why| self.cannot(image, &why.to_string()))?;
            // Its helpers give a user its range of ids, and are set-uid for that.
            plan.new_privileges = podman.files.is_some();
            inside.env_files = podman.files.clone();
            plan.podman = Some(podman);
        }
        plan.container =
            container::command(found, &inside).map_err(|why| self.cannot(image, &why))?;
        Ok(plan)
    }

    /// What was written for its containers.
    pub(super) fn forget_variables(&self, launch: &Launch) {
        if launch.spec.image.is_some() {
            let stem = self.parts.stem(launch.lease);
            tokio::task::spawn_blocking(move || podman::forget_variables(&stem));
        }
    }
}

/// podman gives a container nothing that it was not told of. enroot shows it all of `/dev`, unless the
/// node's settings say otherwise, and apptainer always does.
fn seen(confined: bool, runtime: Option<Runtime>) -> Sees {
    match runtime {
        _ if confined => Sees::Own,
        Some(Runtime::Podman) => Sees::Own,
        Some(Runtime::Enroot) => Sees::Unclear,
        Some(Runtime::Apptainer) | None => Sees::All,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inside_a_container_fewer_gpus_are_seen() {
        assert_eq!(seen(false, None), Sees::All);
        assert_eq!(seen(false, Some(Runtime::Apptainer)), Sees::All);
        assert_eq!(seen(false, Some(Runtime::Podman)), Sees::Own);
        assert_eq!(seen(false, Some(Runtime::Enroot)), Sees::Unclear);
        for runtime in Runtime::ALL {
            assert_eq!(seen(true, Some(runtime)), Sees::Own);
        }
    }

    #[test]
    fn a_directory_is_bound_once() {
        let paths = ["/tmp", "/home/ada/train", "/home/ada", "/tmp/x", "/", "/run/t/1@1"];
        let kept = outermost(paths.iter().map(PathBuf::from).collect());
        assert_eq!(kept, ["/home/ada", "/run/t/1@1", "/tmp"].map(PathBuf::from));
    }
}
