//! A node's key, its certificate and the name in it.

use std::path::Path;

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use rcgen::{CertificateParams, KeyPair, SanType};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tutti_model::check_name;
use x509_parser::extensions::GeneralName;

use super::{CaPin, Fingerprint, PkiError, Validity, certificates, crypto, files, private_key};

/// A URI, since a node may have a name that no host could have.
const SCHEME: &str = "tutti:node:";

pub(super) fn alt_name(node: &str) -> Result<SanType, PkiError> {
    let uri = format!("{SCHEME}{}", utf8_percent_encode(node, NON_ALPHANUMERIC));
    Ok(SanType::URI(uri.try_into().map_err(crypto("write the node's name"))?))
}

/// The node that a certificate was made for. Says nothing about who signed it.
pub fn node_name_of(certificate: &[u8]) -> Option<String> {
    let cert = super::parse(certificate).ok()?;
    let names = cert.subject_alternative_name().ok()??;
    let [GeneralName::URI(uri)] = names.value.general_names.as_slice() else { return None };
    let name = percent_decode_str(uri.strip_prefix(SCHEME)?).decode_utf8().ok()?;
    check_name(&name).ok()?;
    Some(name.into_owned())
}

/// What a node is known by: the hex of SHA-256 of its public key, which stays when the certificate is
/// renewed.
pub fn key_of(certificate: &[u8]) -> Result<String, PkiError> {
    let cert = super::parse(certificate)?;
    Ok(Fingerprint::of(cert.public_key().raw).to_string())
}

/// A fresh key of a node that has no certificate yet.
pub struct NodeKey(KeyPair);

impl NodeKey {
    pub fn generate() -> Result<Self, PkiError> {
        KeyPair::generate().map(NodeKey).map_err(crypto("make a key"))
    }

    /// The request (PEM) to join with.
    pub fn csr(&self) -> Result<String, PkiError> {
        csr(&self.0)
    }

    /// What [`crate::api::JoinResponse`] brought.
    pub fn certified(self, certificate: &str, ca: &str) -> Result<NodeIdentity, PkiError> {
        NodeIdentity::new(self.0, certificate, ca)
    }
}

impl std::fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NodeKey(***)")
    }
}

/// The names in a request are not looked at, so it has none.
fn csr(key: &KeyPair) -> Result<String, PkiError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    let request = params.serialize_request(key).map_err(crypto("make a certificate request"))?;
    request.pem().map_err(crypto("write a certificate request"))
}

/// All that a node needs to be known and to know the controller: key, certificate and the CA.
pub struct NodeIdentity {
    key: KeyPair,
    certificate: CertificateDer<'static>,
    ca: CertificateDer<'static>,
    certificate_pem: String,
    ca_pem: String,
    node: String,
}

impl NodeIdentity {
    fn new(key: KeyPair, certificate_pem: &str, ca_pem: &str) -> Result<Self, PkiError> {
        let certificate = certificates(certificate_pem, "the node's certificate")?.remove(0);
        let ca = certificates(ca_pem, "the CA")?.remove(0);
        let mismatch = || PkiError::KeyMismatch("the node's identity".to_owned());
        if !super::belongs(&certificate, &key)? {
            return Err(mismatch());
        }
        let node = node_name_of(&certificate).ok_or_else(|| {
            PkiError::Certificate("it was not made for a node of a tutti cluster".to_owned())
        })?;
        let (certificate_pem, ca_pem) = (certificate_pem.to_owned(), ca_pem.to_owned());
        Ok(NodeIdentity { key, certificate, ca, certificate_pem, ca_pem, node })
    }

    /// One file for key, certificate and CA, replaced as a whole, so that a crash never leaves a
    /// key with another key's certificate.
    pub fn save(&self, path: &Path) -> Result<(), PkiError> {
        let text = [&self.key.serialize_pem(), &self.certificate_pem, &self.ca_pem]
            .map(|part| format!("{}\n", part.trim_end()))
            .concat();
        files::replace_file(path, text.as_bytes(), files::SECRET)
    }

    pub fn load(path: &Path) -> Result<Self, PkiError> {
        let text = files::read_secret(path)?;
        let sections: Vec<&str> = text.split_inclusive("-----END CERTIFICATE-----").collect();
        let [first, ca, ..] = sections.as_slice() else {
            return Err(PkiError::KeyMismatch(path.display().to_string()));
        };
        let at = first.find("-----BEGIN CERTIFICATE-----").unwrap_or(first.len());
        let (key, certificate) = first.split_at(at);
        let key = KeyPair::from_pem(key).map_err(crypto("read the node's key"))?;
        Self::new(key, certificate, ca)
    }

    /// A request (PEM) for the next certificate of the same key.
    pub fn renewal(&self) -> Result<String, PkiError> {
        csr(&self.key)
    }

    /// With the certificate that answered [`NodeIdentity::renewal`].
    pub fn renewed(self, certificate: &str) -> Result<Self, PkiError> {
        let ca_pem = self.ca_pem.clone();
        Self::new(self.key, certificate, &ca_pem)
    }

    /// See [`key_of`].
    pub fn key_id(&self) -> Result<String, PkiError> {
        key_of(&self.certificate)
    }

    pub fn node(&self) -> &str {
        &self.node
    }

    pub fn validity(&self) -> Result<Validity, PkiError> {
        Validity::of(&self.certificate)
    }

    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    pub fn ca(&self) -> &CertificateDer<'static> {
        &self.ca
    }

    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    pub fn ca_pin(&self) -> CaPin {
        Fingerprint::of(&self.ca).pin()
    }

    pub(crate) fn key(&self) -> Result<PrivateKeyDer<'static>, PkiError> {
        private_key(&self.key.serialize_pem(), "the node's key")
    }
}

impl std::fmt::Debug for NodeIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeIdentity").field("node", &self.node).finish_non_exhaustive()
    }
}
