//! `tutti exec`: another program inside a running job.

use std::io::Write;
use std::process::ExitCode;

use base64::Engine;
use tutti_model::TaskId;
use tutti_wire::api::{ExecEvent, ExecRequest};
use tutti_wire::client::Client;
use tutti_wire::stream::LogStream;

use crate::fail::{Fail, job_exit};
use crate::{session, terminal};

#[derive(clap::Args)]
#[command(override_usage = "tutti exec [OPTIONS] ID -- CMD...")]
pub struct ExecArgs {
    /// A job: 12, or 12_3 for one task of an array
    id: TaskId,
    /// Beside which rank
    #[arg(long, value_name = "R", default_value = "0")]
    rank: u32,
    /// Pass standard input on even from a terminal
    #[arg(long, short = 'i')]
    interactive: bool,
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

pub fn run(cluster: Option<&str>, args: ExecArgs) -> Result<ExitCode, Fail> {
    let client = session::open(cluster)?;
    let request = ExecRequest { rank: args.rank, argv: args.command };
    let stdin = args.interactive || !terminal::stdin_is_terminal();
    for event in client.exec(args.id, &request)? {
        match event? {
            ExecEvent::Started { session } => {
                if stdin {
                    forward(&client, session);
                }
            }
            ExecEvent::Data { stream, data } => write(stream, &data)?,
            ExecEvent::Exited { code } => return Ok(job_exit(code)),
            ExecEvent::Failed { message } => return Err(Fail::new(message)),
        }
    }
    Err(Fail::new("the program's end was not reported").hint("it may still run in the job"))
}

fn forward(client: &Client, session: String) {
    let client = client.another();
    std::thread::spawn(move || {
        // A program that ends without reading its input is no error; its exit code says the rest.
        if let Err(e) = client.exec_stdin(&session, std::io::stdin()) {
            tracing::debug!(error = &e as &dyn std::error::Error, "stdin of exec");
        }
    });
}

fn write(stream: LogStream, data: &str) -> Result<(), Fail> {
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(data)
        .map_err(|e| Fail::new(format!("the controller sent output that can't be read: {e}")))?;
    let written = match stream {
        LogStream::Out => {
            let mut out = std::io::stdout().lock();
            out.write_all(&bytes).and_then(|()| out.flush())
        }
        LogStream::Err => std::io::stderr().write_all(&bytes),
    };
    written.map_err(|e| Fail::new(format!("can't write the output: {e}")))
}
