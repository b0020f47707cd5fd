//! `tutti token create|list|revoke`.

use std::process::ExitCode;

use tutti_model::{Grant, KeyLimits, Role, Span};
use tutti_wire::api::NewToken;

use crate::fail::Fail;
use crate::show::table::terminal_width;
use crate::show::tokens;
use crate::style::Style;
use crate::{session, terminal};

#[derive(clap::Args)]
pub struct TokenArgs {
    #[command(subcommand)]
    verb: TokenVerb,
}

#[derive(clap::Subcommand)]
enum TokenVerb {
    /// Make a token and print it, once
    Create(CreateArgs),
    /// List tokens, without their secrets
    List {
        #[arg(long)]
        json: bool,
    },
    /// Make tokens useless at once
    Revoke {
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
}

#[derive(clap::Args)]
struct CreateArgs {
    /// viewer, user or admin
    #[arg(long, value_parser = role, default_value = "user", conflicts_with_all = ["join", "router", "serve"])]
    role: Role,
    /// Whose token it is [default: you]
    #[arg(long, conflicts_with_all = ["join", "router", "serve"])]
    user: Option<String>,
    /// When it ends: 12h, 30d [default: never; 1h for --join]
    #[arg(long, value_name = "TIME")]
    expires: Option<Span>,
    /// For an agent to join with
    #[arg(long)]
    join: bool,
    /// Only for the node of this name
    #[arg(long, requires = "join", value_name = "NAME")]
    node: Option<String>,
    /// How many nodes may use it
    #[arg(long, requires = "join", value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    uses: u32,
    /// For a router: reads where replicas are and says how they do, nothing else
    #[arg(long, conflicts_with_all = ["join", "serve"])]
    router: bool,
    /// A key for requests to endpoints, in this user's name, good for nothing else
    #[arg(long, value_name = "USER", conflicts_with = "join")]
    serve: Option<String>,
    #[command(flatten)]
    limits: LimitArgs,
    #[arg(long)]
    json: bool,
}

/// What a key may use up, in each router.
#[derive(clap::Args)]
struct LimitArgs {
    /// Requests that the key may make
    #[arg(long, value_name = "N", requires = "serve", value_parser = clap::value_parser!(u32).range(1..))]
    requests_per_minute: Option<u32>,
    /// Tokens that it may use, of prompts and answers together
    #[arg(long, value_name = "N", requires = "serve", value_parser = clap::value_parser!(u64).range(1..))]
    tokens_per_minute: Option<u64>,
    /// Requests that it may have at the same time
    #[arg(long, value_name = "N", requires = "serve", value_parser = clap::value_parser!(u32).range(1..))]
    concurrent: Option<u32>,
    /// Only for this endpoint; may be repeated
    #[arg(long = "endpoint", value_name = "NAME", requires = "serve")]
    endpoints: Vec<String>,
}

impl From<LimitArgs> for KeyLimits {
    fn from(args: LimitArgs) -> KeyLimits {
        KeyLimits {
            requests_per_minute: args.requests_per_minute,
            tokens_per_minute: args.tokens_per_minute,
            concurrent: args.concurrent,
            endpoints: args.endpoints,
        }
    }
}

/// A token whose secret nobody has seen.
const UNSEEN: &str = "a token may have been made all the same, and its secret is lost: tutti token \
                      list shows it, tutti token revoke ID takes it back";

/// Time to walk to another machine; a join token that lies around is a risk.
const JOIN_EXPIRES: Span = Span::secs(3600);

pub fn run(cluster: Option<&str>, args: TokenArgs) -> Result<ExitCode, Fail> {
    let client = session::open(cluster)?;
    match args.verb {
        TokenVerb::Create(create) => {
            let json = create.json;
            let created = client
                .create_token(&new_token(create)?)
                .map_err(|e| session::perhaps_done(e, || UNSEEN.to_owned()))?;
            if json {
                terminal::json(&created)?;
            } else {
                terminal::say(&created.secret);
                terminal::complain(&format!(
                    "token {}: {}; it is shown only now",
                    created.row.id,
                    tokens::grant(&created.row.grant)
                ));
            }
        }
        TokenVerb::List { json } => {
            let rows = client.tokens()?;
            if json {
                terminal::json(&rows)?;
            } else {
                let (now, width) = (session::now(&client), terminal_width());
                terminal::say(&tokens::table(&rows, now, Style::of_stdout(), width));
            }
        }
        TokenVerb::Revoke { ids } => {
            for id in ids {
                client.revoke_token(&id)?;
                terminal::complain(&format!("revoked {id}"));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn new_token(args: CreateArgs) -> Result<NewToken, Fail> {
    if args.join {
        let grant = Grant::Join { node: args.node, uses: Some(args.uses) };
        return Ok(NewToken { grant, expires_in: args.expires.or(Some(JOIN_EXPIRES)) });
    }
    if args.router {
        return Ok(NewToken { grant: Grant::Router, expires_in: args.expires });
    }
    if let Some(user) = args.serve {
        let grant = Grant::Serve { user, limits: args.limits.into() };
        return Ok(NewToken { grant, expires_in: args.expires });
    }
    let user = match args.user {
        Some(user) => user,
        None => me()?,
    };
    Ok(NewToken { grant: Grant::Access { user, role: args.role }, expires_in: args.expires })
}

fn me() -> Result<String, Fail> {
    let uid = nix::unistd::getuid();
    match nix::unistd::User::from_uid(uid) {
        Ok(Some(user)) => Ok(user.name),
        Ok(None) | Err(_) => {
            Err(Fail::usage(format!("user {uid} has no name on this machine")).hint("give --user"))
        }
    }
}

fn role(text: &str) -> Result<Role, String> {
    match text {
        "viewer" => Ok(Role::Viewer),
        "user" => Ok(Role::User),
        "admin" => Ok(Role::Admin),
        _ => Err("write viewer, user or admin".to_owned()),
    }
}
