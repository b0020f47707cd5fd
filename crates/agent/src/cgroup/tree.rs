//! Where the agent's groups are, and what can be limited there: found out once, by starting a
//! process under each limit, so that failing is known before a job needs it.
//!
//! ```text
//! unified        own group ─► the root of the mount ─► a leaf for ourselves, if the group is only ours
//! no unified     a mount of our own, DATA_DIR/cgroup2
//! controllers    unified, else the hierarchy that has the controller (v1), else it is said to be missing
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use tutti_model::{Lack, LeaseId};

use super::{CgroupError, Made, OlderGroup, PartCgroup, Wanted, failed, older, read};
use crate::devices::{Rules, Verdict};

/// Where the agent's own processes go when they must leave their group for its controllers.
const LEAF: &str = "tutti-agent";
/// Where an agent mounts a hierarchy of its own, in its data dir.
const OWN_MOUNT: &str = "cgroup2";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Controller {
    Memory,
    Cpu,
    Cpuset,
    Pids,
}

impl Controller {
    const ALL: [Controller; 4] =
        [Controller::Memory, Controller::Cpu, Controller::Cpuset, Controller::Pids];

    fn name(self) -> &'static str {
        match self {
            Controller::Memory => "memory",
            Controller::Cpu => "cpu",
            Controller::Cpuset => "cpuset",
            Controller::Pids => "pids",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Home {
    Unified,
    /// The agent's group in the hierarchy of this controller.
    Older(PathBuf),
}

/// The agent's place in the tree.
#[derive(Clone, Debug)]
pub struct Cgroups {
    dir: PathBuf,
    homes: BTreeMap<Controller, Home>,
    devices: bool,
    lacks: Vec<Lack>,
    /// The mount that is ours alone.
    mounted: Option<PathBuf>,
}

impl Cgroups {
    pub fn set_up(node: &str, data_dir: &Path) -> Result<Cgroups, CgroupError> {
        let mounts = read("/proc/self/mounts")?;
        let own = read("/proc/self/cgroup")?;
        let ours = data_dir.join(OWN_MOUNT);
        let unified = match find_mount(&mounts, &ours) {
            Some(found) => found,
            None => mount_own(&ours)?,
        };
        // Several clusters may share a machine, and with it node names.
        let hash = blake3::hash(data_dir.as_os_str().as_encoded_bytes()).to_hex();
        let names = ["tutti".to_owned(), format!("{node}-{}", &hash[..8])];
        let base = choose_base(&unified, own_group(&own));
        let dir = names.iter().fold(base.clone(), |dir, name| dir.join(name));
        fs::create_dir_all(&dir).map_err(failed("can't make", &dir))?;
        let kill = dir.join("cgroup.kill");
        if !kill.exists() {
            return Err(failed("no", &kill)(std::io::ErrorKind::NotFound.into()));
        }
        let mut cgroups = Cgroups {
            dir,
            homes: BTreeMap::new(),
            devices: false,
            lacks: Vec::new(),
            mounted: None,
        };
        cgroups.mounted = Some(ours).filter(|ours| *ours == unified);
        cgroups.probe("group", &PartCgroup::default())?;
        let levels = [base.clone(), base.join(&names[0]), cgroups.dir.clone()];
        let names = names.each_ref().map(String::as_str);
        for controller in Controller::ALL {
            let home = cgroups.home(controller, &levels, || {
                older::find(&mounts, &own, controller.name()).map(|h| h.make(&names)).transpose()
            });
            match home {
                Ok(home) => drop(cgroups.homes.insert(controller, home)),
                Err(why) => cgroups.lacks.push(Lack::new(controller.name(), why)),
            }
        }
        match cgroups.probe_devices() {
            Ok(()) => cgroups.devices = true,
            Err(error) => cgroups.lacks.push(Lack::new("devices", crate::node::chain(&error))),
        }
        Ok(cgroups)
    }

    /// Where this controller can be used, tried out.
    fn home(
        &self,
        controller: Controller,
        levels: &[PathBuf],
        older: impl FnOnce() -> Result<Option<PathBuf>, CgroupError>,
    ) -> Result<Home, String> {
        let name = controller.name();
        let handed = if may_enable(&levels[0]) { enable(levels, name) } else { None };
        if let Some(changed) = handed {
            let unified = self.try_home(controller, Home::Unified);
            if unified.is_err() {
                disable(&changed, name);
            }
            return unified;
        }
        match older() {
            Ok(Some(dir)) => self.try_home(controller, Home::Older(dir)),
            Ok(None) => {
                let base = levels[0].display();
                Err(format!("the controller can't be handed down from {base}"))
            }
            Err(error) => Err(crate::node::chain(&error)),
        }
    }

    fn try_home(&self, controller: Controller, home: Home) -> Result<Home, String> {
        let path = self.dir.join("probe");
        let mut group = PartCgroup { path, ..PartCgroup::default() };
        let lines = match controller {
            Controller::Memory => self.lines(&home, controller, &u64::from(u32::MAX).to_string()),
            Controller::Cpu => self.lines(&home, controller, "1"),
            Controller::Cpuset => self.lines(&home, controller, &self.all_cpus(&home)),
            Controller::Pids => self.lines(&home, controller, "1000"),
        };
        put(&mut group, &home, "probe", lines);
        let tried = self.probe(controller.name(), &group);
        tried.map(|()| home).map_err(|e| crate::node::chain(&e))
    }

    /// Those that the agent's group has.
    fn all_cpus(&self, home: &Home) -> String {
        let file = match home {
            Home::Unified => self.dir.join("cpuset.cpus.effective"),
            Home::Older(dir) => dir.join("cpuset.cpus"),
        };
        // An empty list is refused where it is written, and so told.
        fs::read_to_string(file).unwrap_or_default().trim().to_owned()
    }

    /// What operators are told.
    pub fn describe(&self) -> &'static str {
        match self.homes.values().any(|home| matches!(home, Home::Older(_))) {
            true => "cgroup2, limits by v1",
            false if self.homes.is_empty() => "cgroup2, no limits",
            false => "cgroup2",
        }
    }

    /// The last name in the path of the agent's own group.
    pub fn name(&self) -> Option<String> {
        Some(self.dir.file_name()?.to_str()?.to_owned())
    }

    /// What this host can't do.
    pub fn lacks(&self) -> &[Lack] {
        &self.lacks
    }

    /// The CPUs that parts can be pinned to; none where they can't be.
    pub fn cpus(&self) -> Option<String> {
        Some(self.all_cpus(self.homes.get(&Controller::Cpuset)?))
    }

    /// Starts a process as a rank would be: better that this fails than every job.
    fn probe(&self, what: &str, group: &PartCgroup) -> Result<(), CgroupError> {
        let name = format!("probe-{what}-{}", std::process::id());
        let older = group.older.iter().map(|older| OlderGroup {
            path: older.path.with_file_name(&name),
            limits: older.limits.clone(),
        });
        let group =
            PartCgroup { path: self.dir.join(&name), older: older.collect(), ..group.clone() };
        let probed = group.make().and_then(|Made { dir, join, .. }| {
            let started = crate::spawn::probe(dir.as_fd(), &join);
            started.map_err(failed("can't start a process in", &group.path))
        });
        let deadline = Instant::now() + Duration::from_secs(1);
        while !group.is_done() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        probed
    }

    fn probe_devices(&self) -> Result<(), CgroupError> {
        let rules = Rules { list: Vec::new(), otherwise: Verdict::Allow };
        self.probe("devices", &PartCgroup { devices: Some(rules), ..PartCgroup::default() })
    }

    /// What can't be limited here is left out: `lacks` says so.
    pub fn for_part(&self, lease: LeaseId, wanted: Wanted) -> PartCgroup {
        let name = lease.to_string();
        let mut group = PartCgroup { path: self.dir.join(&name), ..PartCgroup::default() };
        let values = [
            (Controller::Memory, wanted.mem.map(|mem| mem.0.to_string())),
            (Controller::Cpu, wanted.cpus.map(|cpus| cpus.to_string())),
            (Controller::Cpuset, wanted.cpuset),
            (Controller::Pids, wanted.pids.map(|pids| pids.to_string())),
        ];
        for (controller, value) in values {
            if let (Some(home), Some(value)) = (self.homes.get(&controller), value) {
                put(&mut group, home, &name, self.lines(home, controller, &value));
            }
        }
        group.devices = wanted.devices.filter(|_| self.devices);
        group
    }

    /// All groups that the part may have.
    pub fn of_part(&self, lease: LeaseId) -> PartCgroup {
        let name = lease.to_string();
        let mut group = PartCgroup { path: self.dir.join(&name), ..PartCgroup::default() };
        for home in self.homes.values() {
            put(&mut group, home, &name, Vec::new());
        }
        group
    }

    /// Removes the agent's groups, unless parts are left in them.
    pub fn leave(&self) {
        let older = self.homes.values().filter_map(|home| match home {
            Home::Unified => None,
            Home::Older(dir) => Some(dir),
        });
        for dir in older.chain([&self.dir]) {
            // Not empty: parts run on, or another agent is there.
            let gone = fs::remove_dir(dir).is_ok();
            let _ = dir.parent().filter(|_| gone).map(fs::remove_dir);
        }
        if let Some(ours) = self.mounted.as_ref().filter(|_| !self.dir.exists()) {
            // Busy: somebody looks at it, and the next agent finds it there.
            let _ = nix::mount::umount(ours);
        }
    }

    /// The CPUs that a part was pinned to, if it was.
    pub fn cpuset_of(&self, lease: LeaseId) -> Option<String> {
        let dir = match self.homes.get(&Controller::Cpuset)? {
            Home::Unified => &self.dir,
            Home::Older(dir) => dir,
        };
        let text = fs::read_to_string(dir.join(lease.to_string()).join("cpuset.cpus")).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// The files that hold a controller's part to a value, and what to write to them.
    fn lines(&self, home: &Home, controller: Controller, value: &str) -> Vec<(String, String)> {
        let line = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        let quota = || (value.parse::<u64>().unwrap_or(1) * 100_000).to_string();
        match (controller, home) {
            (Controller::Memory, Home::Unified) => line("memory.max", value),
            (Controller::Memory, Home::Older(_)) => line("memory.limit_in_bytes", value),
            (Controller::Cpu, Home::Unified) => line("cpu.max", &format!("{} 100000", quota())),
            (Controller::Cpu, Home::Older(_)) => line("cpu.cfs_quota_us", &quota()),
            (Controller::Cpuset, Home::Unified) => line("cpuset.cpus", value),
            (Controller::Cpuset, Home::Older(dir)) => {
                // Where it may allocate is left as it is, but must be said.
                let mems = fs::read_to_string(dir.join("cpuset.mems")).unwrap_or_default();
                let mems = line("cpuset.mems", mems.trim());
                mems.into_iter().chain(line("cpuset.cpus", value)).collect()
            }
            (Controller::Pids, _) => line("pids.max", value),
        }
    }
}

/// Adds the lines where they belong; two controllers may share a hierarchy.
fn put(group: &mut PartCgroup, home: &Home, name: &str, lines: Vec<(String, String)>) {
    match home {
        Home::Unified => group.limits.extend(lines),
        Home::Older(dir) => {
            let path = dir.join(name);
            match group.older.iter_mut().find(|older| older.path == path) {
                Some(older) => older.limits.extend(lines),
                None => group.older.push(OlderGroup { path, limits: lines }),
            }
        }
    }
}

fn own_group(text: &str) -> &str {
    text.lines().find_map(|l| l.strip_prefix("0::/")).unwrap_or("")
}

/// Below which group ours are made. Only an empty group, or the root, can hand controllers down.
fn choose_base(unified: &Path, own: &str) -> PathBuf {
    let own = unified.join(own);
    let own = match own.parent() {
        // An earlier agent of the same supervisor has moved us.
        Some(above) if own.ends_with(LEAF) => above.to_owned(),
        _ => own,
    };
    let controllers = fs::read_to_string(unified.join("cgroup.controllers"));
    let hybrid = controllers.is_ok_and(|list| list.trim().is_empty());
    if hybrid || may_enable(&own) {
        return own;
    }
    // Groups at the root also outlive the service that the agent is.
    if may_enable(unified) && fs::create_dir_all(unified.join("tutti")).is_ok() {
        return unified.to_owned();
    }
    if let Err(why) = move_to_leaf(&own) {
        tracing::warn!("no limits on jobs: {} can't be divided: {why}", own.display());
    }
    own
}

/// Empties the group of our own processes, if there are no others in it.
fn move_to_leaf(own: &Path) -> Result<(), String> {
    let text = fs::read_to_string(own.join("cgroup.procs")).map_err(|e| e.to_string())?;
    let pids: Vec<i32> = text.lines().filter_map(|line| line.parse().ok()).collect();
    let me = std::process::id() as i32;
    let ours = |&pid: &i32| crate::shim::tree::ancestry(pid).any(|above| above == me);
    if let Some(other) = pids.iter().find(|pid| !ours(pid)) {
        return Err(format!("process {other} in it is not the agent's"));
    }
    let leaf = own.join(LEAF);
    fs::create_dir_all(&leaf).map_err(|e| e.to_string())?;
    let to = leaf.join("cgroup.procs");
    pids.iter().try_for_each(|pid| fs::write(&to, pid.to_string())).map_err(|e| e.to_string())
}

/// Controllers can be handed down from the root, or from a group without processes of its own. The
/// kernel refuses others, or makes the groups below unusable.
pub(super) fn may_enable(base: &Path) -> bool {
    // Only the real root has no type; that of a container has.
    if !base.join("cgroup.type").exists() {
        return true;
    }
    fs::read_to_string(base.join("cgroup.procs")).is_ok_and(|procs| procs.trim().is_empty())
}

/// Hands a controller down through all levels, or through none. Says on which it was not handed down
/// before: elsewhere others may use it.
pub(super) fn enable(levels: &[PathBuf], name: &str) -> Option<Vec<PathBuf>> {
    let mut changed = Vec::new();
    for at in levels {
        let control = at.join("cgroup.subtree_control");
        let has = fs::read_to_string(&control)
            .is_ok_and(|text| text.split_whitespace().any(|word| word == name));
        if has {
            continue;
        }
        if fs::write(&control, format!("+{name}")).is_err() {
            disable(&changed, name);
            return None;
        }
        changed.push(at.clone());
    }
    Some(changed)
}

fn disable(changed: &[PathBuf], name: &str) {
    // From below: a controller can't be taken back while a group further down hands it on. What is
    // still used by others stays.
    for at in changed.iter().rev() {
        let _ = fs::write(at.join("cgroup.subtree_control"), format!("-{name}"));
    }
}

/// A host of the old layout may have no unified hierarchy, but the kernel does. Left mounted: parts
/// outlive the agent, and the next one finds it.
fn mount_own(path: &Path) -> Result<PathBuf, CgroupError> {
    let path = path.to_owned();
    let mounted = fs::create_dir_all(&path).and_then(|()| {
        let nothing = None::<&str>;
        Ok(mount(Some("none"), &path, Some("cgroup2"), MsFlags::empty(), nothing)?)
    });
    match mounted {
        Ok(()) => Ok(path),
        Err(source) => Err(CgroupError::NotMounted { path, source }),
    }
}

/// The host's, or ours; one of another agent goes with that agent.
pub(super) fn find_mount(mounts: &str, ours: &Path) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (_, at, kind) = (fields.next()?, fields.next()?, fields.next()?);
        let at = PathBuf::from(at.replace("\\040", " "));
        (kind == "cgroup2" && (at == ours || !at.ends_with(OWN_MOUNT))).then_some(at)
    })
}
