//! `tutti token list`.

use tutti_model::{Grant, Time};
use tutti_wire::api::TokenRow;

use super::table::{Grid, plain};
use super::time;
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
        Grant::Serve { user, .. } => format!("ask endpoints as {user}"),
        Grant::Router => "route requests".to_owned(),
    }
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
}
