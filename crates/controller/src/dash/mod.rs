//! The dashboard: pages of `tutti_web`, sessions of browsers, and one live stream for each page.
//!
//! ```text
//!  browser ─► door: host, session ─► pages ──► gather: state, telemetry ─► tutti_web ─► HTML
//!          ─► /login: a token, checked as the API does ─► cookie
//!          ─► /live ─► hub: each page made once a second at most, for all who look at it ─► SSE
//!          ─► /api/v1 with the cookie: changes, logs; the API's own door and roles
//! ```
//!
//! Nothing is changed here: pages call the API, which decides who may.

mod assets;
mod door;
mod forecasts;
mod gather;
mod hub;
mod levels;
mod login;
mod pages;
mod pulse;
mod session;
mod stream;

use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};

use crate::api::App;
use forecasts::Forecasts;
use gather::nodes::Readings;
use hub::Hub;
use levels::Levels;
use pulse::Ring;
use session::Sessions;

pub use door::{is_astray, no_page};
pub use pulse::beat;
pub use session::Session;

/// What the pages keep between requests.
pub struct Dash {
    pub sessions: Sessions,
    hub: Hub,
    pulse: Ring,
    forecasts: Forecasts,
    readings: Readings,
    levels: Levels,
}

impl Dash {
    /// `port`: cookies are shared by all ports of a host, so theirs has it in its name.
    pub fn open(data_dir: &Path, port: u16) -> Dash {
        Dash {
            sessions: Sessions::open(data_dir, port),
            hub: Hub::default(),
            pulse: Ring::default(),
            forecasts: Forecasts::default(),
            readings: Readings::default(),
            levels: Levels::default(),
        }
    }
}

/// Keeps the past of the cluster and of endpoints, until the controller stops.
pub async fn keep_pulse(app: Arc<App>) {
    tokio::join!(pulse::keep_pulse(Arc::clone(&app)), levels::keep_levels(app));
}

pub fn router(app: &Arc<App>) -> Router<Arc<App>> {
    let inside = Router::new()
        .route("/", get(pages::overview))
        .route("/queue", get(pages::queue))
        .route("/jobs", get(pages::jobs))
        .route("/jobs/{id}", get(pages::job))
        .route("/endpoints", get(pages::endpoints))
        .route("/endpoints/{name}", get(pages::endpoint))
        .route("/nodes", get(pages::nodes))
        .route("/nodes/{name}", get(pages::node))
        .route("/teams", get(pages::teams))
        .route("/cost", get(pages::cost))
        .route("/alerts", get(pages::alerts))
        .route("/timeline", get(pages::timeline))
        .route("/live", get(stream::live))
        .route("/logout", post(login::logout))
        .route_layer(from_fn_with_state(Arc::clone(app), door::session));
    let open = Router::new()
        .route("/login", get(login::page).post(login::login))
        .route("/assets/{hash}/{name}", get(assets::asset));
    inside.merge(open).route_layer(from_fn_with_state(Arc::clone(app), door::outer))
}
