//! The socket in the data dir, for whoever owns that: HTTP as plain text, since a port of loopback
//! may be anybody's while the controller is away, and this is nobody else's.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::middleware::map_request;
use bytes::Bytes;
use http::HeaderValue;
use http::header::HOST;
use tokio::net::{UnixListener, UnixStream};
use tutti_wire::client::{SOCKET_FILE, SOCKET_PATH_MAX};

use super::{BUSY, Listener, Standing, refuse, stopped};
use crate::api::auth::Ends;

/// Made under this name, so that under its own it never has another mode.
const NEW_FILE: &str = ".new.sock";

/// Takes the place of one that was left behind. None where the path is too long for a socket:
/// clients use TLS then. The caller holds the journal, so that no other controller runs here.
pub fn bind(dir: &Path) -> io::Result<Option<UnixListener>> {
    let (path, new) = (dir.join(SOCKET_FILE), dir.join(NEW_FILE));
    remove_if_there(&new)?;
    if path.as_os_str().len() > SOCKET_PATH_MAX {
        return Ok(None);
    }
    let sockets = UnixListener::bind(&new)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o600))?;
    fs::rename(&new, &path)?;
    Ok(Some(sockets))
}

pub fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// The API as it is served there. No browser can be led to a file, so the name in a request guards
/// nothing.
pub fn router(router: Router, port: u16) -> Router {
    let host = Bytes::from(format!("localhost:{port}"));
    let host = HeaderValue::from_maybe_shared(host).expect("a name and a number");
    router.layer(map_request(move |mut request: Request| {
        request.headers_mut().insert(HOST, host.clone());
        std::future::ready(request)
    }))
}

impl Listener {
    /// The same for the socket of the data dir, with the port that the controller has otherwise.
    pub async fn run_local(self: Arc<Self>, sockets: UnixListener, port: u16) {
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let ends = |uid| Ends { peer: here, local: here, tls: false, uid: Some(uid) };
        let mut shutdown = self.shutdown.clone();
        loop {
            let taken = tokio::select! {
                () = stopped(&mut shutdown) => return,
                taken = sockets.accept() => taken,
            };
            match taken {
                Ok((socket, _)) => match socket.peer_cred() {
                    Ok(peer) => {
                        let (this, ends) = (Arc::clone(&self), ends(peer.uid()));
                        tokio::spawn(async move { this.owner(socket, ends).await });
                    }
                    Err(error) => tracing::warn!(%error, "can't tell who connects"),
                },
                Err(error) => self.accept_failed(&error).await,
            }
        }
    }

    /// Nobody but the owner comes this way, so that no time is set.
    async fn owner(&self, mut socket: UnixStream, ends: Ends) {
        match Standing::owner(&self.rooms) {
            Ok(standing) => self.http(socket, ends, standing).await,
            Err(full) => {
                tracing::warn!("{full}");
                if let Err(error) = refuse(&mut socket, BUSY).await {
                    tracing::debug!(%error, "and it left before it heard so");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_socket_is_its_owners_and_replaces_an_old_one() {
        let dir = tempfile::tempdir().unwrap();
        drop(std::os::unix::net::UnixListener::bind(dir.path().join(SOCKET_FILE)).unwrap());
        let sockets = bind(dir.path()).unwrap().unwrap();
        let path = dir.path().join(SOCKET_FILE);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let (connected, accepted) =
            tokio::join!(tokio::net::UnixStream::connect(&path), sockets.accept());
        connected.unwrap();
        accepted.unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[tokio::test]
    async fn too_long_a_path_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("d".repeat(SOCKET_PATH_MAX));
        fs::create_dir(&deep).unwrap();
        assert!(bind(&deep).unwrap().is_none());
    }
}
