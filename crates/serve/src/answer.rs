//! Answers of the router's own.

use std::time::Duration;

use serde_json::json;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub content_type: &'static str,
    pub retry_after: Option<Duration>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(status: u16, body: &str) -> Answer {
        Answer {
            status,
            content_type: "text/plain; charset=utf-8",
            retry_after: None,
            body: body.as_bytes().to_vec(),
        }
    }

    pub fn json(status: u16, value: &serde_json::Value) -> Answer {
        Answer {
            status,
            content_type: "application/json",
            retry_after: None,
            body: value.to_string().into_bytes(),
        }
    }

    /// In the shape that clients of OpenAI's API understand.
    pub fn error(status: u16, code: &str, message: &str) -> Answer {
        let kind = match status {
            401 | 403 => "authentication_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            400..=499 => "invalid_request_error",
            503 => "overloaded_error",
            _ => "api_error",
        };
        let error = json!({ "message": message, "type": kind, "code": code });
        Answer::json(status, &json!({ "error": error }))
    }

    pub fn retry_after(mut self, after: Duration) -> Answer {
        self.retry_after = Some(after);
        self
    }

    /// Whole seconds, as the header wants them, and never none.
    pub fn retry_after_secs(&self) -> Option<u64> {
        self.retry_after.map(|after| (after.as_millis().div_ceil(1000) as u64).max(1))
    }

    /// Head and, but for HEAD, body.
    pub fn write_to(&self, out: &mut Vec<u8>, method: &str, keep_alive: bool) {
        let reason = http::StatusCode::from_u16(self.status)
            .ok()
            .and_then(|status| status.canonical_reason())
            .unwrap_or("");
        let mut head = format!(
            "HTTP/1.1 {} {reason}\r\nContent-Type: {}\r\nContent-Length: {}\r\n",
            self.status,
            self.content_type,
            self.body.len()
        );
        if let Some(seconds) = self.retry_after_secs() {
            head.push_str(&format!("Retry-After: {seconds}\r\n"));
        }
        if self.status == 401 {
            head.push_str("WWW-Authenticate: Bearer\r\n");
        }
        head.push_str(if keep_alive { "\r\n" } else { "Connection: close\r\n\r\n" });
        out.extend_from_slice(head.as_bytes());
        if method != "HEAD" {
            out.extend_from_slice(&self.body);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_shape_that_clients_know() {
        let answer = Answer::error(404, "model_not_found", "no \"x\"");
        let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(body["error"]["message"], "no \"x\"");
        assert_eq!(body["error"]["type"], "not_found_error");
        assert_eq!(body["error"]["code"], "model_not_found");
    }

    #[test]
    fn seconds_to_wait_are_rounded_up() {
        let mut out = Vec::new();
        let answer = Answer::text(429, "no").retry_after(Duration::from_millis(1200));
        answer.write_to(&mut out, "GET", false);
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("HTTP/1.1 429 Too Many Requests\r\n"), "{text}");
        assert!(text.contains("Retry-After: 2\r\nConnection: close\r\n\r\nno"), "{text}");
    }
}
