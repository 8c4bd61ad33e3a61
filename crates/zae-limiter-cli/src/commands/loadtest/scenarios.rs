//! Which scenarios a command line means.

use std::path::Path;
use std::sync::Arc;

use zae_limiter_loadtest::Scenario;
use zae_limiter_loadtest::builtin::NAMES;
use zae_limiter_loadtest::worker::Source;

use crate::args::loadtest::ScenarioArgs;
use crate::error::Failure;
use crate::printer::Printer;

/// The classes of the Python package, the file each is in, and what it is here.
const CLASSES: [(&str, &str, &str); 4] = [
    ("SimpleUser", "simple", "simple"),
    ("SimpleCascadeUser", "simple", "simple-cascade"),
    ("MaxRpsUser", "max_rps", "max-rps"),
    ("MaxRpsCascadeUser", "max_rps", "max-rps-cascade"),
];

/// The largest file.
const FILE_BYTES_MAX: u64 = 1_048_576;

/// Scenarios, and how they can be sent elsewhere.
pub(super) struct Chosen {
    pub(super) scenarios: Vec<Arc<dyn Scenario>>,
    #[cfg_attr(not(feature = "deploy"), expect(dead_code, reason = "there is no elsewhere"))]
    pub(super) sources: Vec<Source>,
}

/// The scenarios that the arguments mean; what is not read is said.
pub(super) fn chosen(printer: &Printer, args: &ScenarioArgs) -> Result<Chosen, Failure> {
    let sources = sources(printer, args)?;
    let plan = |source: &Source| {
        let plan = source.plan().map_err(|error| Failure::usage(error.to_string()))?;
        Ok(Arc::new(plan) as Arc<dyn Scenario>)
    };
    let scenarios = sources.iter().map(plan).collect::<Result<_, Failure>>()?;
    Ok(Chosen { scenarios, sources })
}

fn builtin(names: Vec<&str>) -> Vec<Source> {
    names.into_iter().map(|name| Source::Builtin(name.to_owned())).collect()
}

fn sources(printer: &Printer, args: &ScenarioArgs) -> Result<Vec<Source>, Failure> {
    if let Some(name) = &args.scenario {
        if NAMES.contains(&name.as_str()) {
            return Ok(builtin(vec![name]));
        }
        if name.ends_with(".toml") {
            return read(Path::new(name), args).map(|source| vec![source]);
        }
        let failure = Failure::usage(format!("--scenario {name}: there is no such scenario"));
        return Err(failure.hint(format!("write one of {}, or FILE.toml", NAMES.join(", "))));
    }
    let Some(path) = &args.file else {
        if args.dir.is_some() {
            let failure = Failure::usage("-C names a folder, and no file of it is named");
            return Err(failure.hint("name a file with -f"));
        }
        let names = classes(&args.classes, None)?;
        let names = if names.is_empty() { vec!["simple"] } else { names };
        return Ok(builtin(names));
    };
    if path.extension().is_some_and(|extension| extension == "toml") {
        if let Some(class) = args.classes.first() {
            let failure = Failure::usage(format!("{class}: a TOML file has no user classes"));
            return Err(failure.hint("leave the class out"));
        }
        return read(path, args).map(|source| vec![source]);
    }
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let known: Vec<&str> =
        CLASSES.iter().filter(|(_, file, _)| *file == stem).map(|(.., name)| *name).collect();
    if known.is_empty() {
        let shown = path.display();
        let failure = Failure::usage(format!("-f {shown}: it is no scenario of this program"));
        return Err(failure.hint(
            "name a *.toml, or a path whose stem is simple or max_rps; a scenario in code is an \
             implementation of zae_limiter_loadtest::Scenario",
        ));
    }
    let picked = classes(&args.classes, Some(stem))?;
    let names = if picked.is_empty() { known } else { picked };
    printer.note(&format!(
        "{} is not read: its stem {stem} stands for what is built in ({})",
        path.display(),
        names.join(", ")
    ));
    Ok(builtin(names))
}

/// The scenarios of class names, of one file or of any.
fn classes(names: &[String], of: Option<&str>) -> Result<Vec<&'static str>, Failure> {
    let one = |name: &String| {
        let found = CLASSES
            .iter()
            .find(|(class, file, _)| class == name && of.is_none_or(|stem| stem == *file));
        found.map(|(.., scenario)| *scenario).ok_or_else(|| {
            let there: Vec<&str> = CLASSES
                .iter()
                .filter(|(_, file, _)| of.is_none_or(|stem| stem == *file))
                .map(|(class, ..)| *class)
                .collect();
            let failure = Failure::usage(format!("{name}: there is no such user class"));
            failure.hint(format!("there are {}", there.join(", ")))
        })
    };
    names.iter().map(one).collect()
}

fn read(path: &Path, args: &ScenarioArgs) -> Result<Source, Failure> {
    let path = args.dir.as_ref().map_or_else(|| path.to_owned(), |dir| dir.join(path));
    let shown = path.display();
    let unreadable = |error: std::io::Error| {
        Failure::usage(format!("the scenario {shown} cannot be read: {error}"))
    };
    let size = std::fs::metadata(&path).map_err(unreadable)?.len();
    if size > FILE_BYTES_MAX {
        return Err(Failure::usage(format!(
            "the scenario {shown} has {size} bytes, and may have {FILE_BYTES_MAX}"
        )));
    }
    let text = std::fs::read_to_string(&path).map_err(unreadable)?;
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("file");
    let source = Source::Toml { stem: stem.to_owned(), text };
    match source.plan() {
        Ok(_) => Ok(source),
        Err(error) => Err(Failure::usage(format!("the scenario {shown}: {error}"))
            .hint("docs/operator/load-test.md has the fields of a scenario file")),
    }
}
