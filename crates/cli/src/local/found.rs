//! What already runs in a data dir when `tutti up` comes.
//!
//! | what runs | what follows |
//! |---|---|
//! | nothing | everything is started |
//! | all of it, or a `tutti up` that watches over it | refused: it is there |
//! | some of it | the rest is started as it was; what runs is not touched |

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;

use super::process::Proc;
use super::record::UpRecord;
use super::setup::Setup;
use super::{CONTROLLER, NodePlan, ROUTER, UpOptions, removed, stop, sweep};
use crate::fail::Fail;
use crate::show::count;

#[derive(Debug, Default)]
pub struct Found {
    pub controller: Option<Proc>,
    pub agents: BTreeMap<String, Proc>,
    pub router: Option<Proc>,
    /// Where the controller is, or was and is expected again.
    pub listen: Option<SocketAddr>,
    /// What runs was left to itself; no `tutti up` watched over it that may have died.
    pub detached: bool,
}

impl Found {
    /// Agents first, as everywhere.
    pub fn names(&self) -> Vec<String> {
        let controller = self.controller.map(|_| CONTROLLER.to_owned());
        let router = self.router.map(|_| ROUTER.to_owned());
        let mut agents: Vec<String> = self.agents.keys().cloned().collect();
        agents.sort_by_cached_key(|name| tutti_controller::views::counted(name));
        agents.into_iter().chain(controller).chain(router).collect()
    }

    /// What runs, counted, and the processes that lead it.
    fn in_words(&self, watched: Option<Proc>) -> String {
        let agents = self.agents.len() as u64;
        [
            self.controller.map(|proc| format!("controller, process {}", proc.pid)),
            watched.map(|proc| format!("tutti up, process {}", proc.pid)),
            self.router.map(|proc| format!("router, process {}", proc.pid)),
            (agents > 0).then(|| count(agents, "agent")),
        ]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join("; ")
    }

    /// Those of nodes that are no part of the cluster any more.
    pub fn take_agents(&mut self, of: &BTreeSet<String>) -> Vec<(String, Proc)> {
        let agent = |name: &String| self.agents.remove_entry(name);
        of.iter().filter_map(agent).collect()
    }

    fn is_whole(&self, dir: &Path, setup: &Setup) -> bool {
        // One that was removed is missed by nobody, unless it may join again.
        let missed = |name: &String| !setup.removed.contains(name) || !removed::has_key(dir, name);
        let there = |node: &NodePlan| self.agents.contains_key(&node.name) || !missed(&node.name);
        self.controller.is_some()
            && setup.nodes.iter().all(there)
            && (self.router.is_some() || setup.router.is_none())
    }
}

/// Refuses a cluster that is whole, and one that would have to change while it runs.
pub fn look(dir: &Path, options: &UpOptions) -> Result<Found, Fail> {
    let mut record = UpRecord::read(dir)?;
    if let Some(original) = record.as_ref().and_then(|r| r.copied_from(dir)) {
        refuse_copy(dir, original, record.as_ref())?;
        record = None;
    }
    let mut found = Found::default();
    for (name, proc) in stop::running(dir, record.as_ref()) {
        if name == CONTROLLER {
            found.controller = Some(proc);
        } else if name == ROUTER {
            found.router = Some(proc);
        } else {
            found.agents.insert(name, proc);
        }
    }
    found.controller = found.controller.or_else(|| live_controller(dir));
    if let (None, Some(proc)) = (&record, found.controller) {
        let (shown, pid) = (dir.display(), proc.pid);
        return Err(Fail::usage(format!("a controller already runs in {shown} (process {pid})"))
            .hint("stop it first, or choose another --data-dir"));
    }
    found.detached = record.as_ref().is_some_and(|r| r.supervisor.is_none());
    let watched = record.and_then(|r| r.supervisor).filter(|s| s.is_alive());
    if found.names().is_empty() && watched.is_none() {
        return Ok(Found::default());
    }
    match Setup::read(dir)? {
        Some(setup) if watched.is_none() && !found.is_whole(dir, &setup) => {
            refuse_change(dir, &setup, &found, options)?;
            let stays = setup.listens_on(options.listen);
            found.listen = if stays { Some(setup.listen) } else { options.listen };
            Ok(found)
        }
        _ => {
            let (shown, what) = (dir.display(), found.in_words(watched));
            Err(Fail::usage(format!("a cluster already runs in {shown} ({what})"))
                .hint(format!("tutti down --data-dir {shown} stops it")))
        }
    }
}

/// Agents of a copy would take the jobs of the original for theirs.
fn refuse_copy(dir: &Path, original: &Path, record: Option<&UpRecord>) -> Result<(), Fail> {
    let alive = record.map(UpRecord::alive).unwrap_or_default();
    let Some((name, proc)) = alive.last() else { return Ok(()) };
    let (shown, original, pid) = (dir.display(), original.display(), proc.pid);
    Err(Fail::usage(format!(
        "{shown} is a copy of {original}, and the cluster there runs ({name}, process {pid}): their \
         nodes would take each other's jobs for their own"
    ))
    .hint(format!(
        "for a cluster of its own, choose an empty --data-dir; to go on here instead of there, stop \
         that one first (tutti down --data-dir {original}) and copy it then"
    )))
}

/// Only what does not run can be started in another way.
fn refuse_change(
    dir: &Path,
    setup: &Setup,
    found: &Found,
    options: &UpOptions,
) -> Result<(), Fail> {
    let of_controller = !setup.listens_on(options.listen)
        || options.node_timeout.is_some_and(|t| Some(t) != setup.node_timeout);
    let other_router =
        found.router.is_some() && !options.router.is_some_and(|r| r.fits(setup.router.as_ref()));
    let what = if other_router {
        "another router, or none,"
    } else if options.nodes != setup.nodes {
        "other nodes"
    } else if found.controller.is_some() && of_controller {
        "another controller"
    } else {
        return Ok(());
    };
    let (shown, names) = (dir.display(), super::names::list(&found.names()));
    Err(Fail::usage(format!(
        "of the cluster in {shown} still run {names}: it can't have {what} now"
    ))
    .hint(format!(
        "tutti up --data-dir {shown} starts what is missing, as it was; tutti down stops the rest"
    )))
}

/// What its process does, if there is one.
pub fn controller_process(dir: &Path) -> Option<String> {
    live_controller(&dir.canonicalize().ok()?)?.standstill()
}

/// One that `tutti up` did not start. Whoever has the journal open is the controller, whatever its
/// command line says.
fn live_controller(dir: &Path) -> Option<Proc> {
    let by_pid_file = || {
        let text = std::fs::read_to_string(dir.join(tutti_controller::PID_FILE)).ok()?;
        let proc = Proc::of(text.trim().parse().ok()?)?;
        proc.has_open(&dir.join(tutti_controller::JOURNAL_FILE)).then_some(proc)
    };
    let by_command_line = || {
        let controller = |f: &sweep::Found| f.role == sweep::Role::Controller;
        sweep::find(dir).into_iter().find(controller).map(|f| f.proc)
    };
    by_pid_file().or_else(by_command_line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::in_racks;

    fn nodes(count: u16) -> Vec<NodePlan> {
        let node = |i| NodePlan {
            name: format!("n{i}"),
            address: format!("127.0.1.{i}"),
            gpus: 8,
            simulated_model: Some("h100".into()),
            rack: None,
        };
        in_racks((1..=count).map(node).collect(), 1)
    }

    fn options(dir: &Path) -> UpOptions {
        UpOptions {
            data_dir: dir.to_owned(),
            listen: None,
            nodes: nodes(2),
            node_timeout: None,
            policy: None,
            router: None,
        }
    }

    fn setup() -> Setup {
        let listen = "127.0.0.1:7999".parse().unwrap();
        let removed = BTreeSet::new();
        Setup { asked: None, listen, node_timeout: None, nodes: nodes(2), removed, router: None }
    }

    fn gone() -> Proc {
        Proc { pid: 1, started: u64::MAX }
    }

    fn me() -> Proc {
        Proc::of(std::process::id()).unwrap()
    }

    fn agents(n1: Proc, n2: Proc) -> Vec<(String, Proc)> {
        vec![("n1".into(), n1), ("n2".into(), n2)]
    }

    #[test]
    fn a_dir_in_use_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let router = None;
        let dir_of = None;
        let whole = UpRecord {
            supervisor: None,
            controller: me(),
            agents: agents(me(), me()),
            router,
            dir: dir_of.clone(),
        };
        let watched = UpRecord {
            supervisor: Some(me()),
            controller: gone(),
            agents: agents(gone(), gone()),
            router,
            dir: dir_of,
        };
        for record in [whole, watched] {
            record.write(dir.path()).unwrap();
            setup().write(dir.path()).unwrap();
            let fail = look(dir.path(), &options(dir.path())).unwrap_err();
            assert_eq!(fail.exit, 2);
            assert!(fail.message.contains("already runs"), "{fail}");
            assert!(fail.hint.unwrap().starts_with("tutti down --data-dir "));
        }
    }

    #[test]
    fn a_copy_of_a_live_dir_is_refused_and_one_of_a_dead_one_is_free() {
        let (original, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (dir, router) = (Some(original.path().to_owned()), None);
        let record = |controller, agents| UpRecord {
            supervisor: None,
            controller,
            agents,
            router,
            dir: dir.clone(),
        };
        record(me(), agents(me(), me())).write(copy.path()).unwrap();
        let fail = look(copy.path(), &options(copy.path())).unwrap_err();
        let want = format!("is a copy of {}", original.path().display());
        assert!(fail.message.contains(&want), "{fail}");
        assert!(fail.message.contains(&format!("process {}", me().pid)), "{fail}");
        record(gone(), agents(gone(), gone())).write(copy.path()).unwrap();
        assert!(look(copy.path(), &options(copy.path())).unwrap().names().is_empty());
    }

    #[test]
    fn many_that_run_are_counted() {
        let agents = (1..=40).map(|n| (format!("n{n}"), me())).collect();
        let found = Found { controller: Some(me()), agents, ..Found::default() };
        let pid = me().pid;
        assert_eq!(found.in_words(None), format!("controller, process {pid}; 40 agents"));
    }

    #[test]
    fn what_is_missing_is_told_from_what_runs() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        setup().write(dir).unwrap();
        assert!(look(dir, &options(dir)).unwrap().names().is_empty());
        let router = None;
        let record = |supervisor, controller, agents| UpRecord {
            supervisor,
            controller,
            agents,
            router,
            dir: None,
        };
        record(None, gone(), agents(me(), me())).write(dir).unwrap();
        let found = look(dir, &options(dir)).unwrap();
        assert_eq!(found.names(), ["n1", "n2"]);
        assert!(found.detached);
        assert_eq!(found.listen, Some(setup().listen));
        let elsewhere = "127.0.0.1:7998".parse().unwrap();
        let moved = UpOptions { listen: Some(elsewhere), ..options(dir) };
        assert_eq!(look(dir, &moved).unwrap().listen, Some(elsewhere), "it does not run");
        record(Some(gone()), me(), agents(me(), gone())).write(dir).unwrap();
        let found = look(dir, &options(dir)).unwrap();
        assert_eq!((found.names(), found.detached), (vec!["n1".into(), CONTROLLER.into()], false));
        for other in [moved, UpOptions { nodes: nodes(3), ..options(dir) }] {
            let fail = look(dir, &other).unwrap_err();
            assert_eq!(fail.exit, 2);
            assert!(fail.message.contains("still run n1, controller"), "{fail}");
            assert!(fail.hint.unwrap().contains("starts what is missing"));
        }
    }

    #[test]
    fn nobody_misses_a_node_that_was_removed_unless_it_may_join_again() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let removed = ["n2".to_owned()].into();
        Setup { removed, ..setup() }.write(dir).unwrap();
        let (supervisor, router, agents) = (None, None, agents(me(), gone()));
        UpRecord { supervisor, controller: me(), agents, router, dir: None }.write(dir).unwrap();
        let key = removed::key_file(dir, "n2");
        std::fs::create_dir_all(key.parent().unwrap()).unwrap();
        std::fs::write(&key, "").unwrap();
        let fail = look(dir, &options(dir)).unwrap_err();
        assert!(fail.message.contains("already runs"), "{fail}");
        std::fs::remove_file(&key).unwrap();
        assert_eq!(look(dir, &options(dir)).unwrap().names(), ["n1", CONTROLLER]);
    }

    #[test]
    fn a_controller_of_its_own_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        let journal = std::fs::File::create(path.join(tutti_controller::JOURNAL_FILE)).unwrap();
        let mut controller =
            std::process::Command::new("sleep").arg("60").stdin(journal).spawn().unwrap();
        let pid = format!("{}\n", controller.id());
        std::fs::write(path.join(tutti_controller::PID_FILE), pid).unwrap();
        let refused = look(&path, &options(&path));
        controller.kill().unwrap();
        controller.wait().unwrap();
        let fail = refused.unwrap_err();
        assert_eq!(fail.exit, 2);
        assert!(fail.message.contains("already runs"), "{fail}");

        // Gone, or its id given to somebody else.
        look(&path, &options(&path)).unwrap();
        let me = std::process::id().to_string();
        std::fs::write(path.join(tutti_controller::PID_FILE), me).unwrap();
        look(&path, &options(&path)).unwrap();
    }
}
