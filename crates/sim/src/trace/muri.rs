//! Muri's Philly-derived traces (SIGCOMM'22).

use super::{BadLine, Problem, Table};

/// Times are in seconds as in the published simulator, which works with floating point.
#[derive(Clone, Debug, PartialEq)]
pub struct MuriJob {
    pub id: u64,
    pub gpus: u32,
    pub submit_s: f64,
    pub model: String,
    /// Iterations times the time of one, with the published simulator's allowance.
    pub service_s: f64,
}

/// The published simulator adds this to every iteration.
const ALLOWANCE: f64 = 1.015;

pub fn read(text: &str) -> Result<Vec<MuriJob>, BadLine> {
    let table = Table::new(text, ',')?;
    table.need(&[
        "job_id",
        "num_gpu",
        "submit_time",
        "iterations",
        "model_name",
        "iteration_time",
    ])?;
    let mut jobs = Vec::new();
    for row in table.rows() {
        let row = row?;
        let gpus = row.count("num_gpu")?;
        let whole_nodes = gpus <= 8 || gpus.is_multiple_of(8);
        if gpus == 0 || !whole_nodes {
            let (column, value) = ("num_gpu".to_owned(), gpus.to_string());
            let wanted = "1 to 8, or a multiple of 8";
            return Err(row.bad(Problem::NotA { column, value, wanted }));
        }
        let submit_ms: f64 = row.number("submit_time")?;
        row.span("submit_time", submit_ms / 1000.0)?;
        let iterations: f64 = row.number("iterations")?;
        let iteration_ms: f64 = row.number("iteration_time")?;
        let service_s = iterations * iteration_ms * ALLOWANCE / 1000.0;
        row.span("iterations", service_s)?;
        jobs.push(MuriJob {
            id: row.number("job_id")?,
            gpus,
            submit_s: submit_ms / 1000.0,
            model: row.text("model_name").to_owned(),
            service_s,
        });
    }
    jobs.sort_by(|a, b| a.submit_s.total_cmp(&b.submit_s));
    Ok(jobs)
}
