//! Who asks: by key, from this machine, or nobody we know.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tutti_model::{ForeignCall, KeyRoute, ServerNames, Time, check_fetch_site};
use tutti_wire::guests::client_address;

use crate::answer::Answer;
use crate::http::{Known, RequestHead};
use crate::logic::{Limiter, Who};
use crate::routes::Routes;

/// A key as routers know it, with what it has used up here.
pub struct Key {
    /// Stands for it in queues; never 0, which is the line of everybody without a key.
    pub number: u32,
    hash: Option<blake3::Hash>,
    expires_at: Option<Time>,
    endpoints: Vec<String>,
    pub limiter: Arc<Mutex<Limiter>>,
}

impl Key {
    /// `old` is the same key in the table before: what was used up stays used up.
    pub fn new(route: &KeyRoute, old: Option<&Key>, number: u32, now: Instant) -> Key {
        let limiter = match old {
            Some(old) => {
                let mut limiter = old.limiter.lock().expect("no holder panics");
                limiter.update(&route.limits, now);
                drop(limiter);
                old.limiter.clone()
            }
            None => Arc::new(Mutex::new(Limiter::new(&route.limits, now))),
        };
        Key {
            number: old.map_or(number, |old| old.number),
            hash: blake3::Hash::from_hex(&route.hash).ok(),
            expires_at: route.expires_at,
            endpoints: route.limits.endpoints.clone(),
            limiter,
        }
    }

    pub fn good_for(&self, endpoint: &str) -> bool {
        self.endpoints.is_empty() || self.endpoints.iter().any(|name| name == endpoint)
    }
}

/// Whom a request comes from.
#[derive(Clone)]
pub struct Caller {
    pub key: Option<Arc<Key>>,
    /// On the router's own machine, which needs no key.
    pub local: bool,
    /// It has no key, and looks like a page of somebody else's in a browser that reaches this router: where
    /// the browser runs gives the page no rights.
    pub foreign: Option<ForeignCall>,
    pub peer: IpAddr,
}

impl Caller {
    /// With whose requests this one's are counted, and wait.
    pub fn who(&self) -> Who {
        match &self.key {
            Some(key) => Who::Key(key.number),
            None => Who::Address(client_address(self.peer)),
        }
    }

    /// May this one know of the endpoint at all?
    pub fn may_see(&self, name: &str, open: bool) -> bool {
        match &self.key {
            Some(key) => key.good_for(name),
            None => self.may_ask(open),
        }
    }

    /// May this one ask for anything? `open`: something there is for everybody.
    pub fn may_ask(&self, open: bool) -> bool {
        self.key.is_some() || self.foreign.is_none() && (self.local || open)
    }

    /// What is said to one who may not.
    pub fn turned_away(&self) -> Answer {
        let Some(foreign) = &self.foreign else {
            return unauthorized("a key is needed: send it as 'Authorization: Bearer tutti_s_…'");
        };
        let way_out = match foreign {
            ForeignCall::Host(_) => {
                "use localhost, an address or a name that it was given with --public-name"
            }
            ForeignCall::Origin(_) | ForeignCall::OtherPage => {
                "start the router with --allow-origin for pages that may"
            }
        };
        let message = format!("{foreign}: send a key, or {way_out}");
        Answer::error(403, "foreign_page", &message)
    }
}

/// A request that a key's limits let in, until it ends.
pub struct Admitted(Option<Arc<Key>>);

impl Admitted {
    /// Whoever has no key has no limits either.
    pub fn new(caller: &Caller, now: Instant) -> Result<Admitted, Answer> {
        if let Some(key) = &caller.key {
            let admitted = key.limiter.lock().expect("no holder panics").admit(now);
            admitted.map_err(|limited| {
                let answer = Answer::error(429, "rate_limit_exceeded", &limited.to_string());
                answer.retry_after(limited.retry_after)
            })?;
        }
        Ok(Admitted(caller.key.clone()))
    }

    /// Tokens of prompt and answer, when they are known.
    pub fn charge(&self, tokens: u64, now: Instant) {
        if let Some(key) = &self.0 {
            key.limiter.lock().unwrap_or_else(|e| e.into_inner()).charge(tokens, now);
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        if let Some(key) = &self.0 {
            key.limiter.lock().unwrap_or_else(|e| e.into_inner()).release();
        }
    }
}

/// A token's parts: `tutti_<kind>_<ca>_<id>_<secret>`.
struct Token<'a> {
    kind: &'a str,
    id: &'a str,
    secret: &'a str,
}

fn token(value: &[u8]) -> Option<Token<'_>> {
    let text = std::str::from_utf8(value).ok()?.trim();
    let mut parts = text.strip_prefix("tutti_")?.split('_');
    let token = Token {
        kind: parts.next()?,
        id: {
            parts.next();
            parts.next().unwrap_or("")
        },
        secret: parts.next().unwrap_or(""),
    };
    Some(if parts.next().is_some() { Token { secret: "", ..token } } else { token })
}

/// A token of this cluster's stands somewhere in a header's value. No replica must see it, whatever the header
/// is called: clients put keys into headers of their own, and join two values with a comma.
pub fn holds_token(value: &[u8]) -> bool {
    memchr::memmem::find_iter(value, b"tutti_").any(
        |at| matches!(&value[at + "tutti_".len()..], [kind, b'_', ..] if kind.is_ascii_lowercase()),
    )
}

/// How a request came here.
#[derive(Clone, Copy)]
pub struct Arrival<'a> {
    pub peer: IpAddr,
    /// Also from this machine nobody asks without a key.
    pub local_needs_key: bool,
    pub names: &'a ServerNames,
    /// Under TLS the client has seen that the name it called belongs to this router.
    pub tls: bool,
    /// Where the router listens.
    pub bound: IpAddr,
}

impl Arrival<'_> {
    /// A proxy on this machine speaks for others: what it passes on is not from here.
    fn is_local(self, head: &RequestHead) -> bool {
        let here = self.peer.to_canonical().is_loopback();
        here && !self.local_needs_key && head.fields.get(Known::Forwarded).is_none()
    }

    /// Looks for signs that a page of somebody else's had a browser send this.
    fn check_page(self, head: &RequestHead) -> Result<(), ForeignCall> {
        let text = |value| std::str::from_utf8(value).unwrap_or("?");
        let host = head.fields.get(Known::Host).map_or("", text);
        let origins: Vec<&str> = head.fields.all_named("origin").map(text).collect();
        let judged = if announces_key(head) { &[] } else { &origins[..] }.iter().copied();
        // Browsers always name a host; who says none is no browser.
        match host.is_empty() || self.tls {
            true => self.names.check_origins(host, judged, self.bound)?,
            false => self.names.check(host, judged, self.bound)?,
        }
        match head.fields.named("sec-fetch-site").map(text) {
            Some(site) if origins.is_empty() && !is_navigation(head) => check_fetch_site(site),
            _ => Ok(()),
        }
    }
}

/// A browser asks whether a page may send a request with a key: the key itself comes with the request.
fn announces_key(head: &RequestHead) -> bool {
    let is_key = |name: &[u8]| {
        let name = name.trim_ascii();
        name.eq_ignore_ascii_case(b"authorization") || name.eq_ignore_ascii_case(b"x-api-key")
    };
    head.method() == "OPTIONS"
        && head
            .fields
            .all_named("access-control-request-headers")
            .any(|names| names.split(|b| *b == b',').any(is_key))
}

/// A person follows a link: what comes is shown to them, and the page with the link learns nothing.
fn is_navigation(head: &RequestHead) -> bool {
    let says = |name, value: &[u8]| head.fields.named(name) == Some(value);
    head.method() == "GET"
        && says("sec-fetch-mode", b"navigate")
        && says("sec-fetch-dest", b"document")
}

/// Finds out who asks. An error is the answer to give.
pub fn identify(
    head: &RequestHead,
    arrival: Arrival<'_>,
    routes: &Routes,
    now: impl FnOnce() -> Time,
) -> Result<Caller, Answer> {
    let bearer = head.fields.get(Known::Authorization).and_then(|value| {
        let (scheme, rest) = value.split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(rest)
    });
    let shown = [bearer, head.fields.get(Known::ApiKey)].into_iter().flatten().find_map(token);
    let Some(token) = shown else {
        let foreign = arrival.check_page(head).err();
        let local = foreign.is_none() && arrival.is_local(head);
        return Ok(Caller { key: None, local, foreign, peer: arrival.peer });
    };
    if token.kind != "s" {
        return Err(unauthorized(
            "this token is not for endpoints: those that are start with tutti_s_",
        ));
    }
    let key = routes.keys.get(token.id).filter(|key| {
        let shown = blake3::hash(token.secret.as_bytes());
        // `blake3::Hash` compares in constant time.
        key.hash.is_some_and(|hash| hash == shown)
    });
    let Some(key) = key else {
        return Err(unauthorized("this key is not known here: ask for a new one"));
    };
    if key.expires_at.is_some_and(|end| end <= now()) {
        return Err(unauthorized("this key has expired: ask for a new one"));
    }
    let local = arrival.is_local(head);
    Ok(Caller { key: Some(key.clone()), local, foreign: None, peer: arrival.peer })
}

pub fn unauthorized(message: &str) -> Answer {
    Answer::error(401, "invalid_api_key", message)
}

/// The clock of a key's end.
pub fn wall_clock() -> Time {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Time(since.map_or(0, |since| since.as_millis() as u64))
}

#[cfg(test)]
mod tests {
    use tutti_model::{KeyLimits, RouteTable};

    use super::*;

    const SECRET: &str = "9c419c41";

    fn routes(expires_at: Option<Time>) -> Routes {
        let key = KeyRoute {
            id: "k3".to_owned(),
            hash: blake3::hash(SECRET.as_bytes()).to_hex().to_string(),
            user: "ada".to_owned(),
            expires_at,
            limits: KeyLimits::default(),
        };
        let table = RouteTable { version: 1, keys: vec![key], ..RouteTable::default() };
        Routes::new(&table, &Routes::default(), Instant::now())
    }

    fn head(text: &str) -> RequestHead {
        let mut head = RequestHead::default();
        head.read(text.as_bytes()).unwrap().unwrap();
        head
    }

    fn names() -> ServerNames {
        let mut names = ServerNames::with_any_port(["models.example".to_owned()]);
        names.allow_origin("https://app.example");
        names
    }

    fn arrival<'a>(peer: &str, names: &'a ServerNames) -> Arrival<'a> {
        let (peer, bound) = (peer.parse().unwrap(), "127.0.0.1".parse().unwrap());
        Arrival { peer, local_needs_key: false, names, tls: false, bound }
    }

    fn ask(lines: &str, peer: &str, routes: &Routes) -> Result<Caller, u16> {
        let head = head(&format!("GET / HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n"));
        identify(&head, arrival(peer, &names()), routes, || Time(1000)).map_err(|a| a.status)
    }

    #[test]
    fn behind_a_proxy_on_this_machine_everybody_needs_a_key() {
        let routes = routes(None);
        for line in [
            "Forwarded: for=1",
            "x-forwarded-for: 1",
            "VIA: 1.1 a",
            "X-Real-IP: 1",
            "x-tutti-router: 1",
        ] {
            let caller = ask(&format!("{line}\r\n"), "127.0.0.1", &routes).unwrap();
            assert!(!caller.local && !caller.may_see("m", false), "{line}");
        }
        let head = head("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let names = names();
        let arrival = Arrival { local_needs_key: true, ..arrival("::1", &names) };
        assert!(!identify(&head, arrival, &routes, || Time(0)).unwrap().local);
    }

    #[test]
    fn a_key_is_known_in_both_headers() {
        let routes = routes(None);
        for lines in [
            "Authorization: bearer tutti_s_ca_k3_9c419c41\r\n",
            "X-API-Key: tutti_s_ca_k3_9c419c41\r\n",
            "Authorization: Bearer sk-theirs\r\nX-API-Key: tutti_s_ca_k3_9c419c41\r\n",
        ] {
            assert!(ask(lines, "10.0.0.1", &routes).unwrap().key.is_some(), "{lines}");
        }
    }

    #[test]
    fn a_token_is_found_wherever_it_stands() {
        for value in [
            "Bearer tutti_s_ca_k3_9c41",
            "bearer   tutti_u_ca_k3_9c41",
            "tutti_j_ca_k3_9c41",
            "Bearer sk-theirs, Bearer tutti_s_ca_k3_9c41",
            "session=1; key=tutti_s_ca_k3_9c41",
            "my_tutti_tutti_s_ca",
        ] {
            assert!(holds_token(value.as_bytes()), "{value}");
        }
        for value in ["Bearer sk-theirs", "tutti_", "tutti_s", "tutti/0.4", "x_tutti_ss_", ""] {
            assert!(!holds_token(value.as_bytes()), "{value}");
        }
    }

    /// As `(method, Host and other lines, of this machine, what is wrong)`.
    #[test]
    fn a_page_gains_nothing_from_where_its_browser_runs() {
        let routes = routes(None);
        let preflight = "Origin: https://evil.example\r\nSec-Fetch-Site: cross-site\r\n\
            Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: content-type";
        let linked = "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest";
        for (method, lines, good) in [
            ("GET", "Host: localhost:9000".to_owned(), true),
            ("GET", "Host: 127.0.0.1:8080".to_owned(), true),
            ("GET", "Host: Models.Example".to_owned(), true),
            ("POST", "Host: [::1]:8080\r\nOrigin: http://[::1]:8080".to_owned(), true),
            ("POST", "Host: localhost\r\nOrigin: https://app.example".to_owned(), true),
            ("GET", "Host: localhost\r\nSec-Fetch-Site: none".to_owned(), true),
            ("GET", format!("Host: localhost\r\n{linked}: document"), true),
            ("OPTIONS", format!("Host: localhost\r\n{preflight}, Authorization"), true),
            ("OPTIONS", format!("Host: localhost\r\n{preflight},x-api-key"), true),
            // A name that was made to point here.
            ("GET", "Host: evil.example:8080".to_owned(), false),
            ("POST", "Host: evil.example\r\nOrigin: http://evil.example".to_owned(), false),
            ("OPTIONS", format!("Host: evil.example\r\n{preflight}, Authorization"), false),
            // A form or a script on a page of somebody else's, also of this machine.
            ("POST", "Host: localhost\r\nOrigin: https://evil.example".to_owned(), false),
            ("POST", "Host: localhost:80\r\nOrigin: http://localhost:3000".to_owned(), false),
            ("POST", "Host: localhost\r\nOrigin: null".to_owned(), false),
            ("OPTIONS", format!("Host: localhost\r\n{preflight}"), false),
            ("POST", format!("Host: localhost\r\n{preflight}, Authorization"), false),
            // A picture, a frame.
            ("GET", "Host: localhost\r\nSec-Fetch-Site: cross-site".to_owned(), false),
            ("GET", "Host: localhost\r\nSec-Fetch-Site: same-site".to_owned(), false),
            ("GET", format!("Host: localhost\r\n{linked}: iframe"), false),
            ("POST", format!("Host: localhost\r\n{linked}: document"), false),
        ] {
            let request =
                |more: &str| head(&format!("{method} / HTTP/1.1\r\n{lines}\r\n{more}\r\n"));
            let names = names();
            let from_here = arrival("127.0.0.1", &names);
            let caller = identify(&request(""), from_here, &routes, || Time(0)).unwrap();
            assert_eq!((caller.local, caller.may_ask(true)), (good, good), "{method} {lines}");
            assert_eq!(caller.turned_away().status, if good { 401 } else { 403 });
            let key = "Authorization: Bearer tutti_s_ca_k3_9c419c41\r\n";
            let caller = identify(&request(key), from_here, &routes, || Time(0)).unwrap();
            assert!(caller.may_ask(false), "with a key it does not matter: {method} {lines}");
        }
    }

    #[test]
    fn who_says_no_name_is_no_browser_and_under_tls_it_is_proven() {
        let (routes, names) = (routes(None), names());
        let local = |text: &str, tls| {
            let arrival = Arrival { tls, ..arrival("127.0.0.1", &names) };
            identify(&head(text), arrival, &routes, || Time(0)).unwrap().local
        };
        assert!(local("GET / HTTP/1.0\r\n\r\n", false));
        assert!(!local("GET / HTTP/1.0\r\nOrigin: http://\r\n\r\n", false));
        let named = "GET / HTTP/1.1\r\nHost: any.example\r\n";
        assert!(local(&format!("{named}\r\n"), true) && !local(&format!("{named}\r\n"), false));
        assert!(!local(&format!("{named}Origin: https://evil.example\r\n\r\n"), true));
    }

    #[test]
    fn wrong_expired_and_foreign_tokens_are_refused_everywhere() {
        let routes = routes(Some(Time(1000)));
        for token in [
            "tutti_s_ca_k3_9c419c41",
            "tutti_s_ca_k3_9c419c42",
            "tutti_s_ca_k3_9c419c41_x",
            "tutti_s_ca_k4_9c419c41",
            "tutti_s_ca_k3",
            "tutti_u_ca_k3_9c419c41",
            "tutti_j_",
        ] {
            for peer in ["127.0.0.1", "10.0.0.1"] {
                let line = format!("Authorization: Bearer {token}\r\n");
                assert_eq!(ask(&line, peer, &routes).err(), Some(401), "{token} from {peer}");
            }
        }
    }

    #[test]
    fn without_a_key_only_this_machine_is_trusted() {
        let routes = routes(None);
        for (peer, local) in [
            ("127.0.0.1", true),
            ("127.8.8.8", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("10.0.0.1", false),
            ("::ffff:10.0.0.1", false),
        ] {
            let caller = ask("Authorization: Bearer sk-theirs\r\n", peer, &routes).unwrap();
            assert_eq!(caller.local, local, "{peer}");
            assert_eq!(caller.may_see("m", false), local);
            assert!(caller.may_see("m", true), "an open endpoint is for everybody");
        }
    }
}
