//! Requests of the controller that are answered later: input for ranks, programs run inside parts.
//! (Reading logs is in `logs`.) They belong to one stream and end with it.

use std::collections::{BTreeSet, HashMap};

use tutti_model::{ExitStatus, LeaseId, Rank, TaskId};
use tutti_wire::stream::{Exec, ExecOutput, LogStream, RequestId, ToController, Warning};

use super::Node;
use super::logs::Waiter;
use crate::messages::ToShim;

/// Input that came before its shim; beyond it the input is cut off, and the rank's log says so.
const EARLY_INPUT_MAX: usize = 64 << 20;

#[derive(Default)]
pub struct Requests {
    pub waiters: Vec<Waiter>,
    execs: HashMap<RequestId, LeaseId>,
    early_input: HashMap<LeaseId, EarlyInput>,
}

impl Requests {
    pub fn are_none(&self) -> bool {
        self.waiters.is_empty() && self.execs.is_empty()
    }
}

#[derive(Default)]
struct EarlyInput {
    bytes: usize,
    /// Nothing more is kept for these; their input ends.
    cut: BTreeSet<Rank>,
    messages: Vec<ToShim>,
}

impl Node {
    pub(super) fn stdin(&mut self, task: TaskId, rank: Rank, data: Vec<u8>, eof: bool) {
        let Some(lease) = self.machine.live_part(task).map(|l| l.lease) else {
            tracing::debug!(%task, "input for a task that does not run here");
            return;
        };
        let message = ToShim::Stdin { rank, data, eof };
        if self.shims.is_connected(lease) {
            self.shims.tell(lease, &message);
            return;
        }
        let ToShim::Stdin { data, .. } = &message else { return };
        let early = self.requests.early_input.entry(lease).or_default();
        if early.cut.contains(&rank) {
            return;
        }
        if early.bytes + data.len() > EARLY_INPUT_MAX {
            tracing::warn!(%lease, %rank, "too much input before the part started; it is cut off");
            early.cut.insert(rank);
            early.messages.push(ToShim::StdinCut { rank });
            return;
        }
        early.bytes += data.len();
        early.messages.push(message);
    }

    /// The shim of this part has connected, for the first time or again.
    pub(super) fn shim_came(&mut self, lease: LeaseId) {
        if let Some(early) = self.requests.early_input.remove(&lease) {
            early.messages.iter().for_each(|message| self.shims.tell(lease, message));
        }
        self.watch_again(lease);
    }

    pub(super) fn exec(&mut self, request: RequestId, exec: Exec) {
        let Exec { task, rank, argv } = exec;
        let lease = self.machine.live_part(task).map(|l| l.lease);
        match lease.filter(|&l| self.shims.is_connected(l)) {
            Some(lease) => {
                self.requests.execs.insert(request, lease);
                self.shims.tell(lease, &ToShim::Exec { request, rank, argv });
            }
            None => {
                let node = &self.config.name;
                let reason = format!("task {task} does not run on node {node} now");
                self.say_exec(request, ExecOutput::Failed { reason });
            }
        }
    }

    /// The shim answers as if a program had run there.
    pub(super) fn signal(&mut self, request: RequestId, task: TaskId, signal: String) {
        let lease = self.machine.live_part(task).map(|l| l.lease);
        match lease.filter(|&l| self.shims.is_connected(l)) {
            Some(lease) => {
                self.requests.execs.insert(request, lease);
                self.shims.tell(lease, &ToShim::Signal { request, signal });
            }
            None => {
                let node = &self.config.name;
                let reason = format!("task {task} does not run on node {node} now");
                self.say_exec(request, ExecOutput::Failed { reason });
            }
        }
    }

    /// One that has ended meanwhile needs no warning.
    pub(super) fn warn(&mut self, task: TaskId, warning: Warning) {
        let lease = self.machine.live_part(task).map(|l| l.lease);
        if let Some(lease) = lease.filter(|&l| self.shims.is_connected(l)) {
            self.shims.tell(lease, &ToShim::Warn { warning });
        }
    }

    pub(super) fn exec_input(&mut self, request: RequestId, data: Vec<u8>, eof: bool) {
        if let Some(&lease) = self.requests.execs.get(&request) {
            self.shims.tell(lease, &ToShim::ExecInput { request, data, eof });
        }
    }

    pub(super) fn exec_data(&mut self, request: RequestId, stream: LogStream, data: Vec<u8>) {
        if self.requests.execs.contains_key(&request) {
            self.say_exec(request, ExecOutput::Data { stream, data });
        }
    }

    pub(super) fn exec_exited(&mut self, request: RequestId, status: ExitStatus) {
        if self.requests.execs.remove(&request).is_some() {
            self.say_exec(request, ExecOutput::Exited { status });
        }
    }

    pub(super) fn exec_failed(&mut self, request: RequestId, reason: String) {
        if self.requests.execs.remove(&request).is_some() {
            self.say_exec(request, ExecOutput::Failed { reason });
        }
    }

    /// The part's shim is gone, and with it whatever ran inside.
    pub(super) fn execs_gone(&mut self, lease: LeaseId) {
        let requests = self.requests.execs.iter().filter(|(_, l)| **l == lease);
        let requests: Vec<RequestId> = requests.map(|(r, _)| *r).collect();
        for request in requests {
            self.exec_failed(request, "the task has ended".to_owned());
        }
    }

    fn say_exec(&mut self, request: RequestId, output: ExecOutput) {
        if self.uplink.is_up() {
            self.uplink.say(&ToController::Output { request, output });
        }
    }

    pub(super) fn abandon(&mut self, request: RequestId) {
        self.requests.waiters.retain(|w| w.request != request);
        if let Some(lease) = self.requests.execs.remove(&request) {
            self.shims.tell(lease, &ToShim::ExecKill { request });
        }
    }

    /// The stream is over: nobody waits for anything any more.
    pub(super) fn requests_gone(&mut self) {
        self.requests.waiters.clear();
        for (request, lease) in std::mem::take(&mut self.requests.execs) {
            self.shims.tell(lease, &ToShim::ExecKill { request });
        }
    }

    /// Nothing more will come from this part.
    pub(super) fn part_over(&mut self, lease: LeaseId) {
        self.requests.early_input.remove(&lease);
        self.execs_gone(lease);
        self.answer_waiters(|w| w.task() == lease.task);
    }
}
