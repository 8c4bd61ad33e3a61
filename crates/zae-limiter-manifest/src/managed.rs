//! What files manage in a namespace: the places and entities that an apply has made or taken over.
//! Only those are ever removed because a file no longer has them.
//!
//! The text that a store keeps: a line with the format and whether an apply is under way, and
//! whose, then one line per place, sorted: entity, resource (`-` for none) and marks. A line goes
//! to the part that its offset says; so lines that are added only move later lines to later parts,
//! and lines that are removed only to earlier ones. Parts are written in the order that loses no
//! line, wherever the writer is killed ([`crate::hold`]).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use zae_limiter::store::{MANAGED_BYTES_MAX, MANAGED_PARTS_MAX};
use zae_limiter::{Error, Invalid, RateLimiter};

use crate::manifest::{Manifest, Place};
use crate::mark::{Head, Mark, unreadable};

/// The first part holds lines that begin in so many bytes: it is read before every change.
const FIRST_BYTES: usize = 2048;

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

    /// What both have.
    pub(crate) fn both(self, other: Marks) -> Marks {
        Marks {
            limits: self.limits && other.limits,
            flag: self.flag && other.flag,
            entity: self.entity && other.entity,
        }
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
    /// Whose it is, unless it has said that it stopped: it may be at work.
    pub held: Option<Mark>,
    /// The versions of the parts that were read.
    pub(crate) versions: Vec<u64>,
    /// The lines of the first part, as they are stored.
    pub(crate) first: String,
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

    /// What both manage.
    pub(crate) fn within(&self, other: &Managed) -> Managed {
        let both = |(place, marks): (&Place, &Marks)| {
            let marks = marks.both(*other.places.get(place)?);
            (marks != Marks::default()).then(|| (place.clone(), marks))
        };
        Managed { places: self.places.iter().filter_map(both).collect(), ..Managed::default() }
    }

    /// Manages it no more: the `limits`, the `flag` or the `entity` of a place.
    pub(crate) fn forget(&mut self, place: &Place, what: &str) {
        let Some(marks) = self.places.get_mut(place) else { return };
        match what {
            "limits" => marks.limits = false,
            "flag" => marks.flag = false,
            _ => marks.entity = false,
        }
        if *marks == Marks::default() {
            self.places.remove(place);
        }
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
        let mut lines = text;
        if part == 0 {
            let (head, rest) = Head::parse(text)?;
            self.is_interrupted = head != Head::Done;
            (self.held, self.first, lines) = (head.mark(), rest.to_owned(), rest);
        }
        for line in lines.lines() {
            let (place, marks) = parse(line).ok_or_else(|| unreadable(line))?;
            let found = self.places.entry(place).or_default();
            *found = found.with(marks);
        }
        Ok(())
    }

    /// The lines, by parts; the head of the first one is not in it.
    pub(crate) fn parts(&self) -> Result<Vec<String>, Error> {
        let mut parts = vec![String::new()];
        let mut offset = 0;
        for (place, marks) in &self.places {
            let entity = place.entity.as_ref().map_or("-", |id| id.as_str());
            let resource = place.resource.as_ref().map_or("-", |name| name.as_str());
            let mut line = String::new();
            // A text cannot fail to grow.
            let _ = writeln!(line, "{entity} {resource} {}", marks.word());
            let part = part_of(offset);
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

/// The part of a line that begins so many bytes after the first.
fn part_of(offset: usize) -> usize {
    match offset.checked_sub(FIRST_BYTES) {
        None => 0,
        Some(behind) => 1 + behind / PART_BYTES,
    }
}

fn parse(line: &str) -> Option<(Place, Marks)> {
    let mut words = line.split(' ');
    let (entity, resource, marks) = (words.next()?, words.next()?, words.next()?);
    let entity = if entity == "-" { None } else { Some(entity.parse().ok()?) };
    let resource = if resource == "-" { None } else { Some(resource.parse().ok()?) };
    words.next().is_none().then_some((Place { entity, resource }, Marks::of_word(marks)?))
}

#[cfg(test)]
mod tests {
    use zae_limiter::TimeMs;
    use zae_limiter::store::SeededEntropy;

    use super::*;

    fn managed(entities: std::ops::Range<usize>) -> Managed {
        let place = |n: usize| Place::entity(format!("key-{n:06}").parse().unwrap(), None);
        let marks = Marks { limits: true, ..Marks::default() };
        let places = entities.map(|n| (place(n), marks)).collect();
        Managed { places, ..Managed::default() }
    }

    fn joined(parts: &[String]) -> Managed {
        let mut read = Managed::default();
        read.add(0, &Head::Done.line()).unwrap();
        for (part, text) in (1..).zip(parts) {
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
        let parts = all.parts().unwrap();
        assert_eq!(parts.len(), 1);
        let entropy = SeededEntropy::new(7);
        let mark = Mark::new("Zoë \"on\"\nhost", Some("7"), TimeMs(5), &entropy);
        let mark = mark.heard_at(TimeMs(-7));
        for (head, is_interrupted) in
            [(Head::Done, false), (Head::Begun(None), true), (Head::Begun(Some(mark)), true)]
        {
            let mut read = Managed::default();
            read.add(0, &(head.line() + &parts[0])).unwrap();
            assert!(read.is_same(&all), "{head:?}");
            assert_eq!((read.is_interrupted, read.held), (is_interrupted, head.mark()));
            assert_eq!(read.first, parts[0]);
        }
    }

    #[test]
    fn a_text_of_another_version_is_refused() {
        for (part, text) in [
            (0, "limits 2 done\n"),
            (0, "limits 1\n"),
            (0, ""),
            (1, "a b x\n"),
            (1, "a b\n"),
            (0, "limits 1 begun {\"id\":7}\n"),
            (0, "limits 1 begun by somebody\n"),
        ] {
            assert!(Managed::default().add(part, text).is_err(), "{text:?}");
        }
    }

    /// Killed after any number of parts, in the order of `Hold::begin` and `Hold::end`: every line
    /// that was managed before, and every line that is managed afterwards, is still there.
    #[test]
    fn no_line_is_lost_between_two_parts() {
        let (few, many) = (managed(8_000..30_000), managed(0..60_000));
        for (before, after, is_begun) in [(&few, &many, true), (&many, &few, false)] {
            let (old, mut new) = (before.parts().unwrap(), after.parts().unwrap());
            assert!(old.len() > 1 && old.len() != new.len(), "{} {}", old.len(), new.len());
            new.resize(new.len().max(old.len()), String::new());
            let mut stored = old.clone();
            let order: Vec<usize> = match is_begun {
                true => (0..new.len()).rev().collect(),
                false => (0..new.len()).collect(),
            };
            for part in order {
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
        let parts = all.parts().unwrap();
        assert!(parts.len() > 2 && parts.iter().all(|part| part.len() <= MANAGED_BYTES_MAX));
    }
}
