//! Expressions: the exact text, and what must hold for every write.

use aws_sdk_dynamodb::types::AttributeValue;
use proptest::prelude::*;
use zae_limiter_dynamodb::sdk::expression::{EXPRESSION_BYTES_MAX, Rendered, is_plain, render};
use zae_limiter_dynamodb::table::{
    Action, Attr, Comparison, Condition, compare, compare_with, number, text,
};

use super::check::check;

fn condition(conditions: &[Condition]) -> Option<String> {
    let rendered = render(&[], conditions);
    check(&rendered).unwrap();
    rendered.condition
}

fn exists(name: &'static str) -> Condition {
    Condition::Exists(name.into())
}

#[test]
fn each_section_comes_once_and_each_alias_is_declared_once() {
    let rendered = render(
        &[
            Action::Remove("gone".into()),
            Action::Add("tk".into(), -5),
            Action::Set("a".into(), number(1)),
            Action::DeleteMember("set".into(), "x".to_owned()),
            Action::SetIfAbsent("b".into(), number(1)),
            Action::AddMember("names".into(), "x".to_owned()),
        ],
        &[compare("tk", Comparison::Ge, 1)],
    );
    check(&rendered).unwrap();
    assert_eq!(
        rendered.update.as_deref(),
        Some("SET #0=:0,#1=if_not_exists(#1,:0) ADD #2 :1,#3 :2 DELETE #4 :2 REMOVE #5")
    );
    assert_eq!(rendered.condition.as_deref(), Some("#2>=:0"));
    assert_eq!(rendered.values.unwrap()[":2"], AttributeValue::Ss(vec!["x".to_owned()]));
}

/// The names of buckets as the protocol writes them; a limit name may be anything of letters,
/// digits, dots, dashes, underscores.
#[test]
fn a_name_has_an_alias_unless_it_can_be_no_trouble() {
    for plain in [
        "PK",
        "rf",
        "vu",
        "lw",
        "ca",
        "rmf",
        "ret",
        "disabled",
        "shard_count",
        "b_rpm_tk",
        "b_wcu_tc",
        "b_9_lives_cp",
        "b__tk",
    ] {
        assert!(is_plain(plain), "{plain}");
    }
    let aliased = [
        "ttl",
        "status",
        "name",
        "SK",
        "b_a.b_tk",
        "b_a-b_tk",
        "b_a b_tk",
        "b_\u{e9}_tk",
        "b_0123456789_tk",
        "a_rpm_tk",
        "B_rpm_tk",
        "",
    ];
    for aliased in aliased {
        assert!(!is_plain(aliased), "{aliased}");
    }
    let rendered = render(
        &[
            Action::Add("b_rpm_tk".into(), -1),
            Action::Add("b_in.put_tk".into(), -2),
            Action::Remove("ttl".into()),
        ],
        &[
            exists("PK"),
            compare("b_rpm_tk", Comparison::Ge, 1),
            compare("b_in.put_tk", Comparison::Ge, 2),
            exists("b_wcu_tk"),
        ],
    );
    check(&rendered).unwrap();
    assert_eq!(rendered.update.as_deref(), Some("ADD b_rpm_tk :0,#0 :1 REMOVE #1"));
    let condition =
        "attribute_exists(PK) AND b_rpm_tk>=:2 AND #0>=:3 AND attribute_exists(b_wcu_tk)";
    assert_eq!(rendered.condition.as_deref(), Some(condition));
    let names = rendered.names.unwrap();
    assert_eq!(
        (names.len(), names["#0"].as_str(), names["#1"].as_str()),
        (2, "b_in.put_tk", "ttl")
    );
}

/// DynamoDB compares without regard to case. Every reserved word has at least two letters and none
/// has an underscore or a digit; these are the ones of two and three letters, and those that begin
/// like `disabled`.
#[test]
fn no_reserved_word_is_plain() {
    let short = "ADD ALL AND ANY ARE AS ASC AT AVG BIT BY DAY DEC DO END FOR GET GO IF IN INT IS KEY LAG LOG MAP MAX MIN MOD NEW NO NOT \
                 OF OLD ON OR OUT PAD PUT RAW REF ROW SET SQL SUB SUM TO TTL URL USE";
    let long = "DISABLE DISCONNECT DISTINCT DISTRIBUTE STATUS NAME RESOURCE CASCADE";
    for word in short.split_whitespace().chain(long.split_whitespace()) {
        assert!(!is_plain(word) && !is_plain(&word.to_lowercase()), "{word}");
    }
}

/// The most a refill can name: sixteen limits that go and sixteen that come, each with the longest
/// name that has no alias.
#[test]
fn the_widest_write_fits() {
    let attr = |kind: char, limit: usize, field: &str| format!("b_{kind}{limit:08}_{field}");
    let (mut actions, mut conditions) =
        (Vec::new(), vec![exists("PK"), exists("shard_count"), exists("disabled"), exists("ttl")]);
    for limit in 0..16 {
        let number = i64::try_from(limit).unwrap();
        assert!(is_plain(&attr('o', limit, "tk")) && !is_plain(&attr('o', limit, "tk+")));
        conditions.extend(
            ["cp", "ra", "rp", "tk"]
                .map(|field| compare(attr('o', limit, field), Comparison::Eq, number)),
        );
        conditions.push(compare(attr('o', limit, "tk"), Comparison::Lt, 100 + number));
        conditions.push(Condition::Absent(attr('n', limit, "tk").into()));
        conditions.push(Condition::Absent(attr('a', limit, "tk").into()));
        actions.extend(
            ["tk", "tc", "cp", "ra", "rp", "rm", "gp"]
                .map(|field| Action::Remove(attr('o', limit, field).into())),
        );
        let new = ["tk", "tc", "cp", "ra", "rp"].into_iter().enumerate();
        actions.extend(new.map(|(index, field)| {
            Action::Set(
                attr('n', limit, field).into(),
                zae_limiter_dynamodb::table::number(
                    1000 + 5 * number + i64::try_from(index).unwrap(),
                ),
            )
        }));
    }
    let rendered = render(&actions, &conditions);
    check(&rendered).unwrap();
    assert!(rendered.names.is_some_and(|names| names.len() == 1), "only ttl has an alias");
    for text in [rendered.update.unwrap(), rendered.condition.unwrap()] {
        assert!(text.len() + 200 < EXPRESSION_BYTES_MAX, "{} bytes", text.len());
    }
}

#[test]
fn nothing_to_say_is_not_said() {
    assert_eq!(render(&[], &[]), Rendered::default());
    assert_eq!(condition(&[Condition::All(vec![])]), None);
    assert_eq!(condition(&[Condition::Any(vec![exists("a"), Condition::All(vec![])])]), None);
}

#[test]
fn what_can_never_hold_never_holds() {
    let never = "attribute_exists(PK) AND attribute_not_exists(PK)";
    assert_eq!(condition(&[Condition::Any(vec![])]).as_deref(), Some(never));
    assert_eq!(
        condition(&[exists("a"), Condition::All(vec![Condition::Any(vec![])])]).as_deref(),
        Some(never)
    );
}

#[test]
fn parentheses_where_they_are_needed_and_nowhere_else() {
    let any = |members: Vec<Condition>| Condition::Any(members);
    let all = |members: Vec<Condition>| Condition::All(members);
    let (a, b, c) = (|| exists("a"), || exists("b"), || exists("c"));
    let e = |index: usize| format!("attribute_exists(#{index})");
    assert_eq!(condition(&[any(vec![a(), b()])]), Some(format!("({} OR {})", e(0), e(1))));
    assert_eq!(
        condition(&[any(vec![a(), all(vec![b(), c()])])]),
        Some(format!("({} OR {} AND {})", e(0), e(1), e(2)))
    );
    assert_eq!(
        condition(&[all(vec![a(), any(vec![b(), c()])])]),
        Some(format!("{} AND ({} OR {})", e(0), e(1), e(2)))
    );
    assert_eq!(
        condition(&[any(vec![any(vec![any(vec![a(), b()])])])]),
        Some(format!("({} OR {})", e(0), e(1)))
    );
    assert_eq!(condition(&[any(vec![all(vec![any(vec![a()])])])]), Some(e(0)));
    let begins_twice = any(vec![all(vec![any(vec![a(), b()]), c()]), a()]);
    assert_eq!(
        condition(&[begins_twice]),
        Some(format!("(({} OR {}) AND {} OR {})", e(0), e(1), e(2), e(0)))
    );
}

#[test]
fn the_checker_finds_what_it_is_for() {
    let good = render(&[Action::Set("a".into(), number(1))], &[exists("b")]);
    check(&good).unwrap();
    let broken = |change: fn(&mut Rendered)| {
        let mut rendered = good.clone();
        change(&mut rendered);
        check(&rendered).unwrap_err()
    };
    assert!(broken(|r| r.names = None).contains("not declared"));
    assert!(
        broken(|r| r.condition = Some("attribute_exists(#1) AND status=:0".to_owned()))
            .contains("status has no alias")
    );
    assert!(broken(|r| r.update = Some("SET size=:0,#0=:0".to_owned())).contains("no clause"));
    assert!(
        broken(|r| r.update = Some("SET b_rpm_tk=:0,#0=:0,size=:0".to_owned()))
            .contains("size has no alias")
    );
    assert!(broken(|r| r.condition = None).contains("not used"));
    assert!(
        broken(
            |r| r.condition = Some("((attribute_exists(#1) OR attribute_exists(#1)))".to_owned())
        )
        .contains("redundant")
    );
    assert!(
        broken(|r| r.condition = Some("attribute_exists((#1))".to_owned())).contains("redundant")
    );
    assert!(broken(|r| r.update = Some("SET ".to_owned())).contains("no clause"));
    assert!(broken(|r| r.update = Some("SET #0=:0 SET #1=:0".to_owned())).contains("twice"));
    assert!(
        broken(|r| r.condition = Some(format!("attribute_exists(#1) AND {}", " ".repeat(5000))))
            .contains("bytes")
    );
    assert!(
        broken(|r| drop(r.names.as_mut().unwrap().insert("#1".to_owned(), "a".to_owned())))
            .contains("two aliases")
    );
}

fn attr() -> impl Strategy<Value = Attr> {
    (0..40_u32).prop_map(name)
}

/// Some need an alias, some do not.
fn name(n: u32) -> Attr {
    if n.is_multiple_of(2) { format!("b_limit-{n}.x_tk") } else { format!("b_l{n}_tk") }.into()
}

fn value() -> impl Strategy<Value = AttributeValue> {
    prop_oneof![(-3..3_i64).prop_map(number), "[a-c]{0,2}".prop_map(text)]
}

fn action(attr: Attr) -> impl Strategy<Value = Action> {
    (0..6_u8, value(), -5..5_i64, "[a-c]").prop_map(move |(kind, value, amount, member)| match kind
    {
        0 => Action::Set(attr.clone(), value),
        1 => Action::SetIfAbsent(attr.clone(), value),
        2 => Action::Add(attr.clone(), amount),
        3 => Action::AddMember(attr.clone(), member),
        4 => Action::DeleteMember(attr.clone(), member),
        _ => Action::Remove(attr.clone()),
    })
}

fn any_condition() -> impl Strategy<Value = Condition> {
    let comparison = prop_oneof![
        Just(Comparison::Eq),
        Just(Comparison::Ne),
        Just(Comparison::Lt),
        Just(Comparison::Le),
        Just(Comparison::Gt),
        Just(Comparison::Ge)
    ];
    let leaf = prop_oneof![
        attr().prop_map(Condition::Exists),
        attr().prop_map(Condition::Absent),
        (attr(), comparison, value())
            .prop_map(|(attr, comparison, value)| compare_with(attr, comparison, value)),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let members = prop::collection::vec(inner, 0..3);
        prop_oneof![members.clone().prop_map(Condition::All), members.prop_map(Condition::Any)]
    })
}

proptest! {
    #[test]
    fn every_write_is_well_formed(
        actions in prop::collection::btree_set(0..40_u32, 0..20)
            .prop_flat_map(|attrs| attrs.into_iter().map(|n| action(name(n))).collect::<Vec<_>>()),
        conditions in prop::collection::vec(any_condition(), 0..6),
    ) {
        let rendered = render(&actions, &conditions);
        prop_assert_eq!(check(&rendered), Ok(()), "{:?}", rendered);
        prop_assert_eq!(rendered.update.is_none(), actions.is_empty());
    }
}
