//! Adding numbers up over all ranks of a gang: rank 0 listens where the environment says, the
//! others dial it. Enough for a demo; real programs bring NCCL, Gloo or MPI.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::place::Place;
use crate::fail::Fail;

/// Until all ranks have met. They are started together, so this is long.
const MEET_WITHIN: Duration = Duration::from_secs(30);
/// Until a rank that is there says something.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
const TRY_EVERY: Duration = Duration::from_millis(5);

/// So that a stray connection is not taken for a rank.
const MAGIC: [u8; 8] = *b"tuttidmo";

pub enum Group {
    /// Rank 0, with a connection to each other rank, in their order.
    Hub(Vec<TcpStream>),
    Spoke(TcpStream),
}

impl Group {
    pub fn join(place: &Place) -> Result<Group, Fail> {
        let deadline = Instant::now() + MEET_WITHIN;
        if place.rank > 0 {
            return dial(place, deadline).map(Group::Spoke);
        }
        let listener = TcpListener::bind(place.master)
            .map_err(|e| Fail::new(format!("can't listen on {}: {e}", place.master)))?;
        gather(&listener, place.world, deadline).map(Group::Hub)
    }

    /// After this, `values` is the same on every rank: the sum over all, added in rank order.
    pub fn sum(&mut self, values: &mut [f64]) -> Result<(), Fail> {
        match self {
            Group::Hub(peers) => {
                for (peer, rank) in peers.iter_mut().zip(1..) {
                    let theirs = receive(peer, values.len()).map_err(|e| lost(rank, &e))?;
                    values.iter_mut().zip(theirs).for_each(|(v, t)| *v += t);
                }
                for (peer, rank) in peers.iter_mut().zip(1..) {
                    send(peer, values).map_err(|e| lost(rank, &e))?;
                }
            }
            Group::Spoke(hub) => {
                send(hub, values).map_err(|e| lost(0, &e))?;
                let sums = receive(hub, values.len()).map_err(|e| lost(0, &e))?;
                values.copy_from_slice(&sums);
            }
        }
        Ok(())
    }
}

fn lost(rank: u32, error: &std::io::Error) -> Fail {
    Fail::new(format!("lost rank {rank}: {error}"))
}

fn send(to: &mut TcpStream, values: &[f64]) -> std::io::Result<()> {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    to.write_all(&bytes)
}

fn receive(from: &mut TcpStream, count: usize) -> std::io::Result<Vec<f64>> {
    let mut bytes = vec![0; count * 8];
    from.read_exact(&mut bytes)?;
    let number = |b: &[u8]| f64::from_le_bytes(b.try_into().expect("chunks of 8"));
    Ok(bytes.chunks_exact(8).map(number).collect())
}

fn set_up(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    stream.set_write_timeout(Some(ANSWER_WITHIN))
}

fn dial(place: &Place, deadline: Instant) -> Result<TcpStream, Fail> {
    loop {
        // Rank 0 may not listen yet.
        let tried =
            TcpStream::connect_timeout(&place.master, MEET_WITHIN).and_then(|mut stream| {
                set_up(&stream)?;
                stream.write_all(&hello(place.rank))?;
                Ok(stream)
            });
        match tried {
            Ok(stream) => return Ok(stream),
            Err(e) if Instant::now() > deadline => {
                return Err(Fail::new(format!("rank 0 can't be reached at {}: {e}", place.master)));
            }
            Err(_) => std::thread::sleep(TRY_EVERY),
        }
    }
}

fn hello(rank: u32) -> Vec<u8> {
    [&MAGIC[..], &rank.to_le_bytes()].concat()
}

fn gather(listener: &TcpListener, world: u32, deadline: Instant) -> Result<Vec<TcpStream>, Fail> {
    let failed = |e: std::io::Error| Fail::new(format!("can't gather the gang: {e}"));
    listener.set_nonblocking(true).map_err(failed)?;
    let mut peers: Vec<Option<TcpStream>> = (1..world).map(|_| None).collect();
    while peers.iter().any(Option::is_none) {
        match listener.accept() {
            Ok((stream, _)) => {
                let Some(rank) = greeted(&stream) else { continue };
                let place = (rank as usize).checked_sub(1).and_then(|i| peers.get_mut(i));
                let place = place
                    .ok_or_else(|| Fail::new(format!("rank {rank} came to a gang of {world}")))?;
                if place.replace(stream).is_some() {
                    return Err(Fail::new(format!("rank {rank} came twice")));
                }
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                if Instant::now() > deadline {
                    let missing = peers.iter().filter(|p| p.is_none()).count();
                    return Err(Fail::new(format!("{missing} of {world} ranks did not come")));
                }
                std::thread::sleep(TRY_EVERY);
            }
            Err(e) => return Err(failed(e)),
        }
    }
    Ok(peers.into_iter().flatten().collect())
}

/// The rank that is calling; none for a caller who is no rank.
fn greeted(mut stream: &TcpStream) -> Option<u32> {
    let mut bytes = [0; MAGIC.len() + 4];
    set_up(stream).and_then(|()| stream.read_exact(&mut bytes)).ok()?;
    let (magic, rank) = bytes.split_at(MAGIC.len());
    let rank = u32::from_le_bytes(rank.try_into().expect("4 bytes are left"));
    (magic == MAGIC).then_some(rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gang(world: u32) -> Vec<Group> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let master = listener.local_addr().unwrap();
        let deadline = Instant::now() + MEET_WITHIN;
        let place = |rank| Place {
            rank,
            world,
            node: "n1".into(),
            gpu: "0".into(),
            simulated: true,
            attempt: 1,
            master,
        };
        let mut stranger = TcpStream::connect(master).unwrap();
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let spokes: Vec<_> = (1..world)
            .rev()
            .map(|r| (place(r), deadline))
            .map(|(p, d)| std::thread::spawn(move || dial(&p, d).unwrap()))
            .collect();
        let hub = gather(&listener, world, deadline).unwrap();
        let spokes = spokes.into_iter().rev().map(|t| Group::Spoke(t.join().unwrap()));
        std::iter::once(Group::Hub(hub)).chain(spokes).collect()
    }

    #[test]
    fn every_rank_gets_the_same_sum() {
        let ranks = gang(4).into_iter().zip(0u32..).map(|(mut group, rank)| {
            std::thread::spawn(move || {
                let mut values = [f64::from(rank), 1.0];
                group.sum(&mut values).unwrap();
                values
            })
        });
        let ranks: Vec<_> = ranks.collect();
        for rank in ranks {
            assert_eq!(rank.join().unwrap(), [6.0, 4.0]);
        }
    }

    #[test]
    fn a_rank_that_is_gone_is_named() {
        let mut group = gang(3);
        drop(group.pop());
        let mut hub = group.swap_remove(0);
        let first = std::thread::spawn(move || {
            let mut spoke = group.pop().unwrap();
            spoke.sum(&mut [1.0])
        });
        let fail = hub.sum(&mut [0.0]).unwrap_err();
        assert!(fail.message.starts_with("lost rank 2: "), "{fail}");
        drop(hub);
        assert!(first.join().unwrap().unwrap_err().message.starts_with("lost rank 0: "));
    }
}
