//! `tutti token list`.

use tutti_model::{Grant, KeyLimits, Time};
use tutti_wire::api::TokenRow;

use super::table::{Grid, plain};
use super::{thousands, time};
use crate::style::Style;

pub fn table(tokens: &[TokenRow], now: Time, style: Style, width: Option<u16>) -> String {
    let mut grid = Grid::new(&["ID", "GRANTS", "BY", "EXPIRES"], style);
    for t in tokens {
        let expires = match t.expires_at {
            None => "never".to_owned(),
            Some(at) if at <= now => "expired".to_owned(),
            Some(at) => format!("in {}", time::short(at.since(now))),
        };
        grid.row([
            plain(t.id.clone()),
            plain(grant(&t.grant)),
            plain(t.created_by.clone()),
            plain(expires),
        ]);
    }
    grid.render(width)
}

pub fn grant(grant: &Grant) -> String {
    match grant {
        Grant::Access { user, role } => format!("{role} as {user}"),
        Grant::Join { node, uses } => {
            let node = node.as_ref().map_or_else(|| "any node".to_owned(), |n| format!("node {n}"));
            let uses = uses.map_or_else(String::new, |n| format!(", {n} left"));
            format!("join as {node}{uses}")
        }
        Grant::Serve { user, limits } => {
            let which = match limits.endpoints.is_empty() {
                true => "endpoints".to_owned(),
                false => limits.endpoints.join(", "),
            };
            format!("ask {which} as {user}{}", within(limits))
        }
        Grant::Router => "route requests".to_owned(),
    }
}

fn within(limits: &KeyLimits) -> String {
    let limits = [
        (limits.requests_per_minute.map(u64::from), "requests/min"),
        (limits.tokens_per_minute, "tokens/min"),
        (limits.concurrent.map(u64::from), "at once"),
    ];
    let told = limits.iter().filter_map(|(n, what)| Some(format!(", {} {what}", thousands((*n)?))));
    told.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tutti_model::Role;

    #[test]
    fn tokens_show_what_they_grant() {
        let token = |grant, expires_at| TokenRow {
            id: "k3jx09tq2m".into(),
            grant,
            created_at: Time(0),
            created_by: "admin".into(),
            expires_at,
        };
        let text = table(
            &[
                token(Grant::Access { user: "ada".into(), role: Role::User }, None),
                token(Grant::Join { node: None, uses: Some(2) }, Some(Time(90_000))),
            ],
            Time(0),
            Style::PLAIN,
            None,
        );
        assert_eq!(
            text,
            "ID          GRANTS                    BY     EXPIRES
k3jx09tq2m  user as ada               admin  never
k3jx09tq2m  join as any node, 2 left  admin  in 1m30s"
        );
    }

    #[test]
    fn keys_show_their_limits() {
        let key = |limits| grant(&Grant::Serve { user: "app".into(), limits });
        assert_eq!(key(KeyLimits::default()), "ask endpoints as app");
        let limits = KeyLimits {
            requests_per_minute: Some(60),
            tokens_per_minute: Some(100_000),
            concurrent: Some(4),
            endpoints: vec!["chat".into(), "embed".into()],
        };
        assert_eq!(
            key(limits),
            "ask chat, embed as app, 60 requests/min, 100,000 tokens/min, 4 at once"
        );
        assert_eq!(grant(&Grant::Router), "route requests");
    }
}
