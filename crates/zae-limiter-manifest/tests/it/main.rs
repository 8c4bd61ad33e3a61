//! Files of limits: reading, comparing, applying, exporting.

mod apply;
mod interop;
mod overlap;
mod plan;
mod read;
mod schema;

/// A fixture of this folder.
fn fixture(name: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
