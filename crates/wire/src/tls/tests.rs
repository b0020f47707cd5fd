use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;
use crate::pki::NodeKey;

struct Cluster {
    ca: Ca,
    server: Arc<ServerConfig>,
    _dir: tempfile::TempDir,
}

fn cluster() -> Cluster {
    let dir = tempfile::tempdir().unwrap();
    let ca = Ca::create_in(dir.path()).unwrap();
    let identity = ServerIdentity::ensure_in(dir.path(), &ca, &["10.1.2.3".to_owned()]).unwrap();
    let server = server_config(&ca, &identity).unwrap();
    Cluster { ca, server, _dir: dir }
}

fn node(ca: &Ca, name: &str) -> NodeIdentity {
    let key = NodeKey::generate().unwrap();
    let certificate = ca.sign_node_csr(&key.csr().unwrap(), name).unwrap();
    key.certified(&certificate, ca.pem()).unwrap()
}

type Outcome = (std::io::Result<Peer>, std::io::Result<()>);

/// Shakes hands and sends a byte each way: with TLS 1.3 a client learns only by reading that its
/// certificate was refused.
async fn meet(server: &Cluster, client: Arc<ClientConfig>, name: &str) -> Outcome {
    let (near, far): (DuplexStream, DuplexStream) = tokio::io::duplex(64 << 10);
    let accept = async {
        let mut stream = TlsAcceptor::from(server.server.clone()).accept(far).await?;
        let peer = Peer::of(stream.get_ref().1);
        stream.read_u8().await?;
        stream.write_u8(1).await?;
        stream.flush().await?;
        Ok(peer)
    };
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let connect = async {
        let mut stream = TlsConnector::from(client).connect(name, near).await?;
        stream.write_u8(1).await?;
        stream.flush().await?;
        stream.read_u8().await.map(|_| ())
    };
    tokio::join!(accept, connect)
}

async fn http(server: &Cluster, trust: Trust, name: &str) -> Outcome {
    meet(server, client_config(&trust, Purpose::Http).unwrap(), name).await
}

#[tokio::test]
async fn the_right_pin_and_the_right_ca_are_accepted() {
    let cluster = cluster();
    for trust in [Trust::Pin(cluster.ca.pin()), Trust::Ca(cluster.ca.pem().to_owned())] {
        for name in ["localhost", "127.0.0.1", "::1", "10.1.2.3"] {
            let (server, client) = http(&cluster, trust.clone(), name).await;
            client.unwrap();
            assert_eq!(server.unwrap(), Peer::Http);
        }
    }
}

#[tokio::test]
async fn a_wrong_pin_is_refused_and_says_so() {
    let (cluster, other) = (cluster(), cluster());
    let (server, client) = http(&cluster, Trust::Pin(other.ca.pin()), "localhost").await;
    assert!(server.is_err());
    let error = client.unwrap_err();
    let refused = refused_certificate(&error).unwrap();
    assert_eq!(wrong_ca(refused), Some(&WrongCa { pin: other.ca.pin() }));
}

#[tokio::test]
async fn another_ca_is_refused() {
    let (cluster, other) = (cluster(), cluster());
    let (_, client) = http(&cluster, Trust::Ca(other.ca.pem().to_owned()), "localhost").await;
    let error = client.unwrap_err();
    assert!(wrong_ca(refused_certificate(&error).unwrap()).is_none());
}

/// Knowing a CA's certificate, which is public, does not make a server of that cluster.
#[tokio::test]
async fn a_pinned_ca_that_did_not_sign_the_server_is_refused() {
    let (honest, thief) = (cluster(), cluster());
    let dir = tempfile::tempdir().unwrap();
    let stolen = ServerIdentity::issue(&thief.ca, &[]).unwrap();
    stolen.save_in(dir.path()).unwrap();
    let leaf = std::fs::read_to_string(dir.path().join("server.pem")).unwrap();
    let leaf = leaf.split_inclusive("-----END CERTIFICATE-----").next().unwrap();
    std::fs::write(dir.path().join("server.pem"), format!("{leaf}\n{}", honest.ca.pem())).unwrap();
    let identity = ServerIdentity::load(dir.path()).unwrap();
    let fake =
        Cluster { server: server_config(&thief.ca, &identity).unwrap(), ca: thief.ca, _dir: dir };
    let (_, client) = http(&fake, Trust::Pin(honest.ca.pin()), "localhost").await;
    assert!(client.is_err());
}

#[tokio::test]
async fn a_name_that_is_not_in_the_certificate_is_refused() {
    let cluster = cluster();
    for name in ["elsewhere.example", "10.9.9.9"] {
        let (_, client) = http(&cluster, Trust::Pin(cluster.ca.pin()), name).await;
        assert!(client.is_err(), "{name}");
    }
}

#[tokio::test]
async fn an_agent_is_known_by_its_certificate() {
    let cluster = cluster();
    let identity = node(&cluster.ca, "gpu-07.ä");
    for trust in [Trust::Pin(identity.ca_pin()), Trust::Ca(identity.ca_pem().to_owned())] {
        let config = client_config(&trust, Purpose::Agent(&identity)).unwrap();
        let (server, client) = meet(&cluster, config, "127.0.0.1").await;
        client.unwrap();
        let key = identity.key_id().unwrap();
        assert_eq!(server.unwrap(), Peer::Agent { node: "gpu-07.ä".to_owned(), key });
    }
}

#[tokio::test]
async fn the_agent_stream_without_a_certificate_is_told_apart() {
    let cluster = cluster();
    let config = client_config(&Trust::Pin(cluster.ca.pin()), Purpose::Http).unwrap();
    let mut config = (*config).clone();
    config.alpn_protocols = vec![ALPN_AGENT.to_vec()];
    let (server, _) = meet(&cluster, Arc::new(config), "localhost").await;
    assert_eq!(server.unwrap(), Peer::AgentUnknown);
}

#[tokio::test]
async fn a_node_of_another_cluster_is_refused() {
    let (cluster, other) = (cluster(), cluster());
    let stranger = node(&other.ca, "n1");
    let trust = Trust::Pin(cluster.ca.pin());
    let config = client_config(&trust, Purpose::Agent(&stranger)).unwrap();
    let (server, client) = meet(&cluster, config, "localhost").await;
    assert!(server.is_err());
    assert!(client.is_err());
}

/// A stolen node key must not serve as the controller's.
#[tokio::test]
async fn a_node_certificate_is_no_server_certificate() {
    let cluster = cluster();
    let identity = node(&cluster.ca, "localhost");
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![identity.certificate().clone(), cluster.ca.der().clone()],
            identity.key().unwrap(),
        )
        .unwrap();
    config.alpn_protocols = vec![ALPN_HTTP.to_vec()];
    let trust = Trust::Pin(cluster.ca.pin());
    let fake = Cluster { server: Arc::new(config), ..cluster };
    let (_, client) = http(&fake, trust, "localhost").await;
    assert!(client.is_err());
}

#[tokio::test]
async fn a_server_certificate_is_no_node_certificate() {
    let cluster = cluster();
    let identity = ServerIdentity::issue(&cluster.ca, &[]).unwrap();
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots(cluster.ca.der()).unwrap())
        .with_client_auth_cert(identity.chain().unwrap(), identity.private_key().unwrap())
        .unwrap();
    config.alpn_protocols = vec![ALPN_AGENT.to_vec()];
    let (server, client) = meet(&cluster, Arc::new(config), "localhost").await;
    assert!(server.is_err());
    assert!(client.is_err());
}
