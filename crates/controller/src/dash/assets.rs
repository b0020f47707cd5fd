//! Scripts and styles. Their directory is named after their content, so they are kept for ever.

use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY,
};
use http::{HeaderMap, HeaderValue, StatusCode};
use tutti_model::text::{is_deceptive, push_escaped};
use tutti_web::assets;

const FOR_EVER: &str = "public, max-age=31536000, immutable";
/// Smaller pages are sent as they are.
const SQUEEZE_FROM: usize = 2048;

pub async fn asset(Path((hash, name)): Path<(String, String)>, headers: HeaderMap) -> Response {
    let Some(asset) = assets::find(&name).filter(|_| hash == assets::hash()) else {
        return (StatusCode::NOT_FOUND, "there is no such file; load the page again\n")
            .into_response();
    };
    let tag = format!("\"{}\"", assets::hash());
    let has = |value: &HeaderValue| value.to_str().is_ok_and(|tags| tags.contains(&tag));
    if headers.get(IF_NONE_MATCH).is_some_and(has) {
        return (StatusCode::NOT_MODIFIED, [(ETAG, tag)]).into_response();
    }
    let fixed = [(CONTENT_TYPE, asset.kind), (CACHE_CONTROL, FOR_EVER), (VARY, "accept-encoding")];
    let body = match takes_gzip(&headers) {
        true => ([(CONTENT_ENCODING, "gzip")], asset.gzip.as_slice()).into_response(),
        false => asset.bytes.into_response(),
    };
    (fixed, [(ETAG, tag)], body).into_response()
}

pub fn takes_gzip(headers: &HeaderMap) -> bool {
    let accepts = headers.get(ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
    accepts.is_some_and(|list| {
        list.split(',').any(|coding| {
            let mut words = coding.split(';').map(str::trim);
            words.next() == Some("gzip") && words.all(|word| word != "q=0")
        })
    })
}

/// A page, squeezed where that is worth it.
pub fn html(headers: &HeaderMap, page: tutti_web::Markup) -> Response {
    let text = visible(page.into_string());
    let kind = (CONTENT_TYPE, "text/html; charset=utf-8");
    if text.len() < SQUEEZE_FROM || !takes_gzip(headers) {
        return ([kind, (VARY, "accept-encoding")], text).into_response();
    }
    let squeezed = assets::gzip(text.as_bytes());
    ([kind, (VARY, "accept-encoding"), (CONTENT_ENCODING, "gzip")], squeezed).into_response()
}

/// What users wrote must not turn the direction of a line, or hide in it. Markup of ours has no such
/// characters, so it is enough to look at the page as a whole.
pub(super) fn visible(page: String) -> String {
    shown(page, "")
}

/// The same in JSON, where the backslash of an escape needs one of its own.
pub(super) fn visible_json(data: String) -> String {
    shown(data, "\\")
}

fn shown(text: String, before: &str) -> String {
    let deceives = |c: char| is_deceptive(c) && !c.is_control();
    if !text.chars().any(deceives) {
        return text;
    }
    let mut shown = String::with_capacity(text.len() + 64);
    for c in text.chars() {
        match deceives(c) {
            true => {
                shown.push_str(before);
                push_escaped(&mut shown, c);
            }
            false => shown.push(c),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_can_t_turn_a_page_around() {
        let page = |name: &str| visible(format!("<td>{name}</td>\n"));
        assert_eq!(page("a\u{202e}b\u{2066}"), "<td>a\\u{202e}b\\u{2066}</td>\n");
        assert_eq!(page("größer שלום"), "<td>größer שלום</td>\n");
        let row = page("a\u{202e}b");
        let sent = serde_json::to_string("<td>a\u{202e}b</td>\n").unwrap();
        let read: String = serde_json::from_str(&visible_json(sent)).unwrap();
        assert_eq!(read, row, "live rows are as those of the page");
    }

    #[test]
    fn only_who_takes_gzip_gets_it() {
        let takes = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_ENCODING, value.parse().unwrap());
            takes_gzip(&headers)
        };
        assert!(takes("gzip, deflate, br") && takes("br;q=1, gzip;q=0.5"));
        assert!(!takes("br") && !takes("gzip;q=0") && !takes("") && !takes("xgzip"));
    }
}
