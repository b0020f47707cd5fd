//! What happened to each node.

use std::collections::{BTreeMap, VecDeque};

use tutti_engine::Event;
use tutti_model::{Finding, NodeId, Time};

use super::Chronicle;

/// Of each node the newest so many.
const KEPT: usize = 200;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Befell {
    pub at: Time,
    pub what: Fate,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    Joined,
    Up,
    Away,
    Lost,
    Drained {
        by: String,
        reason: String,
    },
    Resumed {
        by: String,
    },
    Reopened,
    Found(Box<Finding>),
    /// It no longer stands.
    Gone(Box<Finding>),
    Measured {
        by: String,
    },
    GpusMeasured {
        by: String,
    },
}

#[derive(Debug, Default)]
pub(super) struct Past {
    fates: VecDeque<Befell>,
    /// What stands, by key.
    findings: BTreeMap<String, Finding>,
}

impl Past {
    fn put(&mut self, at: Time, what: Fate) {
        if self.fates.len() >= KEPT {
            self.fates.pop_front();
        }
        self.fates.push_back(Befell { at, what });
    }

    pub(super) fn stands(&mut self, findings: &[Finding]) {
        self.findings = findings.iter().map(|f| (f.key.clone(), f.clone())).collect();
    }

    fn found(&mut self, at: Time, findings: &[Finding]) {
        let before = std::mem::take(&mut self.findings);
        self.stands(findings);
        for finding in findings.iter().filter(|f| before.get(&f.key).is_none_or(|was| !was.same(f)))
        {
            self.put(at, Fate::Found(Box::new(finding.clone())));
        }
        for (key, finding) in before {
            if !self.findings.contains_key(&key) {
                self.put(at, Fate::Gone(Box::new(finding)));
            }
        }
    }
}

impl Chronicle {
    pub(super) fn note_node(&mut self, event: &Event, at: Time) {
        let (node, what) = match event {
            Event::NodeJoined { node, .. } => (node, Fate::Joined),
            Event::NodeUp { node, .. } => (node, Fate::Up),
            Event::NodeAway { node } => (node, Fate::Away),
            Event::NodeLost { node } => (node, Fate::Lost),
            Event::NodeDrained { node, drain } => {
                (node, Fate::Drained { by: drain.by.clone(), reason: drain.reason.clone() })
            }
            Event::NodeResumed { node, by } => (node, Fate::Resumed { by: by.clone() }),
            Event::NodeReopened { node } => (node, Fate::Reopened),
            Event::NodeMeasured { node, burn_in } => {
                (node, Fate::Measured { by: burn_in.by.clone() })
            }
            Event::GpusMeasured { node, bench } => {
                (node, Fate::GpusMeasured { by: bench.by.clone() })
            }
            Event::FindingsChanged { node, findings } => {
                self.nodes.entry(*node).or_default().found(at, findings);
                return;
            }
            Event::NodeRemoved { node: Some(node), .. } => {
                self.nodes.remove(node);
                return;
            }
            _ => return,
        };
        self.nodes.entry(*node).or_default().put(at, what);
    }

    /// What is known of a node's past, newest first.
    pub fn fates_of(&self, node: NodeId) -> impl Iterator<Item = &Befell> {
        self.nodes.get(&node).into_iter().flat_map(|past| past.fates.iter().rev())
    }
}
