//! Who else can write something, by its owner, its group and its mode.

use nix::sys::stat::FileStat;
use nix::unistd::{Gid, Group, Uid, User, geteuid};

const GROUP: u32 = 0o020;
const OTHERS: u32 = 0o002;

/// Whether somebody other than its owner and root can write it. A group is somebody other, unless it is
/// the owner's private one, such as Debian and Red Hat give to each user: with their umask of 002 all
/// that a user makes can be written by a group that has nobody else in it.
pub(crate) fn can_write(stat: &FileStat) -> bool {
    let mode = stat.st_mode;
    mode & OTHERS != 0 || (mode & GROUP != 0 && !is_private_group(stat.st_gid, stat.st_uid))
}

fn is_private_group(gid: u32, owner: u32) -> bool {
    let user = User::from_uid(Uid::from_raw(owner)).ok().flatten();
    let group = Group::from_gid(Gid::from_raw(gid)).ok().flatten();
    user.zip(group).is_some_and(|(user, group)| is_private(&group, &user))
}

/// It is the group of the owner's account, has its name, and lists nobody else. The name counts because
/// a list lacks those whose account has the group as its first: `users` looks empty and is everybody's.
fn is_private(group: &Group, owner: &User) -> bool {
    group.gid == owner.gid
        && group.name == owner.name
        && group.mem.iter().all(|member| *member == owner.name)
}

/// For messages.
pub fn user_name(uid: u32) -> String {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    user.map_or_else(|| format!("user {uid}"), |user| user.name)
}

pub(crate) fn group_name(gid: u32) -> String {
    let group = Group::from_gid(Gid::from_raw(gid)).ok().flatten();
    group.map_or_else(|| gid.to_string(), |group| group.name)
}

/// As whom this process runs.
pub(crate) fn my_name() -> String {
    user_name(geteuid().as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_private_to_the_user_of_its_name_alone() {
        let root = User::from_uid(Uid::from_raw(0)).unwrap().expect("every machine has one");
        let ada = User { name: "ada".into(), gid: Gid::from_raw(1000), ..root };
        let group = |name: &str, gid: u32, members: &[&str]| Group {
            name: name.into(),
            passwd: c"".into(),
            gid: Gid::from_raw(gid),
            mem: members.iter().map(|m| (*m).to_owned()).collect(),
        };
        assert!(is_private(&group("ada", 1000, &[]), &ada));
        assert!(is_private(&group("ada", 1000, &["ada"]), &ada));
        assert!(!is_private(&group("ada", 1000, &["ada", "bob"]), &ada));
        assert!(!is_private(&group("users", 1000, &[]), &ada), "everybody's first group");
        assert!(!is_private(&group("ada", 1001, &[]), &ada), "a group that is only called so");
    }
}
