//! The small process that stands between an agent and the ranks of one part: it outlives the
//! agent, so that ranks do, and it is the parent of everything a rank starts, so that nothing is
//! left behind.
//!
//! ```text
//! shim: claim the part ─► start ranks ─► poll { pipes, SIGCHLD, agent, timers } ─► kill the rest
//!       ─► drain pipes ─► write the end to disk ─► tell the agent ─► leave
//! ```
//!
//! One thread, no runtime: it begins as a fork of the zygote and must cost little. It takes no
//! decisions; the agent's state machine does.

mod execs;
mod feed;
mod freeze;
mod leftovers;
mod limit;
mod link;
mod progress;
mod ranks;
mod suspend;
pub(crate) mod tree;

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::poll::{PollFd, PollFlags};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use tutti_model::{Blame, ExitStatus, PartError, RankExit, Time, TimeLimit};

use crate::cgroup::Made;
use crate::devices::Rules;
use crate::messages::{End, FromShim, ToShim};
use crate::parts::Claim;
use crate::plan::Plan;
use crate::suspend::Input;
use execs::Execs;
use limit::Limit;
use link::Link;
use progress::Progress;
use ranks::Ranks;
use suspend::Suspend;

/// While processes are being killed, how often it is looked whether new ones have appeared.
const KILL_AGAIN: Duration = Duration::from_millis(20);
const KILL_AGAIN_MAX: Duration = Duration::from_secs(1);
/// How long what is left after the last rank may take to end by itself.
const TIDY_UP: Duration = Duration::from_secs(1);

/// Who was asked to save and did not leave gets SIGTERM so long before SIGKILL.
const TERM_BEFORE: Duration = Duration::from_secs(2);

/// Signals whose usual effect is what is wanted.
const FOR_ALL: [libc::c_int; 7] = [
    libc::SIGTERM,
    libc::SIGKILL,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGSTOP,
    libc::SIGCONT,
    libc::SIGABRT,
];

/// The whole life of a shim. `body` is the plan as it came from the agent; `zygote` is the
/// inherited end of the zygote's socket, which a shim must not keep.
pub fn main(body: &[u8], zygote: OwnedFd) -> ! {
    drop(zygote);
    let code = match rmp_serde::from_slice::<Plan>(body) {
        Ok(plan) => run(&plan),
        // The agent encoded it a moment ago; nothing of the part has started, and the agent will
        // find the part unclaimed.
        Err(_) => 1,
    };
    // SAFETY: leaves without running the agent's exit handlers.
    unsafe { libc::_exit(code) }
}

fn run(plan: &Plan) -> i32 {
    log_panics(plan);
    let outcome = become_shim(plan).and_then(|()| Claim::take(&plan.stem));
    match outcome {
        Ok(Some(claim)) => {
            Shim::new(plan, claim).live();
            0
        }
        // The part was revoked, or another shim has it.
        Ok(None) => 0,
        Err(_) => 1,
    }
}

fn become_shim(plan: &Plan) -> io::Result<()> {
    crate::zygote::set_name(c"tutti-shim");
    std::env::set_current_dir(&plan.home)?;
    nix::unistd::setsid()?;
    // Whatever a rank starts becomes ours when its own parent is gone.
    nix::sys::prctl::set_child_subreaper(true)?;
    // Children end at any time; it is noticed only while polling.
    let mut chld = SigSet::empty();
    chld.add(Signal::SIGCHLD);
    nix::sys::signal::sigprocmask(SigmaskHow::SIG_SETMASK, Some(&chld), None)?;
    Ok(())
}

/// A shim has no terminal; what it has to say about itself goes to a file.
fn log_panics(plan: &Plan) {
    let (file, lease) = (plan.home.join("shim.log"), plan.lease);
    std::panic::set_hook(Box::new(move |info| {
        use std::io::Write;
        let log = std::fs::OpenOptions::new().create(true).append(true).open(&file);
        if let Ok(mut log) = log {
            let _ = writeln!(log, "{} {lease}: {info}", unix_ms());
        }
    }));
}

pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

fn now() -> Time {
    Time(unix_ms())
}

/// Told to stop.
struct Stopping {
    kill_at: Instant,
    /// Its processes were asked to save; SIGTERM follows at this time.
    term_at: Option<Instant>,
    because: Option<PartError>,
    /// Its processes have not heard of it yet: they are on their way out of their GPUs or back.
    unheard: Option<Unheard>,
    /// How many ranks had ended of themselves by then.
    exits_before: usize,
}

/// Where the part's processes are born.
#[derive(Default)]
struct Place {
    cgroup: Option<Made>,
    namespace: Option<OwnedFd>,
}

struct Unheard {
    signal: Option<String>,
}

struct Shim<'a> {
    plan: &'a Plan,
    claim: Claim,
    place: Place,
    ranks: Ranks<'a>,
    execs: Execs,
    progress: Progress<'a>,
    suspend: Suspend<'a>,
    limit: Limit,
    link: Link,
    exits: Vec<RankExit>,
    stopping: Option<Stopping>,
    error: Option<PartError>,
}

impl<'a> Shim<'a> {
    fn new(plan: &'a Plan, claim: Claim) -> Shim<'a> {
        Shim {
            plan,
            claim,
            place: Place::default(),
            ranks: Ranks::new(plan),
            execs: Execs::default(),
            progress: Progress::new(plan),
            suspend: Suspend::new(plan),
            limit: Limit::new(plan.limit.clone()),
            link: Link::new(plan),
            exits: Vec::new(),
            stopping: None,
            error: None,
        }
    }

    fn live(mut self) {
        if let Err(error) = self.start() {
            self.error = Some(error);
        }
        while self.ranks.any_alive() {
            self.turn();
        }
        self.bury();
        self.suspend.leave();
        let end = self.end();
        // If the disk refuses, the agent still hears it; should it miss that too, it finds the
        // part dead and says so.
        let _ = self.claim.write_end(&end);
        // Let go before the agent hears: it may use the record for another part.
        drop(self.claim);
        self.link.say_last(&FromShim::Ended(end));
    }

    /// Starts every rank, or none: what was started before a failure is killed with the part.
    fn start(&mut self) -> Result<(), PartError> {
        let node = |message: String| PartError { message, blame: Blame::Node };
        if let Some(cgroup) = &self.plan.cgroup {
            let made = cgroup.make().map_err(|e| node(crate::node::chain(&e)))?;
            self.place.cgroup = Some(made);
        }
        let opened = self.progress.open();
        // After the socket is there: it may have to be kept in sight.
        if let Some(private) = &self.plan.private {
            let made = private.make(self.plan.identity.as_ref());
            self.place.namespace = Some(made.map_err(|e| node(crate::node::chain(&e)))?);
        }
        self.ranks.start(&self.place)?;
        self.limit.follow(Instant::now(), true);
        if let Err(error) = opened {
            let text =
                format!("progress can't be reported: {}: {error}", self.plan.progress.display());
            self.ranks.note(self.plan.first_rank, &text);
        }
        Ok(())
    }

    /// Waits for something to happen and handles it.
    fn turn(&mut self) {
        if self.error.is_some() {
            self.kill_all();
        }
        let mut fds = Vec::with_capacity(8);
        let mut tokens = Vec::with_capacity(8);
        self.link.poll(&mut fds, &mut tokens);
        self.ranks.poll(&mut fds, &mut tokens);
        self.progress.poll(&mut fds, &mut tokens);
        self.suspend.poll(&mut fds, &mut tokens);
        if !self.link.is_clogged() {
            self.execs.poll(&mut fds, &mut tokens);
        }
        wait(&mut fds, self.next_timer());
        let events: Vec<(Token, PollFlags)> = fds
            .iter()
            .zip(&tokens)
            .filter_map(|(fd, &token)| fd.revents().filter(|r| !r.is_empty()).map(|r| (token, r)))
            .collect();
        drop(fds);
        for (token, flags) in events {
            self.handle(token, flags);
        }
        // Also without an interruption: while something is always ready to be read, no signal
        // gets through.
        self.reap();
        self.timers();
        self.link.flush();
    }

    fn handle(&mut self, token: Token, flags: PollFlags) {
        match token {
            Token::Link => {
                for message in self.link.receive(flags) {
                    self.obey(message);
                }
                if self.link.just_lost() {
                    self.execs.kill_all();
                }
            }
            Token::Rank { slot, pipe } => self.ranks.ready(slot, pipe, &mut self.link),
            Token::Exec { slot, pipe } => self.execs.ready(slot, pipe, &mut self.link),
            Token::Helper => self.suspend.ready(&mut self.ranks, &mut self.link),
            Token::Progress { speaker } => self.progress.ready(speaker, &mut self.ranks),
        }
    }

    fn obey(&mut self, message: ToShim) {
        match message {
            ToShim::Stop { grace, signal, because } => {
                self.stop(Duration::from_millis(grace.0), signal.as_deref(), because);
            }
            ToShim::Suspend { room } => self.move_part(Input::Suspend { room }),
            ToShim::Wake { gpus, devices } => {
                self.allow(devices);
                self.move_part(Input::Wake { gpus });
            }
            ToShim::Stdin { rank, data, eof } => self.ranks.input(rank, &data, eof),
            ToShim::Watch { rank, seen } => self.ranks.watch(rank, seen, &mut self.link),
            ToShim::Exec { request, .. } if !self.suspend.is_running() => {
                let reason = "the job is suspended".to_owned();
                self.link.say(&FromShim::ExecFailed { request, reason });
            }
            ToShim::Exec { request, rank, argv } => {
                let place = &self.place;
                self.execs.start(self.plan, request, rank, &argv, place, &mut self.link);
            }
            ToShim::StdinCut { rank } => self.ranks.input_cut(rank),
            ToShim::ExecInput { request, data, eof } => {
                self.execs.input(request, &data, eof, &mut self.link);
            }
            ToShim::ExecKill { request } => self.execs.kill(request),
            ToShim::Limit { limit } => {
                self.limit.set(limit, Instant::now());
                self.say_limit();
            }
            ToShim::Signal { request, signal } => {
                let said = match self.signal(&signal) {
                    Ok(()) => FromShim::ExecExited { request, status: ExitStatus::Code(0) },
                    Err(reason) => FromShim::ExecFailed { request, reason },
                };
                self.link.say(&said);
            }
            ToShim::Warn { warning } => self.progress.warn(&warning, &mut self.ranks),
        }
    }

    /// What a signal means to everybody goes to all; others would kill who does not listen.
    fn signal(&self, name: &str) -> Result<(), String> {
        let number = signal_number(name).ok_or_else(|| format!("{name} is no signal"))?;
        if !self.suspend.is_running() {
            return Err("the job is suspended: its processes stand still".to_owned());
        }
        if FOR_ALL.contains(&number) {
            tree::signal_all(number);
            return Ok(());
        }
        match tree::signal_listeners(number) {
            true => Ok(()),
            false => Err(format!("none of its processes has a handler for {name}")),
        }
    }

    /// A part that comes back on other GPUs may open those.
    fn allow(&mut self, devices: Option<Rules>) {
        let Some((made, rules)) = self.place.cgroup.as_mut().zip(devices) else { return };
        if let Err(error) = made.allow(&rules) {
            let text = format!("its GPUs can't be opened to it: {error}");
            self.ranks.note(self.plan.first_rank, &text);
        }
    }

    fn move_part(&mut self, input: Input) {
        self.suspend.step(input, &mut self.ranks, &mut self.link);
    }

    /// A second order can only shorten the grace.
    fn stop(&mut self, grace: Duration, signal: Option<&str>, because: Option<PartError>) {
        let kill_at = Instant::now() + grace;
        let term_at = kill_at - (grace / 4).min(TERM_BEFORE);
        match &mut self.stopping {
            Some(stopping) => {
                stopping.kill_at = stopping.kill_at.min(kill_at);
                stopping.term_at = stopping.term_at.map(|at| at.min(term_at));
                stopping.because = stopping.because.take().or(because);
            }
            None => {
                let exits_before = self.exits.len();
                // Without any time nobody is asked: who is would end of that, and not at once.
                let asked = !grace.is_zero();
                let unheard = asked.then(|| Unheard { signal: signal.map(str::to_owned) });
                let term_at = asked.then_some(term_at);
                self.stopping = Some(Stopping { kill_at, term_at, because, unheard, exits_before });
                self.move_part(Input::Stop);
                self.ask_to_end();
            }
        }
    }

    /// Tells the processes to end, once they can hear it. Those whose GPU state is in host memory
    /// can do nothing about it, so they are not asked.
    fn ask_to_end(&mut self) {
        let Some(stopping) = self.stopping.as_mut().filter(|s| s.unheard.is_some()) else { return };
        if self.suspend.is_out() {
            (stopping.unheard, stopping.term_at) = (None, None);
            stopping.kill_at = Instant::now();
        } else if self.suspend.is_running()
            && let Some(Unheard { signal }) = stopping.unheard.take()
        {
            let number = signal.as_deref().and_then(signal_number);
            if !number.is_some_and(tree::signal_listeners) {
                stopping.term_at = None;
                terminate();
            }
        }
    }

    fn say_limit(&mut self) {
        let level = self.limit.level(Instant::now());
        self.link.say(&FromShim::Limit { level });
    }

    /// It ran for as long as it may, and nobody has stopped it.
    fn watch_limit(&mut self, now: Instant) {
        let changed = self.limit.follow(now, self.suspend.is_running());
        let due = if self.stopping.is_none() { self.limit.take_due(now) } else { None };
        if let Some(TimeLimit { grace, signal, .. }) = &due {
            let text =
                "its time limit is over, and the controller has not stopped it: its node does";
            self.ranks.note(self.plan.first_rank, text);
            self.stop(Duration::from_millis(grace.0), signal.as_deref(), None);
        }
        if changed || due.is_some() {
            self.say_limit();
        }
    }

    /// A part that can neither go on nor back ends.
    fn watch_suspension(&mut self, now: Instant) {
        self.suspend.timers(now, &mut self.ranks, &mut self.link);
        self.progress.follow(now, self.suspend.is_running());
        if let Some(why) = self.suspend.take_broken() {
            let message = format!("its GPU state could not be moved: {why}");
            self.stop(Duration::ZERO, None, Some(PartError { message, blame: Blame::Node }));
        }
        self.ask_to_end();
    }

    fn kill_all(&self) {
        if let Some(cgroup) = &self.plan.cgroup {
            // The tree is killed as well, so nothing depends on this.
            let _ = cgroup.kill();
        }
        tree::signal_all(libc::SIGKILL);
    }

    fn reap(&mut self) {
        let before = self.exits.len();
        while let Some((pid, status)) = tree::reap_one() {
            if let Some(rank) = self.ranks.ended(pid, &mut self.link) {
                self.exits.push(RankExit { rank, status, at: now() });
            } else if !self.suspend.reaped(pid) {
                self.execs.ended(pid, status, &mut self.link);
            }
        }
        if self.exits.len() > before && self.ranks.any_alive() {
            self.progress.catch_up(Instant::now(), &mut self.ranks, &mut self.link);
            self.link.say_state(&self.exits);
        }
    }

    fn timers(&mut self) {
        let now = Instant::now();
        self.watch_suspension(now);
        self.watch_limit(now);
        if let Some(stopping) = &mut self.stopping
            && stopping.unheard.is_none()
            && stopping.term_at.is_some_and(|at| at <= now)
        {
            stopping.term_at = None;
            terminate();
        }
        if self.stopping.as_ref().is_some_and(|s| s.kill_at <= now) {
            self.kill_all();
        }
        self.ranks.flush_quiet(now, &mut self.link);
        let level = self.limit.level(now);
        if self.link.dial_if_due(now, &self.exits, level) {
            self.suspend.say(&mut self.link);
            self.progress.say(now, &mut self.link);
        }
        self.progress.tell(now, &mut self.link);
    }

    fn next_timer(&self) -> Option<Instant> {
        let killing = self.error.is_some()
            || self.stopping.as_ref().is_some_and(|s| s.kill_at <= Instant::now());
        let kill = match &self.stopping {
            _ if killing => Some(Instant::now() + KILL_AGAIN),
            Some(stopping) if stopping.unheard.is_some() => Some(stopping.kill_at),
            Some(stopping) => Some(stopping.term_at.unwrap_or(stopping.kill_at)),
            None => None,
        };
        let progress = self.progress.next_timer(&self.link);
        let suspend = self.suspend.next_timer();
        let limit = self.limit.next_timer().filter(|_| self.stopping.is_none());
        let times =
            [kill, self.ranks.next_flush(), self.link.next_dial(), progress, suspend, limit];
        times.into_iter().flatten().min()
    }

    /// After the last rank: no process of the part stays, and nothing they wrote is lost. Takes as
    /// long as it takes: the end of a part says that its GPUs are free.
    fn bury(&mut self) {
        // Else the runtime has removed its containers itself.
        let killed = self.stopping.is_some()
            || self.error.is_some()
            || self.exits.iter().any(|exit| matches!(exit.status, ExitStatus::Signal(_)))
            || !tree::childless();
        self.let_tidy_up();
        self.kill_rest();
        if killed {
            self.remove_leftovers();
            self.kill_rest();
        }
        let podman = self.plan.podman.as_ref();
        if let Some(files) = podman.and_then(|podman| podman.files.as_ref()) {
            // Only root can write there. What stays is removed by the agent.
            let _ = crate::node::podman::forget(files);
        }
        self.progress.close(&mut self.ranks);
        self.ranks.drain(&mut self.link);
        if let Some(cgroup) = &self.plan.cgroup {
            // The kernel lets go of the last process a moment after it was reaped.
            let mut pause = Duration::from_millis(1);
            while !cgroup.is_done() {
                let _ = cgroup.kill();
                wait(&mut [], Some(Instant::now() + pause));
                pause = (pause * 2).min(KILL_AGAIN_MAX);
            }
        }
    }

    /// What ranks leave behind may have to tidy up after them: Python's tracker of shared memory removes it
    /// once all who use it are gone, and would leave it on the node for ever if it were killed then.
    fn let_tidy_up(&mut self) {
        self.reap();
        if tree::childless() || self.error.is_some() || !self.suspend.is_running() {
            return;
        }
        let until = Instant::now() + TIDY_UP;
        let until = self.stopping.as_ref().map_or(until, |stopping| stopping.kill_at.min(until));
        terminate();
        let mut pause = Duration::from_millis(1);
        while !tree::childless() && Instant::now() < until {
            wait(&mut [], Some(Instant::now() + pause));
            pause = (pause * 2).min(KILL_AGAIN);
            self.reap();
        }
    }

    fn kill_rest(&mut self) {
        let mut pause = KILL_AGAIN;
        while !tree::childless() {
            self.kill_all();
            // What does not die at once hangs in the kernel, and may for hours.
            wait(&mut [], Some(Instant::now() + pause));
            pause = (pause * 2).min(KILL_AGAIN_MAX);
            self.reap();
        }
    }

    fn remove_leftovers(&mut self) {
        let (plan, place) = (self.plan, &self.place);
        let is_set_up = plan.cgroup.is_some() == place.cgroup.is_some()
            && plan.private.is_some() == place.namespace.is_some();
        let Some(podman) = plan.podman.as_ref().filter(|_| is_set_up) else { return };
        if let Err(error) = leftovers::remove(plan, place, podman) {
            let text = format!("containers of this job may be left on the node: {error}");
            self.ranks.note(plan.first_rank, &text);
        }
    }

    fn end(&mut self) -> End {
        let mut exits = std::mem::take(&mut self.exits);
        let mut error = self.error.take();
        if let Some(Stopping { because: Some(because), exits_before, .. }) = self.stopping.take() {
            // What a rank returned because it was stopped is not its own doing.
            exits.truncate(exits_before);
            error = Some(because);
        }
        exits.sort_by_key(|e| e.rank);
        let progress = self.progress.level().map(Box::new);
        let (out_of_time, output_dropped) = (self.limit.is_over(), self.ranks.output_dropped());
        End { exits, error, progress, out_of_time, output_dropped }
    }
}

fn terminate() {
    tree::signal_all(libc::SIGTERM);
    // A stopped process would not see it.
    tree::signal_all(libc::SIGCONT);
}

/// `USR1` or `SIGUSR1`; none for a name that this system does not know.
fn signal_number(name: &str) -> Option<libc::c_int> {
    let name = format!("SIG{}", name.strip_prefix("SIG").unwrap_or(name));
    name.parse::<Signal>().ok().map(|signal| signal as libc::c_int)
}

/// What a polled descriptor belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Link,
    Rank {
        slot: usize,
        pipe: Pipe,
    },
    Exec {
        slot: usize,
        pipe: Pipe,
    },
    /// The one that speaks with the CUDA driver.
    Helper,
    /// Without a speaker, somebody wants to become one.
    Progress {
        speaker: Option<usize>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pipe {
    Stdin,
    Stdout,
    Stderr,
}

/// Polls with SIGCHLD let through, so that none is missed between looking and sleeping. Returns
/// early, with nothing ready, when a child has ended.
fn wait(fds: &mut [PollFd<'_>], until: Option<Instant>) {
    let timeout = until.map(|t| {
        let left = t.saturating_duration_since(Instant::now());
        nix::sys::time::TimeSpec::from_duration(left)
    });
    // Interruption is the only error that valid arguments can give.
    let _ = nix::poll::ppoll(fds, timeout, Some(SigSet::empty()));
}
