//! Microsoft's Philly trace and others in the same six columns:
//! `#job id,arrival time (sec),topology,shape,size,duration (sec)`.

use super::{BadLine, Manner, Problem, Table, Trace, TraceJob, gang};

const GPUS_PER_NODE: u32 = 8;

pub fn read(text: &str) -> Result<Trace, BadLine> {
    let table = Table::new(text, ',')?;
    table.need(&["job id", "arrival time (sec)", "size", "duration (sec)"])?;
    let mut jobs = Vec::new();
    let mut skipped = 0;
    for row in table.rows() {
        let row = row?;
        let gpus = row.count("size")?;
        if gpus == 0 {
            let (column, value) = ("size".to_owned(), "0".to_owned());
            return Err(row.bad(Problem::NotA { column, value, wanted: "at least 1 GPU" }));
        }
        let run = row.seconds("duration (sec)")?;
        if run.0 == 0 {
            skipped += 1;
            continue;
        }
        jobs.push(TraceJob {
            name: row.text("job id").to_owned(),
            submit: row.time("arrival time (sec)")?,
            run,
            user: "philly".to_owned(),
            spec: gang(gpus, GPUS_PER_NODE),
            manner: Manner::default(),
        });
    }
    Ok(Trace::sorted(jobs, skipped))
}
