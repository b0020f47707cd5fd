//! The way to the cluster that a command is for.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tutti_files::TrustedDir;
use tutti_model::{Span, Time};
use tutti_wire::client::{
    Client, ClientError, ClusterName, ClusterRef, Limits, Lookup, default_data_dir,
};
use tutti_wire::token::TokenText;

use crate::fail::{Fail, chain};
use crate::local::Remains;
use crate::show::time;

impl From<ClientError> for Fail {
    fn from(e: ClientError) -> Fail {
        if let ClientError::NotStarted { path } | ClientError::NoDataDir { path } = &e {
            return Remains::of(path).fail(path);
        }
        Fail { exit: u8::try_from(e.exit_code()).unwrap_or(1), hint: e.hint(), message: chain(&e) }
    }
}

/// What was to be made may be there although no answer came: `way` says how to find out, or how to
/// repeat it without making it twice.
pub fn perhaps_done(error: ClientError, way: impl FnOnce() -> String) -> Fail {
    let may_be_done = error.may_be_done();
    let fail = Fail::from(error);
    if !may_be_done {
        return fail;
    }
    let first = fail.hint.as_ref().map_or_else(String::new, |hint| format!("{hint}\n  "));
    let hint = format!("{first}{}", way());
    fail.hint(hint)
}

/// `$TUTTI_DATA_DIR`, else the machine's or the user's.
pub fn data_dir() -> PathBuf {
    let variable = std::env::var_os("TUTTI_DATA_DIR").filter(|v| !v.is_empty()).map(PathBuf::from);
    default_data_dir(variable.as_deref(), nix::unistd::geteuid().is_root(), home().as_deref())
}

fn home() -> Option<PathBuf> {
    std::env::var_os("HOME").filter(|v| !v.is_empty()).map(PathBuf::from)
}

/// The data dir on this machine that `verb` works on: the flag's, else that of the cluster that was
/// named, else the default one. What was named is used or refused; nothing else stands in for it.
pub fn local_dir(
    verb: &str,
    flag: Option<PathBuf>,
    cluster: Option<&str>,
) -> Result<PathBuf, Fail> {
    let variable = std::env::var("TUTTI_CLUSTER").ok();
    let is_flag = cluster.is_some() && cluster != variable.as_deref();
    local_dir_of(verb, flag, cluster, is_flag, data_dir)
}

fn local_dir_of(
    verb: &str,
    flag: Option<PathBuf>,
    cluster: Option<&str>,
    cluster_is_flag: bool,
    default: impl Fn() -> PathBuf,
) -> Result<PathBuf, Fail> {
    let by = if cluster_is_flag { "--cluster" } else { "TUTTI_CLUSTER" };
    match (flag, cluster) {
        (None, None) => Ok(default()),
        (Some(dir), Some(named)) if cluster_is_flag && dir.as_path() != Path::new(named) => {
            let dir = dir.display();
            Err(Fail::usage(format!("--data-dir {dir} and --cluster {named} are two clusters"))
                .hint("name one of them"))
        }
        (Some(dir), _) => Ok(dir),
        (None, Some(named)) => match ClusterName::of(named) {
            ClusterName::Dir(dir) => Ok(dir.to_owned()),
            ClusterName::Address(address) => Err(Fail::usage(format!(
                "{by} is {address}, an address: tutti {verb} needs a data dir on this machine"
            ))
            .hint("name it with --data-dir")),
        },
    }
}

/// How long an answer may take, by `--timeout` or `$TUTTI_TIMEOUT`.
static TIMEOUT: OnceLock<Duration> = OnceLock::new();
/// A view that paints the whole screen says itself that nobody answers.
static SILENT: AtomicBool = AtomicBool::new(false);

/// Once, before anybody is asked. The flag counts more than the variable.
pub fn set_timeout(flag: Option<Span>) -> Result<(), Fail> {
    let variable = std::env::var("TUTTI_TIMEOUT").ok().filter(|v| !v.is_empty());
    let span = match (flag, variable) {
        (Some(span), _) => span,
        (None, None) => return Ok(()),
        (None, Some(text)) => text.parse::<Span>().map_err(|e| {
            Fail::usage(format!("TUTTI_TIMEOUT: {e}")).hint("write a time such as 30s or 2m")
        })?,
    };
    if span == Span(0) {
        return Err(Fail::usage("a timeout of nothing: no answer comes that fast")
            .hint("write a time such as 30s or 2m"));
    }
    TIMEOUT.get_or_init(|| Duration::from_millis(span.0));
    Ok(())
}

/// From here on nobody is told on stderr that an answer takes long.
pub fn be_silent() {
    SILENT.store(true, Ordering::Relaxed);
}

fn limits() -> Limits {
    let usual = Limits::default();
    Limits { answer: TIMEOUT.get().copied().unwrap_or(usual.answer), notice: Some(takes_long) }
}

fn takes_long(endpoint: &str) {
    if !SILENT.load(Ordering::Relaxed) {
        crate::terminal::complain(&format!("tutti: waiting for the controller at {endpoint}"));
    }
}

/// A client that says when it waits, and not for ever.
pub fn connect(cluster: &ClusterRef) -> Client {
    Client::connect(cluster).with_limits(limits())
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
    Ok(connect(&find(cluster)?))
}

/// The cluster in this directory, with its admin token.
pub fn open_dir(dir: &Path) -> Result<Client, Fail> {
    Ok(connect(&ClusterRef::find(&Lookup {
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
    let text = TrustedDir::open(cluster.data_dir.as_ref()?).ok()?.text("admin.token").ok()?;
    let admin: TokenText = text.trim().parse().ok()?;
    if admin.id != cluster.token.id {
        return None;
    }
    nix::unistd::User::from_uid(nix::unistd::getuid()).ok()?.map(|u| u.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(
        flag: Option<&str>,
        cluster: Option<&str>,
        cluster_is_flag: bool,
    ) -> Result<String, Fail> {
        let default = || PathBuf::from("/default");
        local_dir_of("down", flag.map(PathBuf::from), cluster, cluster_is_flag, default)
            .map(|dir| dir.display().to_string())
    }

    #[test]
    fn a_named_cluster_is_used_or_refused_and_never_the_default_one() {
        assert_eq!(dir(None, None, false).unwrap(), "/default");
        // Whether or not anything is there.
        for named in ["/no/such/dir", "no-such-dir", "./a:1", "relative/dir"] {
            assert_eq!(dir(None, Some(named), false).unwrap(), named);
            assert_eq!(dir(None, Some(named), true).unwrap(), named);
        }
        for address in ["10.0.0.1:7171", "head:7171", "[::1]:7171", "https://head:7171"] {
            let fail = dir(None, Some(address), false).unwrap_err();
            assert_eq!(fail.exit, crate::fail::USAGE);
            let want = format!("TUTTI_CLUSTER is {address}, an address: ");
            assert!(fail.message.starts_with(&want), "{fail}");
            assert!(
                dir(None, Some(address), true).unwrap_err().message.starts_with("--cluster is ")
            );
        }
        // The flag says more than a variable, but not than another flag.
        assert_eq!(dir(Some("/d"), Some("10.0.0.1:7171"), false).unwrap(), "/d");
        assert_eq!(dir(Some("/d"), Some("/d"), true).unwrap(), "/d");
        assert!(dir(Some("/d"), Some("/e"), true).unwrap_err().message.contains("two clusters"));
    }
}
