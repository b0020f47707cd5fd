//! Ports of RDMA adapters and their counters.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tutti_model::NicSample;

use super::super::rate::Rate;

/// Adapters hardly come and go.
const LIST_EVERY: Duration = Duration::from_secs(60);
/// Data counters count words of four bytes.
const WORD: u64 = 4;

pub struct Infiniband {
    class: PathBuf,
    ports: Vec<Port>,
    listed: Option<Duration>,
}

struct Port {
    name: String,
    dir: PathBuf,
    rx: Rate,
    tx: Rate,
}

impl Infiniband {
    pub fn new(class: PathBuf) -> Infiniband {
        Infiniband { class, ports: Vec::new(), listed: None }
    }

    pub fn read(&mut self, clock: Duration) -> Vec<NicSample> {
        let due = self.listed.is_none_or(|last| clock.saturating_sub(last) >= LIST_EVERY);
        if due {
            self.listed = Some(clock);
            self.list();
        }
        self.ports.iter_mut().map(|port| port.read(clock)).collect()
    }

    fn list(&mut self) {
        let mut found: Vec<(String, PathBuf)> = Vec::new();
        for device in names(&self.class) {
            let ports = self.class.join(&device).join("ports");
            found.extend(names(&ports).map(|p| (format!("{device}:{p}"), ports.join(p))));
        }
        found.sort();
        self.ports.retain(|port| found.iter().any(|(name, _)| *name == port.name));
        for (name, dir) in found {
            if !self.ports.iter().any(|port| port.name == name) {
                self.ports.push(Port { name, dir, rx: Rate::default(), tx: Rate::default() });
            }
        }
        self.ports.sort_by(|a, b| a.name.cmp(&b.name));
    }
}

impl Port {
    fn read(&mut self, clock: Duration) -> NicSample {
        let count = |name: &str| counter(&self.dir.join("counters").join(name));
        let (rx, tx) = (count("port_rcv_data") * WORD, count("port_xmit_data") * WORD);
        NicSample {
            port: self.name.clone(),
            // "4: ACTIVE".
            up: text(&self.dir.join("state")).starts_with('4'),
            symbol_errors: count("symbol_error"),
            link_downed: count("link_downed"),
            rcv_errors: count("port_rcv_errors"),
            rx: self.rx.of(rx, clock),
            tx: self.tx.of(tx, clock),
        }
    }
}

fn names(dir: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// 0 where an adapter does not have it.
fn counter(path: &Path) -> u64 {
    text(path).trim().parse().unwrap_or(0)
}
