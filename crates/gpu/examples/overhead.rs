//! What telemetry costs on this machine: CPU time per second for the host, and for each GPU that is
//! found.
//!
//! ```text
//! cargo run --release -p tutti-gpu --example overhead -- 20
//! ```
#![allow(clippy::print_stdout, reason = "it is a program")]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use tutti_gpu::sample::{Machine, Marks, Round, Sampler};
use tutti_model::{NodeSample, Time};

fn main() {
    let rounds: u64 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(10);
    let found = tutti_gpu::discover();
    let gpus = found.gpus.len();
    let host = Machine::default();
    let all = Machine { gpus: found.gpus, hardware: Some(found.hardware.into()), simulated: false };
    let (of_host, _) = measure(&host, rounds);
    println!("host alone:     {}", of_host.text());
    if gpus == 0 {
        println!("no GPU was found: only the host was measured");
        return;
    }
    let (with_gpus, last) = measure(&all, rounds);
    println!("with {gpus} GPU(s):  {}", with_gpus.text());
    let each = with_gpus.cpu.saturating_sub(of_host.cpu) / gpus as u32;
    let eight = of_host.cpu + 8 * each;
    println!("each GPU:       {:.2} ms of CPU a second", millis(each));
    println!(
        "8 GPUs would take {:.2} ms a second: {:.2} % of a core",
        millis(eight),
        percent(eight)
    );
    println!("{:#?}\nprocesses: {:?}", last.gpus, last.processes);
}

struct Cost {
    /// CPU time of this process, and time that passed, for one round.
    cpu: Duration,
    wall: Duration,
}

impl Cost {
    fn text(&self) -> String {
        let (cpu, wall) = (millis(self.cpu), millis(self.wall));
        format!(
            "{cpu:.2} ms of CPU a second ({:.2} % of a core), {wall:.2} ms a round",
            percent(self.cpu)
        )
    }
}

/// Once a second, as agents do: what is cached between two calls is cold again.
fn measure(machine: &Machine, rounds: u64) -> (Cost, NodeSample) {
    let mut sampler = Sampler::open(machine, PathBuf::from("/tmp"), Marks::default());
    let began = Instant::now();
    let one = |sampler: &mut Sampler| {
        sampler.round(Round { at: Time(0), clock: began.elapsed(), held: &[] })
    };
    let mut last = one(&mut sampler);
    let (mut cpu, mut wall) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..rounds {
        std::thread::sleep(Duration::from_secs(1));
        let (before, then) = (cpu_time(), Instant::now());
        last = one(&mut sampler);
        wall += then.elapsed();
        cpu += cpu_time().saturating_sub(before);
    }
    let rounds = rounds.max(1) as u32;
    (Cost { cpu: cpu / rounds, wall: wall / rounds }, last)
}

fn cpu_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("the kernel counts it");
    let of = |time: nix::sys::time::TimeVal| {
        Duration::from_micros(time.tv_sec() as u64 * 1_000_000 + time.tv_usec() as u64)
    };
    of(usage.user_time()) + of(usage.system_time())
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Of a core, if it is spent every second.
fn percent(time: Duration) -> f64 {
    time.as_secs_f64() * 100.0
}
