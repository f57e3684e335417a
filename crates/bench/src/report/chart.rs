//! A chart as SVG text: lines of several contenders over a linear, a logarithmic or a percentile axis.
//!
//! Every value is placed on its axis here ([`Scale::place`]), so that the library sees only finite linear coordinates.
//! A value without a place on an axis (nothing measured, zero on a logarithmic axis) is a gap in its line. The library
//! rounds to whole units, so it draws [`FINENESS`] times as large as the image claims to be.
//!
//! This module does not know results. [`super`] decides what is drawn.

use std::ops::Range;

use anyhow::Context;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::number;

/// Units of the drawing per pixel of the image.
const FINENESS: i32 = 4;
/// Width in pixels of an image that shares its row with another.
const WIDTH: i32 = 620;
/// Width in pixels of an image with a row of its own.
const WIDTH_WIDE: i32 = 1260;
/// Height in pixels of the image, without the legend.
const HEIGHT: i32 = 330;
/// Height in pixels of the title above the legend.
const TITLE_HEIGHT: i32 = 34;
/// Height in pixels of one row of the legend.
const LEGEND_HEIGHT: i32 = 20;
/// Bound of the characters of a name in a legend, so that it fits in a row.
const LEGEND_CHARACTERS: usize = 48;
/// A line with more points than this is thinned, because a chart has no more columns.
const POINTS_MAX: usize = 4000;
/// Larger values are not drawn, because their sums would overflow.
const VALUE_MAX: f64 = 1e300;

/// Size of letters. The library divides it by 1.24, so that these are 12 pixels.
const TEXT_SIZE: i32 = 15 * FINENESS;
/// Size of the title's letters: 15 pixels.
const TITLE_SIZE: i32 = 18 * FINENESS;
const FONT: &str = "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', sans-serif";
const TEXT: RGBColor = RGBColor(0x33, 0x3a, 0x45);
const GRID: RGBColor = RGBColor(0xe3, 0xe6, 0xeb);
const GRID_FINE: RGBColor = RGBColor(0xf1, 0xf3, 0xf6);
const AXIS: RGBColor = RGBColor(0x9a, 0xa3, 0xb0);

/// Okabe and Ito's colours, which colour-blind people can tell apart, without their yellow, which is too light for
/// lines.
const PALETTE: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xB2),
    RGBColor(0xD5, 0x5E, 0x00),
    RGBColor(0x00, 0x9E, 0x73),
    RGBColor(0xCC, 0x79, 0xA7),
    RGBColor(0x56, 0xB4, 0xE9),
    RGBColor(0xE6, 0x9F, 0x00),
    RGBColor(0x00, 0x00, 0x00),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The colour in CSS of the contender at this position.
pub fn colour(contender: usize) -> String {
    let RGBColor(red, green, blue) = PALETTE[contender % PALETTE.len()];
    format!("#{red:02X}{green:02X}{blue:02X}")
}

/// The scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// From zero to the largest value.
    Linear,
    /// From zero to a round number above the largest value.
    LinearRounded,
    /// Powers of ten.
    Logarithmic,
    /// Percentiles by the number of nines: 0, 90, 99, 99.9 have equal distances.
    Nines,
}

impl Scale {
    /// The place of a value on the axis. `None` if it has no place.
    pub fn place(self, value: f64) -> Option<f64> {
        let drawable = value.is_finite() && value.abs() < VALUE_MAX;
        match self {
            Scale::Linear | Scale::LinearRounded => drawable.then_some(value),
            Scale::Logarithmic => (drawable && value > 0.0).then(|| value.log10()),
            Scale::Nines => (0.0..100.0).contains(&value).then(|| (100.0 / (100.0 - value)).log10()),
        }
    }

    fn label(self, place: f64) -> String {
        match self {
            Scale::Linear | Scale::LinearRounded => number::tick(place),
            Scale::Logarithmic => number::tick(10f64.powf(place)),
            Scale::Nines => nines_label(place),
        }
    }

    /// The axis for places from `low` to `high`.
    fn ticks(self, low: f64, high: f64) -> Ticks {
        match self {
            Scale::Linear => linear_ticks(low, high, false),
            Scale::LinearRounded => linear_ticks(low, high, true),
            Scale::Logarithmic => logarithmic_ticks(low, high),
            Scale::Nines => {
                let high = high.ceil().max(2.0);
                let nines = (0..=16u8).map(f64::from).filter(|place| *place <= high);
                // The median would otherwise have no label between 0 and 90.
                let labelled = nines.chain(Scale::Nines.place(50.0)).collect();
                Ticks { low: 0.0, high, labelled, fine: Vec::new() }
            }
        }
    }
}

fn nines_label(place: f64) -> String {
    match (0..=16u8).find(|nines| (f64::from(*nines) - place).abs() < 1e-6) {
        Some(0) => "0".into(),
        Some(1) => "90".into(),
        Some(2) => "99".into(),
        Some(nines) => format!("99.{}", "9".repeat(usize::from(nines) - 2)),
        None => number::tick(100.0 - 100.0 / 10f64.powf(place)),
    }
}

/// The ends of an axis, and the positions of its lines across the chart.
#[derive(Clone, Debug, PartialEq)]
struct Ticks {
    low: f64,
    high: f64,
    labelled: Vec<f64>,
    fine: Vec<f64>,
}

impl Ranged for Ticks {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, place: &f64, limit: (i32, i32)) -> i32 {
        RangedCoordf64::from(self.range()).map(place, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() { self.fine.clone() } else { self.labelled.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

fn linear_ticks(low: f64, high: f64, rounded: bool) -> Ticks {
    let low = low.min(0.0);
    let high = if high > low { high } else { low + 1.0 };
    let rough = (high - low) / 6.0;
    let magnitude = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0].into_iter().map(|times| times * magnitude).find(|step| *step >= rough);
    let step = step.unwrap_or(10.0 * magnitude);
    let low = (low / step).floor() * step;
    let high = if rounded { (high / step).ceil() * step } else { high };
    let ticks = (0..16u8).map(|at| low + f64::from(at) * step).filter(|tick| *tick <= high + step * 1e-6);
    // A sum of steps can miss zero by a little.
    let labelled = ticks.map(|tick| if tick.abs() < step * 1e-6 { 0.0 } else { tick }).collect();
    Ticks { low, high, labelled, fine: Vec::new() }
}

fn logarithmic_ticks(low: f64, high: f64) -> Ticks {
    // The rounding of a logarithm must not add a step to the axis.
    const TOLERANCE: f64 = 1e-9;
    let mut candidates = Vec::new();
    let mut exponent = low.floor();
    while exponent <= high.ceil() + 1.0 {
        candidates.extend([1f64, 2.0, 5.0].map(|times| exponent + times.log10()));
        exponent += 1.0;
    }
    let begin = candidates.iter().rposition(|place| *place <= low + TOLERANCE).unwrap_or(0);
    let begin = candidates[begin];
    let end = candidates.iter().copied().find(|place| *place > begin && *place >= high - TOLERANCE);
    let end = end.unwrap_or(begin + 1.0);
    candidates.retain(|place| (begin..=end).contains(place));
    let is_decade = |place: &f64| (place - place.round()).abs() < TOLERANCE;
    let (decades, fine): (Vec<f64>, Vec<f64>) = candidates.iter().partition(|place| is_decade(place));
    if candidates.len() <= 8 {
        return Ticks { low: begin, high: end, labelled: candidates, fine: Vec::new() };
    }
    let every = decades.len().div_ceil(8).max(1);
    let labelled = decades.iter().copied().step_by(every).collect();
    let fine = if every == 1 { fine } else { decades };
    Ticks { low: begin, high: end, labelled, fine }
}

/// One axis of a chart.
#[derive(Clone, Debug)]
pub struct Axis {
    /// The quantity with its unit.
    pub title: &'static str,
    /// The scale of the axis.
    pub scale: Scale,
}

/// The values of one contender: a line per round.
#[derive(Clone, Debug)]
pub struct Series<'a> {
    /// The name in the legend.
    pub name: &'a str,
    /// The position of the contender, which decides the colour.
    pub contender: usize,
    /// The values on both axes, for each round.
    pub lines: Vec<Vec<(f64, f64)>>,
}

/// The content of a chart.
#[derive(Clone, Debug)]
pub struct Chart<'a> {
    /// The title above the chart.
    pub title: &'static str,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// In the order of the legend.
    pub series: Vec<Series<'a>>,
    /// Whether the chart has a row of its own.
    pub wide: bool,
}

/// A line between two gaps, in places on the axes.
type Segment = Vec<(f64, f64)>;

/// An entry of the legend: horizontal position, contender, text.
type LegendEntry = (i32, usize, String);

impl Chart<'_> {
    /// The number of lines with a point to draw.
    pub fn drawn_lines(&self) -> usize {
        let lines = self.series.iter().flat_map(|series| &series.lines);
        lines.filter(|line| !self.segments(line).is_empty()).count()
    }

    fn segments(&self, line: &[(f64, f64)]) -> Vec<Segment> {
        let placed: Vec<Option<(f64, f64)>> =
            line.iter().map(|(x, y)| self.x.scale.place(*x).zip(self.y.scale.place(*y))).collect();
        let segments = placed.split(Option::is_none).filter(|segment| !segment.is_empty());
        segments.map(|segment| thinned(segment.iter().flatten().copied().collect())).collect()
    }

    fn legend(&self, width: i32) -> Vec<Vec<LegendEntry>> {
        let mut rows = vec![Vec::new()];
        let mut at = 0;
        for series in &self.series {
            let words = legend_words(series);
            let wide = 34 + words.chars().map(character_width).sum::<i32>();
            if at > 0 && at + wide > width {
                rows.push(Vec::new());
                at = 0;
            }
            if let Some(row) = rows.last_mut() {
                row.push((at, series.contender, words));
            }
            at += wide;
        }
        rows
    }

    /// The chart as an SVG file, which can also be part of a page.
    ///
    /// # Errors
    /// The library refuses to draw, which would be a bug here.
    pub fn svg(&self) -> anyhow::Result<String> {
        let width = if self.wide { WIDTH_WIDE } else { WIDTH };
        let legend = self.legend(width - 24);
        let legend_rows = i32::try_from(legend.len()).unwrap_or(1);
        let head_height = TITLE_HEIGHT + legend_rows * LEGEND_HEIGHT;
        let height = HEIGHT + legend_rows * LEGEND_HEIGHT;
        let size = (units_of(width), units_of(height));
        let mut text = String::new();
        {
            let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
            root.fill(&WHITE)?;
            let (head, body) = root.split_vertically(head_height * FINENESS);
            self.draw_head(&head, &legend)?;
            self.draw_body(&body)?;
            root.present()?;
        }
        let (_, content) = text.split_once('>').context("the drawing has no element")?;
        let label = super::escape(self.title);
        Ok(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{label}\">{content}",
            size.0, size.1
        ))
    }

    fn draw_head(&self, head: &Area<'_>, legend: &[Vec<LegendEntry>]) -> anyhow::Result<()> {
        let left = |style: TextStyle<'static>| style.pos(Pos::new(HPos::Left, VPos::Center));
        let at = |x: i32, y: i32| (x * FINENESS, y * FINENESS);
        let bold = (FONT, TITLE_SIZE, FontStyle::Bold).into_text_style(head).color(&TEXT);
        head.draw(&Text::new(self.title, at(14, 19), left(bold)))?;
        let plain = left(text_style(head));
        let mut y = TITLE_HEIGHT + LEGEND_HEIGHT / 2 - 1;
        for row in legend {
            for (x, contender, words) in row {
                let x = x + 14;
                let fill = PALETTE[contender % PALETTE.len()].filled();
                head.draw(&Rectangle::new([at(x, y - 2), at(x + 16, y + 2)], fill))?;
                head.draw(&Text::new(words.as_str(), at(x + 22, y), plain.clone()))?;
            }
            y += LEGEND_HEIGHT;
        }
        Ok(())
    }

    fn draw_body(&self, body: &Area<'_>) -> anyhow::Result<()> {
        let series: Vec<(&Series<'_>, Vec<Segment>)> = self
            .series
            .iter()
            .map(|series| (series, series.lines.iter().flat_map(|line| self.segments(line)).collect()))
            .collect();
        let points = || series.iter().flat_map(|(_, segments)| segments.iter().flatten());
        if points().next().is_none() {
            let (width, height) = body.dim_in_pixel();
            let middle = (i32::try_from(width)? / 2, i32::try_from(height)? / 2);
            let style = text_style(body).pos(Pos::new(HPos::Center, VPos::Center));
            return Ok(body.draw(&Text::new("no samples", middle, style))?);
        }
        let x = axis_of(self.x.scale, points().map(|(x, _)| *x));
        let y = axis_of(self.y.scale, points().map(|(_, y)| *y));
        let mut chart = ChartBuilder::on(body)
            .margin_top(6 * FINENESS)
            .margin_right(30 * FINENESS)
            .margin_bottom(8 * FINENESS)
            .margin_left(8 * FINENESS)
            .x_label_area_size(46 * FINENESS)
            .y_label_area_size(78 * FINENESS)
            .build_cartesian_2d(x, y)?;
        chart
            .configure_mesh()
            .x_desc(self.x.title)
            .y_desc(self.y.title)
            .x_label_formatter(&|place| self.x.scale.label(*place))
            .y_label_formatter(&|place| self.y.scale.label(*place))
            .bold_line_style(GRID.stroke_width(units_of(1)))
            .light_line_style(GRID_FINE.stroke_width(units_of(1)))
            .axis_style(AXIS.stroke_width(units_of(1)))
            .set_all_tick_mark_size(4 * FINENESS)
            .label_style(text_style(body))
            .axis_desc_style(text_style(body))
            .draw()?;
        for (series, segments) in series {
            let colour = PALETTE[series.contender % PALETTE.len()];
            // Lines are thinner if a contender has several rounds, so that they do not cover each other.
            let thickness = if series.lines.len() > 1 { units_of(5) / 4 } else { units_of(2) };
            for segment in segments {
                match segment.as_slice() {
                    // A line with a single point would be invisible.
                    [point] => {
                        let dot = Circle::new(*point, 3 * FINENESS, colour.filled());
                        chart.draw_series([dot])?;
                    }
                    _ => drop(chart.draw_series(LineSeries::new(segment, colour.stroke_width(thickness)))?),
                }
            }
        }
        Ok(())
    }
}

fn units_of(pixels: i32) -> u32 {
    (pixels * FINENESS).unsigned_abs()
}

fn text_style(area: &Area<'_>) -> TextStyle<'static> {
    (FONT, TEXT_SIZE).into_text_style(area).color(&TEXT)
}

/// The width in pixels of a character of the legend in a wide font. The library cannot measure the fonts of a browser.
fn character_width(character: char) -> i32 {
    match character {
        'm' | 'w' | 'M' | 'W' | '@' | '%' => 12,
        'A'..='Z' => 10,
        ' '..='~' => 7,
        _ => 12,
    }
}

fn legend_words(series: &Series<'_>) -> String {
    let mut words: String = series.name.chars().take(LEGEND_CHARACTERS).collect();
    if words.len() < series.name.len() {
        words.push('…');
    }
    if series.lines.len() > 1 {
        words.push_str(&format!(" ({} rounds)", series.lines.len()));
    }
    words
}

fn axis_of(scale: Scale, places: impl Iterator<Item = f64>) -> Ticks {
    let (low, high) =
        places.fold((f64::MAX, f64::MIN), |(low, high), place| (low.min(place), high.max(place)));
    scale.ticks(low, high)
}

/// At most [`POINTS_MAX`] points: the lowest and the highest of each stretch, so that no spike is lost.
fn thinned(points: Segment) -> Segment {
    if points.len() <= POINTS_MAX {
        return points;
    }
    let stretch = points.len().div_ceil(POINTS_MAX / 2);
    let extremes = |points: &[(f64, f64)]| {
        let by_height = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let low = points.iter().min_by(by_height).copied();
        let high = points.iter().max_by(by_height).copied();
        let mut both: Segment = low.into_iter().chain(high).collect();
        both.sort_by(|a, b| a.0.total_cmp(&b.0));
        both
    };
    points.chunks(stretch).flat_map(extremes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(lines: Vec<Vec<(f64, f64)>>, y: Scale) -> Chart<'static> {
        Chart {
            title: "Latency",
            x: Axis { title: "time [s]", scale: Scale::Linear },
            y: Axis { title: "ms", scale: y },
            series: vec![Series { name: "a <b> & \"c\"", contender: 1, lines }],
            wide: false,
        }
    }

    /// The number of points of each line in the second contender's colour.
    fn lines_of(svg: &str) -> Vec<usize> {
        let lines = svg.lines().filter(|line| line.starts_with("<polyline") && line.contains("#D55E00"));
        let points = |line: &str| line.split_once("points=\"").map(|(_, points)| points.matches(',').count());
        lines.filter_map(points).collect()
    }

    #[test]
    fn percentiles_are_placed_by_their_nines() {
        for (percentile, place) in [(0.0, 0.0), (90.0, 1.0), (99.0, 2.0), (99.9, 3.0), (99.999, 5.0)] {
            assert!((Scale::Nines.place(percentile).unwrap() - place).abs() < 1e-6, "{percentile}");
            assert_eq!(Scale::Nines.label(place), percentile.to_string());
        }
        assert_eq!(Scale::Nines.place(100.0), None);
        assert_eq!(Scale::Nines.place(-1.0), None);
        assert_eq!(Scale::Nines.label(Scale::Nines.place(50.0).unwrap()), "50");
    }

    #[test]
    fn ticks_are_round_numbers_around_the_values() {
        let ticks = linear_ticks(3.0, 93.0, true);
        assert_eq!((ticks.low, ticks.high), (0.0, 100.0));
        assert_eq!(ticks.labelled, [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(linear_ticks(0.0, 59.0, false).high, 59.0);
        assert_eq!(linear_ticks(0.0, 0.0, true).high, 1.0);
        let labels = |low: f64, high: f64| -> Vec<String> {
            let ticks = logarithmic_ticks(low.log10(), high.log10());
            ticks.labelled.into_iter().map(|place| Scale::Logarithmic.label(place)).collect()
        };
        assert_eq!(labels(0.3, 9.0), ["0.2", "0.5", "1", "2", "5", "10"]);
        assert_eq!(labels(5.0, 5.0), ["5", "10"]);
        assert_eq!(labels(0.011, 900_000.0).first().unwrap(), "0.01");
        assert!(labels(1e-200, 1e200).len() <= 8);
    }

    #[test]
    fn a_line_has_as_many_points_as_samples_and_gaps_where_there_is_none() {
        let line: Vec<(f64, f64)> = (0..60).map(|at| (f64::from(at), 1.0 + f64::from(at % 7))).collect();
        let mut gapped = line.clone();
        gapped[20].1 = 0.0;
        gapped[21].1 = f64::NAN;
        let drawn = chart(vec![line, gapped], Scale::Logarithmic);
        assert_eq!(drawn.drawn_lines(), 2);
        assert_eq!(lines_of(&drawn.svg().unwrap()), [60, 20, 38]);
    }

    #[test]
    fn names_are_escaped() {
        let svg = chart(vec![vec![(0.0, 1.0), (1.0, 2.0)]], Scale::Linear).svg().unwrap();
        assert!(svg.contains("a &lt;b&gt; &amp; &quot;c&quot;"), "{svg}");
        assert!(!svg.contains("<b>"));
    }

    #[test]
    fn odd_series_are_drawn_as_far_as_they_can_be() {
        let empty = chart(vec![vec![]], Scale::Linear);
        assert_eq!(empty.drawn_lines(), 0);
        assert!(empty.svg().unwrap().contains("no samples"));
        let zeros = chart(vec![vec![(0.0, 0.0), (1.0, 0.0)]], Scale::Logarithmic).svg().unwrap();
        assert!(zeros.contains("no samples"));
        let one = chart(vec![vec![(0.0, 3.0)]], Scale::Logarithmic).svg().unwrap();
        assert!(one.contains("<circle"));
        for scale in [Scale::Linear, Scale::LinearRounded, Scale::Logarithmic] {
            let values = [0.0, -1.0, 1e-300, 1e299, f64::MAX, f64::INFINITY, f64::NAN, 5e-324];
            let line = values.iter().zip(0..8).map(|(value, at)| (f64::from(at), *value)).collect();
            let svg = chart(vec![line], scale).svg().unwrap();
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{scale:?}: {svg}");
        }
    }

    #[test]
    fn a_long_line_is_thinned_and_keeps_its_spike() {
        let mut points: Segment = (0..86_400).map(|at| (f64::from(at), 1.0)).collect();
        points[40_000].1 = 900.0;
        let thin = thinned(points);
        assert!(thin.len() <= POINTS_MAX && thin.len() > POINTS_MAX / 2);
        assert!(thin.contains(&(40_000.0, 900.0)));
        assert!(thin.is_sorted_by(|a, b| a.0 <= b.0));
    }

    #[test]
    fn a_legend_that_is_too_long_takes_another_row() {
        let mut chart = chart(vec![], Scale::Linear);
        chart.series =
            vec![Series { name: "a name of thirty characters ok", contender: 0, lines: vec![] }; 4];
        let rows: Vec<usize> = chart.legend(600).iter().map(Vec::len).collect();
        assert_eq!(rows, [2, 2]);
    }
}
