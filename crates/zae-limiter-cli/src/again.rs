//! How to call this program again on the same store: a hint must work when it is pasted.

use crate::args::Globals;
use crate::escape::quoted;

/// What a command to type begins with.
const PROGRAM: &str = "zae-limiter";

/// Commands on the store as a whole, where a namespace has no effect.
const WITHOUT_NAMESPACE: [&str; 3] = ["namespace", "backup", "restore"];

/// Commands that use no `--store`: they refuse the flags that name a store.
const WITHOUT_STORE: [&str; 3] = ["local", "demo", "--help"];

/// The flags that say where a command works, as they were typed. Variables are still set when a
/// hint is pasted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Again {
    store: Vec<String>,
    namespace: Vec<String>,
}

impl Again {
    /// The flags of this command line.
    pub(crate) fn new(globals: &Globals) -> Again {
        let flag = |flag: &str, value: Option<String>| {
            value.map(|value| [flag.to_owned(), value]).into_iter().flatten()
        };
        let store = flag("--store", globals.store.as_ref().map(ToString::to_string))
            .chain(flag("--name", globals.stack.clone()))
            .chain(flag("--region", globals.region.clone()))
            .chain(flag("--endpoint-url", globals.endpoint_url.clone()));
        let namespace = flag("-N", globals.namespace.as_ref().map(ToString::to_string));
        Again { store: store.collect(), namespace: namespace.collect() }
    }

    /// Whether the command line says which store.
    pub(crate) fn names_store(&self) -> bool {
        !self.store.is_empty()
    }

    /// A command line in backquotes, with the flags it needs to work where this one does.
    pub(crate) fn command(&self, words: &[&str]) -> String {
        let flags = self.flags(words.first().copied().unwrap_or_default());
        let words = flags.into_iter().chain(words.iter().copied()).map(quoted);
        let line: Vec<String> = [PROGRAM.to_owned()].into_iter().chain(words).collect();
        format!("`{}`", line.join(" "))
    }

    /// A text of the library, which names commands and knows no flags, with the flags in each
    /// command. One that names its stack keeps it.
    pub(crate) fn completed(&self, text: &str) -> String {
        let start = format!("`{PROGRAM} ");
        let mut parts = text.split(&start);
        let mut completed = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let line = part.split('`').next().unwrap_or_default();
            let command = line.split(' ').next().unwrap_or_default();
            let mut flags = self.flags(command);
            if let (true, Some(at)) =
                (line.contains(" --name "), flags.iter().position(|flag| *flag == "--name"))
            {
                flags.drain(at..at + 2);
            }
            completed.push_str(&start);
            completed.extend(flags.into_iter().map(|flag| quoted(flag) + " "));
            completed.push_str(part);
        }
        completed
    }

    fn flags(&self, command: &str) -> Vec<&str> {
        let store = self.store.iter().filter(|_| !WITHOUT_STORE.contains(&command));
        let is_in_namespace =
            !WITHOUT_STORE.contains(&command) && !WITHOUT_NAMESPACE.contains(&command);
        store.chain(self.namespace.iter().filter(|_| is_in_namespace)).map(String::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args;

    fn again(line: &str) -> Again {
        let words = line.split(' ').map(std::ffi::OsString::from);
        Again::new(&args::parse(words, 100).unwrap().globals)
    }

    #[test]
    fn a_command_line_without_flags_needs_none() {
        assert_eq!(
            again("zae-limiter status").command(&["entity", "show", "key-1"]),
            "`zae-limiter entity show key-1`"
        );
    }

    #[test]
    fn the_flags_that_say_where_are_kept() {
        let file = again("zae-limiter --store sqlite:a.db -N team -q --output json status");
        assert_eq!(
            file.command(&["explain", "a", "b"]),
            "`zae-limiter --store sqlite:a.db -N team explain a b`"
        );
        assert_eq!(
            file.command(&["restore", "my copy.db"]),
            "`zae-limiter --store sqlite:a.db restore 'my copy.db'`"
        );
        assert_eq!(
            file.command(&["namespace", "list"]),
            "`zae-limiter --store sqlite:a.db namespace list`"
        );
        assert_eq!(file.command(&["local", "up"]), "`zae-limiter local up`");
        let stack = again(
            "zae-limiter -n app --region eu-west-1 --endpoint-url http://127.0.0.1:8000 status",
        );
        let flags = "--name app --region eu-west-1 --endpoint-url http://127.0.0.1:8000";
        assert_eq!(stack.command(&["status"]), format!("`zae-limiter {flags} status`"));
        let url = again(
            "zae-limiter --store dynamodb:app?region=eu-west-1&endpoint=http://127.0.0.1:8000 status",
        );
        let quoted = "'dynamodb:app?region=eu-west-1&endpoint=http://127.0.0.1:8000'";
        assert_eq!(url.command(&["status"]), format!("`zae-limiter --store {quoted} status`"));
    }

    #[test]
    fn the_words_of_the_library_get_the_flags() {
        let text = "corrupt; run `zae-limiter restore BACKUP` or `zae-limiter entity reset`, else `zae-limiter local up`";
        let expected = "corrupt; run `zae-limiter --store sqlite:a.db restore BACKUP` or `zae-limiter --store sqlite:a.db -N t entity reset`, \
                        else `zae-limiter local up`";
        assert_eq!(again("zae-limiter --store sqlite:a.db -N t status").completed(text), expected);
        assert_eq!(again("zae-limiter status").completed(text), text);
    }
}
