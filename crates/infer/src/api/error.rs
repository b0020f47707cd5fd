//! Errors as OpenAI's clients expect them: `{"error": {message, type, param, code}}`.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::app::Closed;
use crate::engine::Refused;

/// Seconds after which a client may try again.
const RETRY_AFTER: u64 = 1;

#[derive(Debug)]
pub struct ApiError {
    pub status: StatusCode,
    pub message: String,
    pub param: Option<String>,
    pub code: Option<&'static str>,
}

impl ApiError {
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        ApiError { status, message: message.into(), param: None, code: None }
    }

    /// A value that can't be.
    pub fn bad(param: &str, message: impl Into<String>) -> Self {
        let param = Some(param.to_owned());
        ApiError { param, ..ApiError::new(StatusCode::BAD_REQUEST, message) }
    }

    pub fn code(self, code: &'static str) -> Self {
        ApiError { code: Some(code), ..self }
    }

    pub fn no_model(name: &str, own: &str) -> Self {
        let message = format!("the model '{name}' is not served here; this is '{own}'");
        let error = ApiError::new(StatusCode::NOT_FOUND, message).code("model_not_found");
        ApiError { param: Some("model".to_owned()), ..error }
    }

    pub fn broken() -> Self {
        let message = "the model stopped while it computed this";
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    pub fn json(&self) -> Value {
        let kind = match self.status {
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        json!({ "error": {
            "message": self.message, "type": kind, "param": self.param, "code": self.code,
        }})
    }
}

impl From<Closed> for ApiError {
    fn from(closed: Closed) -> Self {
        let (message, code) = match closed {
            Closed::Loading => ("the model is being loaded", "loading"),
            Closed::Draining => ("the server is about to leave and takes nothing new", "draining"),
        };
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).code(code)
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Full { waiting } => {
                let message = format!("{waiting} sequences wait already; try again later");
                ApiError::new(StatusCode::TOO_MANY_REQUESTS, message).code("queue_full")
            }
            Refused::Gone => ApiError::broken(),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.json())).into_response();
        let again = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE];
        if again.contains(&self.status) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER));
        }
        response
    }
}
