//! Runs seeds and says what the storms did: `cargo run --release -p tutti-sim --example storm -- 0 200`.
#![allow(clippy::print_stdout)]

use tutti_sim::{Storm, run};

fn main() {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<u64>().expect("a seed"));
    let (first, count) = (args.next().unwrap_or(0), args.next().unwrap_or(100));
    let (mut failures, mut stale, mut restarts) = (0, 0, 0);
    let (mut preempting, mut started) = (0, 0);
    let mut sums = [0u32; 17];
    for seed in first..first + count {
        match run(seed, &Storm::default()) {
            Ok(s) => {
                stale += s.stale_seen;
                restarts += s.restarts;
                preempting += s.preempting;
                started += s.preempting_started;
                let c = s.counts;
                let all = [
                    c.resizes,
                    c.evictions,
                    c.peer_faults,
                    c.stalls,
                    c.crash_loops,
                    c.taken_out,
                    c.suspensions,
                    c.woken,
                    c.refusals,
                    c.not_woken,
                    c.kept,
                    c.replicas_ready,
                    c.replicas_failed,
                    c.rolled_out,
                    c.taken_back,
                    c.endpoints_settled,
                    c.endpoints_gone,
                ];
                sums.iter_mut().zip(all).for_each(|(sum, n)| *sum += n);
            }
            Err(failure) => {
                failures += 1;
                println!("{failure}");
            }
        }
    }
    println!("{count} seeds, {failures} failed, {restarts} restarts, {stale} stale leases stopped");
    println!("{preempting} claims stopped others, {started} of them started");
    let [resizes, evictions, peer_faults, stalls, crash_loops, taken_out, rest @ ..] = sums;
    let [suspensions, woken, refusals, not_woken, kept, rest @ ..] = rest;
    let [ready, failed, over, back, settled, gone] = rest;
    println!(
        "{resizes} resizes, {evictions} evictions, {peer_faults} peer faults, {stalls} stalls"
    );
    println!("{crash_loops} crash loops, {taken_out} nodes taken out");
    println!(
        "{suspensions} suspensions: {woken} woken, {refusals} refused, {not_woken} could not wake, \
         {kept} lost while a person kept them"
    );
    println!(
        "{gone} endpoints, {settled} at rest in the end: {ready} replicas ready, {failed} failed; \
         {over} revisions took over, {back} were taken back"
    );
}
