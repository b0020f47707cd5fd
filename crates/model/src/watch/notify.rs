//! Who is told of alerts: `[watch.notify]` of the policy file.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Alert, AskedBy};

/// Who is told of alerts besides those who look.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Notify {
    /// Every alert that begins or ends is posted here, as JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<String>,
    /// A program in the controller's `hooks` directory; it gets the same JSON on its standard input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// To whom mail goes: the program `email` in the `hooks` directory gets the message.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub email: Vec<String>,
    /// Of alerts that jobs asked for in their own files as well. Anybody can write such a file.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub of_jobs: bool,
}

const EMAILS_MAX: usize = 100;
const TEXT_MAX: usize = 2000;
/// Stands for what is not shown. No address has it in it, so one that was read so can't be set.
const HIDDEN: &str = "…";

impl Notify {
    pub fn is_default(&self) -> bool {
        *self == Notify::default()
    }

    /// Whether anybody wants to be told of this one.
    pub fn wants(&self, alert: &Alert) -> bool {
        self.of_jobs || alert.asked_by == AskedBy::Policy
    }

    /// As those see it who may not change it: who knows the whole address of a webhook can post there.
    pub fn without_secrets(&self) -> Notify {
        Notify { webhook: self.webhook.as_deref().map(only_host), ..self.clone() }
    }

    pub(super) fn problems(&self) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        let plain = |text: &str| {
            text.len() <= TEXT_MAX && !text.chars().any(|c| c.is_control() || c.is_whitespace())
        };
        if let Some(problem) = self.webhook.as_deref().and_then(bad_address) {
            found.push(("webhook", problem));
        }
        let is_name = |name: &str| {
            let sane = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            !name.is_empty()
                && name.len() <= 100
                && !name.starts_with('.')
                && name.chars().all(sane)
        };
        if let Some(name) = self.command.as_deref().filter(|name| !is_name(name)) {
            let problem = format!(
                "'{name}' is no name of a program: put it into the controller's hooks directory \
                 and name it alone, without a path or arguments"
            );
            found.push(("command", problem));
        }
        for who in self.email.iter().filter(|who| !who.contains('@') || !plain(who)) {
            found.push(("email", format!("'{who}' is no mail address")));
        }
        if self.email.len() > EMAILS_MAX {
            found.push(("email", format!("at most {EMAILS_MAX}, these are {}", self.email.len())));
        }
        found
    }
}

/// Scheme, host with port, and the rest, which is empty or begins with `/`, `?` or `#`. None: it is no
/// address of the web.
fn address(url: &str) -> Option<(&str, &str, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let (host, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let known = matches!(scheme, "http" | "https");
    (known && is_host(host)).then_some((scheme, host, path))
}

/// A name or an address, and a port if it is not the usual one.
fn is_host(text: &str) -> bool {
    let is_port = |port: &str| {
        port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0)
    };
    if let Some(rest) = text.strip_prefix('[') {
        let Some((ip, port)) = rest.split_once(']') else { return false };
        let port_is_good = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
        return port_is_good && ip.parse::<std::net::Ipv6Addr>().is_ok();
    }
    let (name, port) = text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port)));
    let sane = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !name.is_empty() && name.chars().all(sane) && port.is_none_or(is_port)
}

/// An address without what follows the host, which is often a secret: `https://example.org/…`.
pub fn only_host(url: &str) -> String {
    match address(url) {
        Some((scheme, host, "" | "/")) => format!("{scheme}://{host}/"),
        Some((scheme, host, _)) => format!("{scheme}://{host}/{HIDDEN}"),
        None => HIDDEN.to_owned(),
    }
}

/// What is wrong with the address of a webhook, without repeating what may be a secret.
fn bad_address(url: &str) -> Option<String> {
    let form = "write http://HOST/PATH or https://HOST/PATH";
    if url.contains(HIDDEN) {
        return Some(format!("what follows the host was hidden where this was read: {form}"));
    }
    let place = url.split_once("://").map_or(url, |(_, rest)| rest).split(['/', '?', '#']).next();
    if place.is_some_and(|place| place.contains('@')) {
        return Some(format!("may not have a user or a password before its host: {form}"));
    }
    let Some((_, _, path)) = address(url) else {
        return Some(format!("is no address: {form}"));
    };
    let sane = |c: char| c.is_ascii_alphanumeric() || "-._~:/?#[]@!$&'()*+,;=%".contains(c);
    if let Some(c) = path.chars().find(|c| !sane(*c)) {
        return Some(format!("is no address: {c:?} must be written as %XX"));
    }
    (url.len() > TEXT_MAX).then(|| format!("is longer than {TEXT_MAX} bytes"))
}

#[cfg(test)]
mod tests;
