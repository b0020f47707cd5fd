//! Sessions of browsers. A session stands for a token: it is good for as long as that is, and ends
//! before when somebody logs out. The file has no secret that opens anything.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use http::header::{COOKIE, ORIGIN};
use http::{HeaderMap, Method};
use serde::{Deserialize, Serialize};
use tutti_model::{Span, Time};
use tutti_wire::pki::replace_file;

use crate::api::auth::by_session;
use crate::api::{App, Problem};
use crate::clock::now;

const FILE: &str = "web.sessions";
/// How long a browser stays logged in.
pub const LASTS: Span = Span::secs(30 * 24 * 3600);
/// Beyond it the oldest ends: of all, and of those of one token, so that nobody can end others'.
const SESSIONS_MAX: usize = 10_000;
const TOKEN_SESSIONS_MAX: usize = 20;
/// How soon a stream ends after its session or its token did.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Every change from a page carries this.
pub const CSRF_HEADER: &str = "x-tutti-csrf";

const CSRF_PURPOSE: &str = "tutti 2026 web csrf";

/// Sessions by the hash of their secret.
pub struct Sessions {
    cookie: String,
    path: PathBuf,
    known: Mutex<BTreeMap<String, Kept>>,
}

/// As it is written down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    /// The token's public part, and its hash: another token of the same name is another one.
    token: String,
    hash: String,
    made: Time,
}

/// A session that is open.
#[derive(Clone, Debug)]
pub struct Session {
    pub token: String,
    pub hash: String,
    /// What a page must show to change something.
    pub csrf: String,
    /// Its own name, for whoever ends it.
    pub id: String,
}

impl Session {
    /// Whether a request with this session's cookie comes from a page of ours: the cookie alone
    /// proves nothing, since browsers send it along.
    pub fn allows(&self, method: &Method, headers: &HeaderMap) -> Result<(), Problem> {
        if let Some(site) = headers.get("sec-fetch-site").and_then(|v| v.to_str().ok())
            && tutti_model::check_fetch_site(site).is_err()
        {
            return Err(Problem::denied("a page from elsewhere may not use this session"));
        }
        if matches!(*method, Method::GET | Method::HEAD) {
            return Ok(());
        }
        if !headers.contains_key(ORIGIN) {
            return Err(Problem::denied("a change from a page needs an Origin header"));
        }
        let shown = headers.get(CSRF_HEADER).and_then(|v| v.to_str().ok()).unwrap_or_default();
        self.check(shown)
    }

    /// The word that only our own pages know.
    pub fn check(&self, csrf: &str) -> Result<(), Problem> {
        // Hashes compare in constant time.
        if blake3::hash(csrf.as_bytes()) == blake3::hash(self.csrf.as_bytes()) {
            return Ok(());
        }
        Err(Problem::denied("the page's proof is missing or old").hint("load the page again"))
    }

    /// Resolves when it has ended or its token is no longer good: a stream is let in once and would
    /// go on for ever.
    pub async fn ended(&self, app: &App) {
        let mut look = tokio::time::interval(LOOK_EVERY);
        loop {
            look.tick().await;
            let open = app.dash.sessions.is_open(&self.id, now());
            if !open || by_session(app, self, now()).is_err() {
                return;
            }
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the system gives no random bytes")]
pub struct NoRandomness(#[source] getrandom::Error);

impl Sessions {
    /// What was open before is open again.
    pub fn open(data_dir: &Path, port: u16) -> Sessions {
        let path = data_dir.join(FILE);
        let known = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|error| {
                tracing::warn!(%error, path = %path.display(), "unreadable: everybody logs in again");
                BTreeMap::new()
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "unreadable: everybody logs in again");
                BTreeMap::new()
            }
        };
        Sessions { cookie: format!("tutti_{port}"), path, known: Mutex::new(known) }
    }

    /// A new session for this token; gives the cookie's value.
    pub fn begin(&self, token: String, hash: String, now: Time) -> Result<String, NoRandomness> {
        let mut random = [0; 32];
        getrandom::fill(&mut random).map_err(NoRandomness)?;
        let secret = blake3::Hash::from_bytes(random).to_hex().to_string();
        let mut known = self.lock();
        known.retain(|_, kept| kept.is_open(now));
        make_room(&mut known, TOKEN_SESSIONS_MAX, |kept| kept.token == token);
        make_room(&mut known, SESSIONS_MAX, |_| true);
        known.insert(id_of(&secret), Kept { token, hash, made: now });
        self.write(&known);
        Ok(secret)
    }

    pub fn end(&self, id: &str) {
        let mut known = self.lock();
        if known.remove(id).is_some() {
            self.write(&known);
        }
    }

    /// Whether a session found earlier is still open.
    fn is_open(&self, id: &str, now: Time) -> bool {
        self.lock().get(id).is_some_and(|kept| kept.is_open(now))
    }

    /// The session of the cookie, whether or not its token is still good.
    pub fn find(&self, headers: &HeaderMap, now: Time) -> Option<Session> {
        let secret = self.secret(headers)?;
        let id = id_of(secret);
        let kept = self.lock().get(&id).filter(|kept| kept.is_open(now)).cloned()?;
        let csrf = blake3::Hash::from_bytes(blake3::derive_key(CSRF_PURPOSE, secret.as_bytes()));
        let csrf = csrf.to_hex().to_string();
        Some(Session { token: kept.token, hash: kept.hash, csrf, id })
    }

    fn secret<'h>(&self, headers: &'h HeaderMap) -> Option<&'h str> {
        let lines = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs =
            lines.flat_map(|line| line.split(';')).filter_map(|p| p.trim().split_once('='));
        pairs.find(|(name, _)| *name == self.cookie).map(|(_, value)| value)
    }

    /// `Set-Cookie` for a session, or for its end.
    pub fn set_cookie(&self, secret: Option<&str>, tls: bool) -> String {
        let (value, age) = secret.map_or(("", 0), |secret| (secret, LASTS.0 / 1000));
        let secure = if tls { "; Secure" } else { "" };
        let name = &self.cookie;
        format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age}{secure}")
    }

    fn write(&self, known: &BTreeMap<String, Kept>) {
        let bytes = serde_json::to_vec(known).expect("our own types become JSON");
        if let Err(error) = replace_file(&self.path, &bytes, 0o600) {
            tracing::warn!(%error, "sessions are not kept: after a restart everybody logs in again");
        }
    }

    // A panic elsewhere leaves the map whole.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Kept>> {
        crate::lock::lock(&self.known)
    }
}

impl Kept {
    fn is_open(&self, now: Time) -> bool {
        self.made.plus(LASTS) > now
    }
}

fn id_of(secret: &str) -> String {
    blake3::hash(secret.as_bytes()).to_hex().to_string()
}

/// Ends the oldest of these where one more would be too many.
fn make_room(known: &mut BTreeMap<String, Kept>, max: usize, of: impl Fn(&Kept) -> bool) {
    let these = known.iter().filter(|(_, kept)| of(kept));
    let mut these: Vec<(Time, String)> = these.map(|(id, kept)| (kept.made, id.clone())).collect();
    let surplus = (these.len() + 1).saturating_sub(max);
    these.sort_unstable();
    for (_, id) in these.into_iter().take(surplus) {
        known.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_cookie(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(COOKIE, format!("other=1; tutti_7171={value}; x=y").parse().unwrap());
        headers
    }

    #[test]
    fn a_session_outlives_the_controller_and_ends_when_told() {
        let dir = tempfile::tempdir().unwrap();
        let sessions = Sessions::open(dir.path(), 7171);
        let secret = sessions.begin("tok".into(), "hash".into(), Time(1000)).unwrap();
        let found =
            Sessions::open(dir.path(), 7171).find(&with_cookie(&secret), Time(2000)).unwrap();
        assert_eq!((found.token.as_str(), found.hash.as_str()), ("tok", "hash"));
        assert!(sessions.find(&with_cookie("guess"), Time(2000)).is_none());
        assert!(sessions.find(&with_cookie(&secret), Time(1000).plus(LASTS)).is_none(), "too old");
        assert!(Sessions::open(dir.path(), 7172).find(&with_cookie(&secret), Time(2000)).is_none());
        sessions.end(&found.id);
        assert!(sessions.find(&with_cookie(&secret), Time(2000)).is_none());
        assert!(Sessions::open(dir.path(), 7171).find(&with_cookie(&secret), Time(2000)).is_none());
    }

    #[test]
    fn a_token_has_so_many_sessions_and_ends_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let sessions = Sessions::open(dir.path(), 7171);
        let begin =
            |token: &str, at| sessions.begin(token.into(), "hash".into(), Time(at)).unwrap();
        let other = begin("other", 1);
        let own: Vec<String> =
            (0..=TOKEN_SESSIONS_MAX as u64).map(|n| begin("tok", 1000 + n)).collect();
        let open = |secret: &str| sessions.find(&with_cookie(secret), Time(2000)).is_some();
        assert!(!open(&own[0]), "the oldest has ended");
        assert!(own[1..].iter().all(|secret| open(secret)) && open(&other));
    }

    #[test]
    fn the_file_opens_nothing_and_is_its_owners() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let sessions = Sessions::open(dir.path(), 7171);
        let secret = sessions.begin("tok".into(), "hash".into(), Time(1000)).unwrap();
        let path = dir.path().join(FILE);
        assert!(!std::fs::read_to_string(&path).unwrap().contains(&secret));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_cookie_alone_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let sessions = Sessions::open(dir.path(), 7171);
        let secret = sessions.begin("tok".into(), "hash".into(), Time(1000)).unwrap();
        let session = sessions.find(&with_cookie(&secret), Time(1000)).unwrap();
        let allows = |method: Method, pairs: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.insert(*name, value.parse().unwrap());
            }
            session.allows(&method, &headers).is_ok()
        };
        let (origin, csrf) = (("origin", "http://localhost:7171"), session.csrf.as_str());
        assert!(allows(Method::GET, &[]));
        assert!(!allows(Method::GET, &[("sec-fetch-site", "same-site")]));
        assert!(!allows(Method::POST, &[]));
        assert!(!allows(Method::POST, &[origin]));
        assert!(!allows(Method::POST, &[(CSRF_HEADER, csrf)]));
        assert!(!allows(Method::DELETE, &[origin, (CSRF_HEADER, "guess")]));
        assert!(allows(Method::POST, &[origin, (CSRF_HEADER, csrf)]));
        assert_ne!(csrf, secret);
    }

    #[test]
    fn cookies_are_for_http_and_this_site_alone() {
        let dir = tempfile::tempdir().unwrap();
        let sessions = Sessions::open(dir.path(), 7171);
        let cookie = sessions.set_cookie(Some("abc"), true);
        assert!(cookie.starts_with("tutti_7171=abc; Path=/; HttpOnly; SameSite=Strict; Max-Age="));
        assert!(cookie.ends_with("; Secure"));
        assert!(sessions.set_cookie(None, false).ends_with("Max-Age=0"));
    }
}
