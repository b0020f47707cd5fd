//! The router of `tutti up`: a process like the others, that says in a file of the data dir where it
//! listens.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::process::{Daemon, Proc};
use super::setup::Setup;
use super::{POLL, ROUTER, RunningCluster, path_text, unusable};
use crate::fail::Fail;

/// In the data dir: the URL.
pub const ADDRESS_FILE: &str = "router";
pub const ADDRESS_FLAG: &str = "--address-file";
const TABLE_FILE: &str = "router-table.json";

/// Until it listens.
const WAIT: Duration = Duration::from_secs(30);
/// What requests under way get when the cluster goes down. Agents come after it.
const DRAIN: &str = "5s";

/// How it was asked for, and where it listened last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouterSetup {
    /// None: the usual port, or a free one if that is taken.
    pub asked: Option<SocketAddr>,
    pub listen: Option<SocketAddr>,
}

impl RouterSetup {
    pub fn usual() -> Option<RouterSetup> {
        Some(RouterSetup { asked: None, listen: None })
    }

    pub fn any_port() -> RouterSetup {
        let asked = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        RouterSetup { asked: Some(asked), listen: None }
    }

    /// `tutti up` has no certificate to give it.
    pub fn asked(listen: SocketAddr) -> Result<RouterSetup, Fail> {
        if !listen.ip().is_loopback() {
            return Err(Fail::usage(format!(
                "--router-listen {listen}: others would send their keys as plain text"
            ))
            .hint(
                "leave it on 127.0.0.1, and run tutti router --listen ADDR --tls-cert FILE \
                 --tls-key FILE for those elsewhere",
            ));
        }
        Ok(RouterSetup { asked: Some(listen), listen: None })
    }

    /// Whether the one that runs is what is asked for.
    pub fn fits(&self, runs: Option<&RouterSetup>) -> bool {
        let Some(runs) = runs else { return false };
        let here = |a: SocketAddr| {
            runs.listen.is_some_and(|l| a.ip() == l.ip() && (a.port() == 0 || a.port() == l.port()))
        };
        self.asked == runs.asked || self.asked.is_some_and(here)
    }

    /// Where it was, so that those who know it find it again; else where it is asked to be.
    fn first_choice(&self) -> SocketAddr {
        let usual = SocketAddr::from((Ipv4Addr::LOCALHOST, crate::cmd::router::DEFAULT_PORT));
        let free = |at: &SocketAddr| TcpListener::bind(at).is_ok();
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let fresh = || self.asked.or(Some(usual).filter(free)).unwrap_or(any);
        self.listen.filter(free).unwrap_or_else(fresh)
    }
}

/// Of one that runs, whether it is known where it listens. It says so once: after its data dir was
/// replaced under it nobody finds it any more.
pub fn is_found(dir: &Path) -> bool {
    address_file(dir).exists()
}

impl RunningCluster {
    /// The one that runs, or a new one. Where it listens is kept for later starts.
    pub(super) fn start_router(
        &mut self,
        setup: &mut Setup,
        runs: Option<Proc>,
    ) -> Result<(), Fail> {
        let Some(router) = &mut setup.router else { return Ok(()) };
        let dir = &self.data_dir;
        let first = router.first_choice();
        let (daemon, url) = match runs {
            Some(proc) => {
                let mut daemon = Daemon::adopt(ROUTER, dir, args(dir, first)?, proc);
                let url = wait(dir, &mut daemon)?;
                (daemon, url)
            }
            None => match start(dir, first) {
                Ok(started) => started,
                // Somebody was faster; only who asked for this very port must have it.
                Err(_) if router.asked.is_none() => start(dir, (Ipv4Addr::LOCALHOST, 0).into())?,
                Err(fail) => return Err(fail),
            },
        };
        let daemon = self.router.insert(daemon);
        if let Some(listen) = listens(&url) {
            router.listen = Some(listen);
            daemon.set_argument("--listen", listen.to_string());
        }
        self.router_url = Some(url);
        setup.write(&self.data_dir)
    }
}

fn start(dir: &Path, listen: SocketAddr) -> Result<(Daemon, String), Fail> {
    forget(dir)?;
    let mut daemon = Daemon::start(ROUTER, dir, args(dir, listen)?, &[])?;
    match wait(dir, &mut daemon) {
        Ok(url) => Ok((daemon, url)),
        Err(fail) => {
            daemon.stop(Duration::from_secs(5));
            Err(fail)
        }
    }
}

fn args(dir: &Path, listen: SocketAddr) -> Result<Vec<String>, Fail> {
    let listen = listen.to_string();
    let words = [
        (ROUTER, None),
        ("--cluster", Some(path_text(dir)?)),
        ("--listen", Some(listen)),
        (ADDRESS_FLAG, Some(path_text(&address_file(dir))?)),
        ("--table-file", Some(path_text(&dir.join(TABLE_FILE))?)),
        ("--drain", Some(DRAIN.to_owned())),
    ];
    Ok(words
        .into_iter()
        .flat_map(|(word, value)| [Some(word.to_owned()), value])
        .flatten()
        .collect())
}

pub fn address_file(dir: &Path) -> PathBuf {
    dir.join(ADDRESS_FILE)
}

/// Left by one that was killed; a reader would take it for a live one.
fn forget(dir: &Path) -> Result<(), Fail> {
    match std::fs::remove_file(address_file(dir)) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(unusable(dir, &e)),
    }
}

/// The URL, once it listens.
fn wait(dir: &Path, daemon: &mut Daemon) -> Result<String, Fail> {
    let deadline = Instant::now() + WAIT;
    loop {
        if let Some(dead) = daemon.death() {
            return Err(dead);
        }
        let said = std::fs::read_to_string(address_file(dir)).unwrap_or_default();
        let url = said.trim();
        if !url.is_empty() {
            return Ok(url.to_owned());
        }
        if Instant::now() > deadline {
            return Err(Fail::new("the router has not begun to listen")
                .hint(format!("its log is {}", daemon.log.display())));
        }
        std::thread::sleep(POLL);
    }
}

/// Of a URL without a path.
fn listens(url: &str) -> Option<SocketAddr> {
    url.split_once("://")?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_must_not_send_keys_as_plain_text() {
        let fail = RouterSetup::asked("0.0.0.0:8080".parse().unwrap()).unwrap_err();
        assert_eq!(fail.exit, 2);
        assert!(fail.hint.unwrap().contains("--tls-cert"));
        assert!(RouterSetup::asked("127.0.0.1:0".parse().unwrap()).is_ok());
    }

    #[test]
    fn it_comes_back_where_it_was_while_that_is_free() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = taken.local_addr().unwrap();
        let setup = RouterSetup { asked: Some("127.0.0.1:0".parse().unwrap()), listen: Some(at) };
        assert_eq!(setup.first_choice().port(), 0);
        drop(taken);
        assert_eq!(setup.first_choice(), at);
        // Somebody may have the usual port on the machine that this runs on.
        let usual = RouterSetup::usual().unwrap().first_choice();
        assert!(["127.0.0.1:8080", "127.0.0.1:0"].contains(&usual.to_string().as_str()));
    }

    #[test]
    fn what_runs_is_what_is_asked_for_or_not() {
        let at = |text: &str| Some(text.parse().unwrap());
        let runs = RouterSetup { asked: None, listen: at("127.0.0.1:9000") };
        let asked = |asked| RouterSetup { asked, listen: None };
        assert!(asked(None).fits(Some(&runs)));
        assert!(asked(at("127.0.0.1:9000")).fits(Some(&runs)));
        assert!(asked(at("127.0.0.1:0")).fits(Some(&runs)));
        assert!(!asked(at("127.0.0.1:9001")).fits(Some(&runs)));
        assert!(!asked(None).fits(None));
    }

    #[test]
    fn urls_say_where_it_listens() {
        assert_eq!(listens("http://127.0.0.1:8080"), "127.0.0.1:8080".parse().ok());
        assert_eq!(listens("http://[::1]:8080"), "[::1]:8080".parse().ok());
        assert_eq!(listens("https://gpu.example.org"), None);
    }
}
