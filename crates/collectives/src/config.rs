//! Who this rank is, where the others are, and how patient to be.

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::plan::Choice;

const ALGORITHMS: &str = "auto fixed ring halving tree hierarchical or direct";

/// Everything that [`World::connect`](crate::World::connect) needs.
#[derive(Clone, Debug)]
pub struct Config {
    pub rank: usize,
    pub world: usize,
    pub local_rank: usize,
    pub local_world: usize,
    pub node_rank: usize,
    /// Ranks with the same node name share memory.
    pub node: String,
    /// Where rank 0 listens.
    pub master: (String, u16),
    /// The address this rank listens on; loopback unless it is told another. Never a wildcard.
    pub bind: IpAddr,
    /// The gang's secret. Without one, only the world's id keeps strangers out.
    pub key: Option<[u8; 32]>,
    /// Which job and attempt this is, so that a left-over of another one can't join.
    pub id: String,
    /// How long to wait for all ranks to come.
    pub timeout: Duration,
    /// How long an operation may wait for a rank that lives but does not come.
    pub op_timeout: Duration,
    /// How often a rank shows that it lives.
    pub heartbeat: Duration,
    /// How long it may be silent.
    pub silence: Duration,
    /// How algorithms are chosen; None: nobody said, which is [`Choice::Measured`].
    pub choice: Option<Choice>,
    /// Shared memory between ranks of one node. Off: TCP everywhere.
    pub shared_memory: bool,
    /// TCP connections per pair of ranks; 0 picks (1 on loopback, 4 between machines).
    pub streams: usize,
    /// A listener that is bound already, for rank 0: tests can't know a free port beforehand.
    pub listener: Option<Arc<TcpListener>>,
}

impl Config {
    /// A world with nothing but the necessary given: one node, loopback.
    pub fn new(rank: usize, world: usize, master: (String, u16)) -> Self {
        Self {
            rank,
            world,
            local_rank: rank,
            local_world: world,
            node_rank: 0,
            node: "localhost".into(),
            master,
            bind: IpAddr::V4(Ipv4Addr::LOCALHOST),
            key: None,
            id: String::new(),
            timeout: Duration::from_secs(120),
            op_timeout: Duration::from_secs(300),
            heartbeat: Duration::from_millis(500),
            silence: Duration::from_secs(5),
            choice: None,
            shared_memory: true,
            streams: 0,
            listener: None,
        }
    }

    /// What the agent put into this process's environment. Without `RANK` and `WORLD_SIZE` it is a
    /// world of one.
    pub fn from_env() -> Result<Self> {
        Self::from_vars(&|name| std::env::var(name).ok())
    }

    fn from_vars(get: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let vars = Vars(get);
        let rank = vars.number("RANK")?.unwrap_or(0);
        let world = vars.number("WORLD_SIZE")?.unwrap_or(1);
        if world == 0 || rank >= world {
            return Err(Error::Environment {
                name: "RANK",
                value: format!("{rank} of {world}"),
                expected: "a number below WORLD_SIZE",
            });
        }
        let host = vars.text("MASTER_ADDR").unwrap_or_else(|| "127.0.0.1".into());
        let port = vars.number("MASTER_PORT")?.unwrap_or(29500);
        let mut c = Self::new(rank, world, (host, port));
        c.local_rank = vars.number("LOCAL_RANK")?.unwrap_or(rank);
        c.local_world = vars.number("LOCAL_WORLD_SIZE")?.unwrap_or(world);
        c.node_rank = vars.number("NODE_RANK")?.unwrap_or(0);
        c.node = vars.text("TUTTI_NODE").unwrap_or_else(hostname);
        if let Some(text) = vars.text("TUTTI_NODE_ADDR") {
            c.bind = parse("TUTTI_NODE_ADDR", text, "an IP address")?;
        }
        c.key = vars.key()?;
        let part = |name| vars.text(name).unwrap_or_default();
        c.id = format!("{}@{}", part("TUTTI_TASK_ID"), part("TUTTI_GENERATION"));
        c.op_timeout = vars.seconds("TUTTI_COLLECTIVE_TIMEOUT", c.op_timeout)?;
        c.timeout = vars.seconds("TUTTI_CONNECT_TIMEOUT", c.timeout)?;
        c.heartbeat = vars.seconds("TUTTI_HEARTBEAT", c.heartbeat)?;
        c.silence = vars.seconds("TUTTI_SILENCE", c.silence)?;
        let choice = |text| parse("TUTTI_ALGO", text, ALGORITHMS);
        c.choice = vars.text("TUTTI_ALGO").map(choice).transpose()?;
        c.shared_memory = vars.switch("TUTTI_SHM")?;
        c.streams = vars.number("TUTTI_STREAMS")?.unwrap_or(0);
        Ok(c)
    }

    /// What can't work, found before anything is tried.
    pub(crate) fn check(&self) -> Result<()> {
        let bad = |name, value: String, expected| Err(Error::Environment { name, value, expected });
        if self.world == 0 || self.rank >= self.world {
            let value = format!("{} of {}", self.rank, self.world);
            return bad("RANK", value, "a number below WORLD_SIZE");
        }
        if self.bind.is_unspecified() {
            let value = self.bind.to_string();
            return bad("TUTTI_NODE_ADDR", value, "one address of this node, never all of them");
        }
        if self.silence < self.heartbeat * 2 {
            let value = format!("{:?}", self.silence);
            return bad("TUTTI_SILENCE", value, "at least two heartbeats (TUTTI_HEARTBEAT)");
        }
        Ok(())
    }
}

struct Vars<'a>(&'a dyn Fn(&str) -> Option<String>);

impl Vars<'_> {
    fn text(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|v| !v.is_empty())
    }

    fn number<T: std::str::FromStr>(&self, name: &'static str) -> Result<Option<T>> {
        self.text(name).map(|v| parse(name, v, "a whole number in range")).transpose()
    }

    fn seconds(&self, name: &'static str, default: Duration) -> Result<Duration> {
        let Some(text) = self.text(name) else { return Ok(default) };
        let seconds = text.parse().ok().filter(|s: &f64| *s > 0.0 && *s < 1e9);
        seconds.map(Duration::from_secs_f64).ok_or(Error::Environment {
            name,
            value: text,
            expected: "a number of seconds above 0",
        })
    }

    fn switch(&self, name: &'static str) -> Result<bool> {
        match self.text(name).as_deref() {
            None | Some("1") => Ok(true),
            Some("0") => Ok(false),
            Some(v) => Err(Error::Environment { name, value: v.into(), expected: "0 or 1" }),
        }
    }

    fn key(&self) -> Result<Option<[u8; 32]>> {
        let Some(text) = self.text("TUTTI_GANG_KEY") else { return Ok(None) };
        let bytes: Option<Vec<u8>> = (text.len() == 64 && text.is_ascii())
            .then(|| (0..32).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()))
            .and_then(Iterator::collect);
        // The secret itself must not reach a log.
        let bad = Error::Environment {
            name: "TUTTI_GANG_KEY",
            value: "…".into(),
            expected: "64 hex digits",
        };
        Ok(Some(bytes.and_then(|b| b.try_into().ok()).ok_or(bad)?))
    }
}

fn parse<T: std::str::FromStr>(
    name: &'static str,
    value: String,
    expected: &'static str,
) -> Result<T> {
    value.parse().map_err(|_| Error::Environment { name, value, expected })
}

fn hostname() -> String {
    let read = std::fs::read_to_string("/proc/sys/kernel/hostname");
    read.map_or_else(|_| "localhost".into(), |s| s.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Algorithm;

    fn from(vars: &[(&str, &str)]) -> Result<Config> {
        Config::from_vars(&|name| {
            vars.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned())
        })
    }

    #[test]
    fn nothing_set_is_a_world_of_one_on_loopback() {
        let c = from(&[]).unwrap();
        assert_eq!((c.rank, c.world), (0, 1));
        assert!(c.bind.is_loopback());
        c.check().unwrap();
    }

    #[test]
    fn the_agents_variables_are_read() {
        let key = "ab".repeat(32);
        let c = from(&[
            ("RANK", "3"),
            ("WORLD_SIZE", "8"),
            ("MASTER_ADDR", "127.0.0.9"),
            ("MASTER_PORT", "4711"),
            ("TUTTI_NODE", "n2"),
            ("TUTTI_NODE_ADDR", "127.0.0.3"),
            ("TUTTI_GANG_KEY", &key),
            ("TUTTI_TASK_ID", "7"),
            ("TUTTI_GENERATION", "2"),
            ("TUTTI_ALGO", "ring"),
            ("TUTTI_COLLECTIVE_TIMEOUT", "1.5"),
        ])
        .unwrap();
        assert_eq!((c.rank, c.world, c.master), (3, 8, ("127.0.0.9".into(), 4711)));
        assert_eq!((c.node.as_str(), c.id.as_str()), ("n2", "7@2"));
        assert_eq!(c.key, Some([0xab; 32]));
        assert_eq!(c.choice, Some(Choice::Only(Algorithm::Ring)));
        assert_eq!(c.op_timeout, Duration::from_millis(1500));
    }

    #[test]
    fn a_choice_is_one_that_was_made() {
        let choice = |vars: &[(&str, &str)]| from(vars).unwrap().choice;
        assert_eq!(choice(&[]), None);
        assert_eq!(choice(&[("TUTTI_ALGO", "auto")]), Some(Choice::Measured));
        assert_eq!(choice(&[("TUTTI_ALGO", "fixed")]), Some(Choice::Fixed));
    }

    #[test]
    fn nonsense_is_refused_with_the_name_and_without_the_secret() {
        for (name, value) in [
            ("RANK", "x"),
            ("TUTTI_NODE_ADDR", "n2"),
            ("TUTTI_ALGO", "best"),
            ("TUTTI_SHM", "yes"),
            ("TUTTI_COLLECTIVE_TIMEOUT", "0"),
        ] {
            let message = from(&[(name, value)]).unwrap_err().to_string();
            assert!(message.contains(name) && message.contains(value), "{message}");
        }
        let message = from(&[("TUTTI_GANG_KEY", "secret")]).unwrap_err().to_string();
        assert!(message.contains("TUTTI_GANG_KEY") && !message.contains("secret"), "{message}");
        assert!(from(&[("RANK", "2"), ("WORLD_SIZE", "2")]).is_err());
        assert!(from(&[("TUTTI_NODE_ADDR", "0.0.0.0")]).unwrap().check().is_err());
    }
}
