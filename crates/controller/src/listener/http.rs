//! HTTP over a connection, for as long as it may stay.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::ConnectInfo;
use bytes::Bytes;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tower::ServiceExt as _;

use super::standing::{Answering, Standing};
use super::{Listener, stopped};
use crate::api::auth::Ends;

/// Also how long an idle connection is kept; longer than clients keep theirs, so that these close
/// first. Strangers have less time for everything.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// What may be read ahead or wait to be written, and so the largest head of a request.
const BUFFER_MAX: usize = 64 << 10;

impl Listener {
    pub(super) async fn http<S>(&self, stream: S, ends: Ends, standing: Arc<Standing>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let _open = OpenCount::one_more(&self.http_open);
        let service = service_fn(|mut request: http::Request<Incoming>| {
            request.extensions_mut().insert(ConnectInfo(ends));
            request.extensions_mut().insert(Arc::clone(&standing));
            let answering = standing.answering();
            let answer = self.router.clone().oneshot(request);
            async move {
                let answer = answer.await?;
                Ok::<_, Infallible>(answer.map(|body| AnswerBody { body, _answering: answering }))
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .max_buf_size(BUFFER_MAX)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        let mut shutdown = self.shutdown.clone();
        let mut stopping = false;
        loop {
            tokio::select! {
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(peer = %ends.peer, %error, "a connection ended badly");
                    }
                    return;
                }
                why = standing.must_go() => {
                    tracing::debug!(peer = %ends.peer, why, "a connection was closed");
                    return;
                }
                () = stopped(&mut shutdown), if !stopping => {
                    stopping = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    }
}

/// Counts the HTTP connections that are open.
pub(super) struct OpenCount<'c>(&'c AtomicUsize);

impl OpenCount<'_> {
    fn one_more(count: &AtomicUsize) -> OpenCount<'_> {
        count.fetch_add(1, Ordering::Relaxed);
        OpenCount(count)
    }
}

impl Drop for OpenCount<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of an answer, with the word that it is on its way.
struct AnswerBody {
    body: Body,
    _answering: Answering,
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
