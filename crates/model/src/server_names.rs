//! By which names a server may be called, and by whose pages: browsers can be led to call a server that
//! only their user reaches.
//!
//! A page of somebody else's can have its own name point here (DNS rebinding); then `Host` names it. Or it
//! can call us by our name; then `Origin`, or what browsers say of where a request comes from, tells.
//! Programs that are no browsers say neither, and are not in the way of any of this.

use std::collections::BTreeSet;
use std::net::IpAddr;

/// Why a request looks like one that a page of somebody else's had a browser send.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForeignCall {
    #[error("'{0}' is not a name of this server")]
    Host(String),
    #[error("pages of '{0}' may not call this server")]
    Origin(String),
    #[error("a page of another site had a browser send this")]
    OtherPage,
}

/// Names by which a server may be called.
#[derive(Clone, Debug)]
pub struct ServerNames {
    names: BTreeSet<String>,
    port: Option<u16>,
    /// Whose pages may call it, beside its own.
    origins: BTreeSet<String>,
}

impl ServerNames {
    /// One that is called by its own port and addresses only. Names are taken without a port.
    pub fn with_port(port: u16, names: impl IntoIterator<Item = String>) -> ServerNames {
        ServerNames { port: Some(port), ..ServerNames::with_any_port(names) }
    }

    /// One that may be reached through a forwarder, by whatever address and port that has. An address in
    /// `Host` was not looked up, so nobody has made it point here.
    pub fn with_any_port(names: impl IntoIterator<Item = String>) -> ServerNames {
        let always = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
        let names = names.into_iter().chain(always).map(|name| name.to_ascii_lowercase());
        ServerNames { names: names.collect(), port: None, origins: BTreeSet::new() }
    }

    /// As browsers say it: `https://app.example`, with a port unless it is the usual one.
    pub fn allow_origin(&mut self, origin: &str) {
        self.origins.insert(origin.trim_end_matches('/').to_ascii_lowercase());
    }

    /// `local` is this end of the connection: by that address it was certainly called.
    pub fn check<'a>(
        &self,
        host: &str,
        origins: impl IntoIterator<Item = &'a str>,
        local: IpAddr,
    ) -> Result<(), ForeignCall> {
        if !self.knows(host, local) {
            return Err(ForeignCall::Host(host.to_owned()));
        }
        self.check_origins(host, origins, local)
    }

    /// For requests whose `Host` was proven otherwise.
    pub fn check_origins<'a>(
        &self,
        host: &str,
        origins: impl IntoIterator<Item = &'a str>,
        local: IpAddr,
    ) -> Result<(), ForeignCall> {
        match origins.into_iter().find(|origin| !self.is_own_page(origin, host, local)) {
            Some(foreign) => Err(ForeignCall::Origin(foreign.to_owned())),
            None => Ok(()),
        }
    }

    fn is_own_page(&self, origin: &str, host: &str, local: IpAddr) -> bool {
        let authority = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
        // With any port, only that of the page itself is known to be ours: another one is another program.
        let ours = |authority: &str| match self.port {
            Some(_) => self.knows(authority, local),
            None => !authority.is_empty() && authority.eq_ignore_ascii_case(host),
        };
        authority.is_some_and(ours) || self.origins.contains(&origin.to_ascii_lowercase())
    }

    fn knows(&self, authority: &str, local: IpAddr) -> bool {
        let Some((name, port)) = split(authority) else { return false };
        let named = match name.parse::<IpAddr>() {
            Ok(_) if self.port.is_none() => true,
            // A socket for both families shows IPv4 peers with IPv6 addresses.
            Ok(ip) => {
                ip.to_canonical() == local.to_canonical() || self.names.contains(&ip.to_string())
            }
            Err(_) => self.names.contains(&name.to_ascii_lowercase()),
        };
        named && self.port.is_none_or(|own| port == Some(own))
    }
}

/// `host` or `host:port`, with brackets around an IPv6 address.
fn split(authority: &str) -> Option<(&str, Option<u16>)> {
    let (name, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (name, port) = rest.split_once(']')?;
            name.parse::<std::net::Ipv6Addr>().ok()?;
            (name, port)
        }
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    if name.is_empty() || !authority.starts_with('[') && name.contains(['[', ']', '@', '/']) {
        return None;
    }
    let Some(digits) = port.strip_prefix(':') else {
        return port.is_empty().then_some((name, None));
    };
    let digits = Some(digits).filter(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()))?;
    Some((name, Some(digits.parse().ok()?)))
}

/// By what a browser says in `Sec-Fetch-Site`. A page of another port of the same machine is somebody
/// else's too.
pub fn check_fetch_site(site: &str) -> Result<(), ForeignCall> {
    match site {
        "same-origin" | "none" => Ok(()),
        _ => Err(ForeignCall::OtherPage),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 5));

    fn strict(host: &str, origins: &[&str]) -> Result<(), ForeignCall> {
        let names = ServerNames::with_port(7171, ["Cluster.example".to_owned()]);
        names.check(host, origins.iter().copied(), LOCAL)
    }

    fn anywhere(host: &str, origins: &[&str]) -> Result<(), ForeignCall> {
        let mut names = ServerNames::with_any_port(["Models.example".to_owned()]);
        names.allow_origin("https://App.example/");
        names.check(host, origins.iter().copied(), LOCAL)
    }

    #[test]
    fn with_a_port_only_own_names_and_addresses_with_it() {
        for host in [
            "localhost:7171",
            "LocalHost:7171",
            "127.0.0.1:7171",
            "[::1]:7171",
            "10.0.0.5:7171",
            "cluster.example:7171",
        ] {
            assert_eq!(strict(host, &[]), Ok(()), "{host}");
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
            "[localhost]:7171",
            "[::1]7171",
            "",
        ] {
            assert_eq!(strict(host, &[]), Err(ForeignCall::Host(host.to_owned())), "{host}");
        }
    }

    #[test]
    fn an_address_of_a_socket_for_both_families_is_known() {
        let names = ServerNames::with_port(7171, []);
        let local: IpAddr = "::ffff:10.0.0.5".parse().unwrap();
        assert!(names.knows("10.0.0.5:7171", local));
        assert!(!names.knows("10.0.0.6:7171", local));
    }

    #[test]
    fn with_a_port_pages_of_every_own_name_may_call() {
        for origin in ["http://localhost:7171", "https://cluster.example:7171"] {
            assert_eq!(strict("localhost:7171", &[origin]), Ok(()));
        }
        for origin in ["null", "http://evil.example", "http://localhost:8080", "file://", ""] {
            let refused = Err(ForeignCall::Origin(origin.to_owned()));
            assert_eq!(strict("localhost:7171", &[origin]), refused, "{origin}");
            assert_eq!(strict("localhost:7171", &["http://localhost:7171", origin]), refused);
        }
    }

    #[test]
    fn with_any_port_every_address_and_own_name_is_good() {
        for host in
            ["localhost", "localhost:9000", "192.0.2.1", "[2001:db8::1]:80", "models.example:443"]
        {
            assert_eq!(anywhere(host, &[]), Ok(()), "{host}");
        }
        for host in
            ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.nip.io"]
        {
            assert_eq!(anywhere(host, &[]), Err(ForeignCall::Host(host.to_owned())), "{host}");
        }
    }

    #[test]
    fn with_any_port_only_the_same_origin_and_allowed_ones_may_call() {
        for origin in ["http://localhost:8080", "https://LOCALHOST:8080", "https://app.example"] {
            assert_eq!(anywhere("localhost:8080", &[origin]), Ok(()), "{origin}");
        }
        for origin in
            ["http://localhost:3000", "http://127.0.0.1:8080", "null", "https://app.example:1", ""]
        {
            let refused = Err(ForeignCall::Origin(origin.to_owned()));
            assert_eq!(anywhere("localhost:8080", &[origin]), refused, "{origin}");
        }
        let names = ServerNames::with_any_port([]);
        assert!(names.check_origins("", ["http://"], LOCAL).is_err(), "no name is nobody's");
    }

    #[test]
    fn only_pages_of_the_same_origin_and_people_are_not_from_elsewhere() {
        let from_elsewhere = |site| check_fetch_site(site) == Err(ForeignCall::OtherPage);
        assert!(["cross-site", "same-site", "", "new"].into_iter().all(from_elsewhere));
        assert!(!["same-origin", "none"].into_iter().any(from_elsewhere));
    }
}
