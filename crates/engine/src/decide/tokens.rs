//! Tokens: made and revoked by admins, join tokens counted down by the nodes that use them.

use tutti_model::{Grant, Role, Token};

use super::{Decision, View, done, keys, need_role};
use crate::command::Actor;
use crate::event::Event;
use crate::reject::Rejected;

pub(super) fn add(actor: &Actor, token: &Token) -> Decision {
    need_role(actor, Role::Admin)?;
    done(vec![Event::TokenAdded { token: token.clone() }])
}

pub(super) fn revoke(view: View<'_>, actor: &Actor, id: &str) -> Decision {
    need_role(actor, Role::Admin)?;
    if !view.state.tokens.contains_key(id) {
        return Err(Rejected::NoSuchToken(id.to_owned()));
    }
    done(vec![Event::TokenRevoked { id: id.to_owned(), by: actor.user.clone() }])
}

pub(super) fn use_join(view: View<'_>, id: &str, node: &str, key: &str) -> Decision {
    let refused = || Rejected::JoinRefused(node.to_owned());
    let token = view.state.tokens.get(id).ok_or_else(refused)?;
    let Grant::Join { node: only, uses } = &token.grant else { return Err(refused()) };
    let named = only.as_ref().is_none_or(|n| n == node);
    // Who asks again for what was signed did not hear the answer.
    if named && !token.is_expired(view.now) && keys::holds(view.state, node, key) {
        return done(Vec::new());
    }
    if !named || *uses == Some(0) || token.is_expired(view.now) {
        return Err(refused());
    }
    // Whoever has the certificate is the node: a token for any name must not take over one that is
    // given, whether or not its agent has connected yet.
    if only.is_none() && keys::is_given(view.state, node) {
        return Err(Rejected::NameTaken(node.to_owned()));
    }
    let key = Some(key.to_owned());
    done(vec![Event::TokenUsed { id: id.to_owned(), node: node.to_owned(), key }])
}
