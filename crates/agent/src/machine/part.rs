//! What a node knows of one part.

use tutti_model::{
    GpuIndex, Launch, LimitReport, PartError, PartProgress, RankExit, Span, Suspension, Time,
};

#[derive(Clone, Debug, PartialEq)]
pub enum Phase {
    Preparing,
    Waiting { port: u16 },
    Launched { port: u16 },
    Running { exits: Vec<RankExit>, connected: bool },
    Done { exits: Vec<RankExit>, error: Option<PartError> },
}

#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// None for leases that are only remembered as done.
    pub launch: Option<Box<Launch>>,
    pub phase: Phase,
    /// Told to stop: kill at this time.
    pub kill_at: Option<Time>,
    /// Asks it to save first.
    pub signal: Option<String>,
    pub because: Option<PartError>,
    /// What its ranks said of themselves, and when that came.
    pub progress: Option<(Box<PartProgress>, Time)>,
    pub suspension: Option<Suspension>,
    /// Those it was woken on, where that was elsewhere than it began.
    pub gpus: Option<Vec<GpuIndex>>,
    /// An order that its shim has not been told, because it was not there.
    pub untold: Option<Untold>,
    /// Its shim was told to take it out, and has not said anything since.
    pub told_out: bool,
    /// Its time limit, and when that was so.
    pub limit: Option<(LimitReport, Time)>,
    /// Its shim enforces it.
    pub keeps_limit: bool,
    /// Bytes of its output that the disk had no room for.
    pub output_dropped: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Untold {
    Suspend,
    Wake(Vec<GpuIndex>),
}

impl Part {
    pub fn new(launch: Option<Box<Launch>>, phase: Phase) -> Part {
        Part {
            launch,
            phase,
            kill_at: None,
            signal: None,
            because: None,
            progress: None,
            suspension: None,
            gpus: None,
            untold: None,
            told_out: false,
            limit: None,
            keeps_limit: false,
            output_dropped: 0,
        }
    }
    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Done { .. })
    }
    pub fn shares(&self) -> bool {
        self.launch.as_deref().is_some_and(takes_share)
    }
    pub fn gpus(&self) -> &[GpuIndex] {
        let first = self.launch.as_ref().map_or(&[][..], |l| &l.gpus);
        self.gpus.as_deref().unwrap_or(first)
    }
    pub fn is_suspended(&self) -> bool {
        matches!(self.suspension, Some(Suspension::Suspended { .. }))
    }
    /// Can its ranks do anything?
    pub fn is_paused(&self) -> bool {
        !matches!(self.suspension, None | Some(Suspension::Refused { .. }))
    }
    pub fn limit_at(&self, now: Time) -> Option<LimitReport> {
        match self.limit {
            Some((LimitReport::Left { left }, at)) if !self.is_paused() => {
                Some(LimitReport::Left { left: Span(left.0.saturating_sub(now.since(at).0)) })
            }
            Some((level, _)) => Some(level),
            // Its shim will count from about now.
            None if matches!(self.phase, Phase::Launched { .. }) => {
                let limit = self.launch.as_ref()?.limit.as_ref()?;
                Some(LimitReport::Left { left: limit.left })
            }
            None => None,
        }
    }
    pub fn holds(&self, gpu: GpuIndex) -> bool {
        !self.is_over() && !self.is_suspended() && self.gpus().contains(&gpu)
    }
}

/// Whether it has only a part of its GPU.
pub fn takes_share(launch: &Launch) -> bool {
    launch.spec.gpu_share.is_some_and(|share| share < 1.0)
}
