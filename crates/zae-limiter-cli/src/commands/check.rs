//! `check`: whether this program can work on a stack.

use serde::Serialize;
use zae_limiter::Error;
use zae_limiter::dynamodb::Versions;

use crate::args::value::DynamoPlace;
use crate::context::Context;
use crate::dynamodb;
use crate::error::Failure;
use crate::exit::Exit;
use crate::settings::StorePlace;
use crate::table::{Cell, Text, Tone};

/// What a stack has and asks for, and what this program is.
#[derive(Serialize)]
pub(super) struct Form {
    stack: String,
    version: &'static str,
    /// What this program reads, and what the stack asks for.
    reader: u32,
    min_reader: Option<u32>,
    min_reader_release: Option<String>,
    /// The newest Python package whose items this program reads.
    reads_python: &'static str,
    client_min_version: Option<String>,
    schema_version: Option<String>,
    lambda_version: Option<String>,
    function_version: Option<String>,
    usage_retention_days: Option<u32>,
    audit_retention_days: Option<u32>,
    /// Migrations that the stack has not been through.
    migrations: Vec<&'static str>,
    updated_at: Option<String>,
    updated_by: Option<String>,
    compatible: bool,
    problem: Option<String>,
}

/// The stack that a command works on.
pub(super) fn stack<'a>(context: &'a Context<'_>) -> Result<&'a DynamoPlace, Failure> {
    match &context.settings.store {
        StorePlace::Dynamo(place) => Ok(place),
        other => {
            Err(Failure::usage(format!("this command works on a DynamoDB stack, not on {other}"))
                .hint("name one with --name STACK"))
        }
    }
}

impl Form {
    pub(super) async fn read(context: &Context<'_>) -> anyhow::Result<Form> {
        let place = stack(context)?;
        let operator = dynamodb::operator(place, context.settings).await?;
        let found = dynamodb::reach(place, context.settings, operator.versions()).await?;
        let migrations = match &found {
            Some(_) => operator.migrations().await.map_err(Error::from)?,
            None => Vec::new(),
        };
        let problem = match &found {
            None => Some("the table is not initialised: it has no version record".to_owned()),
            Some(versions) => versions.incompatibility(),
        };
        let said = |part: fn(&Versions) -> Option<String>| found.as_ref().and_then(part);
        Ok(Form {
            stack: place.stack.clone(),
            version: env!("CARGO_PKG_VERSION"),
            reader: Versions::READER,
            min_reader: found.as_ref().map(|versions| versions.min_reader),
            min_reader_release: said(|versions| versions.min_reader_release.clone()),
            reads_python: Versions::PYTHON,
            client_min_version: said(|versions| Some(versions.client_min.clone())),
            schema_version: said(|versions| Some(versions.schema.clone())),
            lambda_version: said(|versions| versions.lambda.clone()),
            function_version: said(|versions| versions.function.clone()),
            usage_retention_days: found.as_ref().and_then(|found| found.retention.usage_days),
            audit_retention_days: found.as_ref().and_then(|found| found.retention.audit_days),
            migrations: migrations.iter().map(|migration| migration.name).collect(),
            updated_at: said(|versions| versions.updated_at.clone()),
            updated_by: said(|versions| versions.updated_by.clone()),
            compatible: problem.is_none(),
            problem,
        })
    }

    pub(super) fn text(&self) -> Text {
        let or = |text: &Option<String>, none: &str| Cell::plain(text.as_deref().unwrap_or(none));
        let days = |days: Option<u32>| match days {
            Some(days) => Cell::plain(format!("{days} days")),
            None => Cell::plain("not stored: 90 days"),
        };
        let asked = match (self.min_reader, &self.min_reader_release) {
            (None, _) => "nothing".to_owned(),
            (Some(level), None) => format!("level {level}"),
            (Some(level), Some(release)) => format!("level {level} (since {release})"),
        };
        let mut fields = vec![
            ("stack", Cell::plain(&self.stack)),
            ("client", Cell::plain(format!("{}, reads level {}", self.version, self.reader))),
            ("asks for", Cell::plain(asked)),
            ("python asked for", or(&self.client_min_version, "nothing")),
            ("schema", or(&self.schema_version, "none")),
            ("function", or(&self.function_version, "none")),
            ("python lambda", or(&self.lambda_version, "none")),
            ("usage kept", days(self.usage_retention_days)),
            ("audit kept", days(self.audit_retention_days)),
        ];
        if !self.migrations.is_empty() {
            let names = self.migrations.join(", ");
            fields.push(("migrations", Cell::toned(format!("open: {names}"), Tone::Warning)));
        }
        fields.push((
            "compatible",
            match &self.problem {
                None => Cell::toned("yes", Tone::Good),
                Some(problem) => Cell::toned(format!("no: {problem}"), Tone::Bad),
            },
        ));
        Text::new().fields(fields)
    }
}

pub(crate) async fn run(context: &Context<'_>) -> anyhow::Result<Exit> {
    let form = Form::read(context).await?;
    context.printer.answer(&form, &form.text())?;
    Ok(if form.compatible { Exit::Ok } else { Exit::Error })
}
