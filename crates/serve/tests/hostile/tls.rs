//! A certificate that a test makes up.

use std::path::Path;
use std::sync::Arc;

use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// In this folder: what a server shows, and its key.
const CERTIFICATE: &str = "certificate.der";
const KEY: &str = "key.der";

/// Makes one for `localhost`; says how a client knows it.
pub fn make(folder: &Path) -> Arc<rustls::ClientConfig> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(folder.join(CERTIFICATE), certified.cert.der()).unwrap();
    std::fs::write(folder.join(KEY), certified.signing_key.serialize_der()).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certified.cert.der().clone()).unwrap();
    let client = rustls::ClientConfig::builder().with_root_certificates(roots);
    Arc::new(client.with_no_client_auth())
}

pub fn server(folder: &Path) -> Arc<rustls::ServerConfig> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let read = |name| std::fs::read(folder.join(name)).unwrap();
    let key = PrivateKeyDer::Pkcs8(read(KEY).into());
    let server = rustls::ServerConfig::builder().with_no_client_auth();
    Arc::new(server.with_single_cert(vec![CertificateDer::from(read(CERTIFICATE))], key).unwrap())
}
