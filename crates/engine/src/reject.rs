//! Why the engine refuses a command. Data first, words in one place.

use std::fmt;

use tutti_model::{BadSpec, Bytes, Impossible, JobId, NodeId, Role, TaskId, WrongService};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    #[error("there is no job {0}")]
    NoSuchJob(JobId),
    #[error("job {} has no task {}", .0.job, .0.index.unwrap_or_default())]
    NoSuchTask(TaskId),
    #[error("there is no node '{0}'")]
    NoSuchNode(String),
    #[error("node {0} is not connected in this session")]
    StaleSession(NodeId),
    #[error("there is no token '{0}'")]
    NoSuchToken(String),
    #[error("job {job} belongs to {owner}, not to {user}")]
    NotYours { job: JobId, owner: String, user: String },
    #[error("this needs the role {needs}; {user} has {has}")]
    RoleTooLow { user: String, has: Role, needs: Role },
    #[error("{key}: {problem}")]
    BadSpec { key: &'static str, problem: String },
    #[error(transparent)]
    Unparsable(#[from] BadSpec),
    #[error("can never run: {0}")]
    Impossible(#[from] Impossible),
    #[error("team: there is no team '{team}'; the teams are {}", .known.join(", "))]
    NoSuchTeam { team: String, known: Vec<String> },
    #[error("team: {user} is not a member of {team}")]
    NotInTeam { user: String, team: String },
    #[error("class: there is no class '{class}'; the classes are {}", .known.join(", "))]
    NoSuchClass { class: String, known: Vec<String> },
    #[error("the policy was not changed: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    BadPolicy(Vec<tutti_model::BadPolicy>),
    #[error("the policy was not changed: somebody else has changed it since it was read")]
    PolicyMoved,
    #[error(
        "the ledger of {0} can't be dropped: the day is not over, or work of it is not judged yet"
    )]
    DayNotSealed(tutti_model::Day),
    #[error(
        "the commands and environments of {whose} {name} take {} of the controller's memory; this \
         one adds {}, and {} are the most",
        has.rounded(), adds.rounded(), limit.rounded()
    )]
    TooManySpecBytes { whose: SpecHolder, name: String, has: Bytes, adds: Bytes, limit: Bytes },
    #[error("after: there is no job {0} to wait for")]
    UnknownDependency(JobId),
    #[error("after: a job can't wait for itself ({0})")]
    DependencyCycle(JobId),
    #[error("after: job {0} has already ended in a way that this dependency excludes")]
    DependencyUnmet(JobId),
    #[error("the key was used before for another spec (job {0})")]
    KeyReused(JobId),
    #[error("job {0} has ended already")]
    AlreadyEnded(JobId),
    #[error("{key} of job {job} can't change any more: {why}")]
    CantUpdate { job: JobId, key: &'static str, why: &'static str },
    #[error("job {job} is a replica of endpoint {endpoint}, which decides about it")]
    IsReplica { job: JobId, endpoint: String },
    #[error("{0} does not run now")]
    NotRunning(TaskId),
    #[error("{0} is not suspended")]
    NotSuspended(TaskId),
    #[error("{task} can't be suspended: {why}")]
    CantSuspend { task: TaskId, why: CantSuspend },
    #[error("the plan checker refused a plan: {0}")]
    PlanRefused(crate::check::Violation),
    #[error("the join token is used up, expired, or not for node '{0}'")]
    JoinRefused(String),
    #[error(
        "the name '{0}' is given already, and this token is not for it alone; to give it to another machine, make a token that is: `tutti token create --join --node {0}`"
    )]
    NameTaken(String),
    #[error(
        "node '{node}' was removed from the cluster by {by}: to let it join again, delete `node.pem` in its data dir and start its agent with a new join token"
    )]
    NodeRemoved { node: String, by: String },
    #[error(
        "the name '{0}' was given to another key since: if this is the machine that should have it, delete `node.pem` in its data dir and join again with a token from `tutti token create --join --node {0}`"
    )]
    OtherKey(String),
    #[error(
        "{leases} {} on node {node}: wait, clear it with `tutti drain {node} --evict`, or lose what runs there with --force",
        if *.leases == 1 { "task runs" } else { "tasks run" }
    )]
    NodeBusy { node: String, leases: usize },
    #[error(transparent)]
    Endpoint(#[from] EndpointRefused),
}

/// Whose job files are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecHolder {
    User,
    Team,
}

impl fmt::Display for SpecHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SpecHolder::User => "user",
            SpecHolder::Team => "team",
        })
    }
}

/// Why an endpoint is not made or changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointRefused {
    #[error("there is no endpoint '{0}'")]
    Unknown(String),
    #[error("there is an endpoint '{0}' already")]
    Exists(String),
    #[error("endpoint {endpoint} belongs to {owner}, not to {user}")]
    NotYours { endpoint: String, owner: String, user: String },
    #[error("endpoint {0} is being stopped")]
    Stopping(String),
    #[error("service: the job file has no [service] table")]
    NotAService,
    #[error("service: this is to be served, and a job that is submitted is not")]
    MustBeServed,
    #[error("name: an endpoint needs one")]
    NoName,
    #[error(
        "name: '{0}' is no name of an endpoint: write a-z, 0-9 and '-', a letter among them, no '-' first, at most 63"
    )]
    BadName(String),
    #[error("name: the job file says '{given}', and the endpoint is called '{endpoint}'")]
    OtherName { endpoint: String, given: String },
    #[error("{key}: can't be together with [service]")]
    Excluded { key: &'static str },
    #[error("service.{key}: {problem}")]
    BadService { key: String, problem: String },
    #[error("endpoint {endpoint} has no revision {revision}")]
    NoSuchRevision { endpoint: String, revision: u32 },
    #[error("endpoint {endpoint} serves revision {revision} already")]
    AlreadyThere { endpoint: String, revision: u32 },
    #[error("endpoint {0} has no older revision that was not taken back")]
    NothingToRollBackTo(String),
}

impl From<WrongService> for EndpointRefused {
    fn from(wrong: WrongService) -> EndpointRefused {
        EndpointRefused::BadService { key: wrong.at.to_string(), problem: wrong.why }
    }
}

/// What kind of mistake it is, which decides about exit codes and HTTP statuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    NotFound,
    Conflict,
    Denied,
    Invalid,
}

impl EndpointRefused {
    pub fn mistake(&self) -> Mistake {
        match self {
            EndpointRefused::Unknown(_) | EndpointRefused::NoSuchRevision { .. } => {
                Mistake::NotFound
            }
            EndpointRefused::NotYours { .. } => Mistake::Denied,
            EndpointRefused::Exists(_)
            | EndpointRefused::Stopping(_)
            | EndpointRefused::AlreadyThere { .. }
            | EndpointRefused::NothingToRollBackTo(_) => Mistake::Conflict,
            EndpointRefused::NotAService
            | EndpointRefused::MustBeServed
            | EndpointRefused::NoName
            | EndpointRefused::BadName(_)
            | EndpointRefused::OtherName { .. }
            | EndpointRefused::Excluded { .. }
            | EndpointRefused::BadService { .. } => Mistake::Invalid,
        }
    }

    /// The way out.
    pub fn hint(&self) -> &'static str {
        match self {
            EndpointRefused::Unknown(_) => "`tutti endpoints` lists the endpoints",
            EndpointRefused::Exists(_) => "`tutti serve FILE --update` gives it a new revision",
            EndpointRefused::NotYours { .. } => "only its owner and admins may do that",
            EndpointRefused::Stopping(_) => "wait until its replicas are gone, then serve it anew",
            EndpointRefused::NotAService => "add [service], or use `tutti submit`",
            EndpointRefused::MustBeServed => "use `tutti serve`, or leave [service] out",
            EndpointRefused::NoName => "write name = \"chat\" into the job file",
            EndpointRefused::BadName(_) => "choose a name that may be part of an address",
            EndpointRefused::OtherName { .. } => {
                "an endpoint keeps its name; serve the file under its own with `tutti serve`"
            }
            EndpointRefused::Excluded { .. } => "leave it out: replicas come and go by themselves",
            EndpointRefused::BadService { .. } => "leave the key out to have its default",
            EndpointRefused::NoSuchRevision { .. } | EndpointRefused::AlreadyThere { .. } => {
                "`tutti endpoints show NAME` lists its revisions"
            }
            EndpointRefused::NothingToRollBackTo(_) => {
                "`tutti serve FILE --update` gives it a new revision"
            }
        }
    }
}

/// Why a running task can't give its GPUs up for a while.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CantSuspend {
    #[error("it does not run now")]
    NotRunning,
    #[error("it was tried a moment ago, and node {node} refused: {why}")]
    Refused { node: String, why: String },
    #[error("it has a part of a GPU (gpu_share), and others use the same one")]
    Share,
    #[error("it has its nodes for itself alone (exclusive), and nobody could use them meanwhile")]
    Exclusive,
    #[error("node {node} can't move GPU state to host memory: {why}")]
    Node { node: String, why: String },
    #[error("its GPU state takes {needs} of host memory on node {node}, and {free} are free there")]
    Memory { node: String, needs: Bytes, free: Bytes },
}
