//! Who this rank is, from what the agent put into its environment.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::fail::Fail;

#[derive(Debug, PartialEq, Eq)]
pub struct Place {
    pub rank: u32,
    pub world: u32,
    pub node: String,
    pub gpu: String,
    pub simulated: bool,
    pub attempt: u32,
    pub master: SocketAddr,
}

impl Place {
    pub fn from_env(variable: impl Fn(&str) -> Option<String>) -> Result<Place, Fail> {
        let text = |name: &str| {
            variable(name).ok_or_else(|| {
                Fail::usage(format!("{name} is not set"))
                    .hint("this is a rank of tutti demo; it only runs inside a job")
            })
        };
        fn number(name: &str, text: String) -> Result<u32, Fail> {
            text.parse().map_err(|_| Fail::new(format!("{name} is '{text}', not a number")))
        }
        let whole = |name: &str| number(name, text(name)?);
        let (rank, world) = (whole("RANK")?, whole("WORLD_SIZE")?);
        if rank >= world {
            return Err(Fail::new(format!("RANK is {rank} in a gang of {world}")));
        }
        let (local, devices) = (whole("LOCAL_RANK")?, text("CUDA_VISIBLE_DEVICES")?);
        let gpu = devices.split(',').nth(local as usize).filter(|d| !d.is_empty());
        let gpu = gpu.ok_or_else(|| {
            Fail::new(format!("CUDA_VISIBLE_DEVICES is '{devices}': none for LOCAL_RANK {local}"))
        })?;
        let address = text("MASTER_ADDR")?;
        let ip: IpAddr = address
            .parse()
            .map_err(|_| Fail::new(format!("MASTER_ADDR is '{address}', not an address")))?;
        let port = whole("MASTER_PORT")?;
        let port = u16::try_from(port)
            .map_err(|_| Fail::new(format!("MASTER_PORT is {port}, not a port")))?;
        Ok(Place {
            rank,
            world,
            node: text("TUTTI_NODE")?,
            gpu: gpu.to_owned(),
            simulated: text("TUTTI_SIMULATED")? == "1",
            attempt: whole("TUTTI_ATTEMPT")?,
            master: SocketAddr::new(ip, port),
        })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let simulated = if self.simulated { "simulated " } else { "" };
        write!(
            f,
            "rank {} of {} on {}, {simulated}GPU {}, attempt {}, meeting at {}",
            self.rank, self.world, self.node, self.gpu, self.attempt, self.master
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(change: (&str, Option<&str>)) -> Result<Place, Fail> {
        let usual = |name: &str| {
            Some(match name {
                "RANK" => "9",
                "WORLD_SIZE" => "16",
                "LOCAL_RANK" => "1",
                "CUDA_VISIBLE_DEVICES" => "4,6",
                "MASTER_ADDR" => "127.0.1.2",
                "MASTER_PORT" => "40123",
                "TUTTI_NODE" => "n3",
                "TUTTI_SIMULATED" => "1",
                "TUTTI_ATTEMPT" => "2",
                _ => return None,
            })
        };
        Place::from_env(|name| {
            let value = if name == change.0 { change.1 } else { usual(name) };
            value.map(str::to_owned)
        })
    }

    #[test]
    fn the_environment_says_who_it_is() {
        assert_eq!(
            place(("", None)).unwrap().to_string(),
            "rank 9 of 16 on n3, simulated GPU 6, attempt 2, meeting at 127.0.1.2:40123"
        );
    }

    #[test]
    fn a_wrong_environment_is_named() {
        for (change, want) in [
            (("RANK", None), "RANK is not set"),
            (("RANK", Some("16")), "RANK is 16 in a gang of 16"),
            (("WORLD_SIZE", Some("x")), "WORLD_SIZE is 'x', not a number"),
            (("LOCAL_RANK", Some("2")), "CUDA_VISIBLE_DEVICES is '4,6': none for LOCAL_RANK 2"),
            (("MASTER_ADDR", Some("n1")), "MASTER_ADDR is 'n1', not an address"),
            (("MASTER_PORT", Some("70000")), "MASTER_PORT is 70000, not a port"),
        ] {
            assert_eq!(place(change).unwrap_err().message, want);
        }
    }
}
