//! Where somebody's checkpoints are: said outright, or known from their job.

use std::path::Path;

use tutti_model::TaskId;

use crate::fail::Fail;
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

impl Whereabouts {
    pub fn location(&self, cluster: Option<&str>) -> Result<String, Fail> {
        let text = &self.place;
        if text.contains("://") || Path::new(text).exists() {
            return Ok(text.clone());
        }
        match text.parse::<TaskId>() {
            Ok(id) => of_job(cluster, id),
            Err(_) => Err(Fail::new(format!("there is no directory {text}"))
                .exit(crate::fail::NOT_FOUND)
                .hint("name a directory, a URL such as s3://bucket/run, or a job")),
        }
    }
}

fn of_job(cluster: Option<&str>, id: TaskId) -> Result<String, Fail> {
    let detail = session::open(cluster)?.job(id)?;
    match detail.spec.checkpoint {
        Some(checkpoint) => Ok(checkpoint.dir),
        None => Err(Fail::new(format!("job {id} does not say where its checkpoints are"))
            .hint("[checkpoint] dir = \"/ckpt/run\" in its file would; or name the directory")),
    }
}
