//! What a shim asks its CUDA helper to do: one line of JSON each way, answers in any order.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    pub id: u64,
    pub call: Call,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// Which of these use CUDA, and what do they hold on GPUs? The answer keeps the order.
    Survey {
        pids: Vec<i32>,
        /// UUIDs of the part's GPUs.
        gpus: Vec<String>,
    },
    Lock {
        pid: i32,
        timeout_ms: u32,
    },
    Checkpoint {
        pid: i32,
    },
    Restore {
        pid: i32,
        /// From and to, UUIDs of all its GPUs; none if they are the same.
        moves: Vec<(String, String)>,
    },
    Unlock {
        pid: i32,
    },
    /// Whatever state it is in: back to running, on the GPUs where it was. A process that is gone is
    /// settled.
    Settle {
        pid: i32,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answered {
    pub id: u64,
    pub result: Result<Reply, Failed>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    Surveyed {
        procs: Vec<i32>,
        bytes: u64,
        /// Host memory that can be had; none where the kernel does not say.
        available: Option<u64>,
    },
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    pub why: String,
    /// It took too long, and may work later.
    #[serde(default)]
    pub timeout: bool,
}
