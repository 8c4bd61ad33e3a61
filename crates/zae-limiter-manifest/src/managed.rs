//! What files manage in a namespace: the places and entities that an apply has made or taken over.
//! Only those are ever removed because a file no longer has them.
//!
//! The text that a store keeps: a line with the format and whether an apply is under way, then one
//! line per place, sorted: entity, resource (`-` for none) and marks. A line goes to the part that
//! its offset says; so lines that are added only move later lines to later parts, and lines that
//! are removed only to earlier ones. Parts are written in the order that loses no line, wherever
//! the writer is killed.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use zae_limiter::store::{MANAGED_BYTES_MAX, MANAGED_PARTS_MAX};
use zae_limiter::{Error, Invalid, ManagedChange, RateLimiter};

use crate::manifest::{Manifest, Place};

const FORMAT: &str = "limits 1";
const BEGUN: &str = "begun";
const DONE: &str = "done";

/// A part holds lines that begin in so many bytes of the text; the rest is room for the last line.
const PART_BYTES: usize = MANAGED_BYTES_MAX - 4096;

/// What of a place is managed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Its limits.
    pub limits: bool,
    /// Its flag.
    pub flag: bool,
    /// The entity as such.
    pub entity: bool,
}

impl Marks {
    fn word(self) -> String {
        let marks = [(self.limits, 'l'), (self.flag, 'd'), (self.entity, 'e')];
        marks.iter().filter(|(is_set, _)| *is_set).map(|(_, mark)| mark).collect()
    }

    fn of_word(word: &str) -> Option<Marks> {
        let mut marks = Marks::default();
        for mark in word.chars() {
            match mark {
                'l' => marks.limits = true,
                'd' => marks.flag = true,
                'e' => marks.entity = true,
                _ => return None,
            }
        }
        Some(marks)
    }

    fn with(self, other: Marks) -> Marks {
        Marks {
            limits: self.limits || other.limits,
            flag: self.flag || other.flag,
            entity: self.entity || other.entity,
        }
    }
}

/// What files manage in a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Managed {
    /// By place.
    pub places: BTreeMap<Place, Marks>,
    /// True when the last apply did not come to its end.
    pub is_interrupted: bool,
    /// The versions of the parts that were read.
    versions: Vec<u64>,
    /// The lines of the first part, as they were read.
    first: String,
}

impl Managed {
    /// What a manifest will manage.
    #[must_use]
    pub fn of(manifest: &Manifest) -> Managed {
        let mut places: BTreeMap<Place, Marks> = BTreeMap::new();
        for (place, spec) in &manifest.levels {
            let marks =
                Marks { limits: !spec.limits.is_empty(), flag: spec.flag.is_some(), entity: false };
            places.insert(place.clone(), marks);
        }
        for id in manifest.entities.keys() {
            places.entry(Place::entity(id.clone(), None)).or_default().entity = true;
        }
        Managed { places, ..Managed::default() }
    }

    /// Both together, with the versions of this one.
    pub(crate) fn with(&self, other: &Managed) -> Managed {
        let mut both = self.clone();
        for (place, marks) in &other.places {
            let found = both.places.entry(place.clone()).or_default();
            *found = found.with(*marks);
        }
        both
    }

    /// Whether both manage the same.
    pub(crate) fn is_same(&self, other: &Managed) -> bool {
        self.places == other.places
    }

    /// Reads what a store has.
    pub async fn read(limiter: &RateLimiter) -> Result<Managed, Error> {
        let mut managed = Managed::default();
        for part in 0..MANAGED_PARTS_MAX {
            let Some(found) = limiter.managed(part).await? else { break };
            managed.versions.push(found.version);
            managed.add(part, &found.text)?;
        }
        Ok(managed)
    }

    fn add(&mut self, part: u32, text: &str) -> Result<(), Error> {
        let mut lines = text.lines();
        if part == 0 {
            let head = lines.next().unwrap_or_default();
            self.first = text.split_once('\n').map_or("", |(_, rest)| rest).to_owned();
            match head.strip_prefix(FORMAT).map(str::trim) {
                Some(BEGUN) => self.is_interrupted = true,
                Some(DONE) => {}
                _ => return Err(unreadable(head)),
            }
        }
        for line in lines {
            let (place, marks) = parse(line).ok_or_else(|| unreadable(line))?;
            let found = self.places.entry(place).or_default();
            *found = found.with(marks);
        }
        Ok(())
    }

    /// Stores this in place of what was read; `is_begun` before the first change, when there are
    /// only more places than before, and not after the last one, when there are only fewer.
    pub(crate) async fn store(
        &mut self,
        limiter: &RateLimiter,
        is_begun: bool,
        details: &[(String, String)],
    ) -> Result<(), Error> {
        let mut parts = self.parts(is_begun)?;
        let there = self.versions.len();
        parts.resize(parts.len().max(there), String::new());
        self.versions.resize(parts.len(), 0);
        if is_begun && parts.len() > 1 {
            // The first part is the lock: whoever has read it before this write is refused.
            let text = format!("{FORMAT} {BEGUN}\n{}", self.first);
            self.write(limiter, 0, text, details.to_vec()).await?;
            for part in there.max(1)..parts.len() {
                // An apply that was killed may have left a part behind a gap.
                let found = limiter.managed(u32::try_from(part).unwrap_or(u32::MAX)).await?;
                self.versions[part] = found.map_or(0, |found| found.version);
            }
        }
        for part in order(parts.len(), is_begun) {
            let details = match part {
                0 => details.to_vec(),
                _ => vec![("part".to_owned(), part.to_string())],
            };
            self.write(limiter, part, std::mem::take(&mut parts[part]), details).await?;
        }
        Ok(())
    }

    async fn write(
        &mut self,
        limiter: &RateLimiter,
        part: usize,
        text: String,
        details: Vec<(String, String)>,
    ) -> Result<(), Error> {
        let number = u32::try_from(part).unwrap_or(u32::MAX);
        let change = ManagedChange { text, expected_version: self.versions[part], details };
        self.versions[part] = limiter.set_managed(number, &change).await?;
        Ok(())
    }

    fn parts(&self, is_begun: bool) -> Result<Vec<String>, Error> {
        let state = if is_begun { BEGUN } else { DONE };
        let mut parts = vec![format!("{FORMAT} {state}\n")];
        let mut offset = 0;
        for (place, marks) in &self.places {
            let entity = place.entity.as_ref().map_or("-", |id| id.as_str());
            let resource = place.resource.as_ref().map_or("-", |name| name.as_str());
            let mut line = String::new();
            // A text cannot fail to grow.
            let _ = writeln!(line, "{entity} {resource} {}", marks.word());
            let part = offset / PART_BYTES;
            if part >= parts.len() {
                parts.push(String::new());
            }
            offset += line.len();
            parts[part].push_str(&line);
        }
        if parts.len() > MANAGED_PARTS_MAX as usize {
            return Err(Error::from(Invalid::Refused(format!(
                "the file manages {} places, more than a namespace can remember; divide it into \
                 namespaces",
                self.places.len()
            ))));
        }
        Ok(parts)
    }
}

/// The order in which parts are written: lines that are added move to later parts, those that are
/// left when some are removed to earlier ones.
fn order(parts: usize, is_begun: bool) -> Vec<usize> {
    if is_begun { (0..parts).rev().collect() } else { (0..parts).collect() }
}

fn parse(line: &str) -> Option<(Place, Marks)> {
    let mut words = line.split(' ');
    let (entity, resource, marks) = (words.next()?, words.next()?, words.next()?);
    let entity = if entity == "-" { None } else { Some(entity.parse().ok()?) };
    let resource = if resource == "-" { None } else { Some(resource.parse().ok()?) };
    words.next().is_none().then_some((Place { entity, resource }, Marks::of_word(marks)?))
}

fn unreadable(line: &str) -> Error {
    let shown: String = line.chars().take(50).collect();
    Error::from(Invalid::Refused(format!(
        "what files manage here was written by another version: {shown:?} cannot be read; upgrade \
         this process"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn managed(entities: std::ops::Range<usize>) -> Managed {
        let place = |n: usize| Place::entity(format!("key-{n:06}").parse().unwrap(), None);
        let marks = Marks { limits: true, ..Marks::default() };
        let places = entities.map(|n| (place(n), marks)).collect();
        Managed { places, ..Managed::default() }
    }

    fn joined(parts: &[String]) -> Managed {
        let mut read = Managed::default();
        for (part, text) in (0..).zip(parts) {
            read.add(part, text).unwrap();
        }
        read
    }

    #[test]
    fn what_is_written_is_read_back() {
        let mut all = managed(0..3);
        all.places.insert(Place::SYSTEM, Marks { limits: true, flag: false, entity: false });
        let place = Place::entity("a".parse().unwrap(), Some("l".parse().unwrap()));
        all.places.insert(place, Marks { limits: true, flag: true, entity: true });
        let parts = all.parts(true).unwrap();
        assert_eq!(parts.len(), 1);
        let read = joined(&parts);
        assert!(read.is_same(&all) && read.is_interrupted);
        assert!(!joined(&all.parts(false).unwrap()).is_interrupted);
    }

    #[test]
    fn a_text_of_another_version_is_refused() {
        for (part, text) in
            [(0, "limits 2 done\n"), (0, "limits 1\n"), (0, ""), (1, "a b x\n"), (1, "a b\n")]
        {
            assert!(Managed::default().add(part, text).is_err(), "{text:?}");
        }
    }

    /// Killed after any number of parts, in the order of `store`: every line that was managed
    /// before, and every line that is managed afterwards, is still there.
    #[test]
    fn no_line_is_lost_between_two_parts() {
        let (few, many) = (managed(8_000..30_000), managed(0..60_000));
        for (before, after, is_begun) in [(&few, &many, true), (&many, &few, false)] {
            let (old, mut new) = (before.parts(!is_begun).unwrap(), after.parts(is_begun).unwrap());
            assert!(old.len() > 1 && old.len() != new.len(), "{} {}", old.len(), new.len());
            new.resize(new.len().max(old.len()), String::new());
            let mut stored = old.clone();
            for part in order(new.len(), is_begun) {
                if part >= stored.len() {
                    // A store hands out no part behind one that is missing; the reader stops there.
                    stored.resize(part + 1, String::new());
                }
                stored[part].clone_from(&new[part]);
                let seen = joined(&stored);
                let lost = few.places.keys().find(|place| !seen.places.contains_key(*place));
                assert_eq!(lost, None, "after part {part}, begun: {is_begun}");
            }
            assert!(joined(&stored).is_same(after));
        }
    }

    #[test]
    fn a_part_fits_a_store() {
        let id = |n: usize| format!("{}{n:06}", "x".repeat(250)).parse().unwrap();
        let places = (0..3_000)
            .map(|n| (Place::entity(id(n), None), Marks { entity: true, ..Marks::default() }));
        let all = Managed { places: places.collect(), ..Managed::default() };
        let parts = all.parts(true).unwrap();
        assert!(parts.len() > 2 && parts.iter().all(|part| part.len() <= MANAGED_BYTES_MAX));
    }
}
