//! What the router tells the controller, and others.

use std::sync::Arc;
use std::time::Instant;

use tutti_model::RouterReport;

use crate::access::Caller;
use crate::routes::{Entry, Routes};
use crate::shared::Shared;

/// For a caller, of what it may know of; or for the controller, of all. After that peaks begin anew.
pub fn report(shared: &Shared, routes: &Routes, caller: Option<&Caller>) -> RouterReport {
    let now = Instant::now();
    let shown = |e: &&Arc<Entry>| caller.is_none_or(|c| c.may_see(&e.route.name, e.is_open()));
    let of = |e: &Arc<Entry>| (e.route.name.clone(), e.desk.report(caller.is_none(), now));
    RouterReport {
        router: shared.id.clone(),
        address: shared.address(),
        version: routes.version,
        endpoints: routes.entries.iter().filter(shown).map(of).collect(),
    }
}
