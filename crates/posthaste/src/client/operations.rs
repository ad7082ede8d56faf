//! Which command calls which route: one table.
//!
//! Every request of the command line is made from a line of it, so that a test can hold it against the API's own
//! table and against the commands that there are: a new route is either reachable from a terminal or left out on purpose.

/// A route as a command uses it. What stands in braces is the name or id that the command was given.
#[derive(Debug)]
pub(super) struct Operation {
    #[cfg_attr(not(test), allow(dead_code, reason = "tests compare it with the commands that there are"))]
    pub(super) command: &'static str,
    pub(super) method: &'static str,
    pub(super) path: &'static str,
}

macro_rules! operations {
    ($($name:ident: $command:literal = $method:ident $path:literal;)*) => {
        $(pub(super) static $name: Operation =
            Operation { command: $command, method: stringify!($method), path: $path };)*
        #[cfg(test)]
        pub(super) static ALL: &[&Operation] = &[$(&$name),*];
    };
}

operations! {
    LIST_KEYS: "keys list" = GET "/v1/keys";
    CREATE_KEY: "keys create" = POST "/v1/keys";
    REVOKE_KEY: "keys delete" = DELETE "/v1/keys/{id}";
    LIST_TENANTS: "tenants list" = GET "/v1/tenants";
    SHOW_TENANT: "tenants show" = GET "/v1/tenants/{id}";
    PUT_TENANT: "tenants put" = PUT "/v1/tenants/{id}";
    PATCH_TENANT: "tenants patch" = PATCH "/v1/tenants/{id}";
    DELETE_TENANT: "tenants delete" = DELETE "/v1/tenants/{id}";
    LIST_ENDPOINTS: "endpoints list" = GET "/v1/endpoints";
    CREATE_ENDPOINT: "endpoints create" = POST "/v1/endpoints";
    PUT_ENDPOINT: "endpoints put" = PUT "/v1/endpoints/uid:{uid}";
    SHOW_ENDPOINT: "endpoints show" = GET "/v1/endpoints/{id}";
    PATCH_ENDPOINT: "endpoints patch" = PATCH "/v1/endpoints/{id}";
    DELETE_ENDPOINT: "endpoints delete" = DELETE "/v1/endpoints/{id}";
    PAUSE_ENDPOINT: "endpoints pause" = POST "/v1/endpoints/{id}/pause";
    RESUME_ENDPOINT: "endpoints resume" = POST "/v1/endpoints/{id}/resume";
    DISABLE_ENDPOINT: "endpoints disable" = POST "/v1/endpoints/{id}/disable";
    ENABLE_ENDPOINT: "endpoints enable" = POST "/v1/endpoints/{id}/enable";
    ROTATE_SECRET: "endpoints rotate-secret" = POST "/v1/endpoints/{id}/rotate-secret";
    TEST_ENDPOINT: "endpoints test" = POST "/v1/endpoints/{id}/test";
    ENDPOINT_STATS: "endpoints stats" = GET "/v1/endpoints/{id}/stats";
    PUBLISH_EVENT: "events publish" = POST "/v1/events";
    PUBLISH_EVENTS: "events batch" = POST "/v1/events/batch";
    LIST_EVENTS: "events list" = GET "/v1/events";
    SHOW_EVENT: "events show" = GET "/v1/events/{id}";
    CANCEL_EVENT: "events cancel" = POST "/v1/events/{id}/cancel";
    ERASE_EVENT: "events erase" = DELETE "/v1/events/{id}/data";
    LIST_DELIVERIES: "deliveries list" = GET "/v1/deliveries";
    SHOW_DELIVERY: "deliveries show" = GET "/v1/deliveries/{id}";
    RETRY_DELIVERY: "deliveries retry" = POST "/v1/deliveries/{id}/retry";
    CANCEL_DELIVERY: "deliveries cancel" = POST "/v1/deliveries/{id}/cancel";
    LIST_ATTEMPTS: "deliveries attempts" = GET "/v1/deliveries/{id}/attempts";
    LIST_DEAD_LETTERS: "dead-letters list" = GET "/v1/dead-letters";
    RETRY_DEAD_LETTER: "dead-letters retry" = POST "/v1/dead-letters/{id}/retry";
    CREATE_REPLAY: "replay create" = POST "/v1/replays";
    LIST_REPLAYS: "replay list" = GET "/v1/replays";
    SHOW_REPLAY: "replay show" = GET "/v1/replays/{id}";
    CANCEL_REPLAY: "replay cancel" = POST "/v1/replays/{id}/cancel";
    LIST_EVENT_TYPES: "event-types list" = GET "/v1/event-types";
    SHOW_EVENT_TYPE: "event-types show" = GET "/v1/event-types/{name}";
    CREATE_EVENT_TYPE: "event-types create" = POST "/v1/event-types";
    PATCH_EVENT_TYPE: "event-types patch" = PATCH "/v1/event-types/{name}";
    DELETE_EVENT_TYPE: "event-types delete" = DELETE "/v1/event-types/{name}";
    LIST_AUDIT: "audit" = GET "/v1/audit";
    LIST_ATTENTION: "status" = GET "/v1/attention";
    READ_STATS: "stats" = GET "/v1/stats";
    CREATE_PORTAL_LINK: "portal-link" = POST "/v1/portal-links";
    LIST_PORTAL_SESSIONS: "portal-sessions list" = GET "/v1/portal-sessions";
    END_PORTAL_SESSION: "portal-sessions end" = DELETE "/v1/portal-sessions/{id}";
    END_PORTAL_SESSIONS: "portal-sessions end-all" = DELETE "/v1/portal-sessions";
    TEST_FILTER: "filters test" = POST "/v1/filters/test";
    READ_CLUSTER: "cluster" = GET "/v1/cluster";
    READ_HOLD: "hold show" = GET "/v1/hold";
    RELEASE_HOLD: "hold release" = POST "/v1/hold/release";
}

/// What anybody may ask, for `posthaste doctor`.
macro_rules! questions {
    ($($name:ident = $path:literal;)*) => {
        $(pub(super) static $name: Operation = Operation { command: "doctor", method: "GET", path: $path };)*
    };
}

questions! {
    IS_ALIVE = "/healthz";
    IS_READY = "/readyz";
    READ_DOCUMENT = "/openapi.json";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{Command, Subcommand};
    use serde_json::Value;

    use super::ALL;
    use crate::client::ClientCommand;

    /// Served, and not for a terminal: streams, sessions and pages are for browsers and programs, health is for machines, and the
    /// document is printed by `posthaste openapi` without a server.
    const DELIBERATELY_NOT: [&str; 11] = [
        "POST /v1/portal-sessions",
        "POST /v1/sessions",
        "GET /v1/sessions",
        "DELETE /v1/sessions",
        "GET /v1/stream",
        "GET /healthz",
        "GET /readyz",
        "GET /metrics",
        "GET /openapi.json",
        "GET /docs",
        "GET /docs/errors/{name}",
    ];

    #[test]
    fn every_route_of_the_api_has_a_command_or_is_left_out_on_purpose() {
        let document: Value = serde_json::from_str(&posthaste_api::openapi()).unwrap();
        let served: BTreeSet<String> = document["paths"]
            .as_object()
            .unwrap()
            .iter()
            .flat_map(|(path, methods)| {
                methods.as_object().unwrap().keys().map(move |method| format!("{} {path}", method.to_uppercase()))
            })
            .collect();
        let reached: BTreeSet<String> = ALL.iter().map(|operation| format!("{} {}", operation.method, operation.path)).collect();
        assert_eq!(reached.len(), ALL.len(), "no route has two commands");
        let forgotten: Vec<_> =
            served.iter().filter(|route| !reached.contains(*route) && !DELIBERATELY_NOT.contains(&route.as_str())).collect();
        assert!(forgotten.is_empty(), "no command calls {forgotten:?}");
        let gone: Vec<_> = reached.iter().filter(|route| !served.contains(*route)).collect();
        assert!(gone.is_empty(), "commands call what is not served: {gone:?}");
    }

    #[test]
    fn every_command_is_in_the_table_and_the_other_way_round() {
        let root = ClientCommand::augment_subcommands(Command::new("posthaste"));
        let commands: BTreeSet<String> = root
            .get_subcommands()
            .flat_map(|command| {
                let name = command.get_name();
                if command.has_subcommands() {
                    command.get_subcommands().map(|inner| format!("{name} {}", inner.get_name())).collect()
                } else {
                    vec![name.to_owned()]
                }
            })
            .collect();
        let listed: BTreeSet<String> = ALL.iter().map(|operation| operation.command.to_owned()).collect();
        assert_eq!(commands, listed);
    }
}
