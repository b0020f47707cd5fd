//! The cluster's own certificates. One CA per cluster, made at the first start; nobody else's CA is
//! ever trusted.
//!
//! ```text
//! CA (ca.pem, ca.key) ─┬─► server certificate   serverAuth, the controller's names
//!                      └─► node certificates    clientAuth, `tutti:node:<name>`, 90 days
//! ```
//!
//! A server certificate can't pass as a node and a node's not as a server: each has only its own
//! extended key usage. Keys are made where they are used and never travel.

mod ca;
mod files;
mod node;
mod server;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{CertificateParams, SerialNumber};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

pub use ca::Ca;
pub use files::{replace_file, write_new_file};
pub use node::{NodeIdentity, NodeKey, key_of, node_name_of};
pub use server::ServerIdentity;

/// How far a clock may be behind and still take a fresh certificate.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    #[error("can't {what} {}", path.display())]
    File {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(
        "{} is there but {} is not: restore it from a backup, or remove both if this cluster never ran",
        present.display(), missing.display()
    )]
    HalfMade { present: PathBuf, missing: PathBuf },
    #[error("{what} is not a valid {wanted}")]
    Pem {
        what: String,
        wanted: &'static str,
        #[source]
        source: rustls_pki_types::pem::Error,
    },
    #[error("the certificate can't be read: {0}")]
    Certificate(String),
    #[error("can't {what}")]
    Crypto {
        what: &'static str,
        #[source]
        source: rcgen::Error,
    },
    #[error(
        "the certificate request uses a kind of key that is not accepted: use ECDSA or Ed25519"
    )]
    WeakKey,
    #[error("'{0}' can't be in a server certificate: give a host name or an address")]
    BadServerName(String),
    #[error(transparent)]
    BadNodeName(#[from] tutti_model::BadName),
    #[error("{0}: the key and the certificate do not belong together")]
    KeyMismatch(String),
    #[error("the system gives no random bytes")]
    NoRandomness(#[source] getrandom::Error),
}

/// SHA-256 of a certificate, as `openssl x509 -fingerprint -sha256` prints it but without colons.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    pub fn of(certificate: &[u8]) -> Self {
        let digest = ring::digest::digest(&ring::digest::SHA256, certificate);
        let mut out = [0; 32];
        out.copy_from_slice(digest.as_ref());
        Fingerprint(out)
    }

    pub fn pin(&self) -> CaPin {
        let mut out = [0; 8];
        out.copy_from_slice(&self.0[..8]);
        CaPin(out)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The start of the CA's fingerprint, 16 hex digits: short enough for a token, long enough that
/// nobody finds another certificate with it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CaPin([u8; 8]);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not the start of a CA fingerprint: 16 hex digits in lower case")]
pub struct BadPin(String);

impl FromStr for CaPin {
    type Err = BadPin;

    fn from_str(s: &str) -> Result<Self, BadPin> {
        if s.len() != 16 || !is_hex(s) {
            return Err(BadPin(s.to_owned()));
        }
        let number = u64::from_str_radix(s, 16).map_err(|_| BadPin(s.to_owned()))?;
        Ok(CaPin(number.to_be_bytes()))
    }
}

impl fmt::Display for CaPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for CaPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// From when to when a certificate holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    pub from: SystemTime,
    pub until: SystemTime,
}

impl Validity {
    pub fn of(certificate: &[u8]) -> Result<Self, PkiError> {
        let cert = parse(certificate)?;
        let at = |t: i64| UNIX_EPOCH + Duration::from_secs(u64::try_from(t).unwrap_or(0));
        Ok(Validity {
            from: at(cert.validity().not_before.timestamp()),
            until: at(cert.validity().not_after.timestamp()),
        })
    }

    /// Nothing once it is over.
    pub fn remaining(&self, now: SystemTime) -> Duration {
        self.until.duration_since(now).unwrap_or(Duration::ZERO)
    }

    /// Time to ask for a new one.
    pub fn two_thirds_over(&self, now: SystemTime) -> bool {
        let whole = self.until.duration_since(self.from).unwrap_or(Duration::ZERO);
        self.remaining(now) < whole / 3
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |n: u8| char::from(DIGITS[usize::from(n)]);
    bytes.iter().flat_map(|b| [digit(b >> 4), digit(b & 15)]).collect()
}

/// Lower case only: a token has one spelling.
pub(crate) fn is_hex(s: &str) -> bool {
    s.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn crypto(what: &'static str) -> impl FnOnce(rcgen::Error) -> PkiError {
    move |source| PkiError::Crypto { what, source }
}

fn random<const N: usize>() -> Result<[u8; N], PkiError> {
    let mut out = [0; N];
    getrandom::fill(&mut out).map_err(PkiError::NoRandomness)?;
    Ok(out)
}

/// Parameters with a random serial that hold from an hour ago for `life`.
fn params(life: Duration) -> Result<CertificateParams, PkiError> {
    let mut serial = random::<16>()?;
    // The first bit is the sign.
    serial[0] &= 0x7f;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let mut params = CertificateParams::default();
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params.not_before = epoch + now.saturating_sub(CLOCK_SKEW);
    params.not_after = epoch + now + life;
    params.distinguished_name = rcgen::DistinguishedName::new();
    Ok(params)
}

fn parse(der: &[u8]) -> Result<x509_parser::certificate::X509Certificate<'_>, PkiError> {
    match x509_parser::parse_x509_certificate(der) {
        Ok((_, cert)) => Ok(cert),
        Err(e) => Err(PkiError::Certificate(e.to_string())),
    }
}

/// Every certificate of a PEM text; at least one. `what` is for the error.
pub fn certificates(pem: &str, what: &str) -> Result<Vec<CertificateDer<'static>>, PkiError> {
    let bad = |source| PkiError::Pem { what: what.to_owned(), wanted: "certificate (PEM)", source };
    let all = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(bad)?;
    if all.is_empty() { Err(bad(rustls_pki_types::pem::Error::NoItemsFound)) } else { Ok(all) }
}

pub fn private_key(pem: &str, what: &str) -> Result<PrivateKeyDer<'static>, PkiError> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|source| PkiError::Pem {
        what: what.to_owned(),
        wanted: "private key (PEM)",
        source,
    })
}

/// Whether a certificate was made for a key.
fn belongs(certificate: &[u8], key: &rcgen::KeyPair) -> Result<bool, PkiError> {
    let cert = parse(certificate)?;
    Ok(cert.public_key().subject_public_key.data.as_ref() == key.public_key_raw())
}

#[cfg(test)]
mod tests;
