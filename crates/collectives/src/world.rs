//! The world: all ranks, connected.

use std::net::TcpListener;
use std::sync::{Arc, OnceLock};

use crate::auth::Key;
use crate::config::Config;
use crate::control::Control;
use crate::door::Door;
use crate::error::{Error, Result};
use crate::group::Group;
use crate::health::Health;
use crate::idle::Idle;
use crate::lane::Lane;
use crate::link::tcp::STREAMS_MAX;
use crate::mail::{Inbox, Outbox};
use crate::peer::Peer;
use crate::plan::{Choice, Links};
use crate::probe;
use crate::rendezvous;
use crate::sys;

/// Streams per pair of ranks on different machines; one already fills a loopback.
const STREAMS: usize = 4;
/// The id of the group that explores; the world's is 0, those of sub-groups are hashes.
const PROBE: u64 = 1;

/// What every group of a world uses. The last group to go takes it along.
pub(crate) struct Shared {
    pub config: Config,
    pub health: Arc<Health>,
    pub outbox: Outbox,
    pub inbox: Arc<Inbox>,
    door: Option<Door>,
    /// Which ranks could open their node's shared memory; found when the world is connected.
    sharing: OnceLock<Vec<bool>>,
    hopeful: Vec<bool>,
    links: OnceLock<Links>,
    /// More ranks than cores on this machine.
    crowded: bool,
    // Last, so that the farewell comes when nothing can fail any more.
    _control: Control,
}

impl Shared {
    pub fn door(&self) -> &Door {
        self.door.as_ref().expect("a world of one has nobody to talk to")
    }

    /// Until it is known, everybody who wants to.
    pub fn sharing(&self) -> &[bool] {
        self.sharing.get().unwrap_or(&self.hopeful)
    }

    pub fn links(&self) -> Links {
        self.links.get().copied().unwrap_or_default()
    }

    pub fn choice(&self) -> Choice {
        self.config.choice.unwrap_or(Choice::Measured)
    }

    /// Finds out what works and how fast, before the first group is made.
    fn explore(shared: &Arc<Self>) -> Result<()> {
        let world = shared.config.world;
        let members: Arc<[usize]> = (0..world).collect();
        let mut lane = Lane::new(Arc::clone(shared), PROBE, members, shared.config.rank);
        let (sharing, links) = probe::run(&mut lane)?;
        assert!(shared.sharing.set(sharing).is_ok() && shared.links.set(links).is_ok());
        Ok(())
    }

    pub fn streams_to(&self, peer: &Peer) -> usize {
        match self.config.streams {
            0 if peer.addr.ip().is_loopback() => 1,
            0 => STREAMS,
            n => n.min(STREAMS_MAX),
        }
    }

    pub fn idle(&self) -> Idle {
        Idle::new(self.crowded)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.inbox.close();
    }
}

/// All ranks of a gang, connected. Leaving (dropping it and all its groups) is not an error for the
/// others until they wait for this rank. Rank 0 should leave last: without it failures are noticed
/// only by closed connections and timeouts.
pub struct World {
    group: Group,
}

impl World {
    /// Meets the other ranks. Returns when all are there.
    pub fn connect(config: Config) -> Result<Self> {
        config.check()?;
        let key = Key::of_world(config.key, &config.id, config.world);
        let io = |what: &str| {
            let what = what.to_owned();
            move |e| Error::io(what, e)
        };
        let listener = TcpListener::bind((config.bind, 0))
            .map_err(io(&format!("listen on {}", config.bind)))?;
        let addr = listener.local_addr().map_err(io("read the address listened on"))?;
        let met = rendezvous::meet(&config, key, Peer::here(&config, addr))?;
        let peers: Arc<[Peer]> = met.peers.into();
        let inbox = Arc::new(Inbox::default());
        let mail = Arc::clone(&inbox);
        let door = (config.world > 1)
            .then(|| {
                let on_mail = Box::new(move |from, stream| mail.read_from(from, stream));
                Door::open(config.rank, key.of_session(&met.session), listener, on_mail)
            })
            .transpose()?;
        let control = Control::start(&config, Arc::clone(&peers), met.control)?;
        inbox.attach(Arc::clone(&control.health));
        let here = &peers[config.rank].machine;
        let ranks_here: Vec<usize> =
            peers.iter().filter(|p| p.machine == *here).map(|p| p.rank).collect();
        let crowded = ranks_here.len() > sys::cores();
        if !crowded {
            // Ranks that wait for each other by spinning must not begin on the same core: on a busy
            // machine it takes the system long to notice.
            sys::step_onto(ranks_here.iter().position(|r| *r == config.rank).unwrap_or(0));
        }
        let shared = Arc::new(Shared {
            health: Arc::clone(&control.health),
            outbox: Outbox::default(),
            inbox,
            door,
            sharing: OnceLock::new(),
            hopeful: peers.iter().map(|p| p.shares).collect(),
            links: OnceLock::new(),
            crowded,
            _control: control,
            config,
        });
        Shared::explore(&shared)?;
        Ok(Self { group: Group::of_world(shared) })
    }

    /// The group of all ranks.
    pub fn group(&self) -> Group {
        self.group.clone()
    }

    /// What was measured of the links when the world was connected: the same on every rank.
    pub fn links(&self) -> Links {
        self.group.links()
    }

    pub fn rank(&self) -> usize {
        self.group.rank()
    }

    pub fn size(&self) -> usize {
        self.group.size()
    }
}
