//! The controller's certificate.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rcgen::{DnType, ExtendedKeyUsagePurpose, KeyPair, SanType};
use rustls_pki_types::{CertificateDer, DnsName, PrivateKeyDer};
use x509_parser::extensions::GeneralName;

use super::{Ca, PkiError, Validity, certificates, crypto, files, params, private_key};

const CERTIFICATE: &str = "server.pem";
const KEY: &str = "server.key";
const LIFE: Duration = Duration::from_secs(825 * 86_400);

/// A chain, the CA at its end (clients that know only a pin find it there), and its key.
pub struct ServerIdentity {
    chain_pem: String,
    key: KeyPair,
}

impl std::fmt::Debug for ServerIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServerIdentity(***)")
    }
}

impl ServerIdentity {
    /// For localhost, this machine's name and what else is given: host names or addresses.
    pub fn issue(ca: &Ca, names: &[String]) -> Result<Self, PkiError> {
        let key = KeyPair::generate().map_err(crypto("make a key for the server"))?;
        let mut params = params(LIFE)?;
        params.distinguished_name.push(DnType::CommonName, "tutti controller");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.subject_alt_names = all_names(names)?
            .into_iter()
            .map(|name| match name.parse::<IpAddr>() {
                Ok(ip) => Ok(SanType::IpAddress(ip)),
                Err(_) => name.try_into().map(SanType::DnsName),
            })
            .collect::<Result<_, _>>()
            .map_err(crypto("write the server's names"))?;
        let certificate = ca.sign(params, &key)?;
        let chain_pem = format!("{}\n{}\n", certificate.trim_end(), ca.pem().trim_end());
        Ok(ServerIdentity { chain_pem, key })
    }

    /// The certificate in `dir` if it still serves: signed by this CA, for all these names, its key
    /// there and two thirds of its time not over. Else a new one in its place.
    pub fn ensure_in(dir: &Path, ca: &Ca, names: &[String]) -> Result<Self, PkiError> {
        if dir.join(KEY).exists() && dir.join(CERTIFICATE).exists() {
            let known = Self::load(dir)?;
            if known.serves(ca, names)? {
                return Ok(known);
            }
        }
        let new = Self::issue(ca, names)?;
        new.save_in(dir)?;
        Ok(new)
    }

    pub fn load(dir: &Path) -> Result<Self, PkiError> {
        let key = files::read_secret(&dir.join(KEY))?;
        let key = KeyPair::from_pem(&key).map_err(crypto("read the server's key"))?;
        Ok(ServerIdentity { chain_pem: files::read(&dir.join(CERTIFICATE))?, key })
    }

    pub fn save_in(&self, dir: &Path) -> Result<(), PkiError> {
        let key = self.key.serialize_pem();
        files::replace_file(&dir.join(KEY), key.as_bytes(), files::SECRET)?;
        files::replace_file(&dir.join(CERTIFICATE), self.chain_pem.as_bytes(), files::PUBLIC)
    }

    pub fn chain(&self) -> Result<Vec<CertificateDer<'static>>, PkiError> {
        certificates(&self.chain_pem, CERTIFICATE)
    }

    pub(crate) fn private_key(&self) -> Result<PrivateKeyDer<'static>, PkiError> {
        private_key(&self.key.serialize_pem(), KEY)
    }

    fn serves(&self, ca: &Ca, names: &[String]) -> Result<bool, PkiError> {
        let chain = self.chain()?;
        let [leaf, root] = chain.as_slice() else { return Ok(false) };
        Ok(root == ca.der()
            && super::belongs(leaf, &self.key)?
            && all_names(names)?.is_subset(&names_of(leaf)?)
            && !Validity::of(leaf)?.two_thirds_over(SystemTime::now()))
    }
}

/// Spelled alike, so that a certificate's names can be compared with those wanted.
fn all_names(given: &[String]) -> Result<BTreeSet<String>, PkiError> {
    let mut out: BTreeSet<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).into();
    // A machine whose name no certificate can hold is reached by address.
    if let Some(host) = host_name()
        && is_dns(&host)
    {
        out.insert(host.to_lowercase());
    }
    for name in given {
        match name.parse::<IpAddr>() {
            Ok(ip) => out.insert(ip.to_string()),
            Err(_) if is_dns(name) => out.insert(name.to_lowercase()),
            Err(_) => return Err(PkiError::BadServerName(name.clone())),
        };
    }
    Ok(out)
}

fn is_dns(name: &str) -> bool {
    DnsName::try_from(name).is_ok()
}

fn host_name() -> Option<String> {
    nix::unistd::gethostname().ok()?.into_string().ok()
}

fn names_of(certificate: &[u8]) -> Result<BTreeSet<String>, PkiError> {
    let cert = super::parse(certificate)?;
    let names = cert
        .subject_alternative_name()
        .map_err(|e| PkiError::Certificate(e.to_string()))?
        .map_or(&[][..], |ext| ext.value.general_names.as_slice());
    Ok(names
        .iter()
        .filter_map(|name| match name {
            GeneralName::DNSName(dns) => Some((*dns).to_owned()),
            GeneralName::IPAddress(octets) => ip_of(octets).map(|ip| ip.to_string()),
            _ => None,
        })
        .collect())
}

fn ip_of(octets: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(octets) {
        return Some(v4.into());
    }
    <[u8; 16]>::try_from(octets).ok().map(IpAddr::from)
}
