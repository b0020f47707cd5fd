//! A store: one home, where a checkpoint is published or not, and other places that hold copies.

mod publish;
mod remove;
mod scattered;
mod sweep;
mod verify;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tutti_files::Acting;

use crate::error::Error;
use crate::layout;
use crate::location::{Location, LocationError};
use crate::manifest::{self, Entry, FileEntry, Manifest};
use crate::peer;
use crate::save::{Gate, Save, Writer};
use crate::tier::{self, Dir, Tier, Watch};

pub use publish::Published;
pub(crate) use publish::{Verdict, now_ms};
pub use sweep::Swept;
pub(crate) use verify::check;
pub use verify::{BadCopy, Reading, Verified};

/// How large a file may become before the next is begun.
const SHARD_BYTES: u64 = 8 << 30;

#[derive(Clone, Default)]
pub struct Options {
    /// Who saves; none to read only.
    pub writer: Option<Writer>,
    /// A directory of this node that is written first and read first.
    pub local: Option<PathBuf>,
    /// Further places for copies: directories, `tcp://` peers, object stores.
    pub replicas: Vec<String>,
    /// One more, which is read last.
    pub remote: Option<String>,
    /// There is no directory that all writers share: the home is this node's own, and a checkpoint is
    /// what all nodes have together.
    pub scattered: bool,
    /// Homes of other nodes. They are read and told of manifests and removals; copies of this
    /// writer's shards go to `replicas` alone, which are homes of other nodes, too.
    pub fellows: Vec<String>,
    /// Places that are only read, after all others.
    pub sources: Vec<String>,
    /// The gang's key, for peers.
    pub key: Option<[u8; 32]>,
    /// Options of object stores beside those in the environment: `aws_endpoint`, `aws_region`.
    pub object: Vec<(String, String)>,
    /// What is here when the store is opened is left over, whoever wrote it: it may be replaced.
    pub takeover: bool,
    /// How large a file may become before the next is begun; 0 for the default.
    pub shard_bytes: u64,
    /// Told before every change of a directory.
    pub watch: Option<Arc<dyn Watch>>,
    /// With whose rights directories are read and changed.
    pub acting: Acting,
}

impl Options {
    /// For a rank that tutti started: who it is, and the gang's key.
    pub fn from_env() -> Options {
        let key = std::env::var("TUTTI_GANG_KEY").ok().and_then(|hex| peer::parse_key(&hex));
        Options { writer: Some(Writer::from_env()), key, ..Options::default() }
    }
}

/// Cheap to clone; all clones are the same store.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

/// What a place is for, beside being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// It gets this writer's shards.
    Written,
    /// It is told what is published and removed.
    Told,
    Read,
}

struct Inner {
    /// In the order of reading and writing: the nearest first.
    tiers: Vec<Arc<dyn Tier>>,
    roles: Vec<Role>,
    home: usize,
    options: Options,
    gate: Gate,
    /// The register of each step as it was when we came. Not our rivals' work, but our forebears'.
    seen: Mutex<BTreeMap<u64, u32>>,
    own: Mutex<Own>,
}

/// What this process knows of its own saves.
#[derive(Default)]
struct Own {
    under_way: BTreeSet<u64>,
    newest_published: Option<u64>,
}

/// Which checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selector {
    Latest,
    Step(u64),
    /// The newest that is older.
    Before(u64),
}

/// A step that was published, with its manifest unless that can't be read.
#[derive(Debug)]
pub struct Listed {
    pub step: u64,
    pub manifest: Result<Manifest, Error>,
}

/// One step's register: its newest entry.
#[derive(Clone, Debug)]
pub struct Registered {
    pub revision: u32,
    pub entry: Entry,
}

impl Registered {
    pub fn is_published(&self) -> bool {
        matches!(self.entry, Entry::Published(_))
    }
}

impl Store {
    /// `location` is the home: all writers of one checkpoint share it.
    pub fn open(location: &str, options: Options) -> Result<Store, Error> {
        let home = location.parse()?;
        if matches!(home, Location::Peer(_)) {
            return Err(LocationError::PeerIsNoHome { text: location.to_owned() }.into());
        }
        let home = connect(&home, &options)?;
        let mut others = Vec::new();
        for replica in options.replicas.iter().chain(&options.remote) {
            others.push(connect(&replica.parse()?, &options)?);
        }
        let local = options.local.clone().map(Location::Dir);
        let local = local.map(|l| connect(&l, &options)).transpose()?;
        let mut more = Vec::new();
        let fellows = options.fellows.iter().map(|text| (text, Role::Told));
        for (text, role) in fellows.chain(options.sources.iter().map(|text| (text, Role::Read))) {
            more.push((connect(&text.parse()?, &options)?, role));
        }
        Store::build(local, home, others, more, options)
    }

    /// From places that are open already.
    pub fn assemble(
        local: Option<Arc<dyn Tier>>,
        home: Arc<dyn Tier>,
        others: Vec<Arc<dyn Tier>>,
        options: Options,
    ) -> Result<Store, Error> {
        Store::build(local, home, others, Vec::new(), options)
    }

    fn build(
        local: Option<Arc<dyn Tier>>,
        home: Arc<dyn Tier>,
        others: Vec<Arc<dyn Tier>>,
        more: Vec<(Arc<dyn Tier>, Role)>,
        options: Options,
    ) -> Result<Store, Error> {
        let mut tiers: Vec<Arc<dyn Tier>> = local.into_iter().collect();
        let mut at = tiers.len();
        if home.is_near() {
            tiers.push(home);
            tiers.extend(others);
        } else {
            at += others.len();
            tiers.extend(others);
            tiers.push(home);
        }
        let mut roles = vec![Role::Written; tiers.len()];
        for (tier, role) in more {
            tiers.push(tier);
            roles.push(role);
        }
        let publishes = options.writer.as_ref().is_some_and(|w| w.rank == 0);
        let inner = Inner {
            tiers,
            roles,
            home: at,
            options,
            gate: Gate::default(),
            seen: Mutex::default(),
            own: Mutex::default(),
        };
        let store = Store(Arc::new(inner));
        if publishes {
            let found = store.revisions(&**store.home())?;
            *store.0.seen.lock().unwrap_or_else(PoisonError::into_inner) = found;
        }
        Ok(store)
    }

    /// The tensors of this rank for one step go into what this returns.
    pub fn save(&self, step: u64) -> Result<Save, Error> {
        let writer = self.writer()?.clone();
        self.own().under_way.insert(step);
        Ok(Save::new(self.clone(), writer, step))
    }

    /// Whether this rank can write where it is to write: better known before the first save.
    pub fn try_to_write(&self) -> Result<(), Error> {
        let path = format!("probe-{}", crate::layout::nonce());
        self.home().put(&path, 0, &mut std::iter::empty())?;
        Ok(self.home().remove(&path)?)
    }

    /// What this rank has written of a step will not be published: whoever sweeps may remove it.
    pub fn give_up(&self, step: u64) {
        self.own().under_way.remove(&step);
    }

    pub fn label(&self) -> &str {
        self.home().label()
    }

    /// Steps that are published in the home, oldest first, with what their manifests say. One that
    /// can't be read is an error in its place.
    pub fn list(&self) -> Result<Vec<Listed>, Error> {
        if self.is_scattered() {
            return Ok(self.list_anywhere());
        }
        let mut found = Vec::new();
        for step in self.steps(&**self.home())? {
            match self.registered(&**self.home(), step) {
                Ok(Some(Registered { entry: Entry::Published(manifest), .. })) => {
                    found.push(Listed { step, manifest: Ok(manifest) });
                }
                Ok(_) => {}
                Err(e) => found.push(Listed { step, manifest: Err(e) }),
            }
        }
        Ok(found)
    }

    pub(crate) fn writer(&self) -> Result<&Writer, Error> {
        self.0.options.writer.as_ref().ok_or(Error::ReadOnly)
    }
    pub(crate) fn acting(&self) -> &Acting {
        &self.0.options.acting
    }
    pub(crate) fn tiers(&self) -> &[Arc<dyn Tier>] {
        &self.0.tiers
    }
    fn with(&self, wanted: impl Fn(Role) -> bool) -> impl Iterator<Item = (usize, &Arc<dyn Tier>)> {
        let all = self.0.tiers.iter().zip(&self.0.roles).enumerate();
        all.filter(move |(_, (_, role))| wanted(**role)).map(|(index, (tier, _))| (index, tier))
    }
    /// Places that get this writer's shards, with their indices; the nearest first.
    pub(crate) fn written(&self) -> Vec<(usize, &Arc<dyn Tier>)> {
        self.with(|role| role == Role::Written).collect()
    }
    /// Places in which checkpoints are kept and removed.
    fn kept(&self) -> impl Iterator<Item = &Arc<dyn Tier>> {
        self.with(|role| role != Role::Read).map(|(_, tier)| tier)
    }
    /// The same but for the home.
    fn followers(&self) -> impl Iterator<Item = &Arc<dyn Tier>> {
        let home = self.home_index();
        self.with(|role| role != Role::Read).filter(move |(i, _)| *i != home).map(|(_, tier)| tier)
    }
    pub(crate) fn home(&self) -> &Arc<dyn Tier> {
        &self.0.tiers[self.0.home]
    }
    pub(crate) fn home_index(&self) -> usize {
        self.0.home
    }
    fn own(&self) -> MutexGuard<'_, Own> {
        self.0.own.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Whether this process will write no more for a step: it has published that one or a later
    /// one, and saves are published in order.
    fn has_left_behind(&self, step: u64) -> bool {
        let own = self.own();
        own.newest_published.is_some_and(|p| step <= p) && !own.under_way.contains(&step)
    }
    pub(crate) fn gate(&self) -> &Gate {
        &self.0.gate
    }
    pub(crate) fn shard_bytes(&self) -> u64 {
        match self.0.options.shard_bytes {
            0 => SHARD_BYTES,
            bytes => bytes,
        }
    }

    /// Steps that have a directory, oldest first. Whether there is a checkpoint in it is for its
    /// manifest to say.
    pub(crate) fn steps(&self, tier: &dyn Tier) -> Result<Vec<u64>, Error> {
        let items = tier.list("")?;
        // A link of such a name is none of ours.
        let dirs = items.iter().filter(|i| i.is_dir);
        let mut steps: Vec<u64> = dirs.filter_map(|i| layout::parse_step_dir(&i.name)).collect();
        steps.sort_unstable();
        Ok(steps)
    }

    fn revisions(&self, tier: &dyn Tier) -> Result<BTreeMap<u64, u32>, Error> {
        let mut found = BTreeMap::new();
        for step in self.steps(tier)? {
            if let Some(&last) = revisions_of(tier, step)?.last() {
                found.insert(step, last);
            }
        }
        Ok(found)
    }

    /// What a place knows of a step.
    pub(crate) fn registered(
        &self,
        tier: &dyn Tier,
        step: u64,
    ) -> Result<Option<Registered>, Error> {
        // A revision may be replaced by a newer one between looking and reading.
        for _ in 0..8 {
            let Some(&revision) = revisions_of(tier, step)?.last() else { return Ok(None) };
            let path = layout::manifest(step, revision);
            let Some(bytes) = tier::read_all(tier, &path)? else { continue };
            let place = || tier.label().to_owned();
            let entry = manifest::unseal(&bytes).map_err(|source| Error::Manifest {
                step,
                place: place(),
                source: Box::new(source),
            })?;
            if entry.manifest().step != step {
                let source = Box::new(manifest::ManifestError::NotOne);
                return Err(Error::Manifest { step, place: place(), source });
            }
            return Ok(Some(Registered { revision, entry }));
        }
        Err(Error::Raced { step })
    }

    /// Removes files that nobody has been told of, as far as that goes.
    pub(crate) fn discard(&self, files: &[FileEntry]) {
        for (_, tier) in self.written() {
            for file in files {
                if let Err(e) = tier.remove(&file.path) {
                    tracing::warn!("left for the next sweep: {}", crate::chain(&e));
                }
            }
        }
    }
}

/// The revisions of a step's register that a place has, in order.
pub(crate) fn revisions_of(tier: &dyn Tier, step: u64) -> Result<Vec<u32>, Error> {
    let items = tier.list(&layout::step_dir(step))?;
    let mut found: Vec<u32> =
        items.iter().filter_map(|i| layout::parse_manifest(&i.name)).collect();
    found.sort_unstable();
    Ok(found)
}

fn connect(location: &Location, options: &Options) -> Result<Arc<dyn Tier>, Error> {
    let text = location.to_string();
    match location {
        Location::Dir(path) => {
            let dir = match &options.watch {
                Some(watch) => Dir::watched(path, watch.clone()),
                None => Dir::new(path),
            };
            Ok(Arc::new(dir.acting(options.acting.clone())))
        }
        Location::Peer(address) => match options.key {
            Some(key) => Ok(Arc::new(peer::Client::new(address, key))),
            None => Err(LocationError::NoKey { text }.into()),
        },
        #[cfg(feature = "cloud")]
        Location::Object(url) => Ok(Arc::new(tier::Object::open(url, &options.object)?)),
        #[cfg(not(feature = "cloud"))]
        Location::Object(_) => Err(LocationError::NoCloud { text }.into()),
    }
}
