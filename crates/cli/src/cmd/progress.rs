//! `tutti progress`: says how far a job is, for programs that can't open a socket themselves.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use tutti_model::{ProgressLine, Rank};

use crate::fail::Fail;

const SOCKET: &str = "TUTTI_PROGRESS";

#[derive(clap::Args)]
#[command(after_help = "Example, in a shell script:\n  tutti progress --step $i --loss $loss\n  \
    tutti progress --saved $i --path /ckpt/$i")]
#[group(id = "said", required = true, multiple = true, args = ["step", "loss", "tokens", "saved"])]
pub struct ProgressArgs {
    /// Steps done since the very beginning, over all attempts
    #[arg(long, value_name = "N")]
    step: Option<u64>,
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    loss: Option<f64>,
    /// Tokens (samples, cells, frames) done since the beginning, by all ranks together
    #[arg(long, value_name = "N")]
    tokens: Option<u64>,
    /// A complete checkpoint of this step is durable
    #[arg(long, value_name = "STEP")]
    saved: Option<u64>,
    /// Where that checkpoint is
    #[arg(long, requires = "saved", value_name = "PATH")]
    path: Option<String>,
    /// For how many milliseconds saving it held up the work
    #[arg(long, requires = "saved", value_name = "MS")]
    save_ms: Option<u64>,
    /// Who speaks [default: $RANK]
    #[arg(long, value_name = "RANK")]
    rank: Option<u32>,
}

pub fn run(args: ProgressArgs) -> Result<ExitCode, Fail> {
    let Some(path) = std::env::var_os(SOCKET) else {
        return Err(Fail::usage(format!("{SOCKET} is not set"))
            .hint("it is set inside of jobs: run this from a job's script"));
    };
    let mut args = args;
    args.path = args.path.map(from_here).transpose()?;
    let own = std::env::var("RANK").ok().and_then(|rank| rank.parse().ok());
    let text = line(&args, args.rank.or(own).map(Rank))?;
    let sent = UnixStream::connect(&path).and_then(|mut to| to.write_all(text.as_bytes()));
    sent.map_err(|e| Fail::new(format!("nobody listens at {}: {e}", path.display())))?;
    Ok(ExitCode::SUCCESS)
}

/// Whoever looks for it looks from elsewhere.
pub fn from_here(path: String) -> Result<String, Fail> {
    if path.contains("://") {
        return Ok(path);
    }
    let whole = std::path::absolute(&path).map_err(|e| Fail::new(format!("{path}: {e}")))?;
    whole.into_os_string().into_string().map_err(|p| Fail::usage(format!("{p:?} is not text")))
}

fn line(args: &ProgressArgs, rank: Option<Rank>) -> Result<String, Fail> {
    let line = ProgressLine {
        rank,
        step: args.step,
        loss: args.loss.filter(|loss| loss.is_finite()),
        tokens: args.tokens,
        saved: args.saved,
        path: args.path.clone(),
        save_ms: args.save_ms,
        fault: None,
    };
    let mut text = serde_json::to_string(&line).map_err(|e| Fail::new(e.to_string()))?;
    // JSON has no word for it, but whoever reads this has.
    if args.loss.is_some_and(|loss| !loss.is_finite()) {
        let more = if text == "{}" { "" } else { "," };
        text = format!("{}{more}\"loss\":NaN}}", text.trim_end_matches('}'));
    }
    text.push('\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> ProgressArgs {
        ProgressArgs {
            step: None,
            loss: None,
            tokens: None,
            saved: None,
            path: None,
            save_ms: None,
            rank: None,
        }
    }

    #[test]
    fn only_what_is_said_is_sent() {
        let said = ProgressArgs { step: Some(7), loss: Some(2.5), ..args() };
        assert_eq!(line(&said, Some(Rank(1))).unwrap(), "{\"rank\":1,\"step\":7,\"loss\":2.5}\n");
        let said = ProgressArgs { saved: Some(7), path: Some("/a \"b\"".into()), ..args() };
        assert_eq!(line(&said, None).unwrap(), "{\"saved\":7,\"path\":\"/a \\\"b\\\"\"}\n");
        let said = ProgressArgs { loss: Some(f64::NAN), ..args() };
        assert_eq!(line(&said, None).unwrap(), "{\"loss\":NaN}\n");
        let said = ProgressArgs { step: Some(1), loss: Some(f64::INFINITY), ..args() };
        assert_eq!(line(&said, None).unwrap(), "{\"step\":1,\"loss\":NaN}\n");
    }
}
