//! Where GPU-hours went.

use tutti_model::ReportBy;
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
    let view = app.core.read(|world| {
        let state = world.engine.state();
        // A month is in memory.
        let report = |wanted: &Wanted| views::report(state, wanted, &[], now);
        View { days: report(&days), table: report(&table) }
    });
    Ok(view.await?)
}
