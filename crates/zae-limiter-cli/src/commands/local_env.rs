//! `local env`.

use serde::Serialize;

use super::shared::local::{Local, REGION};
use crate::args::Output;
use crate::args::local::{EnvFormat, LocalEnvArgs, PORT};
use crate::engine::{self, Folder, Presence};
use crate::escape::quoted;
use crate::exit::Exit;
use crate::table::Text;

/// The engine takes any credentials; tools insist on some.
const CREDENTIAL: &str = "local";

#[derive(Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
struct Form {
    aws_endpoint_url: String,
    aws_access_key_id: &'static str,
    aws_secret_access_key: &'static str,
    aws_default_region: String,
    aws_region: String,
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
    let region = local.globals.region.clone().unwrap_or_else(|| REGION.into());
    let form = Form {
        aws_endpoint_url: engine::endpoint(port),
        aws_access_key_id: CREDENTIAL,
        aws_secret_access_key: CREDENTIAL,
        aws_default_region: region.clone(),
        aws_region: region,
    };
    match local.printer.looks().output {
        Output::Json => local.printer.answer(&form, &Text::new())?,
        Output::Table => local.printer.page(&script(&form, args.format))?,
    }
    if running.is_none() && !engine::answers(port) {
        local.printer.note(&format!(
            "no engine answers at {}; start one with `zae-limiter local up`",
            engine::endpoint(port)
        ));
    }
    Ok(Exit::Ok)
}

fn script(form: &Form, format: EnvFormat) -> String {
    let variables = [
        ("AWS_ENDPOINT_URL", form.aws_endpoint_url.as_str()),
        ("AWS_ACCESS_KEY_ID", form.aws_access_key_id),
        ("AWS_SECRET_ACCESS_KEY", form.aws_secret_access_key),
        ("AWS_DEFAULT_REGION", &form.aws_default_region),
        ("AWS_REGION", &form.aws_region),
    ];
    let line = |(name, value): (&str, &str)| match format {
        EnvFormat::Eval | EnvFormat::Direnv => format!("export {name}={}\n", quoted(value)),
        EnvFormat::Powershell => format!("$env:{name} = '{}'\n", value.replace('\'', "''")),
    };
    variables.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strange_region_is_a_word_in_every_shell() {
        let form = Form {
            aws_endpoint_url: engine::endpoint(1),
            aws_access_key_id: CREDENTIAL,
            aws_secret_access_key: CREDENTIAL,
            aws_default_region: "a'; reboot".into(),
            aws_region: REGION.into(),
        };
        assert!(
            script(&form, EnvFormat::Eval).contains("export AWS_DEFAULT_REGION='a'\\''; reboot'\n")
        );
        assert!(
            script(&form, EnvFormat::Powershell)
                .contains("$env:AWS_DEFAULT_REGION = 'a''; reboot'\n")
        );
    }
}
