//! The cluster's certificate authority.

use std::path::Path;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData,
};
use rustls_pki_types::CertificateDer;

use super::{CaPin, DAY, Fingerprint, PkiError, certificates, crypto, files, hex, node, params};

const CERTIFICATE: &str = "ca.pem";
const KEY: &str = "ca.key";

const LIFE: Duration = Duration::from_secs(20 * 365 * 86_400);
const NODE_LIFE: Duration = Duration::from_secs(90 * 86_400);
// A node that renews at two thirds of its time has a month to reach the controller.
const _: () = assert!(NODE_LIFE.as_secs() / 3 >= 30 * DAY.as_secs());

pub struct Ca {
    pem: String,
    der: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl std::fmt::Debug for Ca {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ca").field("fingerprint", &self.fingerprint()).finish_non_exhaustive()
    }
}

impl Ca {
    /// Makes a new CA in a directory that has none.
    pub fn create_in(dir: &Path) -> Result<Self, PkiError> {
        let key = KeyPair::generate().map_err(crypto("make a key for the CA"))?;
        let certificate = ca_params()?.self_signed(&key).map_err(crypto("make the CA"))?;
        let pem = certificate.pem();
        files::write_new_file(&dir.join(KEY), key.serialize_pem().as_bytes(), files::SECRET)?;
        files::write_new_file(&dir.join(CERTIFICATE), pem.as_bytes(), files::PUBLIC)?;
        Self::from_parts(pem, key)
    }

    pub fn load(dir: &Path) -> Result<Self, PkiError> {
        let key = files::read_secret(&dir.join(KEY))?;
        let pem = files::read(&dir.join(CERTIFICATE))?;
        let key = KeyPair::from_pem(&key).map_err(crypto("read the CA's key"))?;
        Self::from_parts(pem, key)
    }

    /// Never makes a new CA where half of one is: every token and node certificate would be void.
    pub fn load_or_create(dir: &Path) -> Result<Self, PkiError> {
        let (key, pem) = (dir.join(KEY), dir.join(CERTIFICATE));
        match (key.exists(), pem.exists()) {
            (true, true) => Self::load(dir),
            (false, false) => Self::create_in(dir),
            (true, false) => Err(PkiError::HalfMade { present: key, missing: pem }),
            (false, true) => Err(PkiError::HalfMade { present: pem, missing: key }),
        }
    }

    fn from_parts(pem: String, key: KeyPair) -> Result<Self, PkiError> {
        let der = certificates(&pem, CERTIFICATE)?.remove(0);
        if !super::belongs(&der, &key)? {
            return Err(PkiError::KeyMismatch(format!("{CERTIFICATE} and {KEY}")));
        }
        let issuer = Issuer::from_ca_cert_der(&der, key).map_err(crypto("read the CA"))?;
        Ok(Ca { pem, der, issuer })
    }

    pub fn pem(&self) -> &str {
        &self.pem
    }

    pub fn der(&self) -> &CertificateDer<'static> {
        &self.der
    }

    /// A secret for one purpose of the cluster, which tells nothing about the CA's key.
    pub fn derive_secret(&self, purpose: &str) -> [u8; 32] {
        blake3::derive_key(purpose, self.issuer.key().serialized_der())
    }

    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.der)
    }

    /// What tokens carry.
    pub fn pin(&self) -> CaPin {
        self.fingerprint().pin()
    }

    /// A node's certificate (PEM) for the key of a request. The request proves that its sender has
    /// the key; whatever else it asks for, names and usages included, is not looked at.
    pub fn sign_node_csr(&self, csr_pem: &str, node: &str) -> Result<String, PkiError> {
        tutti_model::check_name(node)?;
        let request = CertificateSigningRequestParams::from_pem(csr_pem)
            .map_err(crypto("read the certificate request"))?;
        if !is_strong(&request.public_key) {
            return Err(PkiError::WeakKey);
        }
        let mut params = params(NODE_LIFE)?;
        params.distinguished_name.push(DnType::CommonName, format!("tutti node {node}"));
        params.subject_alt_names = vec![node::alt_name(node)?];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params, &request.public_key)
    }

    pub(super) fn sign(
        &self,
        mut params: CertificateParams,
        key: &impl PublicKeyData,
    ) -> Result<String, PkiError> {
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let signed = params.signed_by(key, &self.issuer).map_err(crypto("sign a certificate"))?;
        Ok(signed.pem())
    }
}

fn ca_params() -> Result<CertificateParams, PkiError> {
    let mut params = params(LIFE)?;
    // A name of its own, so that a certificate of another cluster is told apart by its issuer.
    let name = format!("tutti cluster {}", hex(&super::random::<8>()?));
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

fn is_strong(key: &rcgen::PublicKey) -> bool {
    [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519]
        .into_iter()
        .any(|alg| alg == key.algorithm())
}
