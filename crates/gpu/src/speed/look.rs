//! Where cuBLAS may lie on a machine: nobody installs it for us, but who trains has it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A file or a directory that is taken instead of everything that is looked for.
pub const VARIABLE: &str = "TUTTI_CUBLAS";
/// Newest first. What is used of them did not change.
const MAJORS: [i32; 3] = [13, 12, 11];
/// Below the packages of a Python that has PyTorch.
const IN_PACKAGES: [&str; 2] = ["nvidia/cublas/lib", "nvidia/cu13/lib"];

/// What is known before files are looked at.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// What [`VARIABLE`] says.
    pub named: Option<PathBuf>,
    pub root: PathBuf,
    /// What `PATH` says: a Python is beside its packages.
    pub path: Option<OsString>,
    /// `VIRTUAL_ENV`, `CONDA_PREFIX`, and the user's own packages.
    pub prefixes: Vec<PathBuf>,
}

/// A library and the Lt that it was built with. Names without a directory are left to the loader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub file: PathBuf,
    pub lt: PathBuf,
}

impl Candidate {
    fn new(file: PathBuf) -> Candidate {
        Candidate { lt: companion(&file), file }
    }
}

impl Look {
    pub fn here() -> Look {
        let var = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let own = var("HOME").map(|home| Path::new(&home).join(".local"));
        let prefixes = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(var);
        Look {
            named: var(VARIABLE).map(PathBuf::from),
            root: PathBuf::from("/"),
            path: var("PATH"),
            prefixes: prefixes.map(PathBuf::from).chain(own).collect(),
        }
    }

    /// In the order in which they are tried. `version`: the newest CUDA that the driver can do.
    pub fn candidates(&self, version: i32) -> Vec<Candidate> {
        let majors = MAJORS.into_iter().filter(|major| *major <= version / 1000);
        let dirs = match &self.named {
            Some(named) if named.is_file() => return vec![Candidate::new(named.clone())],
            Some(named) => vec![named.clone()],
            None => [vec![PathBuf::new()], self.toolkits(), self.packages()].concat(),
        };
        let of = |major: i32| dirs.iter().map(|dir| dir.join(name(major))).collect::<Vec<_>>();
        let loadable = |file: &PathBuf| file.parent() == Some(Path::new("")) || file.is_file();
        majors.flat_map(of).filter(loadable).map(Candidate::new).collect()
    }

    fn toolkits(&self) -> Vec<PathBuf> {
        let of = |dir: PathBuf| dir.join("lib64");
        children(&self.root.join("usr/local"), "cuda").into_iter().map(of).collect()
    }

    fn packages(&self) -> Vec<PathBuf> {
        let usual = ["usr/local", "usr", "opt/conda"].map(|dir| self.root.join(dir));
        let path = self.path.iter().flat_map(std::env::split_paths);
        let beside = path.filter_map(|dir| dir.parent().map(Path::to_owned));
        let mut prefixes: Vec<PathBuf> = Vec::new();
        for prefix in self.prefixes.iter().cloned().chain(beside).chain(usual) {
            if !prefixes.contains(&prefix) {
                prefixes.push(prefix);
            }
        }
        let pythons = prefixes.iter().flat_map(|prefix| children(&prefix.join("lib"), "python3"));
        let below = |python: PathBuf| {
            let packages = ["site-packages", "dist-packages"].map(|dir| python.join(dir));
            packages.into_iter().flat_map(|dir| IN_PACKAGES.map(|below| dir.join(below)))
        };
        pythons.flat_map(below).collect()
    }
}

pub fn name(major: i32) -> String {
    format!("libcublas.so.{major}")
}

/// Of the same version and beside it, or beside what it links to, whose name may be the only one that
/// has a version.
fn companion(file: &Path) -> PathBuf {
    let left_to_loader = file.parent() == Some(Path::new(""));
    let real = if left_to_loader { None } else { file.canonicalize().ok() };
    let real = real.as_deref().unwrap_or(file);
    let name = match major_of(file).or_else(|| major_of(real)) {
        Some(major) => format!("libcublasLt.so.{major}"),
        None => "libcublasLt.so".to_owned(),
    };
    let [near, far] = [file, real].map(|file| file.with_file_name(&name));
    if !near.is_file() && far.is_file() { far } else { near }
}

/// `libcublas.so.12.4.5` is 12.
fn major_of(file: &Path) -> Option<i32> {
    let name = file.file_name()?.to_str()?;
    name.strip_prefix("libcublas.so.")?.split('.').next()?.parse().ok()
}

/// Directories whose names begin so, the last by name first: newer versions before older ones.
fn children(dir: &Path, begin: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let begins = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with(begin);
    let mut found: Vec<PathBuf> =
        entries.flatten().filter(begins).map(|entry| entry.path()).collect();
    found.sort();
    found.reverse();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, file: &str) -> PathBuf {
        let file = root.join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "").unwrap();
        file
    }

    fn files(look: &Look, version: i32) -> Vec<PathBuf> {
        look.candidates(version).into_iter().map(|c| c.file).collect()
    }

    #[test]
    fn toolkits_and_pythons_are_looked_through_newest_first() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let old = put(root, "usr/local/cuda-12.2/lib64/libcublas.so.12");
        let new = put(root, "usr/local/cuda-12.8/lib64/libcublas.so.12");
        let venv = put(root, "v/lib/python3.12/site-packages/nvidia/cu13/lib/libcublas.so.13");
        let debian = put(root, "usr/lib/python3/dist-packages/nvidia/cublas/lib/libcublas.so.12");
        let look = Look {
            root: root.to_owned(),
            path: Some(root.join("v/bin").into_os_string()),
            ..Look::default()
        };
        let loader = |major| PathBuf::from(name(major));
        let wanted = [
            loader(13),
            venv.clone(),
            loader(12),
            new.clone(),
            old.clone(),
            debian.clone(),
            loader(11),
        ];
        assert_eq!(files(&look, 13010), wanted);
        let older = [loader(12), new, old, debian, loader(11)];
        assert_eq!(files(&look, 12040), older, "a driver that can't do 13");
        let same = Look { prefixes: vec![root.join("v")], ..look };
        assert_eq!(files(&same, 13010), wanted, "nothing twice");
    }

    #[test]
    fn what_is_named_is_taken_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let file = put(dir.path(), "x/libcublas.so.12.4.5");
        let link = put(dir.path(), "x/libcublas.so.12");
        let look = |named: &Path| Look { named: Some(named.to_owned()), ..Look::default() };
        let found = look(&file).candidates(13000);
        assert_eq!(found, [Candidate { lt: dir.path().join("x/libcublasLt.so.12"), file }]);
        assert_eq!(files(&look(&dir.path().join("x")), 13000), [link]);
        assert_eq!(files(&look(&dir.path().join("y")), 13000), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_name_without_a_version_is_paired_by_where_it_leads() {
        let dir = tempfile::tempdir().unwrap();
        let real = put(dir.path(), "cuda/libcublas.so.12.4.5").canonicalize().unwrap();
        let lt = put(dir.path(), "cuda/libcublasLt.so.12").canonicalize().unwrap();
        let link = |name: &str| {
            let link = dir.path().join(name);
            std::os::unix::fs::symlink(&real, &link).unwrap();
            link
        };
        assert_eq!(companion(&link("cuda/libcublas.so")).file_name(), lt.file_name());
        assert_eq!(companion(&link("libcublas.so")), lt, "beside what it links to");
        let own = put(dir.path(), "libcublasLt.so.12");
        assert_eq!(companion(&link("libcublas.so.12")), own, "beside it, if there is one");
        let alone = put(dir.path(), "y/libcublas.so");
        assert_eq!(companion(&alone), alone.with_file_name("libcublasLt.so"), "never 13 by guess");
        assert_eq!(companion(Path::new("libcublas.so.11")), Path::new("libcublasLt.so.11"));
    }
}
