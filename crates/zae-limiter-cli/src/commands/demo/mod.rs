//! `demo`: a simulated LLM gateway in real time, on a fresh file, through the library as any
//! program uses it.

mod board;
mod client;
mod place;
mod world;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::task::JoinSet;
use zae_limiter::sqlite::SqliteStore;
use zae_limiter::store::PAGE_LIMIT_MAX;
use zae_limiter::usage::ChartRow;
use zae_limiter::wire::UsageForm;
use zae_limiter::{
    Clock, LocalBlocks, PageRequest, RateLimiter, SystemClock, UsageQuery, UsageSnapshot,
    UsageWindow,
};

use crate::args::file::DemoArgs;
use crate::chart::Chart;
use crate::exit::Exit;
use crate::printer::Printer;
use crate::table::{Cell, Text, Tone};
use crate::view;
use board::{Board, MemberForm};
pub(crate) use place::Place;
use world::{MEMBERS, RESOURCE};

/// How often what happened is shown.
const TICK: Duration = Duration::from_millis(200);
/// The board needs that many columns to be drawn over again.
const LIVE_WIDTH_MIN: usize = 80;

#[derive(Serialize)]
struct Form {
    path: String,
    seconds: u32,
    resource: &'static str,
    entities: Vec<MemberForm>,
    usage: Vec<UsageForm>,
    next_commands: Vec<String>,
}

/// What the clients share.
type SharedBoard = Arc<Mutex<Board>>;

pub(crate) async fn run(printer: &Printer, place: &Place, args: DemoArgs) -> anyhow::Result<Exit> {
    let path = place.prepare()?;
    let store = SqliteStore::open(&path).map_err(zae_limiter::Error::from)?;
    let mut builder = RateLimiter::builder(store).principal("demo");
    if args.local_blocks {
        builder = builder.local_blocks(LocalBlocks::default());
    }
    let limiter = builder.build()?;
    world::create(&limiter).await?;
    let board = simulate(printer, &limiter, args).await?;
    limiter.drain().await;
    let usage = usage(&limiter).await?;
    let form = Form {
        path: path.display().to_string(),
        seconds: args.seconds,
        resource: RESOURCE,
        entities: board.forms(),
        usage: usage.iter().map(UsageForm::from).collect(),
        next_commands: place.next_commands(&path),
    };
    printer.answer(&form, &ending(&board, &usage, &form))?;
    limiter.close().await;
    if let Some(blocks) = limiter.blocks() {
        let (grants, orders) = (blocks.grants, blocks.orders);
        let why = if grants == 0 { "; a bucket needs eight calls a second for blocks" } else { "" };
        printer.note(&format!("{grants} calls came from blocks, by {orders} orders{why}"));
    }
    Ok(Exit::Ok)
}

/// Lets every client do its work until the time is over, and shows it meanwhile.
async fn simulate(
    printer: &Printer,
    limiter: &RateLimiter,
    args: DemoArgs,
) -> anyhow::Result<Board> {
    let clock = SystemClock::new();
    let end = clock.monotonic() + Duration::from_secs(args.seconds.into());
    let board: SharedBoard = Arc::new(Mutex::new(Board::new(args.seconds)));
    let mut clients = JoinSet::new();
    for (number, (member, habits)) in world::keys().enumerate() {
        let shared =
            client::Shared { limiter: limiter.clone(), board: Arc::clone(&board), clock, end };
        clients.spawn(client::run(shared, member.id, habits, number));
    }
    let looks = printer.looks();
    let live = looks.live && looks.width.is_some_and(|columns| columns >= LIVE_WIDTH_MIN);
    let plain = !live && !looks.quiet && looks.output == crate::args::Output::Table;
    let mut lines = 0;
    let mut over = false;
    while !over {
        clock.sleep(TICK).await;
        over = finished(&mut clients)?;
        if live {
            refresh(limiter, &board).await?;
        }
        let text = {
            let mut board = board.lock().unwrap_or_else(PoisonError::into_inner);
            board.elapsed = clock.monotonic();
            let news = board.take_news();
            if live { board.text() } else { Text::new().lines(news) }
        };
        if live {
            lines = printer.redraw(lines, &text)?;
        } else if plain {
            printer.redraw(0, &text)?;
        }
    }
    refresh(limiter, &board).await?;
    if live {
        // The last word says it all again.
        printer.redraw(lines, &Text::new())?;
    } else if plain {
        printer.redraw(0, &Text::of(""))?;
    }
    let board = board.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(board)
}

/// True once every client has ended; an error of one ends all.
fn finished(clients: &mut JoinSet<anyhow::Result<()>>) -> anyhow::Result<bool> {
    while let Some(ended) = clients.try_join_next() {
        ended??;
    }
    Ok(clients.is_empty())
}

/// Looks at what is left in every bucket.
async fn refresh(limiter: &RateLimiter, board: &SharedBoard) -> anyhow::Result<()> {
    for member in MEMBERS {
        let page = limiter.buckets(member.id, &PageRequest::first(1)).await?;
        let mut board = board.lock().unwrap_or_else(PoisonError::into_inner);
        page.items.iter().for_each(|bucket| board.balances(member.id, &bucket.state));
    }
    Ok(())
}

/// What the file says was used, after all.
async fn usage(limiter: &RateLimiter) -> anyhow::Result<Vec<UsageSnapshot>> {
    let (page, window) = (PageRequest::first(PAGE_LIMIT_MAX), UsageWindow::Hourly);
    let resource = Some(RESOURCE.parse()?);
    let query = UsageQuery { entity: None, resource, window, from: None, until: None, page };
    // An hour turns at most once in a demo: far less than a page.
    Ok(limiter.usage(&query).await?.items)
}

fn ending(board: &Board, usage: &[UsageSnapshot], form: &Form) -> Text {
    let legend = "granted: calls that took from it; refused: calls that its limits refused; less than 0 left is debt, repaid by refill";
    let mut text = board.text().line(Cell::toned(legend, Tone::Dim));
    for (limit, unit) in [("rpm", "requests"), ("tpm", "tokens")] {
        let used = |member: &world::Member| {
            let own = usage.iter().filter(|snapshot| snapshot.entity == member.id);
            let counters =
                own.flat_map(|snapshot| &snapshot.counters).filter(|(name, _)| *name == limit);
            counters.fold(0, |sum: i64, (_, used)| sum.saturating_add(used.floor_tokens()))
        };
        let rows =
            MEMBERS.iter().map(|member| ChartRow::Bar(member.label(), used(member))).collect();
        text =
            text.chart(Chart::new(format!("{unit} used ({limit}), as stored in the file"), rows));
    }
    let mut fields = vec![("file", Cell::toned(&form.path, Tone::Strong))];
    fields.extend(view::next_commands(&form.next_commands));
    text.fields(fields)
}
