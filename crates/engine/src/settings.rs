//! The operator's knobs of the engine, with defaults that suit a rack of GPU servers.

use serde::{Deserialize, Serialize};
use tutti_model::{Bytes, DEFAULT_GRACE, Policy, Span};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// A node that was not heard for this long is lost, and its gangs start elsewhere.
    pub node_timeout: Span,
    /// The same for one that has hung up, if that is to be different.
    pub gone_timeout: Option<Span>,
    /// Between SIGTERM and SIGKILL, unless the job says otherwise.
    pub grace: Span,
    /// The same for what is left of a gang that has already failed.
    pub failure_grace: Span,
    /// An attempt whose parts do not all run after this long is stopped and started again, away from
    /// the node that did not get ready.
    pub start_within: Span,
    /// First wait before a failed task is started again; doubles with every further failure.
    pub back_off: Span,
    pub back_off_max: Span,
    /// What is free of a gang that lost a node is kept for its return, for this long at most.
    pub hold_back: Span,
    /// So many attempts in a row that fail without getting anywhere end a job, whoever paid for them.
    pub fruitless_max: u32,
    /// A job that never says how far it is got nowhere if it ran for less than this.
    pub fruitless_below: Span,
    /// A node that is lost, or on which different jobs fail, so often within this time is taken out.
    pub strikes_max: u32,
    pub strike_window: Span,
    /// Of all nodes, so many are taken out at most without anybody asking for it; but always one.
    pub taken_out_percent: u32,
    /// A job that reports steps is stalled when it made none for so many times the usual, and for
    /// this long at least; unless it says otherwise itself.
    pub stall_paces: u32,
    pub stall_floor: Span,
    /// It is started again, if it has saved anything, after this long at least.
    pub stall_restart: Span,
    /// Suspending and waking take this long at most, and what moving the GPU state takes at this rate
    /// in a second; what takes longer is undone, or stopped. Agents give up sooner, and say why.
    pub suspend_within: Span,
    pub suspend_rate: Bytes,
    /// An order that shows no effect on the node after this long is sent again.
    pub resend_after: Span,
    /// Ended jobs are forgotten after this long, or when there are more than `jobs_kept`.
    pub keep_jobs_for: Span,
    pub jobs_kept: usize,
    /// The same when their job files take more than this together.
    pub ended_bytes_kept: Bytes,
    /// Somebody keeps ended jobs elsewhere: they are forgotten when [`crate::Command::Forget`] says that
    /// they are safe there, and never by the clock alone.
    pub archived: bool,
    /// How long a submission may be repeated with its key.
    pub keys_kept_for: Span,
    /// What a cluster begins with. Taken over at its very first start; from then on the policy is
    /// part of the state, and [`crate::Command::SetPolicy`] changes it.
    pub policy: Policy,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            node_timeout: Span::secs(8),
            gone_timeout: None,
            grace: DEFAULT_GRACE,
            failure_grace: Span::secs(2),
            start_within: Span::secs(120),
            back_off: Span::secs(1),
            back_off_max: Span::secs(300),
            hold_back: Span::secs(30),
            fruitless_max: 3,
            fruitless_below: Span::secs(60),
            strikes_max: 3,
            strike_window: Span::secs(3600),
            taken_out_percent: 10,
            stall_paces: 8,
            stall_floor: Span::secs(30),
            stall_restart: Span::secs(600),
            suspend_within: Span::secs(180),
            suspend_rate: Bytes(128 << 20),
            resend_after: Span::secs(3),
            keep_jobs_for: Span::secs(7 * 86_400),
            jobs_kept: 200_000,
            ended_bytes_kept: Bytes(256 << 20),
            archived: false,
            keys_kept_for: Span::secs(86_400),
            policy: Policy::default(),
        }
    }
}
