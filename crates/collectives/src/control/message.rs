//! What is said over control connections.

use std::time::Duration;

use crate::error::Why;
use crate::health::{Report, Verdict, Wait};
use crate::wire::{Reader, Writer};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Beat(Vec<Wait>),
    Report(Report),
    Verdict(Verdict),
    Left(usize),
    Bye,
}

impl Message {
    pub fn encode(&self) -> Vec<u8> {
        let w = Writer::default();
        match self {
            Self::Beat(waits) => {
                waits.iter().fold(w.u8(0).u32(waits.len() as u32), |w, x| write_wait(w, *x))
            }
            Self::Report(r) => write_why(write_wait(w.u8(1), r.wait), &r.why),
            Self::Verdict(v) => write_why(w.u8(2).u32(v.rank as u32), &v.why),
            Self::Left(rank) => w.u8(3).u32(*rank as u32),
            Self::Bye => w.u8(4),
        }
        .0
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut r = Reader(bytes);
        Some(match r.u8()? {
            0 => {
                let n = r.u32()?;
                Self::Beat((0..n).map(|_| read_wait(&mut r)).collect::<Option<_>>()?)
            }
            1 => Self::Report(Report { wait: read_wait(&mut r)?, why: read_why(&mut r)? }),
            2 => Self::Verdict(Verdict { rank: r.u32()? as usize, why: read_why(&mut r)? }),
            3 => Self::Left(r.u32()? as usize),
            4 => Self::Bye,
            _ => return None,
        })
    }
}

fn write_wait(w: Writer, wait: Wait) -> Writer {
    w.u64(wait.group).u64(wait.seq).u32(wait.on as u32)
}

fn read_wait(r: &mut Reader<'_>) -> Option<Wait> {
    Some(Wait { group: r.u64()?, seq: r.u64()?, on: r.u32()? as usize })
}

fn write_why(w: Writer, why: &Why) -> Writer {
    match why {
        Why::Died => w.u8(0),
        Why::Silent(t) => w.u8(1).u64(t.as_millis() as u64),
        Why::Absent(t) => w.u8(2).u64(t.as_millis() as u64),
        Why::Broken(how) => w.u8(3).str(how),
        Why::Left => w.u8(4),
    }
}

fn read_why(r: &mut Reader<'_>) -> Option<Why> {
    Some(match r.u8()? {
        0 => Why::Died,
        1 => Why::Silent(Duration::from_millis(r.u64()?)),
        2 => Why::Absent(Duration::from_millis(r.u64()?)),
        3 => Why::Broken(r.str()?),
        4 => Why::Left,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_survives_the_wire() {
        let wait = Wait { group: 1 << 60, seq: 3, on: 4 };
        let whys = [
            Why::Died,
            Why::Silent(Duration::from_millis(5100)),
            Why::Absent(Duration::from_secs(300)),
            Why::Broken("reset".into()),
            Why::Left,
        ];
        let mut all = vec![Message::Beat(vec![wait, wait]), Message::Left(7), Message::Bye];
        for why in whys {
            all.push(Message::Report(Report { wait, why: why.clone() }));
            all.push(Message::Verdict(Verdict { rank: 9, why }));
        }
        for m in all {
            assert_eq!(Message::decode(&m.encode()), Some(m));
        }
        assert_eq!(Message::decode(&[9]), None);
    }
}
