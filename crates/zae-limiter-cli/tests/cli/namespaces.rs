//! `namespace …`.

use insta::assert_snapshot;

use crate::support::Sandbox;

/// The ids differ from run to run; each is shown as 11 characters that say whose it is.
fn named(sandbox: &Sandbox, text: &str) -> String {
    let limiter = sandbox.limiter();
    let page = zae_limiter::PageRequest::default();
    let mut namespaces = limiter.namespaces(&page).expect("a page").items;
    namespaces.extend(limiter.orphan_namespaces(&page).expect("a page").items);
    namespaces.iter().fold(text.to_owned(), |text, namespace| {
        text.replace(namespace.id.as_str(), &format!("[{:.<9}]", namespace.name))
    })
}

fn run(sandbox: &Sandbox, line: &str) -> String {
    named(sandbox, &sandbox.run(line))
}

fn id_of(sandbox: &Sandbox, name: &str) -> String {
    sandbox
        .limiter()
        .namespace_info(name)
        .expect("an answer")
        .expect("it is registered")
        .id
        .to_string()
}

#[test]
fn namespaces_are_registered_and_listed() {
    let sandbox = Sandbox::with_store();
    assert_snapshot!(run(&sandbox, "namespace register team-a team-b"), @"
    exit 0
    --- stdout
    NAMESPACE  ID           STATUS  CREATED  DELETED
    team-a     [team-a...]  active  [TIME]  -
    team-b     [team-b...]  active  [TIME]  -
    ");
    assert_snapshot!(run(&sandbox, "namespace register team-a --output json"), @r#"
    exit 0
    --- stdout
    {"items":[{"name":"team-a","namespace_id":"[team-a...]","status":"active","created_at":"[TIME]","deleted_at":null}],"next":null}
    "#);
    assert_snapshot!(run(&sandbox, "namespace list"), @"
    exit 0
    --- stdout
    NAMESPACE  ID           STATUS  CREATED  DELETED
    default    [default..]  active  [TIME]  -
    team-a     [team-a...]  active  [TIME]  -
    team-b     [team-b...]  active  [TIME]  -
    ");
    assert_snapshot!(run(&sandbox, "namespace list --limit 2 --output json"), @r#"
    exit 0
    --- stdout
    {"items":[{"name":"default","namespace_id":"[default..]","status":"active","created_at":"[TIME]","deleted_at":null},{"name":"team-a","namespace_id":"[team-a...]","status":"active","created_at":"[TIME]","deleted_at":null}],"next":"team-a"}
    --- stderr
    {"note":"there is more; go on with --cursor team-a"}
    "#);
    assert_snapshot!(run(&sandbox, "namespace list --limit 2 --cursor team-a --output json"), @r#"
    exit 0
    --- stdout
    {"items":[{"name":"team-b","namespace_id":"[team-b...]","status":"active","created_at":"[TIME]","deleted_at":null}],"next":null}
    "#);
    assert_snapshot!(run(&sandbox, "namespace show team-a"), @"
    exit 0
    --- stdout
    namespace  team-a
    id         [team-a...]
    status     active
    created    [TIME]
    ");
    assert_snapshot!(run(&sandbox, "namespace show team-a --output json"), @r#"
    exit 0
    --- stdout
    {"name":"team-a","namespace_id":"[team-a...]","status":"active","created_at":"[TIME]","deleted_at":null}
    "#);
    assert_snapshot!(sandbox.run("namespace register a/b"), @r#"
    exit 2
    --- stderr
    error: invalid value 'a/b' for '<NAMES>...': namespace "a/b" contains '/'; use letters, digits and _ . -

    For more information, try '--help'.
    "#);
    assert_snapshot!(sandbox.run("namespace register"), @"
    exit 2
    --- stderr
    error: the following required arguments were not provided:
      <NAMES>...

    Usage: zae-limiter namespace register <NAMES>...

    For more information, try '--help'.
    ");
}

#[test]
fn a_namespace_that_is_not_there() {
    let sandbox = Sandbox::with_store();
    assert_snapshot!(sandbox.run("namespace show team-a"), @"
    exit 1
    --- stderr
    error: there is no namespace team-a
    hint: register it with `zae-limiter namespace register team-a`; `zae-limiter namespace list` shows those there are
    ");
    assert_snapshot!(sandbox.run("namespace delete team-a --yes --output json"), @r#"
    exit 1
    --- stderr
    {"error":{"kind":"not_found","message":"there is no namespace team-a","hint":"register it with `zae-limiter namespace register team-a`; `zae-limiter namespace list` shows those there are"}}
    "#);
    assert_snapshot!(sandbox.run("namespace recover nowhere"), @"
    exit 1
    --- stderr
    error: there is no namespace nowhere; list the orphans to see those there are
    ");
    assert_snapshot!(sandbox.run("namespace purge nowhere --yes"), @"
    exit 1
    --- stderr
    error: there is no namespace nowhere; list the orphans to see those there are
    ");
    assert_snapshot!(sandbox.run("namespace orphans"), @"
    exit 0
    --- stdout
    no deleted namespaces
    ");
}

#[test]
fn the_registry_needs_no_namespace() {
    let sandbox = Sandbox::with_store().variable("ZAEL_NAMESPACE", "team-a");
    assert_eq!(sandbox.raw("system get-defaults").0, 1);
    assert_eq!(sandbox.raw("namespace register team-a").0, 0);
    assert_eq!(sandbox.raw("system set-defaults -l rpm:1").0, 0);
    assert_eq!(sandbox.raw("namespace delete default --yes").0, 0);
    assert_eq!(sandbox.raw("namespace list -N default").0, 0);
}

#[test]
fn a_deleted_namespace_comes_back_with_its_data() {
    let sandbox = Sandbox::with_store();
    sandbox.run("namespace register team-a");
    sandbox.run("system set-defaults -l rpm:7 -N team-a");
    let id = id_of(&sandbox, "team-a");
    assert_snapshot!(run(&sandbox, "namespace delete team-a"), @"
    exit 0
    --- stdout
    deleted namespace team-a; `zae-limiter namespace recover [team-a...]` brings it back
    ");
    assert_snapshot!(run(&sandbox, "namespace delete team-a"), @"
    exit 1
    --- stderr
    error: namespace team-a was deleted at [TIME]
    hint: `zae-limiter namespace recover [team-a...]` brings it back with its data
    ");
    assert_eq!(sandbox.raw("system get-defaults -N team-a").0, 1);
    assert_snapshot!(run(&sandbox, "namespace orphans"), @"
    exit 0
    --- stdout
    NAMESPACE  ID           STATUS   CREATED  DELETED
    team-a     [team-a...]  deleted  [TIME]  [TIME]
    ");
    assert_snapshot!(run(&sandbox, &format!("namespace recover {id}")), @"
    exit 0
    --- stdout
    namespace  team-a
    id         [team-a...]
    status     active
    created    [TIME]
    ");
    assert_snapshot!(run(&sandbox, &format!("namespace recover {id} --output json")), @r#"
    exit 1
    --- stderr
    {"error":{"kind":"state","message":"namespace [team-a...] is active; there is nothing to recover"}}
    "#);
    assert_eq!(sandbox.raw("system get-defaults -N team-a").0, 0);
    assert_snapshot!(run(&sandbox, "namespace delete team-a --yes --output json"), @r#"
    exit 0
    --- stdout
    {"name":"team-a","namespace_id":"[team-a...]","deleted":true}
    "#);
    assert_snapshot!(run(&sandbox, "namespace orphans --output json"), @r#"
    exit 0
    --- stdout
    {"items":[{"name":"team-a","namespace_id":"[team-a...]","status":"deleted","created_at":"[TIME]","deleted_at":"[TIME]"}],"next":null}
    "#);
    assert_snapshot!(run(&sandbox, &format!("namespace recover {id} --output json")), @r#"
    exit 0
    --- stdout
    {"name":"team-a","namespace_id":"[team-a...]","status":"active","created_at":"[TIME]","deleted_at":null}
    "#);
    sandbox.run("namespace delete team-a --yes");
    sandbox.run("namespace register team-b");
    sandbox.run("namespace delete team-b --yes");
    let (_, page) = sandbox.raw("namespace orphans --limit 1 --output json");
    let first: serde_json::Value = serde_json::from_str(&page).unwrap();
    let cursor = first["next"].as_str().expect("there are two");
    let (_, page) =
        sandbox.raw(&format!("namespace orphans --limit 1 --cursor {cursor} --output json"));
    let second: serde_json::Value = serde_json::from_str(&page).unwrap();
    assert!(second["next"].is_null() && second["items"][0] != first["items"][0]);
}

#[test]
fn purging_is_for_good() {
    let sandbox = Sandbox::with_store();
    sandbox.run("namespace register team-a");
    sandbox.run("system set-defaults -l rpm:7 -N team-a");
    let id = id_of(&sandbox, "team-a");
    let purge = format!("namespace purge {id}");
    assert_snapshot!(run(&sandbox, &purge), @"
    exit 2
    --- stderr
    error: this erases all data of the deleted namespace [team-a...] for good and there is no terminal to ask on
    hint: pass --yes if that is meant
    ");
    assert_snapshot!(run(&sandbox, &format!("{purge} --yes")), @r#"
    exit 1
    --- stderr
    error: namespace [team-a...] ("team-a") is active; delete it before purging it
    "#);
    sandbox.run("namespace delete team-a --yes");
    assert_snapshot!(sandbox.run(&format!("{purge} --yes")).replace(&id, "[ID]"), @"
    exit 0
    --- stdout
    purged namespace [ID] (records: 4)
    ");
    assert_eq!(sandbox.raw(&format!("namespace recover {id}")).0, 1);
    sandbox.run("namespace register team-b");
    let id = id_of(&sandbox, "team-b");
    sandbox.run("namespace delete team-b --yes");
    assert_snapshot!(sandbox.run(&format!("namespace purge {id} --yes --output json")).replace(&id, "[ID]"), @r#"
    exit 0
    --- stdout
    {"namespace_id":"[ID]","purged":true,"records":2}
    "#);
}

#[test]
fn a_deleted_namespace_leads_to_its_recovery() {
    let sandbox = Sandbox::with_store();
    assert_eq!(sandbox.raw("namespace register tenant-gamma").0, 0);
    let id = |sandbox: &Sandbox| {
        let (_, orphans) = sandbox.raw("namespace orphans --output json");
        let orphans: serde_json::Value = serde_json::from_str(&orphans).expect("JSON");
        orphans["items"][0]["namespace_id"].as_str().expect("an id").to_owned()
    };
    assert_eq!(sandbox.raw("namespace delete tenant-gamma").0, 0);
    let gone = id(&sandbox);
    let run = |line: &str| sandbox.run(line).replace(&gone, "[ID]");
    assert_snapshot!(run("acquire -N tenant-gamma key-1 gpt-4 -c rpm=1"), @"
    exit 1
    --- stderr
    error: namespace tenant-gamma was deleted at [TIME]
    hint: `zae-limiter namespace recover [ID]` brings it back with its data
    ");
    assert_snapshot!(run("namespace show tenant-gamma --output json"), @r#"
    exit 1
    --- stderr
    {"error":{"kind":"not_found","message":"namespace tenant-gamma was deleted at [TIME]","hint":"`zae-limiter namespace recover [ID]` brings it back with its data"}}
    "#);
    assert_snapshot!(run("namespace recover tenant-gamma"), @"
    exit 0
    --- stdout
    namespace  tenant-gamma
    id         [ID]
    status     active
    created    [TIME]
    ");
    assert_snapshot!(run("namespace recover tenant-gamma"), @"
    exit 2
    --- stderr
    error: namespace tenant-gamma is in use; there is nothing to recover
    ");
    // Twice the same name: only the id tells them apart.
    for line in [
        "namespace delete tenant-gamma",
        "namespace register tenant-gamma -q",
        "namespace delete tenant-gamma",
    ] {
        assert_eq!(sandbox.raw(line).0, 0, "{line}");
    }
    let (exit, _) = sandbox.raw("namespace recover tenant-gamma");
    let shown = sandbox.run("namespace recover tenant-gamma");
    assert_eq!(exit, 2);
    assert!(
        shown.contains("2 deleted namespaces were called tenant-gamma\nhint: name one by its id: ")
            && shown.contains(&gone),
        "{shown}"
    );
    assert!(
        sandbox
            .run("namespace register tenant-gamma")
            .contains("note: another namespace tenant-gamma was deleted at [TIME]")
    );
    // The one that everybody uses is asked about.
    assert_snapshot!(sandbox.run("namespace delete default"), @"
    exit 2
    --- stderr
    error: this deletes namespace default (commands use it that name no other; it can be recovered until it is purged) and there is no terminal to ask on
    hint: pass --yes if that is meant
    ");
    assert_eq!(sandbox.raw("namespace delete default --yes").0, 0);
    let (_, shown) = sandbox.raw("namespace show default");
    assert_eq!(shown, "", "it is gone");
    let back = sandbox.run("namespace recover default");
    let masked: String = back
        .lines()
        .map(|line| {
            if line.starts_with("id  ") { "id         [ID]\n".into() } else { format!("{line}\n") }
        })
        .collect();
    assert_snapshot!(masked, @"
    exit 0
    --- stdout
    namespace  default
    id         [ID]
    status     active
    created    [TIME]
    ");
}
