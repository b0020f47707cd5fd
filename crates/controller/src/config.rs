//! What the operator chooses.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use tutti_engine::Settings;
use tutti_model::{Policy, Span};

use crate::core::SnapshotRule;

pub const DEFAULT_PORT: u16 = 7171;

#[derive(Clone, Debug)]
pub struct ControllerConfig {
    pub data_dir: PathBuf,
    /// Port 0 picks a free one; the `endpoint` file has it.
    pub listen: SocketAddr,
    /// Host names and addresses by which this controller is also reached.
    pub extra_names: Vec<String>,
    pub settings: Settings,
    /// Where ended jobs are kept; below the data dir if not given.
    pub archive: Option<PathBuf>,
    /// Becomes the running policy at the start. None: what the cluster had goes on.
    pub policy: Option<Policy>,
    /// How often agents report.
    pub heartbeat: Span,
    pub snapshots: SnapshotRule,
    /// HTTP connections at once: of those who have shown a token or a session, and as many of those
    /// who have not. Agents are not counted.
    pub connections_max: usize,
}

impl ControllerConfig {
    pub fn new(data_dir: impl Into<PathBuf>) -> ControllerConfig {
        ControllerConfig {
            data_dir: data_dir.into(),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT)),
            extra_names: Vec::new(),
            settings: Settings::default(),
            archive: None,
            policy: None,
            heartbeat: Span::secs(2),
            snapshots: SnapshotRule::default(),
            connections_max: 2048,
        }
    }
}
