//! A router's certificate: files in PEM, as every other web server takes them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tutti_wire::tls::provider;

use crate::fail::{Fail, chain};

pub struct Files {
    /// The server's first, then those that lead to a CA.
    pub certificate: PathBuf,
    pub key: PathBuf,
}

pub fn load(files: &Files) -> Result<Arc<ServerConfig>, Fail> {
    let unusable = |path: &Path, what: &str, e: &(dyn std::error::Error + 'static)| {
        Fail::usage(format!("{} is no {what}: {}", path.display(), chain(e)))
            .hint("both files are PEM: --tls-cert fullchain.pem --tls-key privkey.pem")
    };
    let certificates = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|e| unusable(&files.certificate, "certificate", &e))?;
    if certificates.is_empty() {
        return Err(Fail::usage(format!("{} has no certificate", files.certificate.display())));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|e| unusable(&files.key, "private key", &e))?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|e| Fail::new(format!("TLS can't be set up: {}", chain(&e))))?
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .map_err(|e| unusable(&files.certificate, "certificate of this key", &e))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_certificate_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let (certificate, key) = (dir.path().join("none.pem"), file("key.pem", "nonsense"));
        let fail = load(&Files { certificate, key: key.clone() }).unwrap_err();
        assert!(fail.message.contains("none.pem is no certificate"), "{fail}");
        let certificate = file("empty.pem", "");
        let fail = load(&Files { certificate, key }).unwrap_err();
        assert!(fail.message.contains("empty.pem has no certificate"), "{fail}");
        assert_eq!(fail.exit, 2);
    }
}
