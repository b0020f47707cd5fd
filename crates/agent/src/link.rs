//! The stream to the controller: dialling, and the two tasks that read and write it. What is said
//! on it is the node's business.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tutti_wire::client::{ClientError, Endpoint};
use tutti_wire::frame::{FrameError, FrameReader};
use tutti_wire::pki::NodeIdentity;
use tutti_wire::stream::ToAgent;
use tutti_wire::tls::{self, Purpose, TlsError, Trust};

const DIAL_WITHIN: Duration = Duration::from_secs(5);
/// A controller that acknowledges nothing for this long is gone, whatever TCP hopes.
const SILENT_FOR: Duration = Duration::from_secs(10);
const BACK_OFF: Duration = Duration::from_millis(100);
const BACK_OFF_MAX: Duration = Duration::from_secs(2);
/// Frames that wait for the node; beyond it the controller waits.
const WAITING: usize = 256;

#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("the controller's address is not known")]
    Address(#[from] ClientError),
    #[error("'{0}' is no host name")]
    Name(String),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("{endpoint} can't be reached")]
    Dial {
        endpoint: String,
        #[source]
        source: io::Error,
    },
    #[error("{0} does not answer")]
    TimedOut(String),
}

/// Waits grow from one to the next, and differ between agents, so that a controller that comes
/// back is not met by all at once.
#[derive(Debug)]
pub struct BackOff {
    next: Duration,
}

impl BackOff {
    pub fn new() -> BackOff {
        BackOff { next: BACK_OFF }
    }
    pub fn wait(&mut self) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(BACK_OFF_MAX);
        wait.mul_f64(0.5 + 0.5 * jitter())
    }
}

/// Between 0 and 1; no more random than this needs to be.
fn jitter() -> f64 {
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.subsec_nanos());
    let mixed = (nanos ^ std::process::id()).wrapping_mul(2_654_435_761);
    f64::from(mixed) / f64::from(u32::MAX)
}

/// Opens the stream. Both ends have proved who they are when this returns.
pub async fn dial(
    endpoint: Endpoint,
    identity: Arc<NodeIdentity>,
) -> Result<TlsStream<TcpStream>, LinkError> {
    let trust = Trust::Ca(identity.ca_pem().to_owned());
    let config = tls::client_config(&trust, Purpose::Agent(&identity))?;
    let name = rustls::pki_types::ServerName::try_from(endpoint.host.clone())
        .map_err(|_| LinkError::Name(endpoint.host.clone()))?;
    let at = endpoint.authority();
    let dialled = timeout(DIAL_WITHIN, async {
        let stream = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await?;
        stream.set_nodelay(true)?;
        give_up_after(&stream, SILENT_FOR)?;
        TlsConnector::from(config).connect(name, stream).await
    });
    match dialled.await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(source)) => Err(LinkError::Dial { endpoint: at, source }),
        Err(_) => Err(LinkError::TimedOut(at)),
    }
}

/// When sent data stays unacknowledged for so long, the connection is over.
fn give_up_after(stream: &TcpStream, silent: Duration) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let millis = silent.as_millis() as libc::c_uint;
    // SAFETY: the descriptor is open, and the option is an unsigned int.
    let result = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_USER_TIMEOUT,
            (&raw const millis).cast(),
            size_of_val(&millis) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What comes from the controller.
#[derive(Debug)]
pub enum FromLink {
    Frame(ToAgent),
    /// The stream is over; why, if it broke.
    Closed(Option<FrameError>),
}

/// An open stream. Dropping it closes it.
pub struct Session {
    pub frames: mpsc::Receiver<FromLink>,
    out: mpsc::UnboundedSender<Vec<u8>>,
    unsent: Arc<AtomicUsize>,
    reader: JoinHandle<()>,
}

impl Session {
    pub fn open(stream: TlsStream<TcpStream>) -> Session {
        let (read, mut write) = tokio::io::split(stream);
        let (frames_in, frames) = mpsc::channel(WAITING);
        let (out, mut to_send) = mpsc::unbounded_channel::<Vec<u8>>();
        let unsent = Arc::new(AtomicUsize::new(0));
        let left = unsent.clone();
        tokio::spawn(async move {
            while let Some(bytes) = to_send.recv().await {
                let sent = write.write_all(&bytes).await;
                left.fetch_sub(bytes.len(), Ordering::Relaxed);
                if sent.is_err() || (to_send.is_empty() && write.flush().await.is_err()) {
                    // The reader notices the same and says so.
                    return;
                }
            }
            // A peer that is gone needs no goodbye.
            let _ = write.shutdown().await;
        });
        let reader = tokio::spawn(read_frames(FrameReader::new(read), frames_in));
        Session { frames, out, unsent, reader }
    }

    pub fn send(&self, bytes: Vec<u8>) {
        self.unsent.fetch_add(bytes.len(), Ordering::Relaxed);
        // A writer that has ended means a stream that is over; the reader tells.
        let _ = self.out.send(bytes);
    }

    /// Bytes given to [`Session::send`] that the network has not taken yet.
    pub fn unsent(&self) -> usize {
        self.unsent.load(Ordering::Relaxed)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

async fn read_frames<R: tokio::io::AsyncRead + Unpin>(
    mut reader: FrameReader<R>,
    frames: mpsc::Sender<FromLink>,
) {
    loop {
        let event = match reader.next::<ToAgent>().await {
            Ok(Some(frame)) => FromLink::Frame(frame),
            // Something that only newer agents understand.
            Err(FrameError::Decode(error)) => {
                tracing::warn!(%error, "a message of the controller is not understood; skipped");
                continue;
            }
            Ok(None) => FromLink::Closed(None),
            Err(error) => FromLink::Closed(Some(error)),
        };
        let over = matches!(event, FromLink::Closed(_));
        if frames.send(event).await.is_err() || over {
            return;
        }
    }
}
