//! How a node becomes known: once with a join token, from then on with its own certificate.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tutti_wire::api::JoinRequest;
use tutti_wire::client::{Client, ClientError, ClusterRef, Endpoint, endpoint_in};
use tutti_wire::pki::{NodeIdentity, NodeKey};

use crate::config::{AgentConfig, AgentError, Controller};

/// How often a controller that is not there yet is tried again while joining.
const TRY_AGAIN: Duration = Duration::from_millis(500);

pub fn identity_path(data_dir: &Path) -> PathBuf {
    data_dir.join("node.pem")
}

/// The node's identity: the one it has, or a new one for the token. Waits for a controller that
/// is not up yet.
pub fn identity(config: &AgentConfig) -> Result<NodeIdentity, AgentError> {
    let path = identity_path(&config.data_dir);
    if path.exists() {
        let known = NodeIdentity::load(&path)?;
        if known.node() != config.name {
            let (known, wanted) = (known.node().to_owned(), config.name.clone());
            return Err(AgentError::OtherNode { path, known, wanted });
        }
        // A node that was away for months joins again if it may.
        let over = known.validity()?.remaining(SystemTime::now()).is_zero();
        if !over || config.join_token.is_none() {
            return Ok(known);
        }
    }
    let key = NodeKey::generate()?;
    let request = JoinRequest { node: config.name.clone(), csr: key.csr()? };
    let response = join(config, &request)?;
    let identity = key.certified(&response.certificate, &response.ca)?;
    identity.save(&path)?;
    tracing::info!("joined the cluster as node '{}'", config.name);
    Ok(identity)
}

fn join(
    config: &AgentConfig,
    request: &JoinRequest,
) -> Result<tutti_wire::api::JoinResponse, AgentError> {
    let token = config.join_token.clone().ok_or(AgentError::NotJoined)?;
    let mut said = false;
    loop {
        let answer = endpoint(&config.controller).and_then(|endpoint| {
            // The answer carries the CA; on plain HTTP nobody would vouch for it.
            let endpoint = Endpoint { tls: true, ..endpoint };
            let cluster = ClusterRef { endpoint, token: token.clone(), data_dir: None };
            Client::connect(&cluster).join(request)
        });
        match answer {
            Ok(response) => return Ok(response),
            Err(error) if may_come(&error) => {
                if !said {
                    tracing::warn!("the controller can't be reached yet, trying on: {error}");
                    said = true;
                }
                std::thread::sleep(TRY_AGAIN);
            }
            Err(error) => return Err(AgentError::Join(error)),
        }
    }
}

fn may_come(error: &ClientError) -> bool {
    let later = matches!(error, ClientError::NotStarted { .. } | ClientError::NoDataDir { .. });
    later || error.is_unreachable()
}

/// Where the controller listens now.
pub fn endpoint(controller: &Controller) -> Result<Endpoint, ClientError> {
    match controller {
        Controller::Address(text) => Endpoint::parse(text),
        Controller::DataDir(dir) => endpoint_in(dir),
    }
}
