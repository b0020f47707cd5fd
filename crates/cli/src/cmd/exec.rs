//! `tutti exec`: another program inside a running job.

use std::io::Write;
use std::process::ExitCode;

use base64::Engine;
use tutti_model::TaskId;
use tutti_wire::api::{ExecEvent, ExecRequest};
use tutti_wire::client::Client;
use tutti_wire::stream::LogStream;

use super::output::Guard;
use crate::fail::{Fail, job_exit};
use crate::show::harmless;
use crate::terminal::safe::LogFilter;
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
    /// Let the terminal obey every escape sequence of the program, not only colours; pipes get every
    /// byte as it is, always
    #[arg(long)]
    raw: bool,
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

pub fn run(cluster: Option<&str>, args: ExecArgs) -> Result<ExitCode, Fail> {
    let client = session::open(cluster)?;
    let request = ExecRequest { rank: args.rank, argv: args.command };
    let stdin = args.interactive || !terminal::stdin_is_terminal();
    let guard = if args.raw { Guard::NONE } else { Guard::terminals() };
    let mut printer = Printer::new(std::io::stdout(), std::io::stderr(), guard);
    let mut ended =
        Err(Fail::new("the program's end was not reported").hint("it may still run in the job"));
    for event in client.exec(args.id, &request)? {
        match event {
            Ok(ExecEvent::Started { session }) if stdin => forward(&client, session),
            Ok(ExecEvent::Started { .. }) => {}
            Ok(ExecEvent::Data { stream, data }) => printer.print(stream, &decoded(&data)?)?,
            Ok(ExecEvent::Exited { code }) => {
                ended = Ok(job_exit(code));
                break;
            }
            Ok(ExecEvent::Failed { message }) => {
                ended = Err(Fail::new(harmless(&message)));
                break;
            }
            Err(e) => {
                ended = Err(e.into());
                break;
            }
        }
    }
    printer.finish()?;
    ended
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

fn decoded(data: &str) -> Result<Vec<u8>, Fail> {
    base64::engine::general_purpose::STANDARD
        .decode(data)
        .map_err(|e| Fail::new(format!("the controller sent output that can't be read: {e}")))
}

/// The program's outputs on our own, each as it came, or as a terminal may have it: the program is of
/// whoever owns the job, and the terminal may be an admin's. Generic so that tests can look.
struct Printer<O, E> {
    out: O,
    err: E,
    out_filter: Option<LogFilter>,
    err_filter: Option<LogFilter>,
}

impl<O: Write, E: Write> Printer<O, E> {
    fn new(out: O, err: E, guard: Guard) -> Self {
        let filter = |stream| guard.of(stream).then(LogFilter::default);
        let (out_filter, err_filter) = (filter(LogStream::Out), filter(LogStream::Err));
        Printer { out, err, out_filter, err_filter }
    }

    fn print(&mut self, stream: LogStream, bytes: &[u8]) -> Result<(), Fail> {
        match self.filter(stream).map(|filter| filter.pass(bytes)) {
            Some(shown) => self.write(stream, &shown),
            None => self.write(stream, bytes),
        }
    }

    /// What is unfinished is shown, and colours end with the program.
    fn finish(&mut self) -> Result<(), Fail> {
        for stream in [LogStream::Out, LogStream::Err] {
            if let Some(rest) = self.filter(stream).map(LogFilter::end) {
                self.write(stream, &rest)?;
            }
        }
        Ok(())
    }

    fn filter(&mut self, stream: LogStream) -> Option<&mut LogFilter> {
        match stream {
            LogStream::Out => self.out_filter.as_mut(),
            LogStream::Err => self.err_filter.as_mut(),
        }
    }

    fn write(&mut self, stream: LogStream, bytes: &[u8]) -> Result<(), Fail> {
        let written = match stream {
            LogStream::Out => self.out.write_all(bytes).and_then(|()| self.out.flush()),
            LogStream::Err => self.err.write_all(bytes).and_then(|()| self.err.flush()),
        };
        written.map_err(|e| Fail::new(format!("can't write the output: {e}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(guard: Guard) -> (String, String) {
        let mut printer = Printer::new(Vec::new(), Vec::new(), guard);
        for piece in ["\x1b[31mred\x1b]52;", "c;AAAA\x07", "\x1b[1", "m\x1b]"] {
            printer.print(LogStream::Out, piece.as_bytes()).unwrap();
        }
        printer.print(LogStream::Err, b"\x1b[6n").unwrap();
        printer.finish().unwrap();
        (String::from_utf8(printer.out).unwrap(), String::from_utf8(printer.err).unwrap())
    }

    #[test]
    fn a_terminal_obeys_colours_only_and_a_pipe_gets_every_byte() {
        let (out, err) = printed(Guard::NONE);
        assert_eq!(out, "\x1b[31mred\x1b]52;c;AAAA\x07\x1b[1m\x1b]");
        assert_eq!(err, "\x1b[6n");
        let (out, err) = printed(Guard::ALL);
        assert_eq!(out, "\x1b[31mred\\x1b]52;c;AAAA\\x07\x1b[1m\\x1b]\x1b[0m");
        assert_eq!(err, "\\x1b[6n");
    }
}
