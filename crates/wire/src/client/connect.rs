//! How the HTTP client connects: over the socket of a data directory, else with TLS that trusts one
//! CA, and over plain TCP on this machine for who says so.

use std::fmt;
use std::io::{Read, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustls::{ClientConfig, ClientConnection, StreamOwned};
use rustls_pki_types::ServerName;
use ureq::Agent;
use ureq::config::Config;
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, Either, LazyBuffers, NextTimeout, TcpConnector,
    Transport, TransportAdapter,
};

use super::Endpoint;
use super::limits::{Limits, Watcher};
use super::one_write::OneWrite;
use super::unix::Unix;
use crate::pki::CaPin;
use crate::tls::{Purpose, Trust, client_config};

/// To find the address of a name.
const RESOLVE_MAX: Duration = Duration::from_secs(10);

/// An agent for HTTPS with this CA and for plain HTTP, over the socket if there is one. TLS is set up
/// when it is first needed.
pub(super) fn agent(
    pin: CaPin,
    socket: Option<PathBuf>,
    endpoint: &Endpoint,
    limits: Limits,
) -> Agent {
    // A limit costs a thread for each look, and an address needs none.
    let by_name = socket.is_none() && endpoint.host.parse::<IpAddr>().is_err();
    let watcher = Watcher::new(limits, &endpoint.authority());
    let config = Config::builder()
        // An error's body says what is wrong.
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        // A proxy would see the token, and can't reach loopback.
        .proxy(None)
        .user_agent(concat!("tutti/", env!("CARGO_PKG_VERSION")))
        // The default of 128 KiB each costs more to clear than a small request takes.
        .input_buffer_size(32 << 10)
        .output_buffer_size(16 << 10)
        .timeout_resolve(by_name.then_some(RESOLVE_MAX))
        .timeout_connect(Some(limits.connect()))
        .timeout_send_request(Some(limits.answer))
        .timeout_send_body(Some(limits.answer))
        .timeout_recv_response(Some(limits.answer))
        .timeout_recv_body(Some(limits.answer))
        .build();
    let tls = PinnedTls { pin, config: OnceLock::new() };
    Agent::with_parts(
        config,
        ().chain(Unix { socket })
            .chain(TcpConnector::default())
            .chain(tls)
            .chain(OneWrite { watcher }),
        DefaultResolver::default(),
    )
}

struct PinnedTls {
    pin: CaPin,
    config: OnceLock<Arc<ClientConfig>>,
}

impl PinnedTls {
    fn config(&self) -> Result<Arc<ClientConfig>, ureq::Error> {
        if let Some(config) = self.config.get() {
            return Ok(config.clone());
        }
        let config = client_config(&Trust::Pin(self.pin), Purpose::Http)
            .map_err(|e| ureq::Error::Other(Box::new(e)))?;
        Ok(self.config.get_or_init(|| config).clone())
    }
}

impl<In: Transport> Connector<In> for PinnedTls {
    type Out = Either<In, TlsTransport>;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<Self::Out>, ureq::Error> {
        let transport = chained.ok_or(ureq::Error::ConnectionFailed)?;
        if !details.needs_tls() {
            return Ok(Some(Either::A(transport)));
        }
        let host = details.uri.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host)
            .map_err(|_| ureq::Error::Tls("the host's name can't be in a certificate"))?;
        let mut conn = ClientConnection::new(self.config()?, name)?;
        let mut sock = TransportAdapter::new(transport.boxed(), details.current_time.clone());
        sock.set_timeout(details.timeout);
        conn.complete_io(&mut sock)?;
        let config = details.config;
        let buffers = LazyBuffers::new(config.input_buffer_size(), config.output_buffer_size());
        Ok(Some(Either::B(TlsTransport { buffers, stream: StreamOwned { conn, sock } })))
    }
}

impl fmt::Debug for PinnedTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedTls").field("pin", &self.pin).finish_non_exhaustive()
    }
}

struct TlsTransport {
    buffers: LazyBuffers,
    stream: StreamOwned<ClientConnection, TransportAdapter>,
}

impl Transport for TlsTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        self.stream.sock.set_timeout(timeout);
        self.stream.write_all(&self.buffers.output()[..amount])?;
        Ok(())
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        self.stream.sock.set_timeout(timeout);
        let amount = self.stream.read(self.buffers.input_append_buf())?;
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.sock.get_mut().is_open()
    }

    fn is_tls(&self) -> bool {
        true
    }
}

impl fmt::Debug for TlsTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsTransport")
    }
}
