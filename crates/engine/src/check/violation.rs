//! What can be wrong with a plan, in words.

use tutti_model::{GpuIndex, JobId, NodeId, TaskId};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    #[error("{0} does not wait for a start")]
    NotPending(TaskId),
    #[error("{0} is placed twice")]
    PlacedTwice(TaskId),
    #[error("{0} is held")]
    Held(TaskId),
    #[error("{0} waits for other jobs")]
    DependenciesOpen(TaskId),
    #[error("array {0} would run {1} tasks at once, its limit is {2}")]
    ArrayLimit(JobId, u32, u32),

    #[error("{0}: the gang is not what was asked for: {1}")]
    NotWhole(TaskId, String),
    #[error("{0}: node {1} appears twice")]
    NodeTwice(TaskId, NodeId),
    #[error("{0}: node {1} takes no work")]
    NodeClosed(TaskId, NodeId),
    #[error("{0}: GPU {2} of node {1} does not exist")]
    NoSuchGpu(TaskId, NodeId, GpuIndex),
    #[error("{0}: GPU {2} of node {1} is of the wrong model")]
    WrongModel(TaskId, NodeId, GpuIndex),
    #[error("{0}: GPU {2} of node {1} is fenced")]
    Fenced(TaskId, NodeId, GpuIndex),
    #[error("{0}: GPU {2} of node {1} has too little memory")]
    GpuTooSmall(TaskId, NodeId, GpuIndex),
    #[error("{0}: {3} has port {2} of node {1}")]
    PortTaken(TaskId, NodeId, u16, TaskId),
    #[error("{0}: node {1} has or lacks a label that it must not")]
    WrongLabels(TaskId, NodeId),
    #[error("{0}: nodes {1} and {2} do not reach each other")]
    Unreachable(TaskId, NodeId, NodeId),
    #[error("{0}: spans more than one {1}")]
    TooWide(TaskId, &'static str),

    #[error("{0}: GPU {2} of node {1} is given to somebody else")]
    GpuTaken(TaskId, NodeId, GpuIndex),
    #[error("{0}: node {1} has too few free CPUs")]
    CpusTaken(TaskId, NodeId),
    #[error("{0}: node {1} has too little free memory")]
    MemoryTaken(TaskId, NodeId),
    #[error("{0}: somebody has node {1} alone, or it wants to be alone there and is not")]
    NotAlone(TaskId, NodeId),
    #[error("{0}: what it gets on node {1} is kept for {2}")]
    Kept(TaskId, NodeId, TaskId),
    #[error("{0}: node {1} is reserved as '{2}' before it would end")]
    Reserved(TaskId, NodeId, String),
    #[error("{0}: team {1} would have more than its limit")]
    TeamLimit(TaskId, String),

    #[error("{0} has no claim that could be dropped")]
    NoClaim(TaskId),
    #[error("{0} has room already, or claims it twice")]
    ClaimedTwice(TaskId),
    #[error("{0} claims room and has not waited for as long as patience asks")]
    NotOverdue(TaskId),
    #[error("{0} claims room by stopping {1}, which its cause does not allow: {2}")]
    NotJustified(TaskId, TaskId, &'static str),
    #[error("{0} would stop {1} tasks, at most {2} are allowed")]
    TooManyVictims(TaskId, usize, usize),
    #[error("{0} would stop others, and preemption is off")]
    PreemptionOff(TaskId),
    #[error("{0} would be within no guarantee of its team or those above it")]
    BeyondGuarantee(TaskId),
    #[error("{1} is stopped for {0} and holds nothing that can be taken")]
    NotRunning(TaskId, TaskId),
    #[error("{1} is stopped for {0} and was preempted not long ago")]
    PreemptedAgain(TaskId, TaskId),
    #[error("{1} is stopped for {0} and must never be preempted")]
    NeverPreempt(TaskId, TaskId),
    #[error("{1} is stopped for {0}, but would go on in a way that it can't: {2}")]
    BadShrink(TaskId, TaskId, String),
    #[error("{1} is stopped for {0} at a cost of {2} GPU-milliseconds; it is {3}")]
    WrongCost(TaskId, TaskId, u64, u64),
    #[error("{0} fits without stopping {1}")]
    Superfluous(TaskId, TaskId),
    #[error("{0} can't wake like this: {1}")]
    BadWake(TaskId, &'static str),
    #[error("{1} is suspended for {0}, and can't be: {2}")]
    BadSuspension(TaskId, TaskId, String),
    #[error("{0} can't change to this size: {1}")]
    BadResize(TaskId, &'static str),
}
