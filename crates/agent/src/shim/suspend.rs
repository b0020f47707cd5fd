//! Carries out what the part's suspension asks for: runs the CUDA helper, freezes and thaws, and
//! keeps where it stands on disk and with the agent.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::time::Instant;

use nix::poll::{PollFd, PollFlags};

use super::freeze::Freezer;
use super::link::Link;
use super::ranks::Ranks;
use super::{Token, tree};
use crate::messages::FromShim;
use crate::parts::write_level;
use crate::plan::{Plan, Workdir};
use crate::spawn::{Program, Setting, Stdio, spawn};
use crate::suspend::calls::{Answered, Call, Question};
use crate::suspend::huge_pages::HugePages;
use crate::suspend::{Ability, Action, Input, Level, Machine, serve};

/// The most a helper says in one line.
const LINE_MAX: usize = 1 << 20;

pub struct Suspend<'a> {
    plan: &'a Plan,
    machine: Machine,
    freezer: Freezer<'a>,
    helper: Option<Helper>,
    /// Where it began, and what is on disk and was said.
    first: Level,
    said: Level,
    /// Set once the part can neither go on nor back.
    broken: Option<String>,
}

struct Helper {
    pid: i32,
    stdin: File,
    stdout: File,
    line: Vec<u8>,
    reaped: bool,
}

impl<'a> Suspend<'a> {
    pub fn new(plan: &'a Plan) -> Suspend<'a> {
        let machine = Machine::new(plan.suspend.clone(), plan.gpus.clone());
        let first = machine.level();
        let freezer = Freezer::new(plan.cgroup.as_ref());
        Suspend { plan, machine, freezer, helper: None, said: first.clone(), first, broken: None }
    }

    pub fn is_running(&self) -> bool {
        self.machine.is_running()
    }

    /// Nothing but SIGKILL reaches it.
    pub fn is_out(&self) -> bool {
        self.machine.is_out()
    }

    pub fn take_broken(&mut self) -> Option<String> {
        self.broken.take()
    }

    pub fn helper_pid(&self) -> Option<i32> {
        self.helper.as_ref().map(|h| h.pid)
    }

    pub fn next_timer(&self) -> Option<Instant> {
        self.machine.next_alarm()
    }

    /// Where it stands, to an agent that does not know.
    pub fn say(&self, link: &mut Link) {
        if self.said != self.first {
            link.say(&FromShim::Suspension { level: self.said.clone() });
        }
    }

    pub fn poll<'b>(&'b self, fds: &mut Vec<PollFd<'b>>, tokens: &mut Vec<Token>) {
        if let Some(helper) = &self.helper {
            fds.push(PollFd::new(helper.stdout.as_fd(), PollFlags::POLLIN));
            tokens.push(Token::Helper);
        }
    }

    /// One input, and everything that follows from it.
    pub fn step(&mut self, input: Input, ranks: &mut Ranks<'_>, link: &mut Link) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            for action in self.machine.step(Instant::now(), input) {
                inputs.extend(self.carry_out(action, ranks));
            }
        }
        self.tell(ranks, link);
    }

    /// On disk first: an agent that starts now must not take it for running.
    fn tell(&mut self, ranks: &mut Ranks<'_>, link: &mut Link) {
        let level = self.machine.level();
        if level == self.said {
            return;
        }
        if let Err(error) = write_level(&self.plan.stem, &level) {
            let text = format!("where the job stands can't be kept on disk: {error}");
            ranks.note(self.plan.first_rank, &text);
        }
        link.say(&FromShim::Suspension { level: level.clone() });
        self.said = level;
    }

    fn carry_out(&mut self, action: Action, ranks: &mut Ranks<'_>) -> Option<Input> {
        match action {
            Action::Survey { id } => {
                let pids = self.pids(ranks);
                return self.ask(Question {
                    id,
                    call: Call::Survey { pids, gpus: self.machine.level().gpus },
                });
            }
            Action::Call { id, call } => return self.ask(Question { id, call }),
            Action::DismissHelper => self.dismiss(),
            Action::KillHelper => self.kill_helper(),
            Action::MakeRoom(bytes) => {
                if let Err(error) = self.freezer.make_room(bytes) {
                    let text = format!("the limit on memory can't be raised: {error}");
                    ranks.note(self.plan.first_rank, &text);
                }
            }
            Action::PutLimitBack => {
                if let Err(error) = self.freezer.put_limit_back() {
                    let text = format!("the limit on memory can't be put back: {error}");
                    ranks.note(self.plan.first_rank, &text);
                }
            }
            Action::Freeze => return Some(Input::Frozen(self.freezer.freeze(self.helper_pid()))),
            Action::Thaw => return Some(Input::Thawed(self.freezer.thaw(self.helper_pid()))),
            Action::Break { why } => self.broken = Some(why),
        }
        None
    }

    /// Everything the part has started, rank by rank.
    fn pids(&self, ranks: &Ranks<'_>) -> Vec<i32> {
        let mut pids: Vec<i32> = ranks.pids().flat_map(tree::family).collect();
        let rest = tree::descendants().into_iter().filter(|pid| Some(*pid) != self.helper_pid());
        for pid in rest {
            if !pids.contains(&pid) {
                pids.push(pid);
            }
        }
        pids
    }

    fn ask(&mut self, question: Question) -> Option<Input> {
        let asked = self.helper().and_then(|helper| {
            let mut line = serde_json::to_string(&question).expect("plain data");
            line.push('\n');
            helper.stdin.write_all(line.as_bytes())
        });
        asked.err().map(|e| Input::HelperGone { why: format!("no CUDA helper: {e}") })
    }

    fn helper(&mut self) -> io::Result<&mut Helper> {
        if self.helper.is_none() {
            self.helper = Some(start(self.plan)?);
        }
        Ok(self.helper.as_mut().expect("just made"))
    }

    /// What the helper has said. It has ended when there is nothing to read.
    pub fn ready(&mut self, ranks: &mut Ranks<'_>, link: &mut Link) {
        let Some(helper) = &mut self.helper else { return };
        let mut buf = [0; 4096];
        match helper.stdout.read(&mut buf) {
            Ok(n @ 1..) => helper.line.extend_from_slice(&buf[..n]),
            Err(e)
                if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) =>
            {
                return;
            }
            Ok(_) | Err(_) => {
                self.kill_helper();
                let why = "the CUDA helper ended without an answer".to_owned();
                return self.step(Input::HelperGone { why }, ranks, link);
            }
        }
        let mut answers = Vec::new();
        while let Some(end) = helper.line.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = helper.line.drain(..=end).collect();
            answers.push(serde_json::from_slice::<Answered>(&line));
        }
        let too_long = helper.line.len() > LINE_MAX;
        for answer in answers {
            match answer {
                Ok(Answered { id, result }) => {
                    self.step(Input::Answer { id, result }, ranks, link);
                }
                Err(error) => {
                    self.kill_helper();
                    let why = format!("the CUDA helper speaks nonsense: {error}");
                    return self.step(Input::HelperGone { why }, ranks, link);
                }
            }
        }
        if too_long {
            self.kill_helper();
            let why = "the CUDA helper speaks without end".to_owned();
            self.step(Input::HelperGone { why }, ranks, link);
        }
    }

    pub fn timers(&mut self, now: Instant, ranks: &mut Ranks<'_>, link: &mut Link) {
        if self.machine.next_alarm().is_some_and(|at| at <= now) {
            self.step(Input::Tick, ranks, link);
        }
    }

    /// It leaves when it can't read any more; it is reaped with everything else.
    fn dismiss(&mut self) {
        self.helper = None;
    }

    fn kill_helper(&mut self) {
        if let Some(helper) = self.helper.take().filter(|h| !h.reaped) {
            // SAFETY: a plain system call; the helper is our child and not reaped yet.
            unsafe { libc::kill(helper.pid, libc::SIGKILL) };
        }
    }

    /// Whether this was the helper. One that was dismissed or killed is not known any more.
    pub fn reaped(&mut self, pid: i32) -> bool {
        match self.helper.as_mut().filter(|h| h.pid == pid) {
            Some(helper) => {
                helper.reaped = true;
                true
            }
            None => false,
        }
    }

    /// No process of the part is left. A helper that was killed has not put back what it set.
    pub fn leave(&mut self) {
        self.helper = None;
        if self.plan.suspend == (Ability::Cuda { huge_pages: true }) {
            // Tried again by the next agent that starts.
            let _ = HugePages::new(&self.plan.home).mend();
        }
    }
}

/// The helper is this same binary, outside the part's cgroup, as whoever the agent runs as.
fn start(plan: &Plan) -> io::Result<Helper> {
    let huge = plan.suspend == (Ability::Cuda { huge_pages: true });
    let mut argv = vec![plan.program.clone(), serve::VERB.to_owned()];
    if huge {
        argv.extend(["--huge-pages".to_owned(), plan.home.display().to_string()]);
    }
    let program = Program::new(&argv, environment()).map_err(io::Error::other)?;
    let (stdout, stdout_child) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    let (stdin_child, stdin) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    let log: PathBuf = plan.home.join("shim.log");
    let stderr = File::options().create(true).append(true).open(log)?;
    let stdio =
        Stdio { stdin: stdin_child.as_fd(), stdout: stdout_child.as_fd(), stderr: stderr.as_fd() };
    let workdir = Workdir::Asked("/".to_owned());
    let setting = Setting {
        workdir: &workdir,
        identity: None,
        new_privileges: false,
        cgroup: None,
        namespace: None,
    };
    let pid = spawn(&program, &setting, &stdio)?;
    let stdout = File::from(stdout);
    // SAFETY: the descriptor is ours and open.
    if unsafe { libc::fcntl(stdout.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Helper { pid, stdin: stdin.into(), stdout, line: Vec::new(), reaped: false })
}

/// The agent's own, without what would change how CUDA sees the machine.
fn environment() -> impl Iterator<Item = String> {
    std::env::vars().filter_map(|(name, value)| {
        let cuda = name.starts_with("CUDA_") || name.starts_with("TUTTI_");
        (!cuda).then(|| format!("{name}={value}"))
    })
}
