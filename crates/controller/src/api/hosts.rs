//! Guards against browser tricks: a page of somebody else's must not reach this API through a name
//! that was made to point here, nor through a form or script of its own.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use http::HeaderMap;
use http::header::{HOST, ORIGIN};

use super::problem::Problem;

/// Names by which this controller may be called.
#[derive(Clone, Debug)]
pub struct Hosts {
    names: BTreeSet<String>,
    port: u16,
}

impl Hosts {
    pub fn new(listen: SocketAddr, extra: &[String]) -> Hosts {
        let mut names: BTreeSet<String> =
            ["localhost", "127.0.0.1", "::1"].map(str::to_owned).into();
        names.insert(listen.ip().to_string());
        names.extend(extra.iter().map(|n| n.to_ascii_lowercase()));
        if let Some(name) = nix::unistd::gethostname().ok().and_then(|n| n.into_string().ok()) {
            names.insert(name.to_ascii_lowercase());
        }
        Hosts { names, port: listen.port() }
    }

    /// `local` is this end of the connection: by that address it was certainly called.
    pub fn check(&self, headers: &HeaderMap, local: IpAddr) -> Result<(), Problem> {
        let mut hosts = headers.get_all(HOST).iter();
        let host = match (hosts.next(), hosts.next()) {
            (Some(host), None) => host.to_str().unwrap_or_default(),
            _ => return Err(Problem::denied("a request needs exactly one Host header")),
        };
        if !self.knows(host, local) {
            return Err(Problem::denied(format!("'{host}' is not a name of this controller"))
                .hint("start the controller with that name in --name, or use its address"));
        }
        for origin in headers.get_all(ORIGIN) {
            let text = origin.to_str().unwrap_or_default();
            let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
            if !host.is_some_and(|h| self.knows(h, local)) {
                return Err(Problem::denied(format!("pages of '{text}' may not call this API")));
            }
        }
        Ok(())
    }

    fn knows(&self, authority: &str, local: IpAddr) -> bool {
        let Some((name, port)) = split(authority) else { return false };
        let literal: Option<IpAddr> = name.parse().ok();
        let named = match literal {
            // A socket for both families shows IPv4 peers with IPv6 addresses.
            Some(ip) => {
                ip.to_canonical() == local.to_canonical() || self.names.contains(&ip.to_string())
            }
            None => self.names.contains(&name.to_ascii_lowercase()),
        };
        named && port == self.port
    }
}

/// `host:port`, with brackets around an IPv6 address. The port is never the default one here.
fn split(authority: &str) -> Option<(&str, u16)> {
    let (name, port) = authority.rsplit_once(':')?;
    if port.is_empty() || !port.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let bare = name.strip_prefix('[').and_then(|n| n.strip_suffix(']'));
    if bare.is_none() && name.contains([':', '[', ']', '@', '/']) {
        return None;
    }
    Some((bare.unwrap_or(name), port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(host: &str, origin: Option<&str>) -> bool {
        let listen: SocketAddr = "0.0.0.0:7171".parse().unwrap();
        let hosts = Hosts::new(listen, &["Cluster.example".to_owned()]);
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(ORIGIN, origin.parse().unwrap());
        }
        hosts.check(&headers, "10.0.0.5".parse().unwrap()).is_ok()
    }

    #[test]
    fn only_own_names_with_the_own_port() {
        for host in [
            "localhost:7171",
            "LocalHost:7171",
            "127.0.0.1:7171",
            "[::1]:7171",
            "10.0.0.5:7171",
            "cluster.example:7171",
        ] {
            assert!(check(host, None), "{host}");
        }
        for host in [
            "evil.example:7171",
            "10.0.0.6:7171",
            "localhost",
            "localhost:80",
            "localhost:",
            "localhost:+7171",
            "::1:7171",
            "a@localhost:7171",
            "localhost:7171:7171",
            "[localhost]:x",
        ] {
            assert!(!check(host, None), "{host}");
        }
    }

    #[test]
    fn an_address_of_a_socket_for_both_families_is_known() {
        let hosts = Hosts::new("[::]:7171".parse().unwrap(), &[]);
        let local: IpAddr = "::ffff:10.0.0.5".parse().unwrap();
        assert!(hosts.knows("10.0.0.5:7171", local));
        assert!(!hosts.knows("10.0.0.6:7171", local));
    }

    #[test]
    fn an_origin_has_to_be_ours() {
        assert!(check("localhost:7171", Some("http://localhost:7171")));
        assert!(check("localhost:7171", Some("https://cluster.example:7171")));
        for origin in ["null", "http://evil.example", "http://localhost:8080", "file://", ""] {
            assert!(!check("localhost:7171", Some(origin)), "{origin}");
        }
    }
}
