//! Where GPU-hours went.

use std::sync::Arc;

use tutti_engine::goodput_at;
use tutti_model::{ReportBy, State, Time};
use tutti_web::cost::View;
use tutti_wire::api::ReportQuery;

use crate::api::{App, Problem, wanted};
use crate::clock::now;
use crate::views::{self, Wanted};

/// What the lines of the table are, by its name; teams unless it is known.
pub fn by(name: &str) -> ReportBy {
    let known = ReportBy::ALL.into_iter().filter(|by| *by != ReportBy::Day);
    known.into_iter().find(|by| by.as_str() == name).unwrap_or_default()
}

/// The last thirty days.
pub async fn view(app: &App, by: ReportBy) -> Result<View, Problem> {
    let now = now();
    let table = wanted(ReportQuery { by: Some(by), ..ReportQuery::default() }, now)?;
    let days = Wanted { by: ReportBy::Day, ..table.clone() };
    let state = app.core.read(|world| closed(world.engine.state(), now)).await?;
    // A month is in memory.
    let report = |wanted: &Wanted| views::report(&state, wanted, &[], now);
    let mut view = View { days: report(&days), table: report(&table) };
    view.table.served = views::served_lines(&state, &app.routers, &table, now);
    let left = app.archive.wasters(table, Arc::clone(&state.policy)).await?;
    views::add_wasters(&mut view.table, left);
    Ok(view)
}

/// What reports are made of, with every book closed as of now: two of them need not do it twice, and
/// the engine goes on while they are made.
fn closed(state: &State, now: Time) -> State {
    State {
        at: state.at,
        jobs: state.jobs.clone(),
        endpoints: state.endpoints.clone(),
        past_endpoints: state.past_endpoints.clone(),
        policy: state.policy.clone(),
        goodput: goodput_at(state, now),
        ..State::default()
    }
}
