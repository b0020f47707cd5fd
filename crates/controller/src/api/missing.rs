//! A task that is not there: only its array knows which ones are, and whoever refuses a request seldom
//! has it at hand. So what to do about it is added on the way out.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tutti_model::{Job, TaskId, Tasks, count};
use tutti_wire::api::ApiError;

use super::App;

/// So long a list of indices is read by nobody.
const LIST_MAX: usize = 60;

/// Put into responses that say so.
#[derive(Clone)]
pub struct MissingTask {
    pub task: TaskId,
    pub error: ApiError,
}

pub async fn explain(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let Some(MissingTask { task, error }) = response.extensions().get().cloned() else {
        return response;
    };
    let job = app.core.read(move |world| world.engine.state().jobs.get(&task.job).cloned());
    let Ok(Some(job)) = job.await else { return response };
    let (mut parts, _) = response.into_parts();
    // Of the new body the length is another.
    parts.headers.remove(http::header::CONTENT_LENGTH);
    let body = Json(told(&job, task, error)).into_response().into_body();
    Response::from_parts(parts, body)
}

fn told(job: &Job, task: TaskId, error: ApiError) -> ApiError {
    let id = job.id;
    match (&job.tasks, task.index) {
        (Tasks::One(_), _) => {
            ApiError { hint: Some(format!("job {id} is no array: its id is {id}")), ..error }
        }
        (Tasks::Array(_), None) => ApiError {
            message: format!("job {id} is an array, and this is for one of its tasks"),
            hint: Some(format!("name one, such as {id}_{}", first(job).unwrap_or_default())),
            ..error
        },
        (Tasks::Array(_), Some(_)) => {
            ApiError { hint: Some(format!("job {id} has {}", indices(job))), ..error }
        }
    }
}

fn first(job: &Job) -> Option<u32> {
    job.spec.array.as_ref()?.indices.first()
}

/// `the tasks 0-9,20`, or of a longer list the ends.
fn indices(job: &Job) -> String {
    let Some(array) = &job.spec.array else { return "no tasks".to_owned() };
    let all = &array.indices;
    let list = all.to_string();
    match (all.first(), all.last()) {
        (Some(first), Some(last)) if list.len() > LIST_MAX => {
            format!("{} from {first} to {last}, with gaps", count(all.len(), "task"))
        }
        _ if all.len() == 1 => format!("the task {list} alone"),
        _ => format!("the tasks {list}"),
    }
}
