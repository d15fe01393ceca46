//! The description that a peer's program prints when it is started with `describe`, so that the runner links none of them:
//! four lines, `version VERSION`, `destination service|memory|nowhere`, `on CASE...`, `off CASE...`.

use std::fmt;
use std::str::FromStr;

use crate::case::Case;
use crate::peer::{Destination, Peer};

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Of the package that is compared, or `-`.
    pub version: String,
    pub destination: Destination,
    /// The cases that it supports.
    pub on: Vec<Case>,
    /// The cases that it supports while tracing is off.
    pub off: Vec<Case>,
}

impl Description {
    pub fn of(peer: &dyn Peer) -> Description {
        let on: Vec<_> = Case::ALL
            .into_iter()
            .filter(|case| peer.body(*case).is_some())
            .collect();
        Description {
            version: peer.package().and_then(version).unwrap_or("-").to_owned(),
            destination: peer.destination(),
            off: on.iter().copied().filter(|case| peer.can_be_off(*case)).collect(),
            on,
        }
    }
}

/// The version of a package in our lock file.
fn version(package: &str) -> Option<&'static str> {
    let lock = include_str!("../Cargo.lock");
    let after = lock
        .split(&format!("name = \"{package}\"\nversion = \""))
        .nth(1)?;
    after.split('"').next()
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let destination = match self.destination {
            Destination::Service => "service",
            Destination::Memory => "memory",
            Destination::Nowhere => "nowhere",
        };
        writeln!(f, "version {}\ndestination {destination}", self.version)?;
        for (word, cases) in [("on", &self.on), ("off", &self.off)] {
            f.write_str(word)?;
            cases.iter().try_for_each(|case| write!(f, " {case}"))?;
            writeln!(f)?;
        }
        Ok(())
    }
}

impl FromStr for Description {
    type Err = String;

    fn from_str(text: &str) -> Result<Description, String> {
        let value = |word: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(word))
                .map(str::trim)
                .ok_or_else(|| format!("a peer's description lacks `{word}`: {text}"))
        };
        let cases = |word| {
            value(word)?
                .split_whitespace()
                .map(str::parse)
                .collect::<Result<_, _>>()
        };
        Ok(Description {
            version: value("version")?.to_owned(),
            destination: match value("destination")? {
                "service" => Destination::Service,
                "memory" => Destination::Memory,
                "nowhere" => Destination::Nowhere,
                other => return Err(format!("no destination {other}")),
            },
            on: cases("on")?,
            off: cases("off")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_survives_being_said() {
        let description = Description {
            version: "1.2.3".to_owned(),
            destination: Destination::Memory,
            on: vec![Case::Pair, Case::Counter],
            off: vec![],
        };
        assert_eq!(description.to_string().parse(), Ok(description));
    }
}
