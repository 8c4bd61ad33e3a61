//! `status` of a file as a whole.

use serde::Serialize;
use zae_limiter::domain::rfc3339;
use zae_limiter::sqlite::FileStatus;
use zae_limiter::{Clock as _, RateLimiter, SystemClock};

use super::shared::flags::{self, Flags};
use crate::context::Context;
use crate::exit::Exit;
use crate::progress::Progress;
use crate::table::{Cell, Text, Tone};
use crate::view;

#[derive(Serialize)]
struct Form {
    path: String,
    file_bytes: u64,
    log_bytes: u64,
    mode: Option<String>,
    schema_version: u32,
    sqlite_version: String,
    buckets: u64,
    buckets_in_debt: u64,
    swept_at: Option<String>,
    sound: bool,
    problems: Vec<String>,
    namespace: String,
    #[serde(flatten)]
    flags: Flags,
}

impl From<FileStatus> for Form {
    fn from(status: FileStatus) -> Form {
        Form {
            path: status.path.display().to_string(),
            file_bytes: status.file_bytes,
            log_bytes: status.log_bytes,
            mode: status.mode.map(|mode| format!("{mode:04o}")),
            schema_version: status.schema_version,
            sqlite_version: status.sqlite_version,
            buckets: status.buckets,
            buckets_in_debt: status.buckets_in_debt,
            swept_at: status.swept_at.map(rfc3339),
            sound: status.problems.is_empty(),
            problems: status.problems,
            namespace: String::new(),
            flags: Flags::default(),
        }
    }
}

pub(crate) async fn run(context: &Context<'_>) -> anyhow::Result<Exit> {
    let store = context.look_at_file()?;
    let status = async { store.status(SystemClock::new().now()) };
    let status = Progress::during(context.printer, "reading the file", status).await;
    let mut form = Form::from(status.map_err(zae_limiter::Error::from)?);
    form.namespace = context.settings.namespace.to_string();
    // A damaged file may not tell, and a namespace that is not there has none: the rest is worth
    // knowing all the same.
    if form.sound
        && let Ok(limiter) = RateLimiter::builder(store).build_in(&context.settings.namespace).await
    {
        form.flags = flags::of_namespace(&limiter).await?;
    }
    context.printer.answer(&form, &text(&form, &context.command(&["restore", "BACKUP"])))?;
    Ok(if form.sound { Exit::Ok } else { Exit::Error })
}

fn text(form: &Form, restore: &str) -> Text {
    let integrity = if form.sound {
        Cell::toned("sound", Tone::Good)
    } else {
        Cell::toned(format!("damaged; stop every process and run {restore}"), Tone::Bad)
    };
    let debt = if form.buckets_in_debt > 0 { Tone::Warning } else { Tone::Plain };
    let mut fields = vec![
        ("file", Cell::plain(&form.path)),
        ("size", Cell::plain(view::bytes(form.file_bytes))),
        ("log", Cell::plain(view::bytes(form.log_bytes))),
        ("mode", mode(form.mode.as_deref())),
        ("schema", Cell::plain(form.schema_version)),
        ("sqlite", Cell::plain(&form.sqlite_version)),
        ("integrity", integrity),
        ("buckets", Cell::plain(form.buckets)),
        ("in debt", Cell::toned(form.buckets_in_debt, debt)),
        ("last sweep", Cell::plain(form.swept_at.as_deref().unwrap_or("never"))),
        ("namespace", Cell::plain(&form.namespace)),
    ];
    fields.extend(form.flags.fields());
    let text = Text::new().fields(fields);
    form.problems.iter().fold(text, |text, problem| text.line(Cell::toned(problem, Tone::Bad)))
}

/// New files are their owner's only. One that was there before, or was made so for a group, is used
/// as it is, and its log and index get the same mode.
fn mode(mode: Option<&str>) -> Cell {
    match mode {
        None => Cell::plain("-"),
        Some(mode) if mode.ends_with("00") => Cell::plain(mode),
        Some(mode) => Cell::toned(
            format!("{mode}, open to others; `chmod 600` the file, its -wal and its -shm"),
            Tone::Warning,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Paint;

    #[test]
    fn damage_is_told_line_by_line() {
        let form = Form {
            path: "limits.db".into(),
            file_bytes: 4096,
            log_bytes: 0,
            mode: Some("0600".into()),
            schema_version: 1,
            sqlite_version: "3".into(),
            buckets: 2,
            buckets_in_debt: 1,
            swept_at: None,
            sound: false,
            problems: vec!["row 1 missing from index a".into(), "page 2\u{1b}: bad".into()],
            namespace: "default".into(),
            flags: Flags::default(),
        };
        let shown = text(&form, "`zae-limiter restore BACKUP`").render(None, Paint(false));
        assert!(
            shown.contains(
                "integrity   damaged; stop every process and run `zae-limiter restore BACKUP`\n"
            ),
            "{shown}"
        );
        assert!(
            shown.ends_with("\n\nrow 1 missing from index a\n\npage 2\\u{1b}: bad\n"),
            "{shown}"
        );
    }
}
