//! Tokens as people hold them: `tutti_<kind>_<ca>_<id>_<secret>`.
//!
//! ```text
//! tutti_u_3f2a…_k3jx09tq2m_9c41…
//!       │ │     │          └ 32 random bytes in hex; the controller keeps only their hash
//!       │ │     └ names the token in lists and in the audit log
//!       │ └ start of the CA's fingerprint, so that a client knows the server before it speaks
//!       └ u: access for a user, j: lets agents join, s: asks endpoints
//! ```

use std::fmt;
use std::str::FromStr;

use crate::pki::CaPin;

const ID_LEN: usize = 10;
const SECRET_BYTES: usize = 32;

/// 32 letters and digits without `i l o u`, which are easily misread.
const ID_ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Acts as a user.
    Access,
    /// Lets agents join.
    Join,
    /// Asks endpoints.
    Serve,
}

impl Kind {
    fn letter(self) -> &'static str {
        match self {
            Kind::Access => "u",
            Kind::Join => "j",
            Kind::Serve => "s",
        }
    }
}

/// A whole token. `Display` is the text to hand out; `Debug` hides the secret, so that a log never
/// has it.
#[derive(Clone)]
pub struct TokenText {
    pub kind: Kind,
    pub ca: CaPin,
    /// The public part.
    pub id: String,
    secret: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadToken {
    #[error("this is not a token: one starts with tutti_u_, tutti_j_ or tutti_s_")]
    Shape,
    #[error("the token is cut short or mistyped in its {0}")]
    Part(&'static str),
}

#[derive(Debug, thiserror::Error)]
#[error("the system gives no random bytes")]
pub struct NoRandomness(#[source] getrandom::Error);

impl TokenText {
    pub fn mint(kind: Kind, ca: CaPin) -> Result<Self, NoRandomness> {
        let mut random = [0; ID_LEN + SECRET_BYTES];
        getrandom::fill(&mut random).map_err(NoRandomness)?;
        let (id, secret) = random.split_at(ID_LEN);
        Ok(TokenText {
            kind,
            ca,
            id: id.iter().map(|b| ID_ALPHABET[usize::from(b % 32)] as char).collect(),
            secret: crate::pki::hex(secret),
        })
    }

    /// What the controller keeps: hex of blake3 of the secret part.
    pub fn hash(&self) -> String {
        blake3::hash(self.secret.as_bytes()).to_hex().to_string()
    }

    /// Takes the same time for every wrong secret.
    pub fn matches(&self, stored: &str) -> bool {
        // `blake3::Hash` compares in constant time.
        blake3::Hash::from_hex(stored).is_ok_and(|h| h == blake3::hash(self.secret.as_bytes()))
    }
}

impl FromStr for TokenText {
    type Err = BadToken;

    fn from_str(s: &str) -> Result<Self, BadToken> {
        let mut parts = s.trim().split('_');
        if parts.next() != Some("tutti") {
            return Err(BadToken::Shape);
        }
        let kind = match parts.next() {
            Some("u") => Kind::Access,
            Some("j") => Kind::Join,
            Some("s") => Kind::Serve,
            _ => return Err(BadToken::Shape),
        };
        let ca = parts.next().and_then(|p| p.parse().ok()).ok_or(BadToken::Part("CA part"))?;
        let id = parts
            .next()
            .filter(|p| p.len() == ID_LEN && p.bytes().all(|b| ID_ALPHABET.contains(&b)))
            .ok_or(BadToken::Part("id"))?;
        let secret = parts
            .next()
            .filter(|p| p.len() == 2 * SECRET_BYTES && crate::pki::is_hex(p))
            .ok_or(BadToken::Part("secret"))?;
        if parts.next().is_some() {
            return Err(BadToken::Part("secret"));
        }
        Ok(TokenText { kind, ca, id: id.to_owned(), secret: secret.to_owned() })
    }
}

impl fmt::Display for TokenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tutti_{}_{}_{}_{}", self.kind.letter(), self.ca, self.id, self.secret)
    }
}

impl fmt::Debug for TokenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tutti_{}_{}_{}_***", self.kind.letter(), self.ca, self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mint(kind: Kind) -> TokenText {
        TokenText::mint(kind, "0123456789abcdef".parse().unwrap()).unwrap()
    }

    #[test]
    fn tokens_round_trip() {
        for kind in [Kind::Access, Kind::Join, Kind::Serve] {
            let token = mint(kind);
            let read: TokenText = format!("  {token}\n").parse().unwrap();
            assert_eq!(read.kind, kind);
            assert_eq!(read.id, token.id);
            assert_eq!(read.ca, token.ca);
            assert_eq!(read.to_string(), token.to_string());
            assert!(read.matches(&token.hash()));
        }
    }

    #[test]
    fn every_token_is_new() {
        let (a, b) = (mint(Kind::Access), mint(Kind::Access));
        assert_ne!(a.id, b.id);
        assert!(!a.matches(&b.hash()));
        assert!(!a.matches(""));
        assert!(!a.matches("not hex"));
    }

    #[test]
    fn debug_hides_the_secret_and_the_hash_is_not_the_secret() {
        let token = mint(Kind::Join);
        let text = token.to_string();
        let secret = text.rsplit('_').next().unwrap();
        assert!(!format!("{token:?}").contains(secret));
        assert!(!token.hash().contains(secret));
    }

    #[test]
    fn broken_tokens_say_where() {
        let text = mint(Kind::Access).to_string();
        assert_eq!("".parse::<TokenText>().unwrap_err(), BadToken::Shape);
        assert_eq!("ghp_abc".parse::<TokenText>().unwrap_err(), BadToken::Shape);
        assert_eq!("tutti_x_1_2_3".parse::<TokenText>().unwrap_err(), BadToken::Shape);
        let short = &text[..text.len() - 1];
        assert_eq!(short.parse::<TokenText>().unwrap_err(), BadToken::Part("secret"));
        let long = format!("{text}_x");
        assert_eq!(long.parse::<TokenText>().unwrap_err(), BadToken::Part("secret"));
        assert_eq!("tutti_u_12".parse::<TokenText>().unwrap_err(), BadToken::Part("CA part"));
    }

    proptest::proptest! {
        #[test]
        fn random_text_is_no_token(text in ".{0,200}", tail in "[0-9a-f_]{0,120}") {
            // No panic; what does parse must print as it came.
            for s in [text, format!("tutti_u_{tail}")] {
                if let Ok(token) = s.parse::<TokenText>() {
                    proptest::prop_assert_eq!(token.to_string(), s.trim());
                }
            }
        }
    }
}
