//! What a file would change, and what is refused before the first write.

use zae_limiter::{Flag, Level, MemoryStore, NewEntity, RateLimiter};
use zae_limiter_manifest::{Apply, Live, Managed, Manifest, Plan, PlanError, apply, export};

async fn limiter() -> RateLimiter {
    RateLimiter::builder(MemoryStore::new()).build().expect("a limiter")
}

fn manifest(text: &str) -> Manifest {
    let read = Manifest::read(&format!("namespace: default\n{text}"));
    read.unwrap_or_else(|error| panic!("{error}")).manifest
}

async fn plan(limiter: &RateLimiter, text: &str, prune: bool) -> Result<Plan, PlanError> {
    let manifest = manifest(text);
    let live = Live::read(limiter, &manifest).await.expect("a store can be read");
    Plan::new(&manifest, &live, prune)
}

async fn applied(limiter: &RateLimiter, text: &str, prune: bool) -> Vec<String> {
    let plan = plan(limiter, text, prune).await.unwrap_or_else(|error| panic!("{error}"));
    apply(limiter, &plan, &Apply::default()).await.expect("a plan can be applied");
    told(&plan)
}

fn told(plan: &Plan) -> Vec<String> {
    plan.changes.iter().map(ToString::to_string).collect()
}

async fn refused(limiter: &RateLimiter, text: &str, prune: bool) -> Vec<String> {
    let error = plan(limiter, text, prune).await.expect_err("a plan that is refused");
    error.problems.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn changes_have_a_sign_and_both_values() {
    let limiter = limiter().await;
    let first = "system: {limits: {rpm: 60/min}, on_unavailable: allow}\n\
                 resources: {gpt-4: {limits: {rpm: 10/min, tpm: 5/min}, disabled: true}}\n\
                 entities: {key: {name: Key}}\n";
    assert_eq!(
        applied(&limiter, first, false).await,
        [
            "+ system: rpm:60/min on_unavailable allow",
            "+ resource gpt-4: rpm:10/min tpm:5/min",
            "+ resource gpt-4 flag: disabled",
            "+ entity key: name \"Key\"",
        ]
    );
    assert!(applied(&limiter, first, false).await.is_empty(), "the second time nothing changes");
    let second = "system: {limits: {rpm: 60/min}, on_unavailable: block}\n\
                  resources: {gpt-4: {limits: {rpm: 20/min}, disabled: false}}\n\
                  entities: {key: {name: Other, metadata: {tier: gold}}}\n";
    assert_eq!(
        told(&plan(&limiter, second, false).await.expect("a plan")),
        [
            "~ system: rpm:60/min on_unavailable allow -> rpm:60/min on_unavailable block",
            "~ resource gpt-4: rpm:10/min tpm:5/min -> rpm:20/min",
            "~ resource gpt-4 flag: disabled -> enabled",
            "~ entity key: name \"Key\" -> name \"Other\", tier=\"gold\"",
        ]
    );
}

#[tokio::test]
async fn effects_on_buckets_are_told() {
    let limiter = limiter().await;
    applied(&limiter, "system: {limits: {a: 10/min, b: 10/min, c: 10/min, d: 10/min}}", false)
        .await;
    let change = "system: {limits: {a: 5/min, b: 20/min, c: \"5/min:10\", e: 1/min}}";
    let plan = plan(&limiter, change, false).await.expect("a plan");
    assert_eq!(
        plan.changes[0].effect(),
        "a: a balance above 5 is cut; b: balances stay, and refill up to 20; c: balances stay, and \
         refill at the new rate; e is new and starts full; d no longer limits, and is remembered \
         for a while"
    );
}

#[tokio::test]
async fn only_what_was_managed_is_removed_and_only_when_asked() {
    let limiter = limiter().await;
    limiter
        .set_limits(
            &"x".parse().map(zae_limiter::Level::Resource).unwrap(),
            ["rpm:1".parse().unwrap()],
        )
        .await
        .unwrap();
    let full = "resources: {a: {limits: {rpm: 1/min}}, b: {disabled: true}}\n\
                entities: {org: {name: Org}, key: {parent: org, limits: {rpm: 1/min}}}\n";
    applied(&limiter, full, false).await;
    let kept =
        plan(&limiter, "resources: {a: {limits: {rpm: 1/min}}}", false).await.expect("a plan");
    assert!(kept.changes.is_empty() && kept.is_empty(), "{:?}", told(&kept));
    assert_eq!(kept.kept.len(), 3, "{:?}", kept.kept);
    assert_eq!(
        applied(&limiter, "resources: {a: {limits: {rpm: 1/min}}}", true).await,
        [
            "- resource b flag: disabled",
            "- entity key: name \"key\", parent org",
            "- entity org: name \"Org\"",
        ]
    );
    assert!(limiter.entity("org").await.unwrap().is_none());
    let level = zae_limiter::Level::entity("key").unwrap();
    assert_eq!(limiter.level(&level).await.unwrap(), None, "went with the entity");
    assert!(applied(&limiter, "resources: {a: {limits: {rpm: 1/min}}}", true).await.is_empty());
    assert_eq!(applied(&limiter, "", true).await, ["- resource a: rpm:1/min"]);
    let level = zae_limiter::Level::resource("x").unwrap();
    assert!(limiter.level(&level).await.unwrap().is_some(), "never managed, never removed");
}

#[tokio::test]
async fn a_flag_that_the_file_does_not_mention_stays() {
    let limiter = limiter().await;
    let file = "resources: {gpt-4: {limits: {rpm: 1/min}}}";
    applied(&limiter, file, true).await;
    let level = zae_limiter::Level::resource("gpt-4").unwrap();
    limiter.disable(&level).await.unwrap();
    assert!(applied(&limiter, file, true).await.is_empty(), "an emergency is not undone");
    assert!(limiter.level(&level).await.unwrap().unwrap().flag.unwrap().blocks());
}

#[tokio::test]
async fn limits_that_stand_beside_a_managed_flag_are_not_ours() {
    let limiter = limiter().await;
    applied(&limiter, "resources: {gpt-4: {disabled: true}}", false).await;
    let level = zae_limiter::Level::resource("gpt-4").unwrap();
    limiter.set_limits(&level, ["rpm:1".parse().unwrap()]).await.unwrap();
    assert_eq!(applied(&limiter, "", true).await, ["- resource gpt-4 flag: disabled"]);
    let stored = limiter.level(&level).await.unwrap().expect("the limits stay");
    assert!(stored.flag.is_none() && stored.limits.len() == 1);
}

#[tokio::test]
async fn a_parent_that_changes_is_refused_before_the_first_write() {
    let limiter = limiter().await;
    let file = "entities: {a: {name: A}, b: {name: B}, key: {parent: a, cascade: true}}";
    applied(&limiter, file, false).await;
    let wrong = "system: {limits: {rpm: 1/min}}\nentities:\n  a: {name: New}\n  key: {parent: b, cascade: true}\n";
    assert_eq!(
        refused(&limiter, wrong, false).await,
        ["line 5: entities.key: key has parent a and cascade on, and the file says parent b and \
          cascade on; neither can be changed: delete the entity first, or describe it as it is"]
    );
    let wrong = "entities: {key: {parent: a}}";
    assert!(refused(&limiter, wrong, false).await[0].contains("says parent a and cascade off"));
    assert!(limiter.level(&zae_limiter::Level::System).await.unwrap().is_none());
}

#[tokio::test]
async fn lineages_that_no_store_accepts_are_refused() {
    let limiter = limiter().await;
    let circle = "entities: {a: {parent: b}, b: {parent: c}, c: {parent: a}}";
    let told = refused(&limiter, circle, false).await;
    assert!(told.iter().all(|told| told.contains("circle")) && told.len() == 3, "{told:?}");
    let told = refused(&limiter, "entities: {a: {parent: nobody}}", false).await;
    assert!(told[0].contains("the parent nobody is neither in the file nor in the store"));
    let chain = |last: usize| {
        let child = |n: usize| format!("e{n}: {{parent: e{}, cascade: true}}", n - 1);
        let children: Vec<String> = (1..=last).map(child).collect();
        format!("entities: {{e0: {{name: Root}}, {}}}", children.join(", "))
    };
    let told = refused(&limiter, &chain(8), false).await;
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("entities.e8: it would cascade to more than 7 ancestors"), "{told:?}");
    applied(&limiter, &chain(7), false).await;
    let told = refused(&limiter, "entities: {e8: {parent: e7, cascade: true}}", false).await;
    assert!(told[0].contains("more than 7 ancestors"), "with ancestors of the store: {told:?}");
}

#[tokio::test]
async fn an_outage_policy_needs_limits_beside_it() {
    let limiter = limiter().await;
    let file = "system: {on_unavailable: allow}";
    let told = refused(&limiter, file, false).await;
    assert!(told[0].contains("system.on_unavailable") && told[0].contains("add system.limits"));
    limiter.set_limits(&zae_limiter::Level::System, ["rpm:1".parse().unwrap()]).await.unwrap();
    assert_eq!(
        applied(&limiter, file, false).await,
        ["~ system: rpm:1/min -> rpm:1/min on_unavailable allow"]
    );
    assert!(applied(&limiter, file, false).await.is_empty());
    assert!(applied(&limiter, "", true).await.is_empty(), "limits that others set are not ours");
}

#[tokio::test]
async fn a_deletion_that_would_leave_children_is_refused() {
    let limiter = limiter().await;
    applied(&limiter, "entities: {org: {name: Org}}", false).await;
    limiter.create_entity(zae_limiter::NewEntity::new("key").parent("org")).await.unwrap();
    let told = refused(&limiter, "", true).await;
    assert!(told[0].contains("its child key stays"), "{told:?}");
    let told = refused(&limiter, "entities: {org: {limits: {rpm: 1/min}}}", true).await;
    assert!(told.iter().any(|told| told.contains("still has limits or a flag")), "{told:?}");
    limiter.delete_entity("key").await.unwrap();
    assert_eq!(applied(&limiter, "", true).await, ["- entity org: name \"Org\""]);
}

/// Also what somebody gave it by hand, whether few entities go or many.
#[tokio::test]
async fn what_goes_along_with_a_pruned_entity_is_named() {
    for others in [0, 150] {
        let limiter = limiter().await;
        let others: String = (0..others).map(|n| format!(", other-{n}: {{name: Other}}")).collect();
        let file = format!(
            "entities: {{org: {{name: Org, limits: {{rpm: 5/min}}, resources: {{gpt-4: {{limits: \
             {{rpm: 1/min}}}}}}}}{others}}}"
        );
        applied(&limiter, &file, false).await;
        let level = |resource: Option<&str>| match resource {
            Some(resource) => {
                Level::EntityResource("org".parse().unwrap(), resource.parse().unwrap())
            }
            None => Level::Entity("org".parse().unwrap()),
        };
        limiter.disable(&level(None)).await.expect("a flag");
        limiter.set_flag(&level(Some("chat")), Some(Flag::Enabled)).await.expect("a flag");
        let limits = ["tpm:7".parse().unwrap()];
        limiter.set_limits(&level(Some("by-hand")), limits).await.expect("limits");
        for prune in [true, false] {
            let plan = plan(&limiter, "", prune).await.expect("a plan");
            let found = plan.changes.iter().chain(&plan.kept);
            let org = found.filter(|change| change.to_string().starts_with("- entity org: "));
            let along: Vec<Vec<String>> = org.map(|change| change.along()).collect();
            assert_eq!(
                along,
                [[
                    "entity org: rpm:5/min",
                    "entity org flag: disabled",
                    "entity org on by-hand: tpm:7/min",
                    "entity org on chat flag: enabled",
                    "entity org on gpt-4: rpm:1/min",
                ]]
            );
        }
        applied(&limiter, "", true).await;
        assert_eq!(limiter.level(&level(None)).await.expect("a level"), None, "it is gone");
    }
}

/// What the target of a copy keeps otherwise was made there by hand: no file may take it away.
#[tokio::test]
async fn a_copy_manages_what_it_has_made_and_nothing_else() {
    let (source, target) = (limiter().await, limiter().await);
    let text = "resources: {a: {limits: {rpm: 1/min}}, b: {limits: {rpm: 2/min}}}\n\
                entities: {org: {name: Org}, key: {name: Key}}\n";
    applied(&source, text, false).await;
    // Managed once, and taken away by hand.
    let gone = Level::Resource("b".parse().expect("a name"));
    source.delete_limits(&gone).await.expect("by hand");
    let by_hand = Level::Resource("a".parse().expect("a name"));
    target.set_limits(&by_hand, ["rpm:9/min".parse().expect("a limit")]).await.expect("by hand");
    target.create_entity(NewEntity::new("org").name("Another")).await.expect("by hand");

    let managed = Managed::read(&source).await.expect("a read");
    let manifest = export(&source).await.expect("an export");
    let live = Live::read(&target, &manifest).await.expect("a read");
    let copy = Plan::new(&manifest, &live, false).expect("a plan").only_missing(&managed);
    apply(&target, &copy, &Apply::default()).await.expect("a copy");
    let managed = Managed::read(&target).await.expect("a read").places;
    let names: Vec<String> = managed.keys().map(ToString::to_string).collect();
    assert_eq!(names, ["entity key"]);
    let removed = told(&plan(&target, "", true).await.expect("a plan"));
    assert_eq!(removed, ["- entity key: name \"Key\""]);
}
