//! Whom ranks run as. Looked up by the agent, because name services may be slow, need threads, or
//! load libraries: nothing for a shim.

use std::ffi::CString;

use nix::unistd::{Uid, User, getgrouplist};
use tutti_model::{Blame, PartError};

use crate::plan::Identity;

/// One user of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub name: String,
    pub home: String,
    pub shell: String,
    /// There is a `~/.nccl.conf`, which variables would outrank.
    pub has_nccl_conf: bool,
    /// None: the agent can't switch, or need not.
    pub identity: Option<Identity>,
}

#[cfg(test)]
impl Account {
    pub fn fake(name: &str) -> Account {
        let (home, shell) = (format!("/home/{name}"), "/bin/sh".to_owned());
        Account { name: name.to_owned(), home, shell, has_nccl_conf: false, identity: None }
    }
}

/// The account that a job of this user runs under on this node. May take long.
pub fn look_up(user: &str, node: &str) -> Result<Account, PartError> {
    let me = Uid::effective();
    if me.is_root() { switched(user, node) } else { Ok(own(me, user)) }
}

fn switched(name: &str, node: &str) -> Result<Account, PartError> {
    let job = |message| PartError { message, blame: Blame::Job };
    let here = |message| PartError { message, blame: Blame::Node };
    let user = User::from_name(name)
        .map_err(|e| here(format!("user '{name}' can't be looked up on node {node}: {e}")))?
        .ok_or_else(|| job(format!("user '{name}' does not exist on node {node}")))?;
    let identity = if user.uid.is_root() {
        None
    } else {
        let c_name = CString::new(name).map_err(|_| job(format!("'{name}' is no user name")))?;
        let groups = getgrouplist(&c_name, user.gid)
            .map_err(|e| here(format!("the groups of '{name}' can't be looked up: {e}")))?;
        Some(Identity {
            uid: user.uid.as_raw(),
            gid: user.gid.as_raw(),
            groups: groups.into_iter().map(|g| g.as_raw()).collect(),
        })
    };
    Ok(account(user, identity))
}

/// An agent that is not root runs everything as itself.
fn own(me: Uid, user: &str) -> Account {
    match User::from_uid(me) {
        Ok(Some(user)) => account(user, None),
        // No passwd entry for this uid, as in many containers.
        Ok(None) | Err(_) => Account {
            name: user.to_owned(),
            home: "/".into(),
            shell: "/bin/sh".into(),
            has_nccl_conf: false,
            identity: None,
        },
    }
}

fn account(user: User, identity: Option<Identity>) -> Account {
    // As the user: what a link in their home points to may be closed to them.
    let look = || user.dir.join(".nccl.conf").exists();
    let has_nccl_conf = match &identity {
        Some(identity) => identity.act(look).unwrap_or(false),
        None => look(),
    };
    Account {
        name: user.name,
        home: user.dir.display().to_string(),
        shell: user.shell.display().to_string(),
        has_nccl_conf,
        identity,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_users_are_the_jobs_fault() {
        if !Uid::effective().is_root() {
            return;
        }
        let error = look_up("no-such-user", "n1").unwrap_err();
        assert_eq!(error.message, "user 'no-such-user' does not exist on node n1");
        assert_eq!(error.blame, Blame::Job);
    }

    #[test]
    fn root_does_not_switch_to_itself() {
        if !Uid::effective().is_root() {
            return;
        }
        let account = look_up("root", "n1").unwrap();
        assert_eq!((account.name.as_str(), account.identity), ("root", None));
    }
}
