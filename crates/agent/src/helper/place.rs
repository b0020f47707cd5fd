//! Where in its gang a helper is, as its environment says.

use tutti_model::GangKey;

use super::HelperError;

pub struct Place {
    pub rank: usize,
    pub nodes: Vec<Node>,
    pub key: GangKey,
    pub simulated: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    pub address: String,
    /// Where its helper listens.
    pub port: u16,
    /// Processes that the framework may start there.
    pub slots: u32,
}

impl Node {
    pub fn authority(&self) -> String {
        match self.address.contains(':') {
            true => format!("[{}]:{}", self.address, self.port),
            false => format!("{}:{}", self.address, self.port),
        }
    }
}

impl Place {
    pub fn from_env() -> Result<Place, HelperError> {
        Place::read(|name| std::env::var(name).ok())
    }

    pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<Place, HelperError> {
        let bad = HelperError::Environment;
        let list = |name: &'static str| {
            let text = get(name).ok_or(bad(name))?;
            Ok(text.split(',').map(str::to_owned).collect::<Vec<_>>())
        };
        let (names, addresses) = (list("TUTTI_NODES")?, list("TUTTI_NODE_ADDRS")?);
        let numbers = |name: &'static str| -> Result<Vec<u32>, HelperError> {
            let numbers: Option<Vec<u32>> = list(name)?.iter().map(|n| n.parse().ok()).collect();
            numbers.filter(|n| n.len() == names.len()).ok_or(bad(name))
        };
        let (ports, slots) = (numbers("TUTTI_PORTS")?, numbers("TUTTI_SLOTS")?);
        if addresses.len() != names.len() {
            return Err(bad("TUTTI_NODE_ADDRS"));
        }
        let node = |at: usize| {
            let port = u16::try_from(ports[at]).map_err(|_| bad("TUTTI_PORTS"))?;
            let (name, address) = (names[at].clone(), addresses[at].clone());
            Ok(Node { name, address, port, slots: slots[at] })
        };
        let nodes = (0..names.len()).map(node).collect::<Result<Vec<_>, HelperError>>()?;
        let rank = get("NODE_RANK").and_then(|r| r.parse().ok()).filter(|r| *r < nodes.len());
        let key = get("TUTTI_GANG_KEY").and_then(|k| GangKey::from_hex(&k));
        Ok(Place {
            rank: rank.ok_or(bad("NODE_RANK"))?,
            nodes,
            key: key.ok_or(bad("TUTTI_GANG_KEY"))?,
            simulated: get("TUTTI_SIMULATED").as_deref() == Some("1"),
        })
    }

    pub fn is_first(&self) -> bool {
        self.rank == 0
    }

    pub fn own(&self) -> &Node {
        &self.nodes[self.rank]
    }

    pub fn others(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().enumerate().filter(|(at, _)| *at != self.rank).map(|(_, node)| node)
    }

    pub fn find(&self, name: &str) -> Result<&Node, HelperError> {
        let found = self.nodes.iter().find(|n| n.name == name || n.address == name);
        found.ok_or_else(|| HelperError::NoSuchNode(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn env() -> BTreeMap<&'static str, String> {
        BTreeMap::from([
            ("TUTTI_NODES", "n1,n2".to_owned()),
            ("TUTTI_NODE_ADDRS", "127.0.0.1,::1".to_owned()),
            ("TUTTI_PORTS", "4001,4002".to_owned()),
            ("TUTTI_SLOTS", "8,4".to_owned()),
            ("NODE_RANK", "1".to_owned()),
            ("TUTTI_GANG_KEY", "ab".repeat(32)),
        ])
    }

    #[test]
    fn the_environment_says_where_it_is() {
        let all = env();
        let place = Place::read(|name| all.get(name).cloned()).unwrap();
        assert!(!place.is_first() && !place.simulated);
        assert_eq!(place.own().authority(), "[::1]:4002");
        assert_eq!(place.find("n1").unwrap().slots, 8);
        assert_eq!(place.others().map(|n| n.name.as_str()).collect::<Vec<_>>(), ["n1"]);
        let error = place.find("n3").err().unwrap().to_string();
        assert_eq!(error, "'n3' is no node of this gang");
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        for (name, value) in [
            ("TUTTI_NODES", None),
            ("TUTTI_NODE_ADDRS", Some("127.0.0.1")),
            ("TUTTI_PORTS", Some("1,x")),
            ("TUTTI_PORTS", Some("1,70000")),
            ("TUTTI_SLOTS", Some("1")),
            ("NODE_RANK", Some("2")),
            ("TUTTI_GANG_KEY", Some("abc")),
        ] {
            let mut all = env();
            all.remove(name);
            all.extend(value.map(|value| (name, value.to_owned())));
            let error = Place::read(|name| all.get(name).cloned()).err().unwrap().to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
