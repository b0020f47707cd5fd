//! Where somebody's checkpoints are: said outright, or known from their job.

use std::path::Path;

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
            return Ok(Place { location: Some(text.clone()), job: None });
        }
        match text.parse::<TaskId>() {
            Ok(id) => {
                let job = session::open(cluster)?.job(id)?;
                Ok(Place { location: known::home_of(&job), job: Some(job) })
            }
            Err(_) => Err(Fail::new(format!("there is no directory {text}"))
                .exit(NOT_FOUND)
                .hint("name a directory, a URL such as s3://bucket/run, or a job")),
        }
    }
}
