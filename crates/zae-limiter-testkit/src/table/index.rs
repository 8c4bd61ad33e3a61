//! The indexes: which items are in them, what they keep, what writing them costs; and pages of
//! queries.

use std::collections::BTreeMap;

use zae_limiter_dynamodb::table::{Index, Item, Key, Query, QueryPage, Sort};

use super::call::Units;
use super::value::{item_size, text};

/// The bytes of one write unit.
const WRITE_UNIT_BYTES: usize = 1024;

/// The bytes of one read unit.
const READ_UNIT_BYTES: usize = 4096;

/// A page of a query ends here, whatever its limit.
const PAGE_BYTES_MAX: usize = 1 << 20;

const INDEXES: [Index; 4] = [Index::Gsi1, Index::Gsi2, Index::Gsi3, Index::Gsi4];

/// Which attributes GSI2 keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gsi2 {
    /// Only keys, as on our tables.
    #[default]
    KeysOnly,
    /// Everything, as on those of the Python package.
    All,
}

/// What the keys of the table or an index are called.
fn key_names(index: Option<Index>) -> (&'static str, &'static str) {
    match index {
        None => ("PK", "SK"),
        Some(Index::Gsi1) => ("GSI1PK", "GSI1SK"),
        Some(Index::Gsi2) => ("GSI2PK", "GSI2SK"),
        Some(Index::Gsi3) => ("GSI3PK", "GSI3SK"),
        Some(Index::Gsi4) => ("GSI4PK", "GSI4SK"),
    }
}

fn keeps_all(index: Index, gsi2: Gsi2) -> bool {
    match index {
        Index::Gsi1 => true,
        Index::Gsi2 => gsi2 == Gsi2::All,
        Index::Gsi3 | Index::Gsi4 => false,
    }
}

/// Partition and sort key in the table or an index; `None` for an item that is not in it.
fn position(item: &Item, index: Option<Index>) -> Option<(&str, &str)> {
    let (partition, sort) = key_names(index);
    Some((text(item, partition)?, text(item, sort)?))
}

/// What an index keeps of an item.
fn projected(item: &Item, index: Index, gsi2: Gsi2) -> Item {
    if keeps_all(index, gsi2) { item.clone() } else { keys(item, Some(index)) }
}

/// The keys of an item: those of the table, and of the index.
fn keys(item: &Item, index: Option<Index>) -> Item {
    let (partition, sort) = key_names(index);
    let wanted = ["PK", "SK", partition, sort];
    item.iter()
        .filter(|(name, _)| wanted.contains(&name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// What changing an item costs. A write that changes nothing costs as much as one that does, on the
/// table.
pub(super) fn write_units(before: Option<&Item>, after: Option<&Item>, gsi2: Gsi2) -> Units {
    let larger = before.map_or(0, item_size).max(after.map_or(0, item_size));
    let index = INDEXES.into_iter().map(|index| index_units(before, after, index, gsi2)).sum();
    Units { table: units_of(larger), index, read_halves: 0 }
}

fn index_units(before: Option<&Item>, after: Option<&Item>, index: Index, gsi2: Gsi2) -> u64 {
    let kept = |item: Option<&Item>| {
        let item = item?;
        let (partition, sort) = position(item, Some(index))?;
        Some(((partition.to_owned(), sort.to_owned()), projected(item, index, gsi2)))
    };
    match (kept(before), kept(after)) {
        (None, None) => 0,
        (Some((_, only)), None) | (None, Some((_, only))) => units_of(item_size(&only)),
        // Moved: taken out here, put in there.
        (Some((from, before)), Some((to, after))) if from != to => {
            units_of(item_size(&before)) + units_of(item_size(&after))
        }
        (Some((_, before)), Some((_, after))) if before == after => 0,
        (Some((_, before)), Some((_, after))) => {
            units_of(item_size(&before).max(item_size(&after)))
        }
    }
}

/// Write units of one image.
pub(super) fn units_of(bytes: usize) -> u64 {
    bytes.div_ceil(WRITE_UNIT_BYTES).max(1) as u64
}

/// Halves of read units for reading this many bytes at once.
pub(super) fn read_halves(bytes: usize, consistent: bool) -> u64 {
    let units = bytes.div_ceil(READ_UNIT_BYTES).max(1) as u64;
    if consistent { 2 * units } else { units }
}

/// One page of a query over these items, at most `page_max` of them looked at.
pub(super) fn page<'a>(
    items: impl Iterator<Item = (&'a Key, &'a Item)>,
    query: &Query,
    gsi2: Gsi2,
    page_max: usize,
) -> Result<(QueryPage, Units), String> {
    let limit = match query.limit {
        None => usize::MAX,
        Some(limit) => usize::try_from(limit)
            .ok()
            .filter(|limit| *limit > 0)
            .ok_or_else(|| format!("a limit of {limit}"))?,
    };
    if let Sort::Between(first, last) = &query.sort
        && first > last
    {
        return Err(format!("nothing is between {first:?} and {last:?}"));
    }
    if query.partition.is_empty() {
        return Err("a partition has no name".to_owned());
    }
    let start = query.start.as_ref().map(|start| start_of(start, query)).transpose()?;
    // By sort key; where an index has one twice, by the key of the table.
    let mut found: BTreeMap<(&str, &Key), &Item> = BTreeMap::new();
    for (key, item) in items {
        if let Some((partition, sort)) = position(item, query.index)
            && partition == query.partition
            && wanted(sort, &query.sort)
        {
            found.insert((sort, key), item);
        }
    }
    let comes_later = |place: &(&str, &Key)| match &start {
        None => true,
        Some((sort, key)) if query.ascending => *place > (sort.as_str(), key),
        Some((sort, key)) => *place < (sort.as_str(), key),
    };
    let mut rows: Vec<_> = found.into_iter().filter(|(place, _)| comes_later(place)).collect();
    if !query.ascending {
        rows.reverse();
    }
    let mut page = QueryPage::default();
    let mut bytes = 0;
    let most = limit.min(page_max);
    for (_, item) in &rows {
        let row = query.index.map_or_else(|| (*item).clone(), |index| projected(item, index, gsi2));
        bytes += item_size(&row);
        page.items.push(row);
        if page.items.len() >= most || bytes > PAGE_BYTES_MAX {
            // Also when nothing more would come: the table stops before it looks.
            page.last = Some(keys(item, query.index));
            break;
        }
    }
    let consistent = query.consistent && query.index.is_none();
    Ok((page, Units { read_halves: read_halves(bytes, consistent), ..Units::default() }))
}

/// Where the page before ended.
fn start_of(start: &Item, query: &Query) -> Result<(String, Key), String> {
    let wrong = || format!("{start:?} is not where a page of this query ended");
    let (partition, sort) = position(start, query.index).ok_or_else(wrong)?;
    let (pk, sk) = position(start, None).ok_or_else(wrong)?;
    let names = keys(start, query.index).len();
    if partition != query.partition || !wanted(sort, &query.sort) || names != start.len() {
        return Err(wrong());
    }
    Ok((sort.to_owned(), Key { pk: pk.to_owned(), sk: sk.to_owned().into() }))
}

fn wanted(sort: &str, by: &Sort) -> bool {
    match by {
        Sort::All => true,
        Sort::Prefix(prefix) => sort.starts_with(prefix.as_str()),
        Sort::Between(first, last) => (first.as_str()..=last.as_str()).contains(&sort),
    }
}
