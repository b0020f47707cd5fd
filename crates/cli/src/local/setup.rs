//! `setup.json`: what `tutti up` made of a data dir. It outlives the processes, so the next
//! `tutti up` makes the same of it, or starts what is missing as it was.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tutti_model::Span;

use super::{NodePlan, RouterSetup, file};
use crate::fail::Fail;

const FILE: &str = "setup.json";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// As it was asked for. None: the usual port, or a free one if that is taken.
    pub asked: Option<SocketAddr>,
    /// Where the controller listened last, with the port that was picked.
    pub listen: SocketAddr,
    pub node_timeout: Option<Span>,
    /// As they were asked for.
    pub nodes: Vec<NodePlan>,
    /// Those of them that were found to be no part of the cluster any more.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub removed: BTreeSet<String>,
    /// None: it has none. One that was made before there were routers gets one.
    #[serde(default = "RouterSetup::usual")]
    pub router: Option<RouterSetup>,
}

impl Setup {
    pub fn read(dir: &Path) -> Result<Option<Setup>, Fail> {
        file::read(&dir.join(FILE), "remove it, and say in the flags of tutti up what it said")
    }

    pub fn write(&self, dir: &Path) -> Result<(), Fail> {
        file::write(&dir.join(FILE), self)
    }

    pub fn is_simulated(&self) -> bool {
        self.nodes.iter().any(|n| n.simulated_model.is_some())
    }

    /// Whether the controller listens where somebody asks it to.
    pub fn listens_on(&self, asked: Option<SocketAddr>) -> bool {
        let here = |a: SocketAddr| {
            a.ip() == self.listen.ip() && (a.port() == 0 || a.port() == self.listen.port())
        };
        asked.is_none_or(here)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::hardware::Hardware;
    use crate::local::{imagined_nodes, in_racks};

    pub fn setup() -> Setup {
        let hardware = Hardware::simulated(8, "h100");
        Setup {
            asked: None,
            listen: "127.0.0.1:7171".parse().unwrap(),
            node_timeout: Some(Span::secs(4)),
            nodes: in_racks(imagined_nodes(2, &hardware), 2),
            removed: BTreeSet::new(),
            router: RouterSetup::usual(),
        }
    }

    #[test]
    fn a_setup_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Setup::read(dir.path()).unwrap(), None);
        setup().write(dir.path()).unwrap();
        assert_eq!(Setup::read(dir.path()).unwrap(), Some(setup()));
        let mut old = serde_json::to_value(setup()).unwrap();
        old.as_object_mut().unwrap().remove("router");
        assert_eq!(serde_json::from_value::<Setup>(old).unwrap(), setup(), "of an older version");
        std::fs::write(dir.path().join(FILE), "{").unwrap();
        let fail = Setup::read(dir.path()).unwrap_err();
        assert!(fail.hint.unwrap().starts_with("remove it"));
    }

    #[test]
    fn any_port_is_the_one_that_was_picked() {
        let on = |asked: &str| setup().listens_on(Some(asked.parse().unwrap()));
        assert!(setup().listens_on(None) && on("127.0.0.1:0") && on("127.0.0.1:7171"));
        assert!(!on("127.0.0.1:7172") && !on("0.0.0.0:7171") && !on("0.0.0.0:0"));
    }
}
