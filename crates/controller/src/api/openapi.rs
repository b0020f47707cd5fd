//! The OpenAPI document, made from the handlers themselves.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use axum::Json;
use http::Method;
use tutti_wire::api::{ApiError, ExecEvent, LogEvent};
use utoipa::openapi::path::Operation;
use utoipa::openapi::response::{Response, ResponseBuilder};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{ContentBuilder, Ref, RefOr};
use utoipa::{IntoResponses, OpenApi};

use super::routes::{Access, access};
use super::{
    alerts, cluster, endpoints, events, exec, health, jobs, load, logs, metrics, nodes, policy,
    report, routers, signal, submit, telemetry, tokens,
};

/// The errors that every route may answer with.
pub struct Problems;

impl IntoResponses for Problems {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let all = [
            ("400", "Something in the request is wrong; `message` says what and where"),
            ("401", "No token, or one that is unknown, revoked or expired"),
            ("403", "The role does not suffice, or Host or Origin are not ours"),
            ("404", "No such thing"),
            ("409", "Not in the state that things are in"),
            ("422", "Can never run on this cluster, or a policy that contradicts itself"),
            (
                "503",
                "The controller is stopping, or has no room for one more large request; repeat",
            ),
            ("507", "The controller's disk is almost full: nothing new is taken"),
        ];
        let schema = Ref::from_schema_name("ApiError");
        let response = |text: &str| {
            let content = ContentBuilder::new().schema(Some(schema.clone())).build();
            let built =
                ResponseBuilder::new().description(text).content("application/json", content);
            RefOr::T(built.build())
        };
        all.into_iter().map(|(status, text)| (status.to_owned(), response(text))).collect()
    }
}

#[derive(OpenApi)]
#[openapi(
    info(title = "tutti", description = "The controller's API. Every route needs a bearer token."),
    paths(
        openapi,
        cluster::cluster,
        cluster::doctor,
        cluster::shutdown,
        submit::submit,
        submit::submit_batch,
        jobs::list,
        jobs::show,
        jobs::why,
        jobs::progress,
        jobs::wait,
        jobs::cancel,
        jobs::kill,
        jobs::update,
        signal::signal,
        jobs::hold,
        jobs::release,
        jobs::suspend,
        jobs::resume,
        jobs::priority,
        jobs::saved,
        jobs::register,
        logs::logs,
        exec::stdin,
        exec::exec,
        exec::exec_stdin,
        nodes::list,
        nodes::show,
        nodes::remove,
        nodes::drain,
        nodes::measured,
        nodes::gpus_measured,
        nodes::resume,
        telemetry::curves,
        telemetry::gpus,
        load::load,
        telemetry::job,
        metrics::metrics,
        health::inject,
        health::resolve,
        health::check,
        health::examine,
        alerts::alerts,
        policy::show,
        policy::replace,
        policy::preview,
        policy::reservations,
        policy::quota,
        report::report,
        report::job,
        events::events,
        tokens::list,
        tokens::create,
        tokens::revoke,
        tokens::join,
        endpoints::list,
        endpoints::stopped,
        endpoints::show,
        endpoints::serve,
        endpoints::scale,
        endpoints::rollback,
        endpoints::stop,
        routers::routes,
        routers::report,
    ),
    components(schemas(ApiError, LogEvent, ExecEvent))
)]
struct Document;

/// The document, with the role of every route.
pub fn document() -> utoipa::openapi::OpenApi {
    let mut document = Document::openapi();
    document.info.version = env!("CARGO_PKG_VERSION").to_owned();
    let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    if let Some(components) = &mut document.components {
        components.add_security_scheme("token", bearer);
    }
    for (path, item) in &mut document.paths.paths {
        let operations = [
            (Method::GET, &mut item.get),
            (Method::PUT, &mut item.put),
            (Method::POST, &mut item.post),
            (Method::DELETE, &mut item.delete),
        ];
        for (method, operation) in operations {
            if let Some(operation) = operation {
                declare(operation, access(&method, path));
            }
        }
    }
    document
}

fn declare(operation: &mut Operation, access: Option<Access>) {
    let needs = match access {
        Some(Access::Role(role)) => format!("Needs the role {role}."),
        Some(Access::Join) => "Needs a join token.".to_owned(),
        Some(Access::Router) => "Needs a router's token, or the role admin.".to_owned(),
        None => "Closed.".to_owned(),
    };
    let text = operation.description.take().map_or(needs.clone(), |d| format!("{d}\n\n{needs}"));
    operation.description = Some(text);
    let scopes: [&str; 0] = [];
    operation.security = Some(vec![SecurityRequirement::new("token", scopes)]);
}

/// This document.
#[utoipa::path(get, path = "/api/v1/openapi.json", tag = "cluster",
    responses((status = 200, description = "OpenAPI 3.1"), Problems))]
pub async fn openapi() -> Json<&'static utoipa::openapi::OpenApi> {
    static DOCUMENT: LazyLock<utoipa::openapi::OpenApi> = LazyLock::new(document);
    Json(&DOCUMENT)
}
