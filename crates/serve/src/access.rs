//! Who asks: by key, from this machine, or nobody we know.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tutti_model::{KeyRoute, Time};

use crate::answer::Answer;
use crate::http::{Known, RequestHead};
use crate::logic::Limiter;
use crate::routes::Routes;

/// A key as routers know it, with what it has used up here.
pub struct Key {
    /// Stands for it in queues; never 0, which stands for everybody without a key.
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
    /// Headers that hold a key of ours, which no replica must see.
    pub hidden: Hidden,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hidden {
    authorization: bool,
    api_key: bool,
}

impl Hidden {
    pub fn hides(self, known: Known) -> bool {
        match known {
            Known::Authorization => self.authorization,
            Known::ApiKey => self.api_key,
            _ => false,
        }
    }
}

impl Caller {
    /// May this one know of the endpoint at all?
    pub fn may_see(&self, name: &str, open: bool) -> bool {
        match &self.key {
            Some(key) => key.good_for(name),
            None => self.local || open,
        }
    }

    pub fn number(&self) -> u32 {
        self.key.as_ref().map_or(0, |key| key.number)
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

/// Where a request comes from.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    pub peer: IpAddr,
    /// Also from this machine nobody asks without a key.
    pub local_needs_key: bool,
}

impl Origin {
    /// A proxy on this machine speaks for others: what it passes on is not from here.
    fn is_local(self, head: &RequestHead) -> bool {
        let here = self.peer.to_canonical().is_loopback();
        here && !self.local_needs_key && head.fields.get(Known::Forwarded).is_none()
    }
}

/// Finds out who asks. An error is the answer to give.
pub fn identify(
    head: &RequestHead,
    origin: Origin,
    routes: &Routes,
    now: impl FnOnce() -> Time,
) -> Result<Caller, Answer> {
    let mut caller = Caller { key: None, local: origin.is_local(head), hidden: Hidden::default() };
    let mut shown = None;
    let bearer = head.fields.get(Known::Authorization).and_then(|value| {
        let (scheme, rest) = value.split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(rest)
    });
    let values = [(Known::Authorization, bearer), (Known::ApiKey, head.fields.get(Known::ApiKey))];
    for (known, value) in values {
        if let Some(token) = value.and_then(token) {
            caller.hidden.authorization |= known == Known::Authorization;
            caller.hidden.api_key |= known == Known::ApiKey;
            shown = shown.or(Some(token));
        }
    }
    let Some(token) = shown else { return Ok(caller) };
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
    caller.key = Some(key.clone());
    Ok(caller)
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

    fn ask(lines: &str, peer: &str, routes: &Routes) -> Result<Caller, u16> {
        let mut head = RequestHead::default();
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        head.read(text.as_bytes()).unwrap().unwrap();
        let origin = Origin { peer: peer.parse().unwrap(), local_needs_key: false };
        identify(&head, origin, routes, || Time(1000)).map_err(|answer| answer.status)
    }

    #[test]
    fn behind_a_proxy_on_this_machine_everybody_needs_a_key() {
        let routes = routes(None);
        for line in ["Forwarded: for=1", "x-forwarded-for: 1", "VIA: 1.1 a", "X-Real-IP: 1"] {
            let caller = ask(&format!("{line}\r\n"), "127.0.0.1", &routes).unwrap();
            assert!(!caller.local && !caller.may_see("m", false), "{line}");
        }
        let mut head = RequestHead::default();
        head.read(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap().unwrap();
        let origin = Origin { peer: "::1".parse().unwrap(), local_needs_key: true };
        assert!(!identify(&head, origin, &routes, || Time(0)).unwrap().local);
    }

    #[test]
    fn a_key_is_known_in_both_headers_and_hidden_where_it_stood() {
        let routes = routes(None);
        for (lines, hidden) in [
            ("Authorization: bearer tutti_s_ca_k3_9c419c41\r\n", Known::Authorization),
            ("X-API-Key: tutti_s_ca_k3_9c419c41\r\n", Known::ApiKey),
        ] {
            let caller = ask(lines, "10.0.0.1", &routes).unwrap();
            assert!(caller.key.is_some() && caller.hidden.hides(hidden), "{lines}");
        }
        let both = "Authorization: Bearer sk-theirs\r\nX-API-Key: tutti_s_ca_k3_9c419c41\r\n";
        let caller = ask(both, "10.0.0.1", &routes).unwrap();
        assert!(!caller.hidden.hides(Known::Authorization), "theirs is passed on");
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
