# Short names for what CONTRIBUTING.md says. `just` without a name lists them.
# The checks themselves are in .ci/run: nothing is checked here that is not checked there.

[private]
default:
    @just --list --unsorted

# The checks of a minute: form, warnings, house rules, unit tests
check:
    .ci/run fmt clippy
    cargo test --workspace --lib --bins
    cargo test --workspace --test it -- tidy:: documents::

# Tests of one crate, all of them or those whose names match: just test sqlite processes::
test crate *filter:
    cargo test --package {{ if crate =~ '^zae-limiter' { crate } else if crate == 'lib' { 'zae-limiter' } else { 'zae-limiter-' + crate } }} {{ filter }}

# One seed of a simulator with its whole trace: just sim 42, just sim 42 sqlite
sim seed store='dynamodb':
    ZAEL_SIM_SEED={{ seed }} {{ if store == 'dynamodb' { '' } else { 'ZAEL_SIM_STORE=' + store } }} \
      cargo test --workspace --test it -- --nocapture --exact {{ if store == 'dynamodb' { 'protocol_simulator' } else { 'simulator' } }}::replay

# Everything that must hold before a change is taken, 20 minutes and more; or single stages of it
full *stages:
    .ci/run {{ stages }}

# Rustdoc of the workspace, and the page of the command line
docs:
    cargo build --quiet --package zae-limiter-cli
    cargo run --quiet --package zae-limiter-cli -- reference > docs/cli.md
    .ci/run docs

# New inline snapshots of the command line, one by one
snapshots:
    INSTA_UPDATE=new cargo test --workspace --test cli || true
    cargo insta review

# Rows of the benchmark that begin so, quickly: just bench embedded sqlite-acquire
bench suite='embedded' *rows:
    cargo run --release --package zae-limiter-bench -- {{ suite }} --quick {{ if rows == '' { '' } else { '--only ' + rows } }}

# The local DynamoDB engine, built where the tests look for it
engine:
    cargo build --locked --manifest-path engines/zae-limiter-local/Cargo.toml --target-dir {{ env('CARGO_TARGET_DIR', 'target') }}/engine
