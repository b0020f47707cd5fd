//! Measures all-reduce of float32 in place between processes, as `bench/collectives` wants it.
//!
//! `all_reduce LABEL RANKS [BYTES,BYTES,...]` starts the ranks itself, on this machine; with `tcp`
//! in the label every rank is a node of its own. One line per size: the median and the smallest of
//! the slowest rank's times.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program")]

use std::net::TcpListener;
use std::process::{Child, Command};
use std::time::Instant;

use tutti_collectives::{Config, Op, Result, World};

const SIZES: [usize; 6] = [1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20];

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [_, label, ranks, ..] = args.as_slice() else {
        eprintln!("usage: all_reduce LABEL RANKS [BYTES,BYTES,...]");
        std::process::exit(2);
    };
    let sizes = args.get(3).map_or(SIZES.to_vec(), |s| {
        s.split(',').map(|n| n.parse().expect("a number of bytes")).collect()
    });
    if std::env::var_os("RANK").is_some() {
        if let Err(e) = rank(label, &sizes) {
            eprintln!("{e}");
            std::process::exit(1);
        }
        return;
    }
    let ranks: usize = ranks.parse().expect("a number of ranks");
    std::process::exit(i32::from(!start(&args[1..], label, ranks)));
}

fn start(args: &[String], label: &str, ranks: usize) -> bool {
    // Free at this moment; nobody else on this machine is likely to take it before rank 0 does.
    let port =
        TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
    let program = std::env::current_exe().expect("this program");
    let child = |rank: usize| -> Child {
        let mut command = Command::new(&program);
        command.args(args).env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string());
        command.env("MASTER_PORT", port.to_string());
        if label.contains("tcp") {
            command.env("TUTTI_NODE", format!("n{rank}"));
        }
        command.spawn().expect("start a rank")
    };
    let children: Vec<Child> = (0..ranks).map(child).collect();
    children.into_iter().all(|mut c| c.wait().is_ok_and(|s| s.success()))
}

fn rank(label: &str, sizes: &[usize]) -> Result<()> {
    let world = World::connect(Config::from_env()?)?;
    let g = world.group();
    for &bytes in sizes {
        let (rounds, warm) = match bytes {
            0..=65_536 => (1000, 50),
            65_537..=1_048_576 => (200, 50),
            1_048_577..=67_108_864 => (30, 3),
            _ => (20, 3),
        };
        let mut x = vec![1f32; bytes / 4];
        let mut times = Vec::new();
        for i in 0..rounds + warm {
            if i % 8 == 0 {
                x.fill(1.0);
            }
            g.barrier()?;
            let start = Instant::now();
            g.all_reduce(&mut x, Op::Sum)?;
            let mut seconds = [start.elapsed().as_secs_f64()];
            g.all_reduce(&mut seconds, Op::Max)?;
            if i >= warm {
                times.push(seconds[0]);
            }
        }
        x.fill(1.0);
        g.all_reduce(&mut x, Op::Sum)?;
        assert!(x.iter().all(|v| *v == g.size() as f32), "a wrong sum");
        times.sort_by(f64::total_cmp);
        let (p50, min) = (times[times.len() / 2], times[0]);
        if g.rank() == 0 {
            println!(
                "tutti {label} n={} bytes={bytes} iters={rounds} p50_us={:.1} min_us={:.1} \
                 algbw_GBs={:.3}",
                g.size(),
                p50 * 1e6,
                min * 1e6,
                bytes as f64 / p50 / 1e9
            );
        }
    }
    g.barrier()
}
