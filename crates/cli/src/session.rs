//! The way to the cluster that a command is for.

use std::path::{Path, PathBuf};

use tutti_model::Time;
use tutti_wire::client::{Client, ClientError, ClusterRef, Lookup, default_data_dir};
use tutti_wire::token::TokenText;

use crate::fail::{Fail, chain};
use crate::show::time;

impl From<ClientError> for Fail {
    fn from(e: ClientError) -> Fail {
        if let ClientError::NotStarted { path } = &e
            && path.join(tutti_controller::JOURNAL_FILE).exists()
        {
            let dir = path.display();
            return Fail::new(format!("the cluster in {dir} is not running"))
                .exit(crate::fail::UNREACHABLE)
                .hint(format!("start it with tutti up --data-dir {dir}"));
        }
        Fail { exit: u8::try_from(e.exit_code()).unwrap_or(1), hint: e.hint(), message: chain(&e) }
    }
}

/// `$TUTTI_DATA_DIR`, else the machine's or the user's.
pub fn data_dir() -> PathBuf {
    let variable = std::env::var_os("TUTTI_DATA_DIR").filter(|v| !v.is_empty()).map(PathBuf::from);
    default_data_dir(variable.as_deref(), nix::unistd::geteuid().is_root(), home().as_deref())
}

fn home() -> Option<PathBuf> {
    std::env::var_os("HOME").filter(|v| !v.is_empty()).map(PathBuf::from)
}

/// `cluster` is the flag, or `$TUTTI_CLUSTER` where there is none.
pub fn find(cluster: Option<&str>) -> Result<ClusterRef, ClientError> {
    let token = std::env::var("TUTTI_TOKEN").ok().filter(|t| !t.is_empty());
    ClusterRef::find(&Lookup {
        flag: cluster,
        cluster: None,
        token: token.as_deref(),
        default_data_dir: &data_dir(),
        home: home().as_deref(),
    })
}

pub fn open(cluster: Option<&str>) -> Result<Client, Fail> {
    Ok(Client::connect(&find(cluster)?))
}

/// The cluster in this directory, with its admin token.
pub fn open_dir(dir: &Path) -> Result<Client, Fail> {
    Ok(Client::connect(&ClusterRef::find(&Lookup {
        flag: None,
        cluster: None,
        token: None,
        default_data_dir: dir,
        home: None,
    })?))
}

/// By the cluster's clock, which it says with each answer; a simulated day has one of its own.
pub fn now(client: &Client) -> Time {
    client.told_at().unwrap_or_else(time::now)
}

/// On whose behalf to submit. Who holds the cluster's own admin token is on its machine, and their
/// jobs are theirs, not "admin"'s; everybody else is who their token says.
pub fn on_behalf(client: &Client) -> Option<String> {
    let cluster = client.cluster();
    let text = std::fs::read_to_string(cluster.data_dir.as_ref()?.join("admin.token")).ok()?;
    let admin: TokenText = text.trim().parse().ok()?;
    if admin.id != cluster.token.id {
        return None;
    }
    nix::unistd::User::from_uid(nix::unistd::getuid()).ok()?.map(|u| u.name)
}
