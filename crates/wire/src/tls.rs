//! TLS with the cluster's own CA. Everything uses the `ring` provider named here; no process-wide
//! default is set or needed.
//!
//! ```text
//! client ── tutti-agent/1 + node certificate ──► agent stream
//!        ── http/1.1, no certificate ──────────► REST, token in the header
//! ```

use std::sync::{Arc, LazyLock};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, OtherError, RootCertStore, ServerConfig,
    SignatureScheme,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::pki::{
    Ca, CaPin, Fingerprint, NodeIdentity, PkiError, ServerIdentity, certificates, key_of,
    node_name_of,
};
use crate::stream::ALPN_AGENT;

pub const ALPN_HTTP: &[u8] = b"http/1.1";

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error("TLS can't be set up")]
    Config(#[from] rustls::Error),
    #[error("the CA can't verify certificates")]
    Verifier(#[from] rustls::client::VerifierBuilderError),
}

/// How a client knows that it speaks with its controller.
#[derive(Clone, Debug)]
pub enum Trust {
    /// The CA's certificate (PEM).
    Ca(String),
    /// The start of the CA's fingerprint, from a token; the server shows the CA itself.
    Pin(CaPin),
}

/// What a connection is for; decides ALPN and the client's certificate.
#[derive(Clone, Copy, Debug)]
pub enum Purpose<'a> {
    Http,
    Agent(&'a NodeIdentity),
}

pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(rustls::crypto::ring::default_provider()));
    PROVIDER.clone()
}

/// For the controller's port. A client certificate may be shown and is then checked; whether one is
/// needed the controller decides by [`Peer`].
pub fn server_config(ca: &Ca, identity: &ServerIdentity) -> Result<Arc<ServerConfig>, TlsError> {
    let roots = Arc::new(roots(ca.der())?);
    let clients = WebPkiClientVerifier::builder_with_provider(roots, provider())
        .allow_unauthenticated()
        .build()?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(clients)
        .with_single_cert(identity.chain()?, identity.private_key()?)?;
    config.alpn_protocols = vec![ALPN_AGENT.to_vec(), ALPN_HTTP.to_vec()];
    Ok(Arc::new(config))
}

pub fn client_config(trust: &Trust, purpose: Purpose<'_>) -> Result<Arc<ClientConfig>, TlsError> {
    let builder =
        ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = match trust {
        Trust::Ca(pem) => builder.with_root_certificates(roots(&certificates(pem, "the CA")?[0])?),
        Trust::Pin(pin) => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(PinVerifier { pin: *pin })),
    };
    let mut config = match purpose {
        Purpose::Http => builder.with_no_client_auth(),
        Purpose::Agent(identity) => {
            builder.with_client_auth_cert(vec![identity.certificate().clone()], identity.key()?)?
        }
    };
    config.alpn_protocols = vec![match purpose {
        Purpose::Http => ALPN_HTTP.to_vec(),
        Purpose::Agent(_) => ALPN_AGENT.to_vec(),
    }];
    Ok(Arc::new(config))
}

fn roots(ca: &CertificateDer<'static>) -> Result<RootCertStore, rustls::Error> {
    let mut roots = RootCertStore::empty();
    roots.add(ca.clone())?;
    Ok(roots)
}

/// Who is at the other end of a server's connection, after the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Speaks HTTP; known by its token alone.
    Http,
    /// Wants the agent stream, and has proved to hold this key and a certificate for this node.
    Agent { node: String, key: String },
    /// Wants the agent stream without a node's certificate: to be refused.
    AgentUnknown,
}

impl Peer {
    pub fn of(connection: &rustls::ServerConnection) -> Peer {
        if connection.alpn_protocol() != Some(ALPN_AGENT) {
            return Peer::Http;
        }
        let shown = connection.peer_certificates().and_then(<[_]>::first);
        let known = |certificate: &CertificateDer<'_>| {
            Some(Peer::Agent { node: node_name_of(certificate)?, key: key_of(certificate).ok()? })
        };
        shown.and_then(known).unwrap_or(Peer::AgentUnknown)
    }
}

/// The server is not of the cluster that the token is for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the server's CA is not the one that the token names ({pin}): it is another cluster, or somebody stands between"
)]
pub struct WrongCa {
    pub pin: CaPin,
}

/// The refusal of a certificate somewhere under an error, whatever layers wrapped it.
pub fn refused_certificate<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> Option<&'a CertificateError> {
    let mut next = Some(error);
    while let Some(error) = next {
        // An io::Error's source() passes over the error that it was made from.
        let wrapped = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        if let Some(found) = wrapped.and_then(|inner| refused_certificate(inner)) {
            return Some(found);
        }
        if let Some(rustls::Error::InvalidCertificate(refused)) = error.downcast_ref() {
            return Some(refused);
        }
        next = error.source();
    }
    None
}

/// The [`WrongCa`] in the refusal of a certificate.
pub fn wrong_ca(refused: &CertificateError) -> Option<&WrongCa> {
    match refused {
        CertificateError::Other(OtherError(inner)) => inner.downcast_ref(),
        _ => None,
    }
}

/// Looks in the chain that the server shows for the CA with the pin, then verifies as always, with
/// that CA as the only root. The pin says which CA; the rest is webpki's.
#[derive(Debug)]
struct PinVerifier {
    pin: CaPin,
}

impl ServerCertVerifier for PinVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let ca = intermediates.iter().find(|c| Fingerprint::of(c).pin() == self.pin);
        let Some(ca) = ca else {
            let wrong = WrongCa { pin: self.pin };
            return Err(CertificateError::Other(OtherError(Arc::new(wrong))).into());
        };
        let roots = Arc::new(roots(&ca.clone().into_owned())?);
        WebPkiServerVerifier::builder_with_provider(roots, provider())
            .build()
            .map_err(|e| rustls::Error::General(e.to_string()))?
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = provider().signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, &algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = provider().signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests;
