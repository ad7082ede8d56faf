//! Pictures of what was found, drawn by hand: bars for what there is in a second, curves for how long things took.
//!
//! An SVG needs nothing but something that shows it; as HTML the same picture stands above the table.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, bail};

use super::figures::grouped;

#[derive(Clone, Debug)]
pub(super) struct Chart {
    title: String,
    unit: &'static str,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Bars(Vec<(String, f64)>),
    /// Of each, percent and value.
    Curves(Vec<(String, Vec<(f64, f64)>)>),
}

impl Chart {
    pub(super) fn bars(title: &str, unit: &'static str, bars: impl IntoIterator<Item = (String, f64)>) -> Chart {
        let bars = bars.into_iter().filter(|(_, value)| value.is_finite()).collect();
        Chart { title: title.to_owned(), unit, kind: Kind::Bars(bars) }
    }

    pub(super) fn curves(title: &str, unit: &'static str, curves: impl IntoIterator<Item = (String, Vec<(f64, f64)>)>) -> Chart {
        let curves = curves.into_iter().filter(|(_, points)| !points.is_empty()).collect();
        Chart { title: title.to_owned(), unit, kind: Kind::Curves(curves) }
    }

    fn height(&self) -> f64 {
        match &self.kind {
            Kind::Bars(bars) => TITLE_HEIGHT + BAR_STEP * bars.len() as f64 + GAP,
            Kind::Curves(curves) => {
                TITLE_HEIGHT + CURVES_HEIGHT + 40.0 + LEGEND_STEP * curves.len().div_ceil(LEGEND_COLUMNS) as f64 + GAP
            }
        }
    }
}

const WIDTH: f64 = 820.0;
const MARGIN: f64 = 24.0;
const TITLE_HEIGHT: f64 = 34.0;
const GAP: f64 = 26.0;
const HEAD_HEIGHT: f64 = 56.0;
const BAR_STEP: f64 = 28.0;
const BAR_LEFT: f64 = 170.0;
const BAR_WIDTH_MAX: f64 = 480.0;
const CURVES_HEIGHT: f64 = 220.0;
const CURVES_LEFT: f64 = 70.0;
const LEGEND_STEP: f64 = 20.0;
const LEGEND_COLUMNS: usize = 3;
/// Told apart also by those who see fewer colours.
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555"];

/// What a file may be called.
pub(super) fn check_name(path: &Path) -> anyhow::Result<()> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("svg" | "html") => Ok(()),
        Some(_) | None => bail!("--plot {}: the file's name ends in .svg or in .html", path.display()),
    }
}

/// `page` is the table, which HTML has room for.
pub(super) fn write(path: &Path, heading: &str, charts: &[Chart], page: &str) -> anyhow::Result<()> {
    let svg = svg(heading, charts);
    let is_html = path.extension().is_some_and(|extension| extension == "html");
    let text = if is_html {
        format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title>\n\
             <style>body{{font-family:sans-serif;margin:2em}}pre{{font-size:13px}}</style></head>\n<body>\n{svg}\n<pre>{1}</pre>\n</body></html>\n",
            escaped(heading),
            escaped(page)
        )
    } else {
        svg
    };
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn svg(heading: &str, charts: &[Chart]) -> String {
    let height = HEAD_HEIGHT + charts.iter().map(Chart::height).sum::<f64>();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    text(&mut svg, MARGIN, 34.0, "start", "font-size=\"18\" font-weight=\"bold\"", heading);
    let mut top = HEAD_HEIGHT;
    for chart in charts {
        text(&mut svg, MARGIN, top + 18.0, "start", "font-size=\"15\"", &format!("{}, {}", chart.title, chart.unit));
        match &chart.kind {
            Kind::Bars(bars) => draw_bars(&mut svg, top + TITLE_HEIGHT, bars),
            Kind::Curves(curves) => draw_curves(&mut svg, top + TITLE_HEIGHT, curves),
        }
        top += chart.height();
    }
    svg.push_str("</svg>\n");
    svg
}

/// How the names of those begin that are not Posthaste. Their bars are grey.
const BESIDE: [&str; 5] = ["raw", "bare store", "group commit", "client alone", "forwarder"];

fn draw_bars(svg: &mut String, top: f64, bars: &[(String, f64)]) {
    let most = bars.iter().map(|(_, value)| *value).fold(f64::MIN_POSITIVE, f64::max);
    for (place, (name, value)) in bars.iter().enumerate() {
        let y = top + BAR_STEP * place as f64;
        let width = (value / most * BAR_WIDTH_MAX).max(1.0);
        // What is compared with is not ours.
        let is_beside = BESIDE.iter().any(|beginning| name.starts_with(beginning));
        let colour = if is_beside { "#999999" } else { COLOURS[0] };
        text(svg, BAR_LEFT - 10.0, y + 16.0, "end", "", name);
        let _ = writeln!(svg, "<rect x=\"{BAR_LEFT}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"20\" fill=\"{colour}\"/>");
        let digits = if *value >= 10.0 { 0 } else { 2 };
        text(svg, BAR_LEFT + width + 8.0, y + 16.0, "start", "", &grouped(*value, digits));
    }
}

/// Percentiles are spread by how rare what lies beyond them is: as far from 99 to 99.9 as from 90 to 99.
fn draw_curves(svg: &mut String, top: f64, curves: &[(String, Vec<(f64, f64)>)]) {
    const PERCENTS: [(&str, f64); 6] = [("0", 0.0), ("50", 50.0), ("90", 90.0), ("99", 99.0), ("99.9", 99.9), ("99.99", 99.99)];
    let rare = |percent: f64| -((1.0 - percent / 100.0).max(1e-4)).log10();
    let points = || curves.iter().flat_map(|(_, points)| points.iter());
    let percent_most = points().map(|point| point.0).fold(50.0, f64::max);
    // Whole powers of ten, so that the scale has lines that people know.
    let exponent = |value: f64| value.max(1e-3).log10();
    let low = points().map(|point| exponent(point.1)).fold(f64::INFINITY, f64::min).floor();
    let high = points().map(|point| exponent(point.1)).fold(f64::NEG_INFINITY, f64::max).ceil().max(low + 1.0);
    if !low.is_finite() || !high.is_finite() {
        return;
    }
    let width = WIDTH - CURVES_LEFT - MARGIN - 20.0;
    let x = |percent: f64| CURVES_LEFT + rare(percent) / rare(percent_most) * width;
    let y = |value: f64| top + CURVES_HEIGHT - (exponent(value) - low) / (high - low) * CURVES_HEIGHT;
    let mut power = low;
    while power <= high {
        let (value, at) = (10f64.powf(power), y(10f64.powf(power)));
        let _ = writeln!(
            svg,
            "<line x1=\"{CURVES_LEFT}\" y1=\"{at:.1}\" x2=\"{:.1}\" y2=\"{at:.1}\" stroke=\"#dddddd\"/>",
            CURVES_LEFT + width
        );
        text(svg, CURVES_LEFT - 8.0, at + 4.0, "end", "fill=\"#555555\"", &format!("{value}"));
        power += 1.0;
    }
    for (name, percent) in PERCENTS.into_iter().filter(|(_, percent)| *percent <= percent_most) {
        let (at, bottom) = (x(percent), top + CURVES_HEIGHT);
        let _ = writeln!(svg, "<line x1=\"{at:.1}\" y1=\"{top}\" x2=\"{at:.1}\" y2=\"{bottom}\" stroke=\"#eeeeee\"/>");
        text(svg, at, bottom + 18.0, "middle", "fill=\"#555555\"", &format!("{name} %"));
    }
    for (place, (name, points)) in curves.iter().enumerate() {
        let colour = COLOURS[place % COLOURS.len()];
        let path: Vec<String> = points.iter().map(|(percent, value)| format!("{:.1},{:.1}", x(*percent), y(*value))).collect();
        let path = path.join(" ");
        let _ = writeln!(svg, "<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>");
        let left = CURVES_LEFT + (place % LEGEND_COLUMNS) as f64 * 240.0;
        let at = top + CURVES_HEIGHT + 40.0 + LEGEND_STEP * (place / LEGEND_COLUMNS) as f64;
        let _ = writeln!(svg, "<rect x=\"{left}\" y=\"{:.1}\" width=\"18\" height=\"4\" fill=\"{colour}\"/>", at - 6.0);
        text(svg, left + 26.0, at, "start", "", name);
    }
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, more: &str, what: &str) {
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {more}>{}</text>", escaped(what));
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_is_the_largest_value_and_names_are_text() {
        let chart =
            Chart::bars("Rates", "a second", [("<a>".to_owned(), 50.0), ("raw".to_owned(), 200.0), ("none".to_owned(), f64::NAN)]);
        let picture = svg("A & B", &[chart]);
        assert!(picture.contains("A &amp; B") && picture.contains("&lt;a&gt;"), "{picture}");
        assert!(picture.contains("width=\"480.0\"") && picture.contains("width=\"120.0\""), "{picture}");
        assert!(!picture.contains("none") && !picture.contains("NaN"), "{picture}");
    }

    #[test]
    fn a_curve_rises_from_left_to_right_and_an_empty_one_is_left_out() {
        let curves = [("it".to_owned(), vec![(0.0, 1.0), (50.0, 2.0), (99.0, 100.0)]), ("nothing".to_owned(), vec![])];
        let picture = svg("x", &[Chart::curves("Times", "ms", curves)]);
        let line = picture.lines().find(|line| line.starts_with("<polyline")).unwrap();
        let points = line.split('"').nth(1).unwrap();
        let points: Vec<(f64, f64)> = points
            .split(' ')
            .map(|point| point.split_once(',').unwrap())
            .map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap()))
            .collect();
        assert!(points.is_sorted_by(|one, next| one.0 < next.0 && one.1 > next.1), "{points:?}");
        assert!(!picture.contains("nothing"), "{picture}");
    }

    #[test]
    fn a_picture_is_svg_or_html() {
        assert!(check_name(Path::new("a.svg")).is_ok() && check_name(Path::new("a.html")).is_ok());
        assert!(check_name(Path::new("a.png")).is_err() && check_name(Path::new("svg")).is_err());
    }
}
