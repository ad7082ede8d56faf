//! Who gets an event: the one decision behind every fan-out.

use crate::endpoint::{Status, Subscription};
use crate::event::Event;
use crate::filter::Subject;

/// What routing needs to know of an endpoint; less than the whole, so that every node can keep it for every tenant.
#[derive(Clone, PartialEq, Debug)]
pub struct Route<Id> {
    pub endpoint: Id,
    pub status: Status,
    pub subscription: Subscription,
}

/// The endpoints that get a delivery of this event: subscribed, active or paused, and past their filter.
///
/// All routes are of the event's tenant; whoever loads them sees to that.
pub fn choose<'a, Id>(event: &Event, routes: impl IntoIterator<Item = &'a Route<Id>>) -> Vec<&'a Route<Id>> {
    let mut subject = None;
    routes
        .into_iter()
        .filter(|route| route.status.takes_events() && route.subscription.covers(&event.event_type))
        .filter(|route| match &route.subscription.filter {
            None => true,
            // Most events meet no filter, and their payload need not be read.
            Some(filter) => filter.matches(subject.get_or_insert_with(|| Subject::of(event))),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::TypePatterns;
    use crate::event::tests::event;
    use crate::filter::Filter;

    fn route(name: &'static str, status: Status, types: &[&str], off: &[&str], filter: Option<&str>) -> Route<&'static str> {
        let patterns = |list: &[&str]| TypePatterns::parse(list.iter().copied()).unwrap();
        let subscription = Subscription {
            event_types: patterns(types),
            disabled_event_types: patterns(off),
            filter: filter.map(|filter| Filter::parse(filter).unwrap()),
        };
        Route { endpoint: name, status, subscription }
    }

    #[test]
    fn an_event_goes_to_everyone_who_wants_it_and_to_nobody_else() {
        let active = Status::Active;
        let paused = Status::Paused { until: None };
        let routes = [
            route("all", active, &[], &[], None),
            route("exact", active, &["invoice.paid"], &[], None),
            route("pattern", active, &["invoice.*"], &[], None),
            route("other type", active, &["invoice.sent"], &[], None),
            route("switched off", active, &["invoice.*"], &["invoice.paid"], None),
            route("another switched off", active, &["*"], &["invoice.sent"], None),
            route("paused", paused, &[], &[], None),
            route("disabled", Status::Disabled, &[], &[], None),
            route("large", active, &[], &[], Some(r#"{"data.amount": {"$gte": 1000}}"#)),
            route("small", active, &[], &[], Some(r#"{"data.amount": {"$lt": 1000}}"#)),
            route("labelled", active, &[], &[], Some(r#"{"labels": "vip"}"#)),
        ];
        let event = event("invoice.paid", r#"{"amount": 4999}"#);
        let chosen: Vec<&str> = choose(&event, &routes).iter().map(|route| route.endpoint).collect();
        assert_eq!(chosen, ["all", "exact", "pattern", "another switched off", "paused", "large", "labelled"]);
    }
}
