//! Where checkpoints are: a path or a URL.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    Dir(PathBuf),
    /// `tcp://host:port`, a peer that keeps copies.
    Peer(String),
    /// `s3://bucket/prefix`, `gs://…`, `az://…`.
    Object(String),
}

#[derive(Debug, thiserror::Error)]
pub enum LocationError {
    #[error("the location of the checkpoints is empty")]
    Empty,
    #[error("{text}: {scheme}:// is not known; use a path, file://, s3://, gs://, az:// or tcp://")]
    Scheme { text: String, scheme: String },
    #[error("{text}: file:// needs an absolute path, as in file:///ckpt/run")]
    RelativeFile { text: String },
    #[error("{text}: a peer only keeps copies; the location itself is a path or an object store")]
    PeerIsNoHome { text: String },
    #[error("{text}: a peer needs the gang's key, which tutti gives to ranks as TUTTI_GANG_KEY")]
    NoKey { text: String },
    #[error("{text}: this program was built without object stores; build it with --features cloud")]
    NoCloud { text: String },
}

impl FromStr for Location {
    type Err = LocationError;

    fn from_str(text: &str) -> Result<Location, LocationError> {
        let own = || text.to_owned();
        if text.is_empty() {
            return Err(LocationError::Empty);
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return Ok(Location::Dir(text.into()));
        };
        match scheme {
            "file" if rest.starts_with('/') => Ok(Location::Dir(rest.into())),
            "file" => Err(LocationError::RelativeFile { text: own() }),
            "tcp" => Ok(Location::Peer(rest.to_owned())),
            "s3" | "gs" | "az" => Ok(Location::Object(text.trim_end_matches('/').to_owned())),
            _ => Err(LocationError::Scheme { text: own(), scheme: scheme.to_owned() }),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Dir(path) => path.display().fmt(f),
            Location::Peer(address) => write!(f, "tcp://{address}"),
            Location::Object(url) => f.write_str(url),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_urls() {
        let dir = |p: &str| Location::Dir(p.into());
        for (text, want) in [
            ("/ckpt/run", dir("/ckpt/run")),
            ("run", dir("run")),
            ("file:///ckpt", dir("/ckpt")),
            ("tcp://10.0.0.2:7000", Location::Peer("10.0.0.2:7000".into())),
            ("s3://bucket/run/", Location::Object("s3://bucket/run".into())),
        ] {
            assert_eq!(text.parse::<Location>().unwrap(), want, "{text}");
        }
        for (text, want) in [
            ("", "the location of the checkpoints is empty"),
            ("file://ckpt", "file://ckpt: file:// needs an absolute path, as in file:///ckpt/run"),
        ] {
            assert_eq!(text.parse::<Location>().unwrap_err().to_string(), want);
        }
        assert!("ftp://x".parse::<Location>().is_err());
    }
}
