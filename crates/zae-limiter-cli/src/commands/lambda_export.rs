//! `lambda-export`.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};

use anyhow::Context as _;
use serde::Serialize;
use zae_limiter::StoreErrorKind;
use zae_limiter_deploy::package::{Bootstrap, GLIBC_MAX, Package, PackageError};

use crate::args::lambda_export::LambdaExportArgs;
use crate::error::Failure;
use crate::exit::Exit;
use crate::printer::Printer;
use crate::table::{Cell, Text, Tone};
use crate::view;

#[derive(Serialize)]
struct Form {
    /// The file that was written; null with `--info`.
    file: Option<String>,
    binary: String,
    architecture: String,
    fits: bool,
    problem: Option<String>,
    glibc: Option<String>,
    glibc_max: String,
    libraries: Vec<String>,
    symbols_bytes: usize,
    bootstrap_bytes: Option<usize>,
    bootstrap_sha256: Option<String>,
    zip_bytes: Option<usize>,
    zip_sha256: Option<String>,
}

pub(crate) fn run(printer: &Printer, args: &LambdaExportArgs) -> anyhow::Result<Exit> {
    let told = |error: PackageError| Failure::package(&error);
    let bootstrap = match &args.lambda_binary {
        Some(path) => Bootstrap::read(path),
        None => Bootstrap::own(),
    }
    .map_err(told)?;
    // Packing takes seconds: what stands in the way is told before.
    if !args.info && !args.force && args.file.exists() {
        return Err(exists(args).into());
    }
    let wanted = args.architecture.unwrap_or(bootstrap.elf().architecture);
    match bootstrap.pack(wanted) {
        Err(error) if args.info => {
            let form = form(&bootstrap, None, None, Some(error.to_string()));
            printer.answer(&form, &text(&form))?;
            printer.note(&error.hint());
            Ok(Exit::Error)
        }
        Err(error) => Err(told(error).into()),
        Ok(package) => {
            let file = if args.info { None } else { Some(write(args, &package)?) };
            let form = form(&bootstrap, Some(&package), file, None);
            printer.answer(&form, &text(&form))
        }
    }
}

fn exists(args: &LambdaExportArgs) -> Failure {
    let message = format!("{} exists already", args.file.display());
    Failure::of_kind(StoreErrorKind::AlreadyExists, message).hint("--force replaces it")
}

/// Writes the package; a file that exists is replaced only if that was asked for.
fn write(args: &LambdaExportArgs, package: &Package) -> anyhow::Result<String> {
    let name = args.file.display().to_string();
    let mut options = OpenOptions::new();
    options.write(true).truncate(true).create(true).create_new(!args.force);
    let mut file = match options.open(&args.file) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            return Err(exists(args).into());
        }
        opened => opened.with_context(|| format!("{name} cannot be written"))?,
    };
    file.write_all(&package.zip).with_context(|| format!("{name} cannot be written"))?;
    Ok(name)
}

fn form(
    bootstrap: &Bootstrap,
    package: Option<&Package>,
    file: Option<String>,
    problem: Option<String>,
) -> Form {
    let elf = bootstrap.elf();
    Form {
        file,
        binary: bootstrap.path().display().to_string(),
        architecture: elf.architecture.to_string(),
        fits: problem.is_none(),
        problem,
        glibc: elf.glibc.map(|version| version.to_string()),
        glibc_max: GLIBC_MAX.to_string(),
        libraries: elf.libraries.clone(),
        symbols_bytes: elf.file_bytes - elf.loaded_bytes,
        bootstrap_bytes: package.map(|package| package.unpacked_bytes),
        bootstrap_sha256: package.map(|package| package.bootstrap_sha256.clone()),
        zip_bytes: package.map(|package| package.zip.len()),
        zip_sha256: package.map(|package| package.sha256.clone()),
    }
}

fn text(form: &Form) -> Text {
    let bytes = |bytes: usize| view::bytes(u64::try_from(bytes).unwrap_or(u64::MAX));
    let mut fields = Vec::new();
    fields.extend(form.file.as_ref().map(|file| ("written", Cell::plain(file))));
    fields.extend([
        ("binary", Cell::plain(&form.binary)),
        ("architecture", Cell::plain(&form.architecture)),
        (
            "glibc",
            match &form.glibc {
                Some(glibc) => Cell::plain(format!("{glibc} (the runtime has {})", form.glibc_max)),
                None => Cell::plain("none"),
            },
        ),
        ("symbols", Cell::plain(format!("{}, left out", bytes(form.symbols_bytes)))),
    ]);
    if let (Some(unpacked), Some(zip)) = (form.bootstrap_bytes, form.zip_bytes) {
        fields.push(("bootstrap", Cell::plain(bytes(unpacked))));
        fields.push(("zip", Cell::plain(bytes(zip))));
    }
    fields.extend(form.zip_sha256.as_ref().map(|hash| ("sha256", Cell::plain(hash))));
    fields.push((
        "fits",
        match &form.problem {
            None => Cell::toned("yes", Tone::Good),
            Some(problem) => Cell::toned(format!("no: {problem}"), Tone::Warning),
        },
    ));
    Text::new().fields(fields)
}
