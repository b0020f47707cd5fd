//! `tutti infer`: serves what `tutti train` trained, over the OpenAI API.

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;

use tutti_infer::{Hardware, Options, Precision, Ready, ServeError, Told};
use tutti_model::{Bytes, count};

use crate::fail::{Fail, chain};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Numbers {
    /// bf16 on a GPU, f32 on the CPU
    Auto,
    F32,
    Bf16,
    F16,
}

#[derive(clap::Args)]
#[command(
    after_help = "Signals: TERM and INT finish what was asked, refuse what comes, and leave with 0.\n\n\
    Examples:\n  tutti train --checkpoint /ckpt/a && tutti infer --checkpoint /ckpt/a\n  \
    tutti infer --checkpoint s3://bucket/run --step 5000 --device cuda --max-batch 64\n  \
    curl localhost:8000/v1/completions -d '{\"prompt\": \"The \", \"max_tokens\": 50}'"
)]
pub struct InferArgs {
    /// What `tutti train --checkpoint` wrote: a directory or a URL
    #[arg(long, value_name = "WHERE")]
    checkpoint: String,
    /// Which step [default: the newest]
    #[arg(long)]
    step: Option<u64>,
    /// Name by which requests ask for it; more than one may be given [default: the last part of
    /// --checkpoint]
    #[arg(long, value_name = "NAME")]
    model: Vec<String>,
    /// Where to listen [default: 127.0.0.1 and $PORT, else 8000; the node's address as a replica]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<String>,
    /// auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto", value_parser = |text: &str| text.parse::<Hardware>())]
    device: Hardware,
    /// Of matrices
    #[arg(long, value_enum, default_value = "auto")]
    precision: Numbers,
    /// Sequences at the same time
    #[arg(long, default_value_t = 32, value_name = "N")]
    max_batch: usize,
    /// Tokens of a prompt and its answer together [default: as long as it was trained with]
    #[arg(long, value_name = "TOKENS")]
    max_context: Option<usize>,
    /// Sequences that may wait; one more is refused with 429
    #[arg(long, default_value_t = 256, value_name = "N")]
    queue: usize,
    /// Tokens of prompts that are taken in between two tokens of those under way
    #[arg(long, default_value_t = 256, value_name = "TOKENS")]
    prefill_chunk: usize,
}

pub fn run(args: InferArgs) -> Result<ExitCode, Fail> {
    super::log_to_stderr("warn");
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let (port, node) = (variable("PORT"), variable("TUTTI_NODE_ADDR"));
    let listen = address(args.listen.as_deref(), port.as_deref(), node.as_deref())?;
    let options = options(args);
    options.check().map_err(|e| Fail::usage(e.to_string()))?;
    note(&format!("loading {}", options.location));
    let name = options.names[0].clone();
    let place = std::sync::Arc::new(std::sync::OnceLock::new());
    let tell = move |told: Told| match told {
        Told::Listening(address) => {
            let _ = place.set(address);
        }
        Told::Ready(ready) => ready_lines(&name, place.get(), &ready).iter().for_each(|l| note(l)),
        Told::Draining => note("leaving: what was asked is finished, what comes is refused"),
    };
    match tutti_infer::run(&listen, options, tell) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error @ (ServeError::Load(_) | ServeError::Listen { .. })) => {
            Err(Fail::usage(chain(&error)))
        }
        Err(error) => Err(Fail::new(chain(&error))),
    }
}

fn options(args: InferArgs) -> Options {
    let names = if args.model.is_empty() { vec![last_part(&args.checkpoint)] } else { args.model };
    Options {
        location: args.checkpoint,
        step: args.step,
        names,
        hardware: args.device,
        precision: match args.precision {
            Numbers::Auto => Precision::Auto,
            Numbers::F32 => Precision::F32,
            Numbers::Bf16 => Precision::Bf16,
            Numbers::F16 => Precision::F16,
        },
        max_batch: args.max_batch,
        max_context: args.max_context,
        queue: args.queue,
        chunk: args.prefill_chunk,
    }
}

fn last_part(location: &str) -> String {
    let last = location.split('/').rfind(|part| !part.is_empty() && *part != ".");
    last.unwrap_or("model").to_owned()
}

/// A replica is told its port, and routers on other nodes must reach it. Nobody else is served but
/// who is on this machine.
fn address(listen: Option<&str>, port: Option<&str>, node: Option<&str>) -> Result<String, Fail> {
    if let Some(listen) = listen {
        return Ok(listen.to_owned());
    }
    let Some(port) = port else { return Ok("127.0.0.1:8000".to_owned()) };
    let number: u16 =
        port.parse().map_err(|_| Fail::usage(format!("PORT is '{port}', which is no port")))?;
    Ok(match node {
        Some(node) if node.contains(':') => format!("[{node}]:{number}"),
        Some(node) => format!("{node}:{number}"),
        None => format!("127.0.0.1:{number}"),
    })
}

fn ready_lines(name: &str, place: Option<&SocketAddr>, ready: &Ready) -> Vec<String> {
    let mut lines: Vec<String> =
        ready.warnings.iter().map(|warning| format!("warning: {warning}")).collect();
    let Ready { step, parameters, device, precision, took, .. } = ready;
    lines.push(format!(
        "step {step}: {parameters} parameters in {precision} on {device}, ready after {:.1} s",
        took.as_secs_f64()
    ));
    let Ready { slots, context, cache_bytes, .. } = ready;
    lines.push(format!(
        "{} of up to {context} tokens fit at a time: {} of keys and values",
        count(*slots as u64, "sequence"),
        Bytes(*cache_bytes)
    ));
    let place = place.map_or_else(String::new, |place| format!(" at http://{place}/v1"));
    lines.push(format!("serving {name}{place}"));
    lines
}

fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_listens_where_routers_find_it_and_others_on_this_machine_alone() {
        for (listen, port, node, wanted) in [
            (None, None, None, "127.0.0.1:8000"),
            (None, None, Some("10.0.0.7"), "127.0.0.1:8000"),
            (None, Some("9001"), None, "127.0.0.1:9001"),
            (None, Some("9001"), Some("10.0.0.7"), "10.0.0.7:9001"),
            (None, Some("9001"), Some("fd00::7"), "[fd00::7]:9001"),
            (Some("0.0.0.0:1"), Some("9001"), Some("10.0.0.7"), "0.0.0.0:1"),
        ] {
            assert_eq!(address(listen, port, node).unwrap(), wanted);
        }
        let fail = address(None, Some("http"), None).unwrap_err();
        assert!(fail.message.contains("PORT is 'http'"), "{}", fail.message);
    }

    #[test]
    fn a_model_is_named_after_its_directory() {
        for (location, name) in
            [("/ckpt/run", "run"), ("s3://bucket/a/b/", "b"), ("./x/.", "x"), ("/", "model")]
        {
            assert_eq!(last_part(location), name);
        }
    }
}
