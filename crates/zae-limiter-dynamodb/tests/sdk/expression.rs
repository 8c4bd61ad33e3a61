//! Expressions: the exact text, and what must hold for every write.

use std::borrow::Cow;

use aws_sdk_dynamodb::types::AttributeValue;
use proptest::prelude::*;
use zae_limiter_dynamodb::sdk::expression::{Rendered, check, render};
use zae_limiter_dynamodb::table::{Action, Comparison, Condition, compare, number, text};

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
    assert_eq!(rendered.update.as_deref(), Some("SET #0=:0,#1=if_not_exists(#1,:0) ADD #2 :1,#3 :2 DELETE #4 :2 REMOVE #5"));
    assert_eq!(rendered.condition.as_deref(), Some("#2>=:0"));
    assert_eq!(rendered.values.unwrap()[":2"], AttributeValue::Ss(vec!["x".to_owned()]));
}

#[test]
fn nothing_to_say_is_not_said() {
    assert_eq!(render(&[], &[]), Rendered::default());
    assert_eq!(condition(&[Condition::All(vec![])]), None);
    assert_eq!(condition(&[Condition::Any(vec![exists("a"), Condition::All(vec![])])]), None);
}

#[test]
fn what_can_never_hold_never_holds() {
    let never = "attribute_exists(#0) AND attribute_not_exists(#0)";
    assert_eq!(condition(&[Condition::Any(vec![])]).as_deref(), Some(never));
    assert_eq!(condition(&[exists("a"), Condition::All(vec![Condition::Any(vec![])])]).as_deref(), Some(never));
}

#[test]
fn parentheses_where_they_are_needed_and_nowhere_else() {
    let any = |members: Vec<Condition>| Condition::Any(members);
    let all = |members: Vec<Condition>| Condition::All(members);
    let (a, b, c) = (|| exists("a"), || exists("b"), || exists("c"));
    let e = |index: usize| format!("attribute_exists(#{index})");
    assert_eq!(condition(&[any(vec![a(), b()])]), Some(format!("({} OR {})", e(0), e(1))));
    assert_eq!(condition(&[any(vec![a(), all(vec![b(), c()])])]), Some(format!("({} OR {} AND {})", e(0), e(1), e(2))));
    assert_eq!(condition(&[all(vec![a(), any(vec![b(), c()])])]), Some(format!("{} AND ({} OR {})", e(0), e(1), e(2))));
    assert_eq!(condition(&[any(vec![any(vec![any(vec![a(), b()])])])]), Some(format!("({} OR {})", e(0), e(1))));
    assert_eq!(condition(&[any(vec![all(vec![any(vec![a()])])])]), Some(e(0)));
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
    assert!(broken(|r| r.condition = None).contains("not used"));
    assert!(broken(|r| r.update = Some("SET ".to_owned())).contains("no clause"));
    assert!(broken(|r| r.update = Some("SET #0=:0 SET #1=:0".to_owned())).contains("twice"));
    assert!(broken(|r| r.condition = Some(format!("attribute_exists(#1) AND {}", " ".repeat(5000)))).contains("bytes"));
    assert!(broken(|r| drop(r.names.as_mut().unwrap().insert("#1".to_owned(), "a".to_owned()))).contains("two aliases"));
}

fn attr() -> impl Strategy<Value = Cow<'static, str>> {
    (0..40_u32).prop_map(|n| Cow::Owned(format!("b_limit-{n}.x_tk")))
}

fn value() -> impl Strategy<Value = AttributeValue> {
    prop_oneof![(-3..3_i64).prop_map(number), "[a-c]{0,2}".prop_map(text)]
}

fn action(attr: Cow<'static, str>) -> impl Strategy<Value = Action> {
    (0..6_u8, value(), -5..5_i64, "[a-c]").prop_map(move |(kind, value, amount, member)| match kind {
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
        (attr(), comparison, value()).prop_map(|(attr, comparison, value)| Condition::Compare(attr, comparison, value)),
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
            .prop_flat_map(|attrs| attrs.into_iter().map(|n| action(Cow::Owned(format!("b_limit-{n}.x_tk")))).collect::<Vec<_>>()),
        conditions in prop::collection::vec(any_condition(), 0..6),
    ) {
        let rendered = render(&actions, &conditions);
        prop_assert_eq!(check(&rendered), Ok(()), "{:?}", rendered);
        prop_assert_eq!(rendered.update.is_none(), actions.is_empty());
    }
}
