//! The page that Prometheus reads, in both of its text formats.
//!
//! The two differ in three places: how a counter's family is called, how the page ends, and its media type. Everything else,
//! also how a bucket's bound is spelled, is the same, so that a series keeps its name whatever the scraper asks for.

use std::fmt::{self, Write as _};

/// What a page is written as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Prometheus' own, version 0.0.4.
    Text,
    /// `OpenMetrics` 1.0.
    OpenMetrics,
}

impl Format {
    /// What a caller would rather have, by its `Accept` header.
    pub fn accepted(header: Option<&str>) -> Format {
        let (mut text, mut open) = (0.0, 0.0);
        for part in header.unwrap_or_default().split(',') {
            let mut words = part.split(';').map(str::trim);
            let name = words.next().unwrap_or_default().to_ascii_lowercase();
            let weight: f64 = words.find_map(|word| word.strip_prefix("q=")).and_then(|weight| weight.parse().ok()).unwrap_or(1.0);
            match name.as_str() {
                "application/openmetrics-text" => open = weight,
                "text/plain" => text = weight,
                _ => {}
            }
        }
        if open > 0.0 && open >= text { Format::OpenMetrics } else { Format::Text }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// What a family's samples are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Only ever rises. Its name ends in `_total`.
    Counter,
    Gauge,
    Histogram,
}

/// A page that is being written.
#[derive(Debug)]
pub struct Page {
    format: Format,
    text: String,
}

impl Page {
    pub fn new(format: Format) -> Page {
        Page { format, text: String::with_capacity(16 * 1024) }
    }

    /// Begins a family. Its samples follow before the next one begins.
    pub fn family(&mut self, name: &'static str, kind: Kind, help: &str) -> Family<'_> {
        assert_eq!(kind == Kind::Counter, name.ends_with("_total"), "{name}: what ends in _total is a counter, and no other");
        let (shown, kind) = match (kind, self.format) {
            (Kind::Counter, Format::OpenMetrics) => (name.strip_suffix("_total").unwrap_or(name), "counter"),
            (Kind::Counter, Format::Text) => (name, "counter"),
            (Kind::Gauge, _) => (name, "gauge"),
            (Kind::Histogram, _) => (name, "histogram"),
        };
        let _ = writeln!(self.text, "# HELP {shown} {help}\n# TYPE {shown} {kind}");
        Family { page: self, name }
    }

    /// A family with one sample.
    pub fn gauge(&mut self, name: &'static str, help: &str, value: f64) {
        self.family(name, Kind::Gauge, help).sample(&[], value);
    }

    /// A family with one sample.
    pub fn counter(&mut self, name: &'static str, help: &str, value: u64) {
        self.family(name, Kind::Counter, help).sample(&[], value as f64);
    }

    pub fn end(mut self) -> String {
        match self.format {
            Format::Text => {}
            Format::OpenMetrics => self.text.push_str("# EOF\n"),
        }
        self.text
    }
}

/// The samples of one name.
#[derive(Debug)]
pub struct Family<'a> {
    page: &'a mut Page,
    name: &'static str,
}

/// Names of labels and their values.
pub type Labels<'a> = [(&'a str, &'a dyn fmt::Display)];

impl Family<'_> {
    pub fn sample(&mut self, labels: &Labels<'_>, value: f64) {
        self.line("", labels, None, value);
    }

    /// `counts` are those of each bucket by itself; the last has no upper bound.
    pub(crate) fn buckets(&mut self, labels: &Labels<'_>, bounds: &[f64], counts: &[u64], sum: f64) {
        let mut below = 0;
        for (place, count) in counts.iter().enumerate() {
            below += count;
            let bound = bounds.get(place).copied().unwrap_or(f64::INFINITY);
            self.line("_bucket", labels, Some(bound), below as f64);
        }
        self.line("_sum", labels, None, sum);
        self.line("_count", labels, None, below as f64);
    }

    fn line(&mut self, suffix: &str, labels: &Labels<'_>, bound: Option<f64>, value: f64) {
        let text = &mut self.page.text;
        text.push_str(self.name);
        text.push_str(suffix);
        let mut separator = '{';
        for (name, value) in labels {
            let _ = write!(text, "{separator}{name}=\"");
            let _ = write!(Escaped(text), "{value}");
            text.push('"');
            separator = ',';
        }
        match bound {
            Some(bound) if bound.is_infinite() => _ = write!(text, "{separator}le=\"+Inf\""),
            // With its point, as OpenMetrics wants it.
            Some(bound) => _ = write!(text, "{separator}le=\"{bound:?}\""),
            None => {}
        }
        if !labels.is_empty() || bound.is_some() {
            text.push('}');
        }
        let _ = writeln!(text, " {value}");
    }
}

/// Whatever a label's value is, it ends where we say.
struct Escaped<'a>(&'a mut String);

impl fmt::Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            match character {
                '\\' => self.0.push_str("\\\\"),
                '"' => self.0.push_str("\\\""),
                '\n' => self.0.push_str("\\n"),
                other => self.0.push(other),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn page(format: Format) -> String {
        let mut page = Page::new(format);
        page.counter("webhook_events_created_total", "Events.", 3);
        page.family("posthaste_lanes", Kind::Gauge, "Lanes.").sample(&[("tenant", &"a\"b\\c\nd")], 0.5);
        page.family("webhook_delivery_lag_seconds", Kind::Histogram, "Lag.").buckets(&[], &[0.5, 1.0], &[1, 0, 2], 7.25);
        page.end()
    }

    #[test]
    fn a_counter_is_called_differently_in_the_two_formats_and_its_samples_are_not() {
        expect![[r#"
            # HELP webhook_events_created_total Events.
            # TYPE webhook_events_created_total counter
            webhook_events_created_total 3
            # HELP posthaste_lanes Lanes.
            # TYPE posthaste_lanes gauge
            posthaste_lanes{tenant="a\"b\\c\nd"} 0.5
            # HELP webhook_delivery_lag_seconds Lag.
            # TYPE webhook_delivery_lag_seconds histogram
            webhook_delivery_lag_seconds_bucket{le="0.5"} 1
            webhook_delivery_lag_seconds_bucket{le="1.0"} 1
            webhook_delivery_lag_seconds_bucket{le="+Inf"} 3
            webhook_delivery_lag_seconds_sum 7.25
            webhook_delivery_lag_seconds_count 3
        "#]]
        .assert_eq(&page(Format::Text));
        let samples = |text: &str| text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>();
        let open = page(Format::OpenMetrics);
        assert_eq!(samples(&open), samples(&page(Format::Text)));
        assert!(open.contains("# TYPE webhook_events_created counter\nwebhook_events_created_total 3\n"), "{open}");
        assert!(open.ends_with("# EOF\n"));
    }

    #[test]
    fn a_scraper_gets_what_it_would_rather_have() {
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                          text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for (header, format) in [
            (None, Format::Text),
            (Some("*/*"), Format::Text),
            (Some("text/html"), Format::Text),
            (Some(prometheus), Format::OpenMetrics),
            (Some("application/openmetrics-text;q=0.1, text/plain"), Format::Text),
            (Some("application/openmetrics-text;q=0"), Format::Text),
        ] {
            assert_eq!(Format::accepted(header), format, "{header:?}");
        }
    }
}
