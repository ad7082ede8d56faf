//! What people have said: endpoints, tenants, event types, keys, and who said so.

use std::collections::BTreeMap;

use posthaste_core::catalogue::{Contract, Entry};
use posthaste_core::endpoint::{Endpoint, Headers, Metadata, PolicyOverrides, Signing, Status};
use posthaste_core::event::EventType;
use posthaste_core::id::{EndpointUid, KeyId};
use posthaste_core::scheduler::LaneMemory;
use posthaste_core::tenant::{Retention, Share, Tenant};
use posthaste_core::text::Version;
use posthaste_core::timeout::{Adaptive, Mode, Pinned};
use posthaste_store::*;

use crate::world::{World, later, tenant};

crate::conform! {
    an_endpoint_is_kept_with_all_that_was_said_about_it
    endpoints_are_listed_newest_first_in_pages
    a_uid_is_taken_once_per_tenant_until_its_endpoint_is_deleted
    a_change_that_was_made_by_somebody_else_meanwhile_is_not_overwritten
    a_tenant_has_as_many_endpoints_as_it_may
    secrets_are_sealed_and_open_after_the_master_key_was_rotated
    tenants_come_into_being_change_and_go
    event_types_are_a_catalogue
    a_change_of_a_tenant_or_a_type_that_somebody_else_has_changed_meanwhile_is_refused
    keys_are_found_by_their_hash_until_they_end
    every_change_is_in_the_audit_log_and_raises_the_number
    what_is_not_there_is_refused_and_leaves_no_trace
    an_owner_takes_endpoints_up_with_all_it_needs_and_hears_of_changes
    what_belongs_to_another_tenant_is_not_found_by_its_id
}

async fn what_belongs_to_another_tenant_is_not_found_by_its_id(world: World) {
    let endpoint = world.endpoint("acme").await;
    let delivery = world.delivery("acme").await;
    let (acme, globex) = (Some(tenant("acme")), Some(tenant("globex")));
    assert!(world.store.endpoint(acme.clone(), endpoint.id).await.unwrap().is_some());
    assert_eq!(world.store.endpoint(globex.clone(), endpoint.id).await.unwrap(), None);
    assert!(world.store.delivery(acme, delivery.id).await.unwrap().is_some());
    assert_eq!(world.store.delivery(globex, delivery.id).await.unwrap(), None);
}

async fn an_endpoint_is_kept_with_all_that_was_said_about_it(world: World) {
    let headers = Headers::new([("authorization", "Bearer canary")], &Signing::Standard).unwrap();
    let mode = Mode::Manual(Pinned::new(std::time::Duration::from_secs(7)).unwrap());
    let endpoint = Endpoint {
        uid: Some(EndpointUid::parse("mine").unwrap()),
        status: Status::Paused { until: Some(later(world.store.now(), 60)) },
        headers,
        metadata: Metadata::new(BTreeMap::from([("a".to_owned(), "b".to_owned())])).unwrap(),
        policies: PolicyOverrides { timeout: Some(mode), ..PolicyOverrides::default() },
        ..world.new_endpoint("acme")
    };
    world.add(&endpoint).await.unwrap();
    let stored = world.store.endpoint(None, endpoint.id).await.unwrap().unwrap();
    assert_eq!(stored.endpoint, endpoint);
    assert_eq!((stored.version, stored.deleted_at, stored.partition), (1, None, partition_of(&endpoint.tenant)));
    assert_eq!(stored.secrets, [StoredSecret { secret: SecretText("whsec_canary".to_owned()), until: None }]);
    let until = Some(later(world.store.now(), 86_400));
    let rotated = vec![
        StoredSecret { secret: SecretText("whsec_new".to_owned()), until: None },
        StoredSecret { secret: SecretText("whsec_canary".to_owned()), until },
    ];
    let change = Change::ReplaceSecrets { endpoint: endpoint.id, secrets: rotated.clone() };
    assert_eq!(world.configure(change).await.unwrap().version, 2);
    let stored = world.store.endpoint(None, endpoint.id).await.unwrap().unwrap();
    assert_eq!((stored.secrets, stored.endpoint.headers), (rotated, endpoint.headers));
}

async fn an_owner_takes_endpoints_up_with_all_it_needs_and_hears_of_changes(world: World) {
    let (first, second) = (world.endpoint("acme").await, world.endpoint("globex").await);
    let lane = LaneState { memory: LaneMemory::new(), timeout: Adaptive::default(), version: 1 };
    let record = Record {
        partition: partition_of(&first.tenant),
        epoch: world.epoch,
        endpoint: first.id,
        recorded: DeliveryChange::Nothing,
        lane: Some(lane.clone()),
        disables_endpoint: None,
    };
    assert_eq!(world.store.record(vec![record]).await.unwrap(), [RecordResult::Done]);
    world.configure(Change::DeleteEndpoint { endpoint: second.id }).await.unwrap();
    let unknown = world.new_endpoint("acme").id;
    let mut bundle = world.store.load_endpoints(vec![second.id, unknown, first.id]).await.unwrap();
    bundle.sort_by_key(|bundle| bundle.endpoint.endpoint.id);
    let [one, other] = bundle.try_into().unwrap();
    assert_eq!((&one.endpoint.endpoint, one.lane), (&first, Some(lane)));
    assert_eq!(one.tenant.map(|stored| stored.tenant.id), Some(first.tenant.clone()));
    assert_eq!((other.endpoint.endpoint.id, other.endpoint.deleted_at.is_some(), other.lane), (second.id, true, None));
    let versions = || async { world.store.tenant_versions(vec![tenant("acme"), tenant("nobody")]).await.unwrap() };
    let before = versions().await;
    assert_eq!(before[1], 0, "one that is not there");
    world.configure(Change::ReplaceSecrets { endpoint: first.id, secrets: vec![] }).await.unwrap();
    assert!(before[0] < versions().await[0], "whoever sends there has to hear of a new secret");
}

async fn endpoints_are_listed_newest_first_in_pages(world: World) {
    let mut made = Vec::new();
    for of in ["acme", "acme", "globex", "acme"] {
        made.push(world.endpoint(of).await.id);
    }
    let list = async |query: EndpointQuery| {
        world.store.endpoints(query).await.unwrap().into_iter().map(|stored| stored.endpoint.id).collect::<Vec<_>>()
    };
    let of_acme = EndpointQuery { tenant: Some(tenant("acme")), limit: 2, ..EndpointQuery::default() };
    assert_eq!(list(of_acme.clone()).await, [made[3], made[1]]);
    assert_eq!(list(EndpointQuery { before: Some(made[1]), ..of_acme }).await, [made[0]]);
    let all = EndpointQuery { limit: 10, ..EndpointQuery::default() };
    assert_eq!(list(all.clone()).await, [made[3], made[2], made[1], made[0]]);
    world.configure(Change::DeleteEndpoint { endpoint: made[2] }).await.unwrap();
    assert_eq!(list(all.clone()).await, [made[3], made[1], made[0]]);
    let disabled = EndpointQuery { is_disabled: true, ..all };
    assert_eq!(list(disabled.clone()).await, []);
    let mut off = world.store.endpoint(None, made[1]).await.unwrap().unwrap().endpoint;
    off.status = posthaste_core::endpoint::Status::Disabled;
    world.configure(Change::ReplaceEndpoint { endpoint: Box::new(off), expected_version: None, secrets: None }).await.unwrap();
    assert_eq!(list(disabled.clone()).await, [made[1]]);
    let tenant = |name| EndpointQuery { tenant: Some(tenant(name)), ..disabled.clone() };
    assert_eq!((list(tenant("acme")).await, list(tenant("globex")).await), (vec![made[1]], vec![]));
    assert!(world.store.endpoint(None, made[2]).await.unwrap().unwrap().deleted_at.is_some(), "its history has a name");
}

async fn a_uid_is_taken_once_per_tenant_until_its_endpoint_is_deleted(world: World) {
    let uid = Some(EndpointUid::parse("crm").unwrap());
    let with_uid = |of: &str| Endpoint { uid: uid.clone(), ..world.new_endpoint(of) };
    let first = with_uid("acme");
    world.add(&first).await.unwrap();
    assert_eq!(world.add(&with_uid("acme")).await, Err(Refusal::Taken));
    world.add(&with_uid("globex")).await.unwrap();
    let other = world.endpoint("acme").await;
    let taken = Endpoint { uid: uid.clone(), ..other };
    let change = Change::ReplaceEndpoint { endpoint: Box::new(taken), expected_version: None, secrets: None };
    assert_eq!(world.configure(change).await, Err(Refusal::Taken));
    let by_uid = EndpointQuery { tenant: Some(tenant("acme")), uid: uid.clone(), limit: 5, ..EndpointQuery::default() };
    assert_eq!(world.store.endpoints(by_uid).await.unwrap()[0].endpoint.id, first.id);
    world.configure(Change::DeleteEndpoint { endpoint: first.id }).await.unwrap();
    world.add(&with_uid("acme")).await.unwrap();
}

async fn a_change_that_was_made_by_somebody_else_meanwhile_is_not_overwritten(world: World) {
    let endpoint = world.endpoint("acme").await;
    let change = |url: &str, expected_version| Change::ReplaceEndpoint {
        endpoint: Box::new(Endpoint { url: url.to_owned(), ..endpoint.clone() }),
        expected_version,
        secrets: None,
    };
    assert_eq!(world.configure(change("https://one.example/", Some(1))).await.unwrap().version, 2);
    assert_eq!(world.configure(change("https://two.example/", Some(1))).await, Err(Refusal::Stale));
    let stored = world.store.endpoint(None, endpoint.id).await.unwrap().unwrap();
    assert_eq!((stored.endpoint.url.as_str(), stored.version), ("https://one.example/", 2));
    assert_eq!(stored.secrets.len(), 1, "its secret stays");
    let secrets = vec![StoredSecret { secret: SecretText("whsec_another".to_owned()), until: None }];
    let both = |expected_version| Change::ReplaceEndpoint {
        endpoint: Box::new(Endpoint { signing: Signing::StandardEd25519, ..endpoint.clone() }),
        expected_version,
        secrets: Some(secrets.clone()),
    };
    assert_eq!(world.configure(both(Some(1))).await, Err(Refusal::Stale));
    assert_eq!(world.store.endpoint(None, endpoint.id).await.unwrap().unwrap().secrets, stored.secrets, "neither");
    world.configure(both(Some(2))).await.unwrap();
    let changed = world.store.endpoint(None, endpoint.id).await.unwrap().unwrap();
    assert_eq!((changed.endpoint.signing, changed.secrets), (Signing::StandardEd25519, secrets), "both");
}

async fn a_tenant_has_as_many_endpoints_as_it_may(world: World) {
    for _ in 0..5 {
        world.endpoint("acme").await;
    }
    assert_eq!(world.add(&world.new_endpoint("acme")).await, Err(Refusal::LimitReached));
    world.endpoint("globex").await;
}

async fn secrets_are_sealed_and_open_after_the_master_key_was_rotated(world: World) {
    let endpoint = world.endpoint("acme").await;
    let old = world.options.keyring.clone();
    let before = MasterKey::from_base64("MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=").unwrap();
    let rotated = Options { keyring: Keyring::new(MasterKey::generate(), vec![before]), ..world.options.clone() };
    let world = world.reopened(rotated.clone()).await;
    assert_eq!(world.store.endpoint(None, endpoint.id).await.unwrap().unwrap().secrets[0].secret.0, "whsec_canary");
    assert_eq!(world.store.clean_up(Housekeeping::default()).await.unwrap().resealed, 1);
    assert_eq!(world.store.clean_up(Housekeeping::default()).await.unwrap().resealed, 0);
    assert_eq!(world.store.endpoint(None, endpoint.id).await.unwrap().unwrap().secrets[0].secret.0, "whsec_canary");
    drop((old, rotated));
}

async fn tenants_come_into_being_change_and_go(world: World) {
    assert_eq!(world.store.tenant(tenant("acme")).await.unwrap(), None);
    let endpoint = world.endpoint("acme").await;
    let stored = world.store.tenant(tenant("acme")).await.unwrap().unwrap();
    assert_eq!(stored.tenant, Tenant::new(tenant("acme")));
    let changed = Tenant {
        share: Share::new(3, 12).unwrap().into(),
        retention: Some(Retention::days(7).unwrap()),
        ..Tenant::new(tenant("acme"))
    };
    let put = Change::PutTenant { tenant: Box::new(changed.clone()), extra: r#"{"plan": "gold"}"#.to_owned() };
    assert!(world.configure(put).await.unwrap().version > stored.version);
    let stored = world.store.tenant(tenant("acme")).await.unwrap().unwrap();
    assert_eq!((stored.tenant, stored.extra.as_str()), (changed, r#"{"plan": "gold"}"#));
    world.endpoint("globex").await;
    let names = async |after: Option<&str>| {
        let tenants = world.store.tenants(after.map(tenant), 10).await.unwrap();
        tenants.into_iter().map(|stored| stored.tenant.id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(None).await, ["acme", "globex"]);
    assert_eq!(names(Some("acme")).await, ["globex"]);
    world.configure(Change::DeleteTenant { tenant: tenant("acme") }).await.unwrap();
    assert_eq!(world.store.tenant(tenant("acme")).await.unwrap(), None);
    assert!(world.store.endpoint(None, endpoint.id).await.unwrap().unwrap().deleted_at.is_some());
    assert_eq!(world.configure(Change::DeleteTenant { tenant: tenant("acme") }).await, Err(Refusal::NotFound));
    assert_eq!(names(None).await, ["globex"]);
}

async fn event_types_are_a_catalogue(world: World) {
    let entry = |name: &str, is_priority| Entry {
        name: EventType::parse(name).unwrap(),
        description: "What it is".to_owned(),
        versions: vec![(Version::parse("v1").unwrap(), Contract { schema: Some("{}".to_owned()), example: None })],
        deprecated_at: Some(later(posthaste_core::time::Timestamp::from_millis(0), 1)),
        is_priority,
    };
    for one in [entry("b.c", false), entry("a.b", true)] {
        world.configure(Change::PutEventType(Box::new(one))).await.unwrap();
    }
    assert_eq!(world.store.event_types().await.unwrap(), [entry("a.b", true), entry("b.c", false)]);
    world.configure(Change::PutEventType(Box::new(entry("a.b", false)))).await.unwrap();
    assert_eq!(world.store.event_types().await.unwrap()[0], entry("a.b", false));
    let delete = Change::DeleteEventType { name: EventType::parse("a.b").unwrap() };
    world.configure(delete.clone()).await.unwrap();
    assert_eq!(world.configure(delete).await, Err(Refusal::NotFound));
    assert_eq!(world.store.event_types().await.unwrap().len(), 1);
}

async fn a_change_of_a_tenant_or_a_type_that_somebody_else_has_changed_meanwhile_is_refused(world: World) {
    let of = |weight| Tenant { share: Share::new(weight, 12).unwrap().into(), ..Tenant::new(tenant("acme")) };
    let replace = |weight, expected| Change::ReplaceTenant {
        tenant: Box::new(of(weight)),
        extra: "{}".to_owned(),
        expected: Box::new((of(expected), "{}".to_owned())),
    };
    assert_eq!(world.configure(replace(2, 1)).await, Err(Refusal::NotFound));
    world.configure(Change::PutTenant { tenant: Box::new(of(1)), extra: "{}".to_owned() }).await.unwrap();
    // An endpoint raises the tenant's version, and is no reason to refuse.
    world.endpoint("acme").await;
    world.configure(replace(2, 1)).await.unwrap();
    assert_eq!(world.configure(replace(3, 1)).await, Err(Refusal::Stale));
    let other_extra = Change::ReplaceTenant {
        tenant: Box::new(of(3)),
        extra: "{}".to_owned(),
        expected: Box::new((of(2), r#"{"a": 1}"#.to_owned())),
    };
    assert_eq!(world.configure(other_extra).await, Err(Refusal::Stale));
    assert_eq!(world.store.tenant(tenant("acme")).await.unwrap().unwrap().tenant, of(2));
    // Of two at once one is refused.
    let (one, two) = tokio::join!(world.configure(replace(4, 2)), world.configure(replace(5, 2)));
    assert!(one.is_ok() != two.is_ok(), "{one:?} {two:?}");

    let entry = |description: &str| Entry {
        name: EventType::parse("a.b").unwrap(),
        description: description.to_owned(),
        versions: vec![],
        deprecated_at: None,
        is_priority: false,
    };
    let replace = |description, expected| Change::ReplaceEventType {
        entry: Box::new(entry(description)),
        expected: Box::new(entry(expected)),
    };
    assert_eq!(world.configure(replace("two", "one")).await, Err(Refusal::NotFound));
    world.configure(Change::CreateEventType(Box::new(entry("one")))).await.unwrap();
    assert_eq!(world.configure(Change::CreateEventType(Box::new(entry("other")))).await, Err(Refusal::Taken));
    world.configure(replace("two", "one")).await.unwrap();
    assert_eq!(world.configure(replace("three", "one")).await, Err(Refusal::Stale));
    let (one, two) = tokio::join!(world.configure(replace("four", "two")), world.configure(replace("five", "two")));
    assert!(one.is_ok() != two.is_ok(), "{one:?} {two:?}");
}

async fn keys_are_found_by_their_hash_until_they_end(world: World) {
    let now = world.store.now();
    let key = |number: u8, expires_at| Key {
        id: KeyId::from_unique(world.store.unique()),
        hash: KeyHash([number; 32]),
        name: "ci".to_owned(),
        tenant: (number > 1).then(|| tenant("acme")),
        scopes: vec![KeyScope::Publish, KeyScope::Read],
        created_at: now,
        expires_at,
        revoked_at: None,
        last_used_at: None,
    };
    let (forever, expired, revoked) =
        (key(1, None), key(2, Some(now - std::time::Duration::from_secs(1))), key(3, Some(later(now, 3600))));
    for one in [&forever, &expired, &revoked] {
        world.configure(Change::CreateKey(Box::new(one.clone()))).await.unwrap();
    }
    let find = async |number: u8| world.store.key(KeyHash([number; 32])).await.unwrap();
    assert_eq!(find(1).await, Some(forever.clone()));
    assert_eq!((find(2).await, find(9).await), (None, None));
    assert_eq!(find(3).await, Some(revoked.clone()));
    let of_another = Change::RevokeKey { key: revoked.id, tenant: Some(tenant("globex")) };
    assert_eq!(world.configure(of_another).await, Err(Refusal::NotFound));
    world.configure(Change::RevokeKey { key: revoked.id, tenant: None }).await.unwrap();
    assert_eq!(find(3).await, None);
    assert_eq!(world.configure(Change::CreateKey(Box::new(key(1, None)))).await, Err(Refusal::Taken));
    world.store.keys_used(vec![(forever.id, later(now, 5)), (KeyId::from_unique(world.store.unique()), now)]).await.unwrap();
    assert_eq!(find(1).await.unwrap().last_used_at, Some(later(now, 5)));
    let listed: Vec<KeyId> = world.store.keys(None, 10).await.unwrap().into_iter().map(|key| key.id).collect();
    assert_eq!(listed, [revoked.id, expired.id, forever.id]);
    assert_eq!(world.store.keys(Some(expired.id), 10).await.unwrap().len(), 1);
}

async fn every_change_is_in_the_audit_log_and_raises_the_number(world: World) {
    let before = world.store.configuration_number().await.unwrap();
    let endpoint = world.endpoint("acme").await;
    let changed = world.configure(Change::DeleteEndpoint { endpoint: endpoint.id }).await.unwrap();
    assert_eq!(changed.number, world.store.configuration_number().await.unwrap());
    assert!(changed.number >= before + 2);
    let rows = world.store.audit(None, None, 10).await.unwrap();
    assert_eq!(rows.len(), 2);
    assert!(rows[0].seq > rows[1].seq, "newest first");
    assert_eq!(rows[0].audit, world.audit("change"));
    assert_eq!(world.store.audit(Some(tenant("acme")), Some(rows[0].seq), 10).await.unwrap(), rows[1..]);
    assert_eq!(world.store.audit(Some(tenant("globex")), None, 10).await.unwrap(), []);
}

async fn what_is_not_there_is_refused_and_leaves_no_trace(world: World) {
    let nobody = world.new_endpoint("acme");
    let number = world.store.configuration_number().await.unwrap();
    for change in [
        Change::ReplaceEndpoint { endpoint: Box::new(nobody.clone()), expected_version: None, secrets: None },
        Change::ReplaceSecrets { endpoint: nobody.id, secrets: vec![] },
        Change::DeleteEndpoint { endpoint: nobody.id },
        Change::DeleteTenant { tenant: tenant("acme") },
        Change::DeleteEventType { name: EventType::parse("a").unwrap() },
        Change::RevokeKey { key: KeyId::from_unique(world.store.unique()), tenant: None },
    ] {
        assert_eq!(world.configure(change.clone()).await, Err(Refusal::NotFound), "{change:?}");
    }
    assert_eq!(world.store.endpoint(None, nobody.id).await.unwrap(), None);
    assert_eq!(world.store.configuration_number().await.unwrap(), number);
    assert_eq!(world.store.audit(None, None, 10).await.unwrap(), []);
}
