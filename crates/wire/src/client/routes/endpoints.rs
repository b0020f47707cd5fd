//! Endpoints, and the door of routers.

use std::time::Duration;

use http::Method;
use tutti_model::{RouteTable, RouterReport};

use super::{part, query};
use crate::api::*;
use crate::client::{Ask, Client, ClientError, new_key};

/// The controller answers when there is something new, at the latest after this.
const ROUTES_TAKE: Duration = Duration::from_secs(30);

impl Client {
    pub fn endpoints(&self) -> Result<Vec<EndpointRow>, ClientError> {
        self.get("/endpoints")
    }

    pub fn stopped_endpoints(&self) -> Result<StoppedEndpoints, ClientError> {
        self.get("/endpoints:stopped")
    }

    pub fn endpoint_detail(&self, name: &str) -> Result<EndpointDetail, ClientError> {
        self.get(&format!("/endpoints/{}", part(name)))
    }

    /// Asks again when nobody answered: the key makes that safe for a new endpoint, and what serves
    /// already becomes no other revision.
    pub fn serve(&self, wanted: &Serve) -> Result<Serving, ClientError> {
        let ask = Ask::json(Method::POST, "/endpoints", wanted)?.key(&new_key()?);
        self.patiently(|| self.answer(&ask))
    }

    /// Bounds in place of the file's; without any, as the file says.
    pub fn scale(&self, name: &str, bounds: &ScaleRequest) -> Result<Changed, ClientError> {
        let path = format!("/endpoints/{}/scale", part(name));
        self.answer(&Ask::json(Method::POST, &path, bounds)?)
    }

    /// To the last good revision if none is given.
    pub fn rollback(&self, name: &str, to: Option<u32>) -> Result<Serving, ClientError> {
        let path = format!("/endpoints/{}/rollback", part(name));
        self.answer(&Ask::json(Method::POST, &path, &RollBackRequest { to })?)
    }

    pub fn stop_endpoint(&self, name: &str) -> Result<Changed, ClientError> {
        self.post(&format!("/endpoints/{}/stop", part(name)))
    }

    /// What a router goes by. Waits for a table that is not the one it has, at most as long as asked.
    pub fn routes(&self, wanted: &RoutesQuery) -> Result<RouteTable, ClientError> {
        let ask = Ask::plain(Method::GET, &query("/routes", wanted)?);
        self.answer(&ask.takes(ROUTES_TAKE))
    }

    /// What a router says, once a second.
    pub fn router_report(&self, report: &RouterReport) -> Result<Changed, ClientError> {
        self.answer(&Ask::json(Method::POST, "/routers", report)?)
    }
}
