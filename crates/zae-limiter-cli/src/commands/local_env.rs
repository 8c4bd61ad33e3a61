//! `local env`.

use serde::{Serialize, Serializer};

use super::shared::local::{Local, REGION};
use crate::args::Output;
use crate::args::local::{EnvFormat, LocalEnvArgs, PORT};
use crate::engine::{self, Folder, Presence};
use crate::escape::quoted;
use crate::exit::Exit;
use crate::table::Text;

/// The engine takes any credentials; tools insist on some.
const CREDENTIAL: &str = "local";

/// Variables and their values, in this order.
struct Form<'a>([(&'static str, &'a str); 5]);

impl<'a> Form<'a> {
    fn new(endpoint: &'a str, region: &'a str) -> Form<'a> {
        Form([
            ("AWS_ENDPOINT_URL", endpoint),
            ("AWS_ACCESS_KEY_ID", CREDENTIAL),
            ("AWS_SECRET_ACCESS_KEY", CREDENTIAL),
            ("AWS_DEFAULT_REGION", region),
            ("AWS_REGION", region),
        ])
    }
}

impl Serialize for Form<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0)
    }
}

pub(crate) fn run(local: &Local<'_>, args: LocalEnvArgs) -> anyhow::Result<Exit> {
    let folder = local.environment.engine_folder();
    let running = match (args.port, &folder) {
        (None, Some(folder)) => match engine::look(folder)? {
            Presence::Running(state, _) | Presence::Silent(state, _) => Some(state.port),
            Presence::Stopped => None,
        },
        _ => None,
    };
    let last = || folder.as_ref().and_then(Folder::last_port);
    let port = args.port.or(running).or_else(last).unwrap_or(PORT);
    let region = local.globals.region.as_deref().unwrap_or(REGION);
    let endpoint = engine::endpoint(port);
    let form = Form::new(&endpoint, region);
    let exit = match local.printer.looks().output {
        Output::Json => local.printer.answer(&form, &Text::new())?,
        Output::Table => local.printer.page(&script(&form, args.format))?,
    };
    if running.is_none() && !engine::answers(port) {
        local.printer.note(&format!(
            "no engine answers at {endpoint}; start one with `zae-limiter local up`"
        ));
    }
    Ok(exit)
}

fn script(form: &Form<'_>, format: EnvFormat) -> String {
    let line = |(name, value): (&str, &str)| match format {
        EnvFormat::Eval | EnvFormat::Direnv => format!("export {name}={}\n", quoted(value)),
        EnvFormat::Powershell => format!("$env:{name} = '{}'\n", value.replace('\'', "''")),
    };
    form.0.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strange_region_is_a_word_in_every_shell() {
        let form = Form::new("http://127.0.0.1:1", "a'; reboot");
        assert!(
            script(&form, EnvFormat::Eval).contains("export AWS_DEFAULT_REGION='a'\\''; reboot'\n")
        );
        assert!(
            script(&form, EnvFormat::Powershell)
                .contains("$env:AWS_DEFAULT_REGION = 'a''; reboot'\n")
        );
    }
}
