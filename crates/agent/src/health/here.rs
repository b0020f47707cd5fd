//! This machine, looked at once and without a cluster.

use std::path::Path;

use tutti_gpu::health::rules::{Rules, Thresholds};
use tutti_gpu::health::{Addresses, checks};
use tutti_model::{NodeSample, Time, count};
use tutti_wire::stream::{Examination, Watched};

use super::{Board, ChecksConfig, KERNEL_LOG, booted_at, kernel_log, run_once};

/// What can be seen in one look: the kernel's log since the machine was started, one sample, and
/// the operator's checks. What shows only over time is left out.
pub fn examine(
    sample: &NodeSample,
    addresses: &Addresses,
    thresholds: Thresholds,
    own: &ChecksConfig,
    now: Time,
) -> Examination {
    let mut board = Board::default();
    let mut watched = vec![kernel(&mut board, addresses, now)];
    let mut rules = Rules::new(thresholds, Default::default());
    rules.sample(sample).into_iter().for_each(|seen| board.put(seen));
    watched.push(Watched {
        what: "telemetry".to_owned(),
        not: None,
        note: format!("one sample of {} and the host", count(sample.gpus.len() as u64, "GPU")),
    });
    for ran in run_once(own) {
        let seen = checks::judge(&ran.name, &ran.ran, own.every, now);
        seen.into_iter().for_each(|seen| board.put(seen));
        watched.push(Watched {
            what: format!("check {}", ran.name),
            not: None,
            note: format!("ran: {}", ran.ran),
        });
    }
    board.expire(now);
    Examination { findings: board.findings(), watched }
}

fn kernel(board: &mut Board, addresses: &Addresses, now: Time) -> Watched {
    let what = "kernel log".to_owned();
    match kernel_log::read_all(Path::new(KERNEL_LOG), booted_at(now)) {
        Ok((records, entries)) => {
            board.kernel_said(&entries, addresses);
            Watched {
                what,
                not: None,
                note: format!("{} since the start", count(records, "record")),
            }
        }
        Err(error) => {
            Watched { what, not: Some(format!("{KERNEL_LOG}: {error}")), note: String::new() }
        }
    }
}
