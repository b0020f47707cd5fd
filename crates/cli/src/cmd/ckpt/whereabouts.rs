//! Where somebody's checkpoints are: said outright, or known from their job.

use std::path::Path;

use tutti_checkpoint::Acting;
use tutti_files::{UserIds, is_privileged};
use tutti_model::TaskId;
use tutti_wire::api::JobDetail;

use super::known;
use crate::fail::{Fail, NOT_FOUND};
use crate::session;

#[derive(clap::Args)]
pub struct Whereabouts {
    /// A directory, a URL or a job
    #[arg(value_name = "WHERE")]
    place: String,
    /// Another place with copies: a directory or a URL
    #[arg(long, value_name = "WHERE")]
    pub replica: Vec<String>,
}

/// A place, and the job that led to it.
pub struct Place {
    /// None if the job has said nothing of the kind.
    location: Option<String>,
    pub job: Option<JobDetail>,
    /// With whose rights it is looked at and changed, should this be root.
    pub acting: Acting,
}

impl Place {
    pub fn location(&self) -> Result<&str, Fail> {
        self.location.as_deref().ok_or_else(|| {
            let id = self.job.as_ref().map_or_else(String::new, |job| job.row.id.to_string());
            Fail::new(format!("job {id} does not say where its checkpoints are"))
                .exit(NOT_FOUND)
                .hint("[checkpoint] dir = \"/ckpt/run\" in its file would, or `saved` with a `path` on $TUTTI_PROGRESS; or name the directory")
        })
    }

    /// Where something can be listed.
    pub fn known_location(&self) -> Option<&str> {
        self.location.as_deref()
    }
}

impl Whereabouts {
    pub fn find(&self, cluster: Option<&str>) -> Result<Place, Fail> {
        let text = &self.place;
        if text.contains("://") || Path::new(text).exists() {
            let location = Some(text.clone());
            return Ok(Place { location, job: None, acting: Acting::Owner });
        }
        match text.parse::<TaskId>() {
            Ok(id) => {
                let job = session::open(cluster)?.job(id)?;
                let acting = as_user_of(&job)?;
                let location = known::home_of(&job, &acting);
                Ok(Place { location, job: Some(job), acting })
            }
            Err(_) => Err(Fail::new(format!("there is no directory {text}"))
                .exit(NOT_FOUND)
                .hint("name a directory, a URL such as s3://bucket/run, or a job")),
        }
    }
}

/// Where the checkpoints of a job are is its user's word: root goes there with that user's rights, or
/// it would change what the user may not.
fn as_user_of(job: &JobDetail) -> Result<Acting, Fail> {
    if !is_privileged() {
        return Ok(Acting::Myself);
    }
    let (id, user) = (job.row.id, &job.row.user);
    let failed = |e| Fail::new(format!("user '{user}' of job {id} can't be looked up: {e}"));
    match UserIds::of_name(user).map_err(failed)? {
        Some(ids) => Ok(Acting::User(ids)),
        None => Err(Fail::new(format!("this machine has no user '{user}', whose job {id} is"))
            .exit(NOT_FOUND)
            .hint("as root, checkpoints are handled with their user's rights; name the directory instead of the job")),
    }
}
