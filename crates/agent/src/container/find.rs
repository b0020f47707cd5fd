//! Which container runtimes a node has.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::Runtime;

/// One that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub runtime: Runtime,
    pub path: PathBuf,
    /// It can put a small first process into a container.
    pub init: bool,
    /// All descriptions of devices together.
    pub cdi: String,
}

/// Where podman looks for its first process.
const INIT: [&str; 3] =
    ["usr/libexec/podman/catatonit", "usr/bin/catatonit", "usr/lib/podman/catatonit"];
const CDI: [&str; 2] = ["etc/cdi", "var/run/cdi"];

/// `path` is a search path; `root` is `/`, or a recorded tree.
pub fn find(path: &str, root: &Path) -> Vec<Found> {
    let runs = |file: &Path| {
        let meta = std::fs::metadata(file);
        meta.is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    let at = |runtime: Runtime| {
        let files = path.split(':').map(|dir| root.join(dir.trim_start_matches('/')));
        let path = files.map(|dir| dir.join(runtime.name())).find(|file| runs(file))?;
        let init = INIT.iter().any(|file| runs(&root.join(file)));
        Some(Found { runtime, path, init, cdi: descriptions(root) })
    };
    Runtime::ALL.into_iter().filter_map(at).collect()
}

fn descriptions(root: &Path) -> String {
    let dirs = CDI.iter().map(|dir| root.join(dir));
    let files = dirs.flat_map(|dir| std::fs::read_dir(dir).into_iter().flatten().flatten());
    // One that can't be read can't be used by podman either, which then says so.
    files.filter_map(|file| std::fs::read_to_string(file.path()).ok()).collect()
}

/// The one that the operator prefers, or the first.
pub fn choose(found: &[Found], preferred: Option<Runtime>) -> Option<&Found> {
    match preferred {
        Some(runtime) => found.iter().find(|f| f.runtime == runtime),
        None => found.first(),
    }
}
