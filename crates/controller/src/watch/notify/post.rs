//! One `POST` to an `http` or `https` address.

use std::path::Path;
use std::sync::Arc;

use axum::body::Body;
use hyper::header::{CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tutti_model::only_host;

use super::NotTold;

/// Where distributions keep the certificates of authorities.
const BUNDLES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

pub async fn post(url: &str, body: &str) -> Result<(), NotTold> {
    let bad = || NotTold::Address(only_host(url));
    let uri: Uri = url.parse().map_err(|_| bad())?;
    let host = uri.host().ok_or_else(bad)?.trim_matches(['[', ']']);
    let secure = uri.scheme_str() == Some("https");
    let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
    let failed = |source| NotTold::Connect(format!("{host}:{port}"), source);
    let stream = TcpStream::connect((host, port)).await.map_err(failed)?;
    if !secure {
        return send(stream, &uri, body).await;
    }
    let name = ServerName::try_from(host.to_owned()).map_err(|_| bad())?;
    let stream = TlsConnector::from(tls()?).connect(name, stream).await.map_err(failed)?;
    send(stream, &uri, body).await
}

fn tls() -> Result<Arc<ClientConfig>, NotTold> {
    let mut roots = RootCertStore::empty();
    let bundle = BUNDLES.iter().map(Path::new).find(|path| path.exists());
    let found = bundle.and_then(|path| CertificateDer::pem_file_iter(path).ok());
    roots.add_parsable_certificates(found.into_iter().flatten().flatten());
    if roots.is_empty() {
        return Err(NotTold::NoRoots);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|_| NotTold::NoRoots)?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}

async fn send<S>(stream: S, uri: &Uri, body: &str) -> Result<(), NotTold>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let bad = |_| NotTold::Address(only_host(&uri.to_string()));
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let request = Request::post(path)
        .header(HOST, uri.authority().map_or("", |authority| authority.as_str()))
        .header(CONTENT_TYPE, "application/json")
        .header(USER_AGENT, concat!("tutti/", env!("CARGO_PKG_VERSION")))
        .body(Body::from(body.to_owned()))
        .map_err(bad)?;
    let answer = sender.send_request(request).await;
    connection.abort();
    match answer?.status() {
        status if status.is_success() => Ok(()),
        status => Err(NotTold::Status(status)),
    }
}
