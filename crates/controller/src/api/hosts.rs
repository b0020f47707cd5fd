//! Guards against browser tricks: a page of somebody else's must not reach this API through a name
//! that was made to point here, nor through a form or script of its own.

use std::net::{IpAddr, SocketAddr};

use http::HeaderMap;
use http::header::{HOST, ORIGIN};
use tutti_model::{ForeignCall, ServerNames};

use super::problem::Problem;

/// Names by which this controller may be called.
#[derive(Clone, Debug)]
pub struct Hosts(ServerNames);

impl Hosts {
    pub fn new(listen: SocketAddr, extra: &[String]) -> Hosts {
        let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        let names = extra.iter().cloned().chain([listen.ip().to_string()]).chain(host);
        Hosts(ServerNames::with_port(listen.port(), names))
    }

    /// `local` is this end of the connection: by that address it was certainly called.
    pub fn check(&self, headers: &HeaderMap, local: IpAddr) -> Result<(), Problem> {
        let mut hosts = headers.get_all(HOST).iter();
        let host = match (hosts.next(), hosts.next()) {
            (Some(host), None) => host.to_str().unwrap_or_default(),
            _ => return Err(Problem::denied("a request needs exactly one Host header")),
        };
        let origins = headers.get_all(ORIGIN).iter().map(|o| o.to_str().unwrap_or_default());
        self.0.check(host, origins, local).map_err(|foreign| match &foreign {
            ForeignCall::Host(host) => {
                Problem::denied(format!("'{host}' is not a name of this controller"))
                    .hint("start the controller with that name in --name, or use its address")
            }
            ForeignCall::Origin(page) => {
                Problem::denied(format!("pages of '{page}' may not call this API"))
            }
            ForeignCall::OtherPage => Problem::denied(foreign.to_string()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_names_are_those_given_the_hosts_and_where_it_listens() {
        let listen: SocketAddr = "10.0.0.5:7171".parse().unwrap();
        let hosts = Hosts::new(listen, &["Cluster.example".to_owned()]);
        let own = nix::unistd::gethostname().unwrap().into_string().unwrap();
        let check = |names: &[&str], origin: &str| {
            let mut headers = HeaderMap::new();
            for name in names {
                headers.append(HOST, format!("{name}:7171").parse().unwrap());
            }
            headers.insert(ORIGIN, origin.parse().unwrap());
            hosts.check(&headers, "127.0.0.1".parse().unwrap()).is_ok()
        };
        let page = "https://cluster.example:7171";
        for name in ["localhost", "10.0.0.5", "cluster.example", &own] {
            assert!(check(&[name], page), "{name}");
            assert!(!check(&[name], "https://evil.example:7171"), "{name}");
        }
        assert!(!check(&["evil.example"], page) && !check(&["localhost", "localhost"], page));
        assert!(!check(&[], page), "browsers always name a host");
    }
}
