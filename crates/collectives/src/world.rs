//! The world: all ranks, connected.

use std::net::TcpListener;
use std::sync::Arc;

use crate::auth::Key;
use crate::config::Config;
use crate::control::Control;
use crate::door::Door;
use crate::error::{Error, Result};
use crate::group::Group;
use crate::health::Health;
use crate::idle::Idle;
use crate::link::tcp::STREAMS_MAX;
use crate::mail::{Inbox, Outbox};
use crate::peer::Peer;
use crate::rendezvous;
use crate::sys;

/// Streams per pair of ranks on different machines; one already fills a loopback.
const STREAMS: usize = 4;

/// What every group of a world uses. The last group to go takes it along.
pub(crate) struct Shared {
    pub config: Config,
    pub health: Arc<Health>,
    pub outbox: Outbox,
    pub inbox: Arc<Inbox>,
    door: Option<Door>,
    /// More ranks than cores on this machine.
    crowded: bool,
    // Last, so that the farewell comes when nothing can fail any more.
    _control: Control,
}

impl Shared {
    pub fn door(&self) -> &Door {
        self.door.as_ref().expect("a world of one has nobody to talk to")
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
        let crowded = peers.iter().filter(|p| p.machine == *here).count() > sys::cores();
        let shared = Arc::new(Shared {
            health: Arc::clone(&control.health),
            outbox: Outbox::default(),
            inbox,
            door,
            crowded,
            _control: control,
            config,
        });
        Ok(Self { group: Group::of_world(shared) })
    }

    /// The group of all ranks.
    pub fn group(&self) -> Group {
        self.group.clone()
    }

    pub fn rank(&self) -> usize {
        self.group.rank()
    }

    pub fn size(&self) -> usize {
        self.group.size()
    }
}
