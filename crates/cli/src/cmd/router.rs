//! `tutti router`: a router in the foreground.
//!
//! ```text
//! feed ── tables by long poll ──► watch channel ──► tutti_serve::Router ──► replicas
//! report ◄── once a second ─────────────────────────────┘
//! ```
//! What it knows is enough to go on without the controller, also over a restart: the table is in a file.

mod contact;
mod feed;
mod reports;
mod tls;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use tokio::sync::watch;
use tutti_files::TrustedDir;
use tutti_model::{Bytes, RouteTable, Span};
use tutti_serve::{Handle, Router, RouterConfig, StartError, table_file};
use tutti_wire::client::{Client, ClientError, ClusterRef, Endpoint};
use tutti_wire::pki;
use tutti_wire::token::BadToken;

use crate::fail::{Fail, chain};
use crate::{local, session};
use contact::Contact;
use feed::Feed;
use reports::Reports;

pub const DEFAULT_PORT: u16 = 8080;
/// For the last report to arrive.
const LAST_WORD: Duration = Duration::from_millis(500);
/// In a data dir.
const ADMIN_TOKEN: &str = "admin.token";
/// So many bodies of the size of `--peek` are kept at the same time at least.
const PEEKS: usize = 32;
/// 128 + SIGINT.
const INTERRUPTED: i32 = 130;

#[derive(clap::Args)]
#[command(
    after_help = "On the cluster's own machine nothing else is needed. Elsewhere it wants a token of its \
    own:\n  tutti token create --router\n  \
    TUTTI_TOKEN=… tutti router --cluster gpu.example.org:7171 --listen 0.0.0.0:443 --tls-cert c.pem --tls-key k.pem"
)]
pub struct RouterArgs {
    /// Address and port; port 0 picks a free one. Beyond loopback only TLS is spoken
    #[arg(long, value_name = "ADDR", default_value_t = usual())]
    listen: SocketAddr,
    /// Threads that serve requests [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// What it is called in lists [default: a random one]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Where the newest table is kept [default: a file in the data dir]
    #[arg(long, value_name = "PATH")]
    table_file: Option<PathBuf>,
    /// Certificate and those that lead to its CA, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Where people reach it, if not where it listens: https://gpu.example.org
    #[arg(long, value_name = "URL")]
    address: Option<String>,
    /// Speak plain HTTP beyond this machine too, for a network that nobody listens to
    #[arg(long, conflicts_with = "tls_cert")]
    insecure_plain: bool,
    /// Ask for a key on this machine too: behind a proxy here that does not say whom it speaks for
    #[arg(long)]
    local_needs_key: bool,
    /// A host name by which it is called without a key, beside localhost, this host's and that of --address;
    /// may be repeated
    #[arg(long = "public-name", value_name = "DNSNAME", value_parser = dns_name)]
    public_names: Vec<String>,
    /// Pages that may call it from a browser without a key: https://app.example.org; may be repeated
    #[arg(long = "allow-origin", value_name = "ORIGIN", value_parser = web_origin)]
    allow_origins: Vec<String>,
    /// How much of a body is read to find `model` in it, and kept for a second try
    #[arg(long, value_name = "SIZE", default_value = "1MiB")]
    peek: Bytes,
    /// How long requests may take when it is told to stop
    #[arg(long, value_name = "TIME", default_value = "30s")]
    drain: Span,
    /// Where to write its URL when it listens
    #[arg(long, value_name = "PATH", hide = true)]
    address_file: Option<PathBuf>,
}

fn usual() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT))
}

pub fn run(cluster: Option<&str>, args: RouterArgs) -> Result<ExitCode, Fail> {
    super::log_to_stderr("info");
    let config = config(&args)?;
    raise_file_limit();
    // Before any other thread exists, so that only this one takes them.
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
    signals.thread_block().map_err(|e| Fail::new(format!("can't take over Ctrl-C: {e}")))?;
    let client = Client::connect(&find(cluster)?);
    let file = args.table_file.clone().unwrap_or_else(|| table_path(&client));
    let contact = Arc::new(Contact::default());
    let (tables, taken) = watch::channel(Arc::new(kept(&file)));
    let feed = Feed { client: another(&client), tables, contact: contact.clone() };
    if feed.tables.borrow().version == 0 {
        first_table(&feed)?;
    }
    let known = feed.tables.borrow().clone();
    let tls = config.tls.is_some();
    let router = Router::start(RouterConfig { table_file: Some(file), ..config }, taken)
        .map_err(not_started)?;
    let url = match &args.address {
        Some(known) if known.contains("://") => known.trim_end_matches('/').to_owned(),
        Some(host) => format!("{}://{host}", scheme(tls)),
        None => url(router.addr, tls),
    };
    tell(&args, &url, &known)?;
    std::thread::spawn(move || feed.run());
    let (reporter, name, turn) = (router.reporter(), args.name.clone(), Default::default());
    let reports = Reports { client, contact, router: reporter, url, name, turn };
    let reports = Arc::new(reports);
    let reporter = reports.clone();
    std::thread::spawn(move || reporter.run());
    wait_for(&signals)?;
    stop(&args, router, &reports, signals)?;
    Ok(ExitCode::SUCCESS)
}

fn not_started(error: StartError) -> Fail {
    let fail = Fail::new(chain(&error));
    match error {
        StartError::Listen { address, .. } => fail.hint(format!(
            "--listen {} picks a free port; tutti up may have started a router there already \
             (its --no-router starts none)",
            SocketAddr::new(address.ip(), 0)
        )),
        _ => fail,
    }
}

/// Every client and every request takes a file descriptor, and the usual soft limit is 1024.
fn raise_file_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

/// Who knows nothing yet has nothing to do before this. A wrong token does not mend itself.
fn first_table(feed: &Feed) -> Result<(), Fail> {
    match feed.ask(false) {
        Ok(_) => Ok(()),
        Err(e) if e.is_unreachable() => {
            feed::away(&feed.contact, &e);
            Ok(())
        }
        Err(e) => Err(e.into()),
    }
}

fn another(client: &Client) -> Client {
    Client::connect(client.cluster())
}

fn config(args: &RouterArgs) -> Result<RouterConfig, Fail> {
    let files = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => {
            Some(tls::Files { certificate: certificate.clone(), key: key.clone() })
        }
        _ => None,
    };
    check_listen(args.listen, files.is_some(), args.insecure_plain)?;
    let mut config = RouterConfig::new(args.listen);
    config.tls = files.as_ref().map(tls::load).transpose()?;
    config.threads = args.threads.map_or(config.threads, usize::from);
    config.local_needs_key = args.local_needs_key;
    config.names = names(args);
    config.origins = args.allow_origins.clone();
    let limits = &mut config.limits;
    limits.peek = usize::try_from(args.peek.0).unwrap_or(usize::MAX);
    // Some fit at the same time, however large they are.
    limits.peek_total = limits.peek_total.max(limits.peek.saturating_mul(PEEKS));
    Ok(config)
}

/// What people may call it, as far as it was said.
fn names(args: &RouterArgs) -> Vec<String> {
    let host = local::hardware::host_name().ok();
    let reached = args.address.as_deref().map(host_of);
    args.public_names.iter().cloned().chain(host).chain(reached).collect()
}

/// Of a URL, or of a name with a port.
fn host_of(address: &str) -> String {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or(rest);
    authority.split(':').next().unwrap_or(authority).to_owned()
}

fn dns_name(text: &str) -> Result<String, String> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    match !text.is_empty() && text.chars().all(good) {
        true => Ok(text.to_owned()),
        false => Err("a host name has letters, digits, dots and hyphens, and no port".to_owned()),
    }
}

/// As a browser says it. One with a path would never match, nor would `*`.
fn web_origin(text: &str) -> Result<String, String> {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    match rest.is_some_and(|host| !host.is_empty() && !host.contains(['/', '*', '@', ' '])) {
        true => Ok(text.to_owned()),
        false => Err("an origin is a scheme and a host, with a port if it is not the usual one: \
             https://app.example.org or http://localhost:3000"
            .to_owned()),
    }
}

/// Keys would cross the network for everybody to read.
fn check_listen(listen: SocketAddr, tls: bool, insecure: bool) -> Result<(), Fail> {
    if listen.ip().is_loopback() || tls || insecure {
        return Ok(());
    }
    Err(Fail::usage(format!(
        "--listen {listen} is reached from other machines, and without TLS keys and prompts would \
         cross the network for everybody to read"
    ))
    .hint(
        "give --tls-cert and --tls-key, listen on 127.0.0.1 with --local-needs-key behind a proxy that \
         has them, or give --insecure-plain if nobody else is on this network",
    ))
}

/// Also a cluster whose controller is stopped: what is known of its replicas is in the table.
fn find(cluster: Option<&str>) -> Result<ClusterRef, Fail> {
    match session::find(cluster) {
        Ok(found) => Ok(found),
        Err(ClientError::NotStarted { path }) if path.join(ADMIN_TOKEN).exists() => stopped(&path),
        Err(e) => Err(e.into()),
    }
}

fn stopped(dir: &Path) -> Result<ClusterRef, Fail> {
    let path = dir.join(ADMIN_TOKEN);
    let unusable = |why: String| Fail::new(format!("can't use {}: {why}", path.display()));
    let text = TrustedDir::open(dir).and_then(|files| files.text(ADMIN_TOKEN));
    let text = text.map_err(|e| Fail::from(ClientError::from(e)))?;
    let token = text.trim().parse().map_err(|e: BadToken| unusable(e.to_string()))?;
    // Looked up in the directory when nobody answers here.
    let endpoint = Endpoint {
        host: Ipv4Addr::LOCALHOST.to_string(),
        port: tutti_controller::DEFAULT_PORT,
        tls: true,
    };
    Ok(ClusterRef { endpoint, token, data_dir: Some(dir.to_owned()) })
}

/// By the cluster's CA, so that nobody goes by another cluster's table.
fn table_path(client: &Client) -> PathBuf {
    let cluster = client.cluster();
    let dir = cluster.data_dir.clone().unwrap_or_else(session::data_dir);
    dir.join(format!("router-table-{}.json", cluster.token.ca))
}

/// What was known at the last stop. Without it the controller must be there.
fn kept(file: &Path) -> RouteTable {
    match table_file::load(file) {
        Ok(table) => table.unwrap_or_default(),
        Err(error) => {
            tracing::warn!(error = chain(&error), "starting without the table of the last time");
            RouteTable::default()
        }
    }
}

fn scheme(tls: bool) -> &'static str {
    if tls { "https" } else { "http" }
}

/// Where people reach it, unless somebody knows better.
fn url(listens: SocketAddr, tls: bool) -> String {
    let scheme = scheme(tls);
    let host = local::hardware::host_name().ok().filter(|_| listens.ip().is_unspecified());
    match host {
        Some(host) => format!("{scheme}://{host}:{}", listens.port()),
        None => format!("{scheme}://{listens}"),
    }
}

/// One line in the log, and its URL for those who wait for it.
fn tell(args: &RouterArgs, url: &str, known: &RouteTable) -> Result<(), Fail> {
    let names: Vec<&str> = known.endpoints.iter().map(|e| e.name.as_str()).collect();
    tracing::info!(%url, table = known.version, endpoints = names.join(","), "routing");
    let Some(file) = &args.address_file else { return Ok(()) };
    pki::replace_file(file, format!("{url}\n").as_bytes(), 0o644)
        .map_err(|e| Fail::new(format!("can't write {}: {}", file.display(), chain(&e))))
}

fn wait_for(signals: &SigSet) -> Result<(), Fail> {
    signals.wait().map(drop).map_err(|e| Fail::new(format!("can't wait for signals: {e}")))
}

/// No new requests; those under way are finished. A second signal leaves at once.
fn stop(
    args: &RouterArgs,
    router: Handle,
    reports: &Arc<Reports>,
    signals: SigSet,
) -> Result<(), Fail> {
    tracing::info!(limit = %args.drain, "stopping when the requests under way are answered");
    std::thread::spawn(move || {
        let _ = signals.wait();
        std::process::exit(INTERRUPTED);
    });
    if let Some(file) = &args.address_file {
        // A reader would take it for a live one; one that is left is replaced at the next start.
        let _ = std::fs::remove_file(file);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .map_err(|e| Fail::new(format!("can't wait for requests: {e}")))?;
    let cut = runtime.block_on(router.shutdown(Duration::from_millis(args.drain.0)));
    if cut > 0 {
        tracing::warn!(requests = cut, "cut off after the limit");
    }
    // Whoever hangs is not waited for.
    let _ = reports.end().recv_timeout(LAST_WORD);
    Ok(())
}

#[cfg(test)]
mod tests {
    use tutti_wire::token::{Kind, TokenText};

    use super::*;

    #[test]
    fn a_url_is_one_that_others_can_use() {
        assert_eq!(url("127.0.0.1:80".parse().unwrap(), false), "http://127.0.0.1:80");
        assert_eq!(url("[::1]:443".parse().unwrap(), true), "https://[::1]:443");
        let everywhere = url("0.0.0.0:8080".parse().unwrap(), true);
        assert!(everywhere.starts_with("https://") && !everywhere.contains("0.0.0.0"));
    }

    /// Whoever could put a link there could have the router speak with a token of its user's choice.
    #[test]
    fn the_token_of_a_stopped_cluster_is_no_link() {
        let dir = tempfile::tempdir().unwrap();
        let (token, elsewhere) = (dir.path().join(ADMIN_TOKEN), dir.path().join("secret"));
        let pin = "0123456789abcdef".parse().unwrap();
        let text = TokenText::mint(Kind::Access, pin).unwrap().to_string();
        std::fs::write(&token, &text).unwrap();
        assert_eq!(stopped(dir.path()).unwrap().token.to_string(), text);
        std::fs::rename(&token, &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &token).unwrap();
        let fail = stopped(dir.path()).unwrap_err();
        assert!(fail.message.contains("is a link"), "{fail}");
    }

    #[test]
    fn a_port_that_is_taken_is_told_with_a_way_out() {
        let source = std::io::Error::from(std::io::ErrorKind::AddrInUse);
        let fail = not_started(StartError::Listen { address: "[::1]:80".parse().unwrap(), source });
        assert!(fail.message.contains("can't listen on [::1]:80"), "{fail}");
        assert!(fail.hint.unwrap().contains("--listen [::1]:0 "));
    }

    #[test]
    fn names_and_origins_are_those_that_a_browser_would_say() {
        for (address, host) in [
            ("https://gpu.example.org", "gpu.example.org"),
            ("http://gpu:8080/", "gpu"),
            ("gpu:8080", "gpu"),
            ("gpu", "gpu"),
        ] {
            assert_eq!(host_of(address), host);
        }
        assert!(dns_name("gpu-1.example").is_ok() && dns_name("gpu:80").is_err());
        assert!(web_origin("http://localhost:3000").is_ok());
        for wrong in ["app.example", "*", "https://", "https://a/b", "https://*.a", "null"] {
            assert!(web_origin(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn plain_text_stays_on_this_machine() {
        let check = |listen: &str, tls, insecure| {
            check_listen(listen.parse().unwrap(), tls, insecure).map_err(|f| f.exit)
        };
        assert_eq!(check("127.0.0.1:8080", false, false), Ok(()));
        assert_eq!(check("[::1]:8080", false, false), Ok(()));
        assert_eq!(check("0.0.0.0:8080", false, false), Err(2));
        assert_eq!(check("0.0.0.0:8080", true, false), Ok(()));
        assert_eq!(check("10.0.0.1:8080", false, true), Ok(()));
    }
}
