//! Ranks inside an image: the words that come before a rank's own, so that podman, apptainer or enroot
//! runs it. The part's cgroup, its private directories and its device program hold for what is inside,
//! because the runtime is started in them and makes no groups of its own.
//!
//! Everything is named to the runtime by name or path: values of variables are never on a command line.

mod find;

use std::path::{Path, PathBuf};

use tutti_model::{GpuIndex, Hardware, Vendor};

pub use find::{Found, choose, find};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Runtime {
    Podman,
    Apptainer,
    Enroot,
}

impl Runtime {
    pub const ALL: [Runtime; 3] = [Runtime::Podman, Runtime::Apptainer, Runtime::Enroot];

    pub fn name(self) -> &'static str {
        match self {
            Runtime::Podman => "podman",
            Runtime::Apptainer => "apptainer",
            Runtime::Enroot => "enroot",
        }
    }
}

impl std::str::FromStr for Runtime {
    type Err = String;

    fn from_str(text: &str) -> Result<Runtime, String> {
        let found = Runtime::ALL.into_iter().find(|runtime| runtime.name() == text);
        found.ok_or_else(|| format!("'{text}' is none of podman, apptainer and enroot"))
    }
}

/// Of the host; an image has its own unless the job brings one.
const OF_THE_HOST: [&str; 7] =
    ["PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "SHELL", "LANG", "TMPDIR", "XDG_RUNTIME_DIR"];

/// On containers of podman.
const LABEL: &str = "tutti.part";

/// The words that list what podman has of a part, by id, and those that remove these.
pub fn leftovers(podman: &Path, part: &str) -> [Vec<String>; 2] {
    let which = format!("label={LABEL}={part}");
    let words = |own: &[&str]| {
        let podman = podman.display().to_string();
        [podman].into_iter().chain(own.iter().map(|w| (*w).to_owned())).collect()
    };
    let list = words(&["ps", "--all", "--quiet", "--no-trunc", "--filter", &which]);
    [list, words(&["rm", "--force", "--time=0", "--ignore"])]
}

/// What a runtime that may use set-uid programs takes of a job's variables for itself: they say where
/// images come from, and name no program.
const FOR_PULLING: [&str; 7] = [
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "REGISTRY_AUTH_FILE",
];

/// Those of these variables.
pub fn for_pulling(env: &[String]) -> impl Iterator<Item = &String> {
    let name = |var: &String| var.split_once('=').map_or("", |(name, _)| name).to_owned();
    env.iter().filter(move |var| FOR_PULLING.contains(&name(var).as_str()))
}

/// Names the directory; the rank that is appended names the file.
pub fn env_file_word(files: &Path) -> String {
    format!("--env-file={}/", files.display())
}

/// A variable that podman can't read from a file, where each has a line of its own.
pub fn fits_no_line<'a>(mut vars: impl Iterator<Item = (&'a str, &'a str)>) -> Option<&'a str> {
    let odd = |name: &str, value: &str| {
        name.starts_with('#') || name.contains(char::is_whitespace) || value.contains(['\n', '\r'])
    };
    vars.find(|(name, value)| odd(name, value)).map(|(name, _)| name)
}

/// What runs inside, and what it must find there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inside {
    pub image: String,
    /// Marks what is made for the part, so that what a killed runtime leaves is found.
    pub part: String,
    /// Names of all variables of the ranks.
    pub variables: Vec<String>,
    /// Those that the job has set itself.
    pub own: Vec<String>,
    /// Directories and files that are there under their own name; `true`: not to be changed.
    pub paths: Vec<(PathBuf, bool)>,
    pub workdir: String,
    pub gpus: Vec<Given>,
    /// Files of drivers that every job with a GPU needs.
    pub control_files: Vec<String>,
    pub as_root: bool,
    /// Variables are in files there, not in the runtime's own environment.
    pub env_files: Option<PathBuf>,
}

/// A GPU of the part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    pub index: GpuIndex,
    pub uuid: String,
    pub vendor: Vendor,
    pub files: Vec<String>,
}

impl Inside {
    /// The part's GPUs, as the node knows them.
    pub fn give(
        &mut self,
        hardware: Option<&Hardware>,
        gpus: &[tutti_model::Gpu],
        part: &[GpuIndex],
    ) {
        for gpu in gpus.iter().filter(|gpu| part.contains(&gpu.index)) {
            let facts = hardware.and_then(|h| h.gpus.iter().find(|f| f.index == gpu.index));
            let vendor = facts.map_or(Vendor::Simulated, |f| f.vendor);
            let files = facts.map_or(Vec::new(), |f| f.device_files.clone());
            self.gpus.push(Given { index: gpu.index, uuid: gpu.uuid.clone(), vendor, files });
        }
        if !part.is_empty() {
            self.control_files = hardware.map_or(Vec::new(), |h| h.control_files.clone());
        }
    }

    /// Variables that go inside.
    pub fn passed(&self) -> impl Iterator<Item = &String> {
        let ours =
            |name: &&String| self.own.contains(*name) || !OF_THE_HOST.contains(&name.as_str());
        self.variables.iter().filter(ours)
    }

    fn has(&self, vendor: Vendor) -> bool {
        self.gpus.iter().any(|gpu| gpu.vendor == vendor)
    }
}

/// The words before a rank's own, or why there are none.
pub fn command(found: &Found, inside: &Inside) -> Result<Vec<String>, String> {
    match found.runtime {
        Runtime::Podman => podman(found, inside),
        Runtime::Apptainer => Ok(apptainer(found, inside)),
        Runtime::Enroot => enroot(found, inside),
    }
}

fn start(found: &Found, words: &[&str]) -> Vec<String> {
    let path = found.path.display().to_string();
    [path].into_iter().chain(words.iter().map(|w| (*w).to_owned())).collect()
}

fn podman(found: &Found, inside: &Inside) -> Result<Vec<String>, String> {
    let mut words = start(
        found,
        &[
            "--cgroup-manager=cgroupfs",
            "run",
            "--rm",
            // It stays in the part's group, which limits it and by which it is killed.
            "--cgroups=disabled",
            "--network=host",
            "--ipc=host",
            "--security-opt=label=disable",
            "--security-opt=no-new-privileges",
            "--interactive",
        ],
    );
    if found.init {
        // Else the job would be the first of its processes, which no signal ends.
        words.push("--init".into());
    }
    if !inside.as_root {
        words.push("--userns=keep-id".into());
    }
    words.push(format!("--label={LABEL}={}", inside.part));
    match &inside.env_files {
        Some(files) => words.push(env_file_word(files)),
        None => words.extend(inside.passed().map(|name| format!("--env={name}"))),
    }
    for (path, fixed) in &inside.paths {
        let (path, mode) = (path.display(), if *fixed { ":ro" } else { "" });
        words.push(format!("--volume={path}:{path}{mode}"));
    }
    words.extend(devices(found, inside)?);
    words.push(format!("--workdir={}", inside.workdir));
    // The image may have an entry point of its own; a rank is what the job says.
    words.extend(["--entrypoint=".to_owned(), inside.image.clone()]);
    Ok(words)
}

/// NVIDIA's need the driver's libraries of the host, which its CDI description names. Others need only
/// their files.
fn devices(found: &Found, inside: &Inside) -> Result<Vec<String>, String> {
    const KIND: &str = "nvidia.com/gpu";
    let mut words = Vec::new();
    for gpu in inside.gpus.iter().filter(|gpu| gpu.vendor == Vendor::Nvidia) {
        if !found.cdi.contains(KIND) {
            return Err(format!(
                "no CDI description of {KIND} is in /etc/cdi or /var/run/cdi: make one with \
                 `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`"
            ));
        }
        let by_uuid = found.cdi.contains(&gpu.uuid);
        let name = if by_uuid { gpu.uuid.clone() } else { gpu.index.to_string() };
        words.push(format!("--device={KIND}={name}"));
    }
    if inside.has(Vendor::Amd) || inside.has(Vendor::Intel) {
        let others = inside.gpus.iter().filter(|gpu| gpu.vendor != Vendor::Nvidia);
        let files = others.flat_map(|gpu| &gpu.files).chain(&inside.control_files);
        words.extend(files.map(|file| format!("--device={file}")));
    }
    Ok(words)
}

fn apptainer(found: &Found, inside: &Inside) -> Vec<String> {
    let mut words = start(found, &["exec", "--writable-tmpfs"]);
    for (vendor, flag) in [(Vendor::Nvidia, "--nv"), (Vendor::Amd, "--rocm")] {
        words.extend(inside.has(vendor).then(|| flag.to_owned()));
    }
    for (path, fixed) in &inside.paths {
        let (path, mode) = (path.display(), if *fixed { ":ro" } else { "" });
        words.extend(["--bind".to_owned(), format!("{path}:{path}{mode}")]);
    }
    words.extend(["--pwd".to_owned(), inside.workdir.clone()]);
    // It brings the environment along by itself, and looks for names without a scheme in a file.
    let is_file = inside.image.contains("://") || inside.image.starts_with(['/', '.']);
    let scheme = if is_file { "" } else { "docker://" };
    words.push(format!("{scheme}{}", inside.image));
    words
}

fn enroot(found: &Found, inside: &Inside) -> Result<Vec<String>, String> {
    if !inside.image.starts_with('/') {
        return Err(format!(
            "enroot runs images that are files: `enroot import docker://{}`, and give the path of \
             the .sqsh file",
            inside.image
        ));
    }
    let mut words = start(found, &["start", "--rw"]);
    for (path, fixed) in &inside.paths {
        let (path, mode) = (path.display(), if *fixed { ":ro" } else { "" });
        words.extend(["--mount".to_owned(), format!("{path}:{path}{mode}")]);
    }
    for name in inside.passed() {
        words.extend(["--env".to_owned(), name.clone()]);
    }
    // Its hook gives what this names.
    let uuids: Vec<&str> = inside.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
    let uuids = if uuids.is_empty() { "void".to_owned() } else { uuids.join(",") };
    words.extend(["--env".to_owned(), format!("NVIDIA_VISIBLE_DEVICES={uuids}")]);
    words.push(inside.image.clone());
    // It has no option for the directory.
    let enter = ["/bin/sh", "-c", "cd \"$1\" && shift && exec \"$@\"", "sh"].map(str::to_owned);
    words.extend(enter.into_iter().chain([inside.workdir.clone()]));
    Ok(words)
}

#[cfg(test)]
mod tests;
