//! `tutti` from outside: real processes, real faults.
//!
//! | file | what must hold |
//! |---|---|
//! | `archive` | ended jobs in files: found again, never lost, never twice |
//! | `bench` | the cluster measures itself |
//! | `burst` | a controller killed again and again loses no job and runs none twice |
//! | `escapes` | nothing that a user names can paint an operator's screen |
//! | `faults` | agents, nodes and controllers that die, hang or are away |
//! | `frozen` | a controller that hangs: clients say so and give up |
//! | `goodput` | what a killed node cost, in GPU-hours and money |
//! | `health` | a GPU that breaks: seen, fenced, jobs moved, resolved |
//! | `partition` | a node cut off by the network |
//! | `run` | `tutti run` is as if the command ran here |
//! | `journal` | users who fill it, its loss, and a backup that is put back |
//! | `reach` | nodes that can't reach each other are never one gang |
//! | `jobs` | arrays, dependencies, hold, drain, cancel, limits, logs, exec |
//! | `plan` | layouts, times and prices without a GPU; job files that are checked against one |
//! | `progress` | jobs that say how far they are, over the death of agents and controller |
//! | `serve` | endpoints: they answer through a router, over deaths of router and controller |
//! | `sharing` | teams, policies, parts of GPUs, racks, preemption of real processes |
//! | `staged` | the dashboard of a simulated day |
//! | `suspend` | jobs that make room and go on where they were |
//! | `access` | tokens, roles, users, old agents |
//! | `launchers` | real frameworks start unmodified, across nodes |
//! | `errors` | every mistake says what to do |
//! | `ckpt` | checkpoints of any job, and of nodes that are lost |
//! | `dashboard`, `browser` | the dashboard in a real browser |
//! | `data_dir` | data dirs that somebody else has a hand in |
//! | `disk` | a full disk, and output that would fill it |
//! | `telemetry` | what GPUs do, seen by people and by a real Prometheus |
//! | `top` | the cluster in a terminal: keys, sizes, ends |
//! | `train` | ranks that meet, save, are asked to leave, and lose one another |
//! | `unbroken` | training over a dead node and a hung rank, to the same loss |
//! | `up` | `tutti up` and `tutti down` leave nothing behind |
//! | `watch` | each rule fires on a job or node made to misbehave so, and ends when it is mended |

mod access;
mod archive;
mod bench;
mod browser;
mod burst;
mod ckpt;
mod dashboard;
mod data_dir;
mod disk;
mod endpoints;
mod errors;
mod escapes;
mod faults;
mod frozen;
mod goodput;
mod health;
mod jobs;
mod journal;
mod launchers;
mod partition;
mod plan;
mod progress;
mod reach;
mod run;
mod serve;
mod sharing;
mod staged;
mod suspend;
mod telemetry;
mod top;
mod train;
mod unbroken;
mod up;
mod watch;

use tutti_model::JobSpec;
use tutti_testkit::Cluster;

const TUTTI: &str = env!("CARGO_BIN_EXE_tutti");

fn cluster(nodes: usize) -> Cluster {
    Cluster::start(TUTTI, nodes)
}

/// A shell line on so many nodes.
fn gang(nodes: u32, line: impl Into<String>) -> JobSpec {
    JobSpec { nodes: Some(nodes), ..JobSpec::shell(line) }
}
