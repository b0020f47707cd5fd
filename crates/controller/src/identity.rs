//! Who this controller is: its CA, its certificate, and the token of its first admin.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use tutti_engine::{Actor, Command};
use tutti_model::{Grant, Role, Token};
use tutti_wire::pki::{Ca, ServerIdentity, replace_file};
use tutti_wire::tls;
use tutti_wire::token::{Kind, TokenText};

use crate::clock::now;
use crate::config::ControllerConfig;
use crate::core::Core;
use crate::error::ControllerError;

const TOKEN_FILE: &str = "admin.token";

pub struct Identity {
    pub ca: Arc<Ca>,
    pub tls: Arc<ServerConfig>,
    /// When the server's certificate ends.
    pub server_until: std::time::SystemTime,
}

impl Identity {
    pub fn load_or_create(config: &ControllerConfig) -> Result<Identity, ControllerError> {
        let ca = Arc::new(Ca::load_or_create(&config.data_dir)?);
        let mut names = config.extra_names.clone();
        match config.listen.ip() {
            ip if ip.is_unspecified() => names.extend(own_addresses(ip)),
            ip => names.push(ip.to_string()),
        }
        let server = ServerIdentity::ensure_in(&config.data_dir, &ca, &names)?;
        let tls = tls::server_config(&ca, &server)?;
        let leaf = server.chain()?.remove(0);
        let server_until = tutti_wire::pki::Validity::of(&leaf)?.until;
        Ok(Identity { ca, tls, server_until })
    }
}

/// The addresses by which a socket on all of them is called. Link-local ones are of no use without
/// the name of an interface.
fn own_addresses(listen: IpAddr) -> Vec<String> {
    let interfaces = match nix::ifaddrs::getifaddrs() {
        Ok(interfaces) => interfaces,
        Err(error) => {
            tracing::warn!(%error, "can't look up own addresses: call the controller by a --name");
            return Vec::new();
        }
    };
    let address = |i: nix::ifaddrs::InterfaceAddress| {
        let address = i.address?;
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
    };
    let useful = |ip: &IpAddr| match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
        IpAddr::V6(ip) => listen.is_ipv6() && !ip.is_loopback() && !ip.is_unicast_link_local(),
    };
    interfaces.filter_map(address).filter(useful).map(|ip| ip.to_string()).collect()
}

/// Who the controller itself acts as, and the first token stands for: whoever started it, so that
/// jobs submitted with that token belong to a user that the machine knows.
pub fn operator() -> Actor {
    let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).ok().flatten();
    let user = user.map_or_else(|| "admin".to_owned(), |u| u.name);
    Actor { user, role: Role::Admin }
}

/// Makes a token for the admin unless the data dir has one that is known. The file comes first: a
/// token that nobody could read would be of no use, one that is not known yet is made again.
pub async fn ensure_admin_token(
    core: &Core,
    ca: &Ca,
    data_dir: &Path,
) -> Result<(), ControllerError> {
    let path = data_dir.join(TOKEN_FILE);
    if let Ok(text) = fs::read_to_string(&path)
        && let Ok(token) = text.parse::<TokenText>()
    {
        let known = core.peek(|world| {
            let stored = world.engine.state().tokens.get(&token.id);
            stored.is_some_and(|stored| token.matches(&stored.hash))
        });
        if known.unwrap_or(false) {
            return Ok(());
        }
    }
    let token = mint(ca, data_dir, Role::Admin)?;
    core.call(Command::AddToken { actor: operator(), token }).await?;
    tracing::info!(path = %path.display(), "made a token for the admin");
    Ok(())
}

/// The token that clients on this machine find in the data dir, written there; it is still to be
/// added to the state.
pub fn mint(ca: &Ca, data_dir: &Path, role: Role) -> Result<Token, ControllerError> {
    let text = TokenText::mint(Kind::Access, ca.pin())?;
    replace_file(&data_dir.join(TOKEN_FILE), format!("{text}\n").as_bytes(), 0o600)?;
    let user = operator().user;
    Ok(Token {
        id: text.id.clone(),
        hash: text.hash(),
        grant: Grant::Access { user: user.clone(), role },
        created_at: now(),
        created_by: user,
        expires_at: None,
    })
}
