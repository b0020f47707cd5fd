//! `tutti report`.

use std::process::ExitCode;

use tutti_model::{ReportBy, TaskId};
use tutti_wire::api::{JobGoodput, ReportQuery};

use crate::fail::Fail;
use crate::show::plan::seen::PlanSeen;
use crate::show::table::terminal_width;
use crate::show::{job, report};
use crate::style::Style;
use crate::{session, terminal};

#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("form").multiple(false))]
pub struct ReportArgs {
    /// What one job made of its GPUs: 12, or 12_3 for what one task of an array has now
    #[arg(conflicts_with_all = ["team", "user", "since", "until", "by", "csv", "html"])]
    job: Option<TaskId>,
    /// Only this team and those under it
    #[arg(long)]
    team: Option<String>,
    /// Only this user
    #[arg(long)]
    user: Option<String>,
    /// From this day on (UTC), or so many days with today: 2026-11-01, 7d [default: 30 days]
    #[arg(long, value_name = "DAY")]
    since: Option<String>,
    /// Up to the end of this day, which counts [default: today]
    #[arg(long, value_name = "DAY")]
    until: Option<String>,
    /// What a line is
    #[arg(long, value_enum, default_value_t = By::Team)]
    by: By,
    #[arg(long, group = "form")]
    json: bool,
    /// A table for other programs
    #[arg(long, group = "form")]
    csv: bool,
    /// One page with everything on it, for a browser
    #[arg(long, group = "form")]
    html: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum By {
    Day,
    Team,
    User,
    Model,
}

impl From<By> for ReportBy {
    fn from(by: By) -> ReportBy {
        match by {
            By::Day => ReportBy::Day,
            By::Team => ReportBy::Team,
            By::User => ReportBy::User,
            By::Model => ReportBy::Model,
        }
    }
}

/// How a job with a `[plan]` compares with it, beside what it made of its GPUs.
#[derive(serde::Serialize)]
struct WithPlan<'a> {
    #[serde(flatten)]
    goodput: &'a JobGoodput,
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<PlanSeen>,
}

pub fn run(cluster: Option<&str>, args: ReportArgs) -> Result<ExitCode, Fail> {
    let client = session::open(cluster)?;
    if let Some(id) = args.job {
        let goodput = client.job_goodput(id)?;
        let plan = job::planned(&client.job(id)?);
        if args.json {
            terminal::json(&WithPlan { goodput: &goodput, plan })?;
        } else {
            terminal::say(&report::job(&goodput, plan.as_ref(), Style::of_stdout()));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let ReportArgs { team, user, since, until, .. } = args;
    let query = ReportQuery { since, until, by: Some(args.by.into()), team, user };
    let found = client.report(&query)?;
    if args.json {
        terminal::json(&found)?;
    } else if args.csv {
        terminal::document(&report::csv(&found));
    } else if args.html {
        terminal::document(&tutti_web::cost::standalone(&found).into_string());
    } else {
        let now = session::now(&client);
        terminal::say(&report::text(&found, now, Style::of_stdout(), terminal_width()));
    }
    Ok(ExitCode::SUCCESS)
}
