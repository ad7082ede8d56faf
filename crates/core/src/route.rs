//! Who gets an event: the one decision behind every fan-out.

use crate::endpoint::{Status, Subscription};
use crate::event::{Event, EventType};
use crate::filter::{FilterSet, Subject, TooCostly};

/// What routing needs to know of an endpoint; less than the whole, so that every node can keep it for every tenant.
#[derive(Clone, PartialEq, Debug)]
pub struct Route<Id> {
    pub endpoint: Id,
    pub status: Status,
    pub subscription: Subscription,
}

/// The routes of one tenant, with their filters ready to be asked together.
#[derive(Debug)]
pub struct Routes<Id> {
    all: Vec<Route<Id>>,
    filters: FilterSet,
    /// For each route, the place of its filter.
    places: Vec<Option<usize>>,
}

impl<Id> Routes<Id> {
    /// All routes are of one tenant; the caller that loads them sees to that.
    pub fn new(routes: Vec<Route<Id>>) -> Routes<Id> {
        let mut next = 0;
        let place = |route: &Route<Id>| {
            route.subscription.filter.as_ref().map(|_| {
                next += 1;
                next - 1
            })
        };
        let places = routes.iter().map(place).collect();
        let filters = FilterSet::new(routes.iter().filter_map(|route| route.subscription.filter.as_ref()));
        Routes { all: routes, filters, places }
    }

    /// The endpoints that get a delivery of this event of their tenant: subscribed, active or paused, and past their filter.
    pub fn choose(&self, event: &Event, steps_max: u64) -> Result<Vec<&Route<Id>>, TooCostly> {
        self.choose_among(event, steps_max, |_| true)
    }

    /// The same, and no other route is considered than those for which `is_meant` holds.
    pub fn choose_among(
        &self,
        event: &Event,
        steps_max: u64,
        is_meant: impl Fn(&Id) -> bool,
    ) -> Result<Vec<&Route<Id>>, TooCostly> {
        let mut chosen: Vec<(&Route<Id>, Option<usize>)> = self
            .all
            .iter()
            .zip(&self.places)
            .filter(|(route, _)| {
                route.status.takes_events() && route.subscription.covers(&event.event_type) && is_meant(&route.endpoint)
            })
            .map(|(route, place)| (route, *place))
            .collect();
        let wanted: Vec<usize> = chosen.iter().filter_map(|(_, place)| *place).collect();
        // Most events meet no filter, and their payload need not be read.
        if !wanted.is_empty() {
            let (answers, _) = self.filters.matches(&Subject::of(event), &wanted, steps_max)?;
            let mut answers = answers.into_iter();
            chosen.retain(|(_, place)| place.is_none() || answers.next().expect("an answer for each that was asked"));
        }
        Ok(chosen.into_iter().map(|(route, _)| route).collect())
    }

    /// Whether choosing for an event of this type means reading its payload.
    pub fn has_filters_for(&self, event_type: &EventType) -> bool {
        !self.filters.is_empty()
            && self.all.iter().any(|route| {
                route.subscription.filter.is_some() && route.status.takes_events() && route.subscription.covers(event_type)
            })
    }
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
        let routes = Routes::new(routes.into());
        let chosen: Vec<&str> = routes.choose(&event, u64::MAX).unwrap().iter().map(|route| route.endpoint).collect();
        assert_eq!(chosen, ["all", "exact", "pattern", "another switched off", "paused", "large", "labelled"]);
    }
}
