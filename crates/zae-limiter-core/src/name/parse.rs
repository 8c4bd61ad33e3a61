//! How a text becomes a name: afresh, or as the name that this thread has made of it lately.
//!
//! A program has few limits and resources and names them in every request. Checking and copying
//! such a text again costs ten times what finding the name costs.

use std::cell::RefCell;

use super::{LimitName, NameError, ResourceName};

/// Names that a thread remembers of each kind.
const RECENT_MAX: usize = 16;

/// Makes the name.
pub(super) fn fresh<N>(
    _text: &str,
    make: impl FnOnce() -> Result<N, NameError>,
) -> Result<N, NameError> {
    make()
}

/// Names by a few bytes of their text. Two names that share a place take turns.
struct Recent<N>(RefCell<[Option<N>; RECENT_MAX]>);

impl<N: Clone + AsRef<str>> Recent<N> {
    fn find(&self, text: &str) -> Option<N> {
        let names = self.0.borrow();
        names[place_of(text)].as_ref().filter(|name| (*name).as_ref() == text).cloned()
    }

    fn remember(&self, name: N) {
        let place = place_of(name.as_ref());
        self.0.borrow_mut()[place] = Some(name);
    }
}

fn place_of(text: &str) -> usize {
    let [first, .., last] = text.as_bytes() else { return 0 };
    let middle = text.as_bytes()[text.len() / 2];
    let mix = usize::from(*first)
        .wrapping_add(usize::from(middle).wrapping_mul(3))
        .wrapping_add(usize::from(*last).wrapping_mul(5))
        .wrapping_add(text.len().wrapping_mul(7));
    mix % RECENT_MAX
}

/// Writes the function for one kind of name.
macro_rules! recent {
    ($function:ident, $name:ident) => {
        pub(super) fn $function(
            text: &str,
            make: impl FnOnce() -> Result<$name, NameError>,
        ) -> Result<$name, NameError> {
            thread_local! {
                static RECENT: Recent<$name> =
                    const { Recent(RefCell::new([const { None }; RECENT_MAX])) };
            }
            // A thread that is ending remembers nothing.
            if let Ok(Some(name)) = RECENT.try_with(|recent| recent.find(text)) {
                return Ok(name);
            }
            let name = make()?;
            let _ = RECENT.try_with(|recent| recent.remember(name.clone()));
            Ok(name)
        }
    };
}

recent!(recent_limits, LimitName);
recent!(recent_resources, ResourceName);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_name_parsed_again_is_the_same_name() {
        let parse = |text: &str| -> LimitName { text.parse().expect("a valid name") };
        assert!(Arc::ptr_eq(&parse("rpm").0, &parse("rpm").0));
        let other = std::thread::Builder::new().name("other".into()).spawn(move || parse("rpm"));
        let other = other.expect("a thread").join().expect("no panic");
        assert!(!Arc::ptr_eq(&parse("rpm").0, &other.0), "each thread remembers its own");
    }

    #[test]
    fn names_that_share_a_place_are_not_mixed_up() {
        let texts: Vec<String> = (0..1_000)
            .map(|number: u32| format!("n{}x{}", number % 31, number.wrapping_mul(7919) % 997))
            .collect();
        for text in texts.iter().chain(&texts) {
            let limit: LimitName = text.parse().expect("a valid name");
            let resource: ResourceName = text.parse().expect("a valid name");
            assert_eq!((limit.as_str(), resource.as_str()), (text.as_str(), text.as_str()));
        }
    }

    #[test]
    fn a_refused_text_is_refused_again_and_forgets_no_name() {
        for _ in 0..3 {
            assert!("wcu".parse::<LimitName>().is_err(), "reserved for limits");
            assert!("wcu".parse::<ResourceName>().is_ok(), "and not for resources");
            for text in ["", "a", "#", "\u{e9}", "r pm"] {
                assert_eq!(text.parse::<LimitName>().is_ok(), text == "a", "{text:?}");
            }
            assert_eq!("rpm".parse::<LimitName>().expect("a valid name").as_str(), "rpm");
        }
    }
}
