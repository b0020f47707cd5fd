//! Controller and agents of one test.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tutti_model::{Grant, JobSpec, JobState, NodeState, Span, TaskId};
use tutti_wire::api::{JobDetail, JobRow, LogEvent, LogQuery, NewToken, Submit};
use tutti_wire::client::{Client, ClusterRef, Lookup};
use tutti_wire::stream::LogStream;

use crate::cli::Cli;
use crate::network::Machine;
use crate::process::{Proc, kill_processes, processes_of};
use crate::wait::{PATIENCE, wait_for, wait_until};

#[derive(Clone, Debug)]
pub struct ClusterOptions {
    pub nodes: usize,
    pub gpus_per_node: u16,
    pub controller_args: Vec<String>,
    pub agent_args: Vec<String>,
    /// Where the controller listens; port 0 picks a free one.
    pub listen: String,
    /// Machines of a [`crate::Network`]: the first for the controller, one more for each node.
    /// None: everything on this machine.
    pub machines: Vec<Machine>,
    /// Instead of a fresh directory.
    pub data_dir: Option<PathBuf>,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        ClusterOptions {
            nodes: 2,
            gpus_per_node: 8,
            controller_args: Vec::new(),
            agent_args: Vec::new(),
            listen: "127.0.0.1:0".to_owned(),
            machines: Vec::new(),
            data_dir: None,
        }
    }
}

/// Nodes are called n1, n2, ...
pub struct Cluster {
    binary: PathBuf,
    options: ClusterOptions,
    /// For whatever a test writes; the cluster is in `cluster` below it.
    scratch: tempfile::TempDir,
    dir: PathBuf,
    controller: Option<Child>,
    agents: BTreeMap<String, Child>,
}

/// One line of a job's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineOfLog {
    pub rank: u32,
    pub stream: LogStream,
    pub text: String,
}

impl Cluster {
    /// Returns when every node is ready. `binary` is `env!("CARGO_BIN_EXE_tutti")`.
    #[track_caller]
    pub fn start(binary: &str, nodes: usize) -> Cluster {
        Cluster::with(binary, ClusterOptions { nodes, ..ClusterOptions::default() })
    }

    #[track_caller]
    pub fn with(binary: &str, options: ClusterOptions) -> Cluster {
        let scratch = tempfile::Builder::new().prefix("tutti-e2e-").tempdir().expect("a temp dir");
        // Other users must reach what the test gives to their jobs.
        open_to_all(scratch.path());
        let dir = options.data_dir.clone().unwrap_or_else(|| scratch.path().join("cluster"));
        let mut cluster = Cluster {
            binary: PathBuf::from(binary),
            options,
            scratch,
            dir,
            controller: None,
            agents: BTreeMap::new(),
        };
        cluster.start_controller();
        for i in 1..=cluster.options.nodes {
            cluster.start_agent(&format!("n{i}"));
        }
        cluster.wait_ready();
        cluster
    }

    /// The controller's data dir.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A place for files of the test and its jobs, writable by every user.
    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    pub fn node_dir(&self, node: &str) -> PathBuf {
        self.scratch.path().join("nodes").join(node)
    }

    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// A new one, with the admin's token.
    #[track_caller]
    pub fn client(&self) -> Client {
        Client::connect(&self.find())
    }

    /// With this token instead of the admin's.
    #[track_caller]
    pub fn client_with(&self, token: &str) -> Client {
        let mut cluster = self.find();
        cluster.token = token.parse().expect("a token");
        Client::connect(&cluster)
    }

    #[track_caller]
    fn find(&self) -> ClusterRef {
        self.try_find().expect("the cluster is found by its data dir")
    }

    fn try_find(&self) -> Result<ClusterRef, tutti_wire::client::ClientError> {
        ClusterRef::find(&Lookup {
            flag: None,
            cluster: None,
            token: None,
            default_data_dir: &self.dir,
            home: None,
        })
    }

    /// `tutti` with these words, for this cluster.
    pub fn cli(&self, args: &[&str]) -> Cli {
        Cli::new(&self.binary, args).env("TUTTI_CLUSTER", &self.dir).dir(self.scratch())
    }
}

/// Starting and breaking.
impl Cluster {
    /// Starts it, or starts it again; returns when it answers.
    #[track_caller]
    pub fn start_controller(&mut self) {
        self.launch_controller();
        let began = Instant::now();
        while !self.answers() {
            let child = self.controller.as_mut().expect("it was just started");
            let gone = child.try_wait().expect("a child can be waited for");
            assert!(
                gone.is_none() && began.elapsed() < PATIENCE,
                "the controller does not come up:\n{}",
                self.log("controller")
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether the controller that the data dir names is there.
    pub fn answers(&self) -> bool {
        self.try_find().is_ok_and(|c| Client::connect(&c).cluster_info().is_ok())
    }

    /// Starts it without waiting.
    #[track_caller]
    pub fn launch_controller(&mut self) {
        assert!(self.controller.is_none(), "the controller runs already");
        let mut args: Vec<String> =
            ["controller", "--data-dir", self.dir.to_str().expect("a UTF-8 path"), "--listen"]
                .map(str::to_owned)
                .into();
        args.push(self.options.listen.clone());
        args.extend(self.options.controller_args.iter().cloned());
        let machine = self.options.machines.first();
        self.controller = Some(self.daemon("controller", &args, machine, None));
    }

    #[track_caller]
    pub fn kill_controller(&mut self) {
        let mut child = self.controller.take().expect("the controller runs");
        child.kill().expect("it can be killed");
        child.wait().expect("it can be reaped");
    }

    /// SIGTERM, and its exit code.
    #[track_caller]
    pub fn stop_controller(&mut self) -> i32 {
        let child = self.controller.as_ref().expect("the controller runs");
        signal(child, Signal::SIGTERM);
        self.controller_ended()
    }

    /// Waits until it ends of itself; its exit code.
    #[track_caller]
    pub fn controller_ended(&mut self) -> i32 {
        let mut child = self.controller.take().expect("the controller runs");
        let status = wait_for("the controller ends", PATIENCE, || {
            child.try_wait().expect("a child can be waited for")
        });
        status.code().expect("no signal ended it")
    }

    /// Starts it, or starts it again after it was killed.
    #[track_caller]
    pub fn start_agent(&mut self, node: &str) {
        let controller = if self.options.machines.is_empty() {
            self.dir.to_str().expect("a UTF-8 path").to_owned()
        } else {
            self.client().endpoint().authority()
        };
        self.start_agent_at(node, &controller);
    }

    /// The same with a controller at this address.
    #[track_caller]
    pub fn start_agent_at(&mut self, node: &str, controller: &str) {
        assert!(!self.agents.contains_key(node), "the agent of {node} runs already");
        let i: usize = node[1..].parse().expect("nodes are n1, n2, ...");
        let (dir, machine) = (self.node_dir(node), self.options.machines.get(i));
        let address = machine.map_or_else(|| format!("127.0.77.{i}"), |m| m.address.clone());
        let mut args: Vec<String> =
            ["agent", "--controller", controller, "--name", node, "--address", &address]
                .map(str::to_owned)
                .into();
        args.extend(["--data-dir", dir.to_str().expect("a UTF-8 path")].map(str::to_owned));
        args.extend(["--gpus-per-node".to_owned(), self.options.gpus_per_node.to_string()]);
        args.extend(self.options.agent_args.iter().cloned());
        let token = (!dir.join("node.pem").exists()).then(|| self.join_token(node));
        let child = self.daemon(node, &args, machine, token.as_deref());
        self.agents.insert(node.to_owned(), child);
    }

    /// For one agent of this name.
    #[track_caller]
    pub fn join_token(&self, node: &str) -> String {
        let grant = Grant::Join { node: Some(node.to_owned()), uses: Some(1) };
        let new = NewToken { grant, expires_in: Some(Span::secs(600)) };
        self.client().create_token(&new).expect("a join token").secret
    }

    /// The agent alone: its shims and ranks go on.
    #[track_caller]
    pub fn kill_agent(&mut self, node: &str) {
        let mut child = self.agents.remove(node).expect("the agent runs");
        child.kill().expect("it can be killed");
        child.wait().expect("it can be reaped");
    }

    #[track_caller]
    pub fn signal_agent(&self, node: &str, which: Signal) {
        signal(self.agents.get(node).expect("the agent runs"), which);
    }

    /// Agent, zygote, shims, ranks: as if the power went.
    #[track_caller]
    pub fn kill_node(&mut self, node: &str) {
        self.kill_agent(node);
        kill_processes(&self.node_dir(node));
    }

    fn daemon(
        &self,
        name: &str,
        args: &[String],
        machine: Option<&Machine>,
        join: Option<&str>,
    ) -> Child {
        fs::create_dir_all(self.scratch.path().join("logs")).expect("a directory for logs");
        let log = OpenOptions::new().create(true).append(true).open(self.log_path(name));
        let log = log.expect("a log file");
        let copy: File = log.try_clone().expect("a second handle");
        let mut command = Command::new(&self.binary);
        command.args(args).stdin(Stdio::null()).stdout(log).stderr(copy).current_dir("/");
        for variable in ["TUTTI_CLUSTER", "TUTTI_TOKEN", "TUTTI_DATA_DIR", "TUTTI_JOIN_TOKEN"] {
            command.env_remove(variable);
        }
        command.envs(join.map(|token| ("TUTTI_JOIN_TOKEN", token)));
        if let Some(machine) = machine {
            machine.put(&mut command);
        }
        command.spawn().unwrap_or_else(|e| panic!("can't start {name}: {e}"))
    }
}

/// Looking.
impl Cluster {
    #[track_caller]
    pub fn wait_ready(&self) {
        let wanted = self.options.nodes;
        let client = self.client();
        let began = Instant::now();
        loop {
            let nodes = client.nodes().unwrap_or_default();
            if nodes.iter().filter(|n| n.state == NodeState::Ready).count() >= wanted {
                return;
            }
            if began.elapsed() > PATIENCE {
                let logs: Vec<String> = self.agents.keys().map(|n| self.log(n)).collect();
                panic!("nodes are not ready: {nodes:?}\n{}", logs.join("\n"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[track_caller]
    pub fn wait_node(&self, node: &str, state: NodeState) {
        let client = self.client();
        wait_until(&format!("{node} is {}", state.as_str()), PATIENCE, || {
            client.node(node).is_ok_and(|n| n.state == state)
        });
    }

    /// As the user who runs the test.
    #[track_caller]
    pub fn submit(&self, spec: JobSpec) -> TaskId {
        self.submit_as(spec, &me())
    }

    #[track_caller]
    pub fn submit_as(&self, spec: JobSpec, user: &str) -> TaskId {
        let submit = Submit { spec, user: Some(user.to_owned()), key: None };
        self.client().submit(&submit).expect("the job is taken").id
    }

    #[track_caller]
    pub fn job(&self, id: TaskId) -> JobDetail {
        self.client().job(id).expect("the job is known")
    }

    #[track_caller]
    pub fn wait_state(&self, id: TaskId, state: JobState) -> JobDetail {
        let client = self.client();
        let mut last = None;
        wait_for(&format!("job {id} is {}", state.as_str()), PATIENCE, || {
            let job = client.job(id).expect("the job is known");
            let state_now = job.row.state;
            if last != Some(state_now) && state_now.is_final() {
                assert_eq!(state_now, state, "job {id} ended otherwise: {}", job.row.note);
            }
            last = Some(state_now);
            (state_now == state).then_some(job)
        })
    }

    #[track_caller]
    pub fn wait_end(&self, id: TaskId) -> JobRow {
        let client = self.client();
        wait_for(&format!("job {id} ends"), PATIENCE, || {
            client.wait(id, 10).ok().filter(|row| row.state.is_final())
        })
    }

    /// All that the job has written, in the order of each rank.
    #[track_caller]
    pub fn log_of(&self, id: TaskId, wanted: &LogQuery) -> Vec<LineOfLog> {
        let events = self.client().logs(id, wanted).expect("the log can be read");
        let mut lines: Vec<LineOfLog> = Vec::new();
        for event in events {
            if let LogEvent::Line { rank, stream, text, partial, .. } = event.expect("an event") {
                assert!(!partial, "an unfinished line: {text}");
                lines.push(LineOfLog { rank, stream, text });
            }
        }
        lines.sort_by_key(|l| l.rank);
        lines
    }

    /// Ranks and shims on this node, not its agent.
    pub fn processes_on(&self, node: &str) -> Vec<Proc> {
        let mut all = processes_of(&self.node_dir(node));
        all.retain(|p| p.name != "tutti" && p.name != "tutti-zygote");
        all
    }

    /// What the controller or an agent has said.
    pub fn log(&self, name: &str) -> String {
        let text = fs::read_to_string(self.log_path(name)).unwrap_or_default();
        format!("--- log of {name}\n{text}")
    }

    fn log_path(&self, name: &str) -> PathBuf {
        self.scratch.path().join("logs").join(format!("{name}.log"))
    }
}

impl Drop for Cluster {
    #[allow(clippy::print_stderr)]
    fn drop(&mut self) {
        if std::thread::panicking() {
            for name in std::iter::once("controller").chain(self.agents.keys().map(String::as_str))
            {
                let log = self.log(name);
                let from = log.len().saturating_sub(6000);
                let from = (from..log.len()).find(|&i| log.is_char_boundary(i)).unwrap_or(0);
                eprintln!("{}", &log[from..]);
            }
        }
        for child in self.controller.iter_mut().chain(self.agents.values_mut()) {
            let _ = child.kill();
            let _ = child.wait();
        }
        // A second panic would hide the first.
        if std::thread::panicking() {
            let _ = std::panic::catch_unwind(|| kill_processes(self.scratch.path()));
        } else {
            kill_processes(self.scratch.path());
        }
    }
}

fn signal(child: &Child, which: Signal) {
    kill(Pid::from_raw(child.id() as i32), which).expect("the process is there");
}

fn open_to_all(dir: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o1777)).expect("the mode can be set");
}

/// The user who runs the test: with an agent of root, jobs need one that exists.
pub fn me() -> String {
    let user = nix::unistd::User::from_uid(nix::unistd::geteuid());
    user.ok().flatten().map_or_else(|| "me".to_owned(), |u| u.name)
}
