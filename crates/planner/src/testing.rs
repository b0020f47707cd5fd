//! What tests share.

use crate::{Arch, Cluster, Goal, Pins, Precision, Question, Stack, Task, Workload};

pub(crate) fn ask<'a>(
    arch: &'a Arch,
    workload: &'a Workload,
    cluster: &'a Cluster,
) -> Question<'a> {
    Question {
        arch,
        workload,
        cluster,
        pins: Pins::default(),
        goal: Goal::Time,
        stack: Stack::Current,
        fewer: false,
    }
}

pub(crate) fn work(task: Task, seq: u64, global_batch: u64) -> Workload {
    Workload { task, precision: Precision::Bf16, seq, global_batch, tokens: None }
}
