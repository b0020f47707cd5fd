//! What the router tells the controller.

use std::sync::Arc;
use std::time::Instant;

use tutti_model::RouterReport;

use crate::routes::{Entry, Routes};
use crate::shared::Shared;

/// Peaks begin anew after a report for the controller.
pub fn report(shared: &Shared, routes: &Routes, for_controller: bool) -> RouterReport {
    let now = Instant::now();
    let of = |e: &Arc<Entry>| (e.route.name.clone(), e.desk.report(for_controller, now));
    RouterReport {
        router: shared.id.clone(),
        address: shared.address(),
        version: routes.version,
        endpoints: routes.entries.iter().map(of).collect(),
    }
}
