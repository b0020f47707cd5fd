//! What works between the ranks of a new world, and how fast.
//!
//! Once, when the world is connected: the ranks of each node try to share memory, then every rank
//! measures the link to its right. All get the same answer, because the choice of an algorithm must
//! be the same everywhere.

use std::time::Instant;

use crate::algo;
use crate::element::{DType, Op, bytes_of_mut};
use crate::error::{Result, Verb};
use crate::kernel::Reducer;
use crate::lane::{Call, Lane, Move};
use crate::plan::{Algorithm, LinkCost, Links};
use crate::shm::Team;
use crate::span::{Span, share};

const SMALL: usize = 1;
const LARGE: usize = 256 << 10;
const ROUNDS: usize = 5;

pub(crate) fn run(lane: &mut Lane) -> Result<(Vec<bool>, Links)> {
    let world = lane.members.len();
    if world == 1 {
        return Ok((vec![false], Links::default()));
    }
    begin(lane)?;
    let ids = lane.nodes().mine().to_vec();
    let mut team = if ids.len() > 1 { Team::form(lane, ids)? } else { None };
    let mut shares = vec![0u8; world];
    shares[lane.me] = team.is_some().into();
    let all = Span::of(&mut shares);
    algo::ring::all_gather(&mut lane.crew(), all, &|i| share(world, 1, world, i))?;
    let links = measure(lane, team.as_mut())?;
    Ok((shares.iter().map(|s| *s == 1).collect(), links))
}

fn begin(lane: &mut Lane) -> Result<()> {
    lane.begin(Call {
        verb: Verb::Connect,
        dtype: DType::U8,
        detail: 0,
        bytes: 0,
        algorithm: Algorithm::Ring,
    })
}

/// The best of a few rounds on each link, and the worst of all ranks.
fn measure(lane: &mut Lane, team: Option<&mut Team>) -> Result<Links> {
    let mut buffer = vec![0u8; 2 * LARGE];
    let remote = [around(lane, &mut buffer, SMALL)?, around(lane, &mut buffer, LARGE)?];
    let mut figures = [remote[0], remote[1], 0.0, 0.0];
    if let Some(team) = team {
        figures[2] = inside(lane, team, &mut buffer, SMALL)?;
        figures[3] = inside(lane, team, &mut buffer, LARGE)?;
    }
    let reducer = Reducer::new(DType::F64, Op::Max);
    let span = Span::of(bytes_of_mut(&mut figures));
    algo::tree::all_reduce(&mut lane.crew(), span, reducer)?;
    let link = |small: f64, large: f64| LinkCost {
        latency: small,
        per_byte: ((large - small) / (LARGE - SMALL) as f64).max(1e-12),
    };
    let local = match figures[2] > 0.0 {
        true => link(figures[2], figures[3]),
        false => Links::default().local,
    };
    Ok(Links { local, remote: link(figures[0], figures[1]) })
}

/// Seconds for the first member of the node to hand `bytes` to the others.
fn inside(lane: &mut Lane, team: &mut Team, buffer: &mut [u8], bytes: usize) -> Result<f64> {
    let span = Span::of(&mut buffer[..bytes]);
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        algo::direct::broadcast(lane, team, span, 0)?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best)
}

/// Seconds for everybody to pass `bytes` on to the right.
fn around(lane: &mut Lane, buffer: &mut [u8], bytes: usize) -> Result<f64> {
    let (me, n) = (lane.me, lane.members.len());
    let (out, into) = buffer.split_at_mut(LARGE);
    let moves = [
        Move::Send { to: (me + 1) % n, span: Span::of(&mut out[..bytes]) },
        Move::Recv { from: (me + n - 1) % n, span: Span::of(&mut into[..bytes]) },
    ];
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        lane.run(&moves)?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best)
}
