//! Published runs through the same estimate as plans: a table of runs in, a table of figures out.

mod row;
mod table;

use thiserror::Error;

use crate::{memory, step_time};

/// Why a table cannot be read at all.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PredictError {
    #[error("the table is empty; it needs a line with the columns' names")]
    Empty,
    #[error(
        "the table has no column {0:?}; see docs/reference/planner.md for those that are needed"
    )]
    NoColumn(&'static str),
    #[error("the quote that begins in line {0} never ends")]
    OpenQuote(usize),
}

/// One run's figures, or why there are none.
#[derive(Clone, Debug, PartialEq)]
pub struct Predicted {
    pub id: String,
    pub step_time_s: Option<f64>,
    pub mem_gb: Option<f64>,
    pub error: Option<String>,
}

/// Columns are found by name, in any order; those with measurements are not looked at.
pub fn predict(csv: &str) -> Result<Vec<Predicted>, PredictError> {
    let table = table::read(csv)?;
    let ids = table.rows().enumerate().map(|(i, row)| match row.get("id") {
        "" => format!("{}", i + 1),
        id => id.to_owned(),
    });
    Ok(ids.zip(table.rows()).map(|(id, row)| one(id, row)).collect())
}

fn one(id: String, row: table::Row<'_>) -> Predicted {
    match row::run(row) {
        Ok(run) => {
            let setup = run.setup();
            let seconds = step_time(&setup).total();
            Predicted {
                id,
                step_time_s: Some(seconds),
                mem_gb: Some(memory(&setup).total()),
                error: None,
            }
        }
        Err(why) => Predicted { id, step_time_s: None, mem_gb: None, error: Some(why.to_string()) },
    }
}

/// With the header `id,step_time_s,mem_gb,error`.
pub fn to_csv(predicted: &[Predicted]) -> String {
    let mut out = String::from("id,step_time_s,mem_gb,error\n");
    for p in predicted {
        let number = |n: Option<f64>| n.map_or(String::new(), |n| format!("{n:.6}"));
        let cells = [
            table::quoted(&p.id),
            number(p.step_time_s),
            number(p.mem_gb),
            table::quoted(p.error.as_deref().unwrap_or("")),
        ];
        out.push_str(&cells.join(","));
        out.push('\n');
    }
    out
}
