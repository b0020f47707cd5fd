//! Which cluster a command is for: where it is and with which token.
//!
//! Reads files but neither the environment nor the home directory's place: the caller passes those,
//! so that tests and tools decide for themselves.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use tutti_files::{NotTrusted, TrustedDir, is_refusal, read_trusted};

use super::ClientError;
use crate::token::TokenText;

/// What the caller knows.
#[derive(Clone, Copy, Debug)]
pub struct Lookup<'a> {
    /// `--cluster`
    pub flag: Option<&'a str>,
    /// `$TUTTI_CLUSTER`
    pub cluster: Option<&'a str>,
    /// `$TUTTI_TOKEN`
    pub token: Option<&'a str>,
    /// Where `tutti up` puts a cluster if nothing else is said.
    pub default_data_dir: &'a Path,
    /// `$HOME`
    pub home: Option<&'a Path>,
}

/// The default data directory: `$TUTTI_DATA_DIR`, else one for the machine or one for the user.
pub fn default_data_dir(variable: Option<&Path>, is_root: bool, home: Option<&Path>) -> PathBuf {
    match (variable, home) {
        (Some(dir), _) => dir.to_owned(),
        (None, Some(home)) if !is_root => home.join(".local/share/tutti"),
        _ => PathBuf::from("/var/lib/tutti"),
    }
}

/// Where a controller listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// A name or an address, without brackets.
    pub host: String,
    pub port: u16,
    /// False only on this machine, and only if `http://` was written: whoever holds the port there
    /// need not be the controller.
    pub tls: bool,
}

impl Endpoint {
    /// `host:port`, `[::1]:port`, `https://host:port` or, for this machine, `http://host:port`.
    pub fn parse(text: &str) -> Result<Self, ClientError> {
        let bad = || ClientError::BadAddress(text.to_owned());
        let (scheme, rest) = match text.trim().split_once("://") {
            Some((scheme, rest)) => (Some(scheme), rest.trim_end_matches('/')),
            None => (None, text.trim()),
        };
        let (host, port) = rest.rsplit_once(':').ok_or_else(bad)?;
        let port = port.parse().ok().filter(|p| *p != 0).ok_or_else(bad)?;
        let host = match host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
            Some(v6) if v6.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6()) => v6,
            None if is_host(host) => host,
            _ => return Err(bad()),
        };
        let host = reachable(host);
        let tls = match scheme {
            Some("https") | None => true,
            Some("http") if is_loopback(&host) => false,
            Some("http") => return Err(ClientError::PlainText(text.to_owned())),
            Some(_) => return Err(bad()),
        };
        Ok(Endpoint { host, port, tls })
    }

    /// As in a URL.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    pub fn url(&self) -> String {
        format!("{}://{}", if self.tls { "https" } else { "http" }, self.authority())
    }
}

fn is_host(host: &str) -> bool {
    host.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv4())
        || rustls_pki_types::DnsName::try_from(host).is_ok()
}

/// One can listen on "every address" but not speak with it.
fn reachable(host: &str) -> String {
    match host.parse::<IpAddr>() {
        Ok(ip) if ip.is_unspecified() && ip.is_ipv4() => "127.0.0.1".to_owned(),
        Ok(ip) if ip.is_unspecified() => "::1".to_owned(),
        _ => host.to_owned(),
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// A cluster that was found.
#[derive(Clone, Debug)]
pub struct ClusterRef {
    pub endpoint: Endpoint,
    pub token: TokenText,
    /// Set when found by its directory; a controller that starts again may listen elsewhere.
    pub data_dir: Option<PathBuf>,
}

impl ClusterRef {
    /// By `--cluster`, else `$TUTTI_CLUSTER`, else the default data directory.
    pub fn find(lookup: &Lookup<'_>) -> Result<Self, ClientError> {
        let named = lookup.flag.or(lookup.cluster).filter(|s| !s.is_empty());
        match named.map(ClusterName::of) {
            None => Self::in_dir(lookup.default_data_dir, lookup),
            Some(ClusterName::Address(text)) => Self::at(text, lookup),
            Some(ClusterName::Dir(dir)) => Self::in_dir(dir, lookup),
        }
    }

    /// With a token at hand, as an agent that joins has.
    pub fn new(address: &str, token: TokenText) -> Result<Self, ClientError> {
        Ok(ClusterRef { endpoint: Endpoint::parse(address)?, token, data_dir: None })
    }

    fn at(address: &str, lookup: &Lookup<'_>) -> Result<Self, ClientError> {
        let endpoint = Endpoint::parse(address)?;
        let token = own_token(lookup)?
            .ok_or_else(|| ClientError::NoToken { cluster: address.to_owned() })?;
        Ok(ClusterRef { endpoint, token, data_dir: None })
    }

    fn in_dir(dir: &Path, lookup: &Lookup<'_>) -> Result<Self, ClientError> {
        let files = open_dir(dir)?;
        let endpoint = read_endpoint(&files, dir)?;
        let token = dir_token(&files, dir, lookup)?;
        Ok(ClusterRef { endpoint, token, data_dir: Some(dir.to_owned()) })
    }

    /// Where the controller listens now, if that can be known.
    pub fn look_again(&self) -> Result<Endpoint, ClientError> {
        match &self.data_dir {
            Some(dir) => endpoint_in(dir),
            None => Ok(self.endpoint.clone()),
        }
    }
}

/// What the name of a cluster means, for every verb. Nothing is looked up: a directory that is
/// mistyped stays a directory, and is missed by whoever opens it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterName<'a> {
    Dir(&'a Path),
    Address(&'a str),
}

impl<'a> ClusterName<'a> {
    /// An address has a port and no path; a directory of that name can be written `./name:1`.
    pub fn of(text: &'a str) -> Self {
        let has_port =
            || text.rsplit_once(':').is_some_and(|(_, port)| port.trim().parse::<u16>().is_ok());
        match text.contains("://") || (!text.contains('/') && has_port()) {
            true => ClusterName::Address(text),
            false => ClusterName::Dir(Path::new(text)),
        }
    }
}

/// Whoever owns the directory says where tokens go, so it must be root's or one's own.
fn open_dir(dir: &Path) -> Result<TrustedDir, ClientError> {
    TrustedDir::open(dir).map_err(|e| match e {
        NotTrusted::Io { source, .. } if is_missing(&source) => {
            ClientError::NoDataDir { path: dir.to_owned() }
        }
        other => other.into(),
    })
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Where the controller of this data dir listens now.
pub fn endpoint_in(dir: &Path) -> Result<Endpoint, ClientError> {
    read_endpoint(&open_dir(dir)?, dir)
}

fn read_endpoint(files: &TrustedDir, dir: &Path) -> Result<Endpoint, ClientError> {
    match files.text("endpoint") {
        Ok(text) => Endpoint::parse(&text),
        Err(NotTrusted::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Err(ClientError::NotStarted { path: dir.to_owned() })
        }
        Err(other) => Err(other.into()),
    }
}

/// The admin token of the directory; instead the caller's own if it is for the same cluster, so that
/// a `TUTTI_TOKEN` meant for another one does no harm. Who may not read the admin token needs one.
fn dir_token(
    files: &TrustedDir,
    dir: &Path,
    lookup: &Lookup<'_>,
) -> Result<TokenText, ClientError> {
    let admin = match files.text("admin.token") {
        Ok(text) => parse_token(&text, &dir.join("admin.token").display().to_string())?,
        Err(NotTrusted::Io { source, .. }) if is_not_for_us(&source) => {
            return own_token(lookup)?
                .ok_or_else(|| ClientError::NoToken { cluster: dir.display().to_string() });
        }
        Err(other) => return Err(other.into()),
    };
    match env_token(lookup)? {
        Some(own) if own.ca == admin.ca => Ok(own),
        _ => Ok(admin),
    }
}

fn is_not_for_us(error: &io::Error) -> bool {
    let kinds = [io::ErrorKind::NotFound, io::ErrorKind::PermissionDenied];
    kinds.contains(&error.kind()) && !is_refusal(error)
}

fn env_token(lookup: &Lookup<'_>) -> Result<Option<TokenText>, ClientError> {
    match lookup.token.filter(|t| !t.trim().is_empty()) {
        Some(text) => parse_token(text, "TUTTI_TOKEN").map(Some),
        None => Ok(None),
    }
}

fn own_token(lookup: &Lookup<'_>) -> Result<Option<TokenText>, ClientError> {
    if let Some(token) = env_token(lookup)? {
        return Ok(Some(token));
    }
    let Some(home) = lookup.home else { return Ok(None) };
    let path = home.join(".config/tutti/token");
    match read_trusted(&path) {
        Ok(text) => parse_token(&text, &path.display().to_string()).map(Some),
        Err(NotTrusted::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(other) => Err(other.into()),
    }
}

fn parse_token(text: &str, from: &str) -> Result<TokenText, ClientError> {
    text.parse().map_err(|source| ClientError::BadToken { from: from.to_owned(), source })
}
