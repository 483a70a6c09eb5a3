// SPDX-License-Identifier: Apache-2.0

//! Colours, axes, and the frame around every plot.
//!
//! Plots have no background of their own and few colours for lines and letters, so that one style sheet
//! can turn them for dark screens: [`STYLE`] overrides the colours by their attributes. Axes choose ticks of
//! 1, 2 and 5 times a power of ten, and write units at each.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::ReportError;
use super::group::COLOURS;

/// Letters and axes.
pub(super) const INK: RGBColor = RGBColor(0x1b, 0x1f, 0x24);
/// Lines of the grid.
pub(super) const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);
/// Policies without a colour.
pub(super) const GREY: RGBColor = RGBColor(0x99, 0x99, 0x99);

/// Okabe and Ito's, but for the yellow, which is too pale for lines.
pub(super) const PALETTE: [RGBColor; COLOURS] = [
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    INK,
];

/// Turns [`INK`] and [`GRID`] for dark screens.
pub(super) const STYLE: &str = "@media (prefers-color-scheme:dark){\
svg [fill=\"#1B1F24\"]{fill:#e6e8ea}svg [stroke=\"#1B1F24\"]{stroke:#e6e8ea}\
svg [stroke=\"#DDDDDD\"]{stroke:#3a4047}}";

/// Width of every plot, px.
pub(super) const WIDTH: u32 = 860;
/// Left of every plot, for the labels of its vertical axis, px.
pub(super) const LEFT: u32 = 76;
/// Right of every plot, px.
pub(super) const RIGHT: u32 = 20;
/// Below a plot, for the labels of its horizontal axis, px.
pub(super) const BOTTOM: u32 = 46;
/// Size of letters, px.
const LETTERS: f64 = 15.0;
/// Mean width of a letter, px; there is no font to measure with.
const LETTER_WIDTH: f64 = 7.0;
/// How far a linear axis goes beyond its largest value.
const HEADROOM: f64 = 1.04;
/// Ticks below which a logarithmic axis shows those of a linear one: it is shorter than a decade.
const FEWEST_TICKS: usize = 4;
const TITLE_HEIGHT: u32 = 30;
const LEGEND_LINE: u32 = 20;
/// Most letters of a policy's name in a plot.
const LONGEST_NAME: usize = 32;

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// An error of drawing, in words.
pub(super) type Drawing<T> = Result<T, String>;

/// A drawn plot.
pub(super) struct Plot {
    /// File name.
    pub(super) file: String,
    /// What it shows.
    pub(super) title: String,
    /// How to read it.
    pub(super) note: String,
    width: u32,
    height: u32,
    /// Elements inside of the `svg` element.
    body: String,
}

impl Plot {
    /// For a page; `id` is unique there.
    pub(super) fn inline(&self, id: &str) -> String {
        self.svg(id, "")
    }

    /// For a file of its own.
    pub(super) fn file_text(&self) -> String {
        let paper = format!(
            "<style>svg{{background:#fff}}{STYLE}@media (prefers-color-scheme:dark){{svg{{background:#15181c}}}}</style>\n"
        );
        self.svg("plot", &paper)
    }

    fn svg(&self, id: &str, style: &str) -> String {
        let Self {
            width,
            height,
            body,
            ..
        } = self;
        let (title, note) = (escape(&self.title), escape(&self.note));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\">\n\
             <title id=\"{id}-t\">{title}</title>\n<desc id=\"{id}-d\">{note}</desc>\n{style}{body}</svg>\n"
        )
    }
}

/// What a mark stands for.
pub(super) struct Key {
    pub(super) name: String,
    pub(super) colour: RGBAColor,
    /// A patch instead of a line.
    pub(super) patch: bool,
}

impl Key {
    pub(super) fn line(name: &str, colour: RGBColor) -> Self {
        Self {
            name: short(name),
            colour: colour.to_rgba(),
            patch: false,
        }
    }
}

/// Draw a plot with its title and legend; `draw` fills the rest, `height` px high.
pub(super) fn plot(
    file: String,
    title: String,
    note: String,
    keys: &[Key],
    height: u32,
    draw: impl FnOnce(&Area<'_>) -> Drawing<()>,
) -> Result<Plot, ReportError> {
    let places = places(keys);
    let lines = places.last().map_or(0, |(_, line)| line + 1);
    let top = TITLE_HEIGHT + lines * LEGEND_LINE + 6;
    let full = top + height;
    let mut text = String::new();
    let paint = || -> Drawing<()> {
        let root = SVGBackend::with_string(&mut text, (WIDTH, full)).into_drawing_area();
        write_at(&root, &title, (LEFT as i32, 8), HPos::Left, LETTERS + 2.0)?;
        for (key, (x, line)) in keys.iter().zip(&places) {
            let y = (TITLE_HEIGHT + line * LEGEND_LINE + LEGEND_LINE / 2) as i32;
            let swatch = if key.patch {
                Rectangle::new([(*x, y - 6), (x + 18, y + 6)], key.colour.filled())
            } else {
                Rectangle::new([(*x, y - 2), (x + 18, y + 2)], key.colour.filled())
            };
            root.draw(&swatch).map_err(words)?;
            write_at(&root, &key.name, (x + 24, y - 6), HPos::Left, LETTERS)?;
        }
        let (_, rest) = root.split_vertically(top);
        draw(&rest)?;
        root.present().map_err(words)
    };
    paint().map_err(|problem| ReportError::Plot {
        name: file.clone(),
        problem,
    })?;
    // The element around it is ours, with title and description.
    let inside = text.split_once('>').map_or("", |(_, inside)| inside);
    let body = inside
        .rsplit_once("</svg>")
        .map_or(inside, |(body, _)| body);
    Ok(Plot {
        file,
        title,
        note,
        width: WIDTH,
        height: full,
        body: body.trim_start().to_owned(),
    })
}

/// Where the keys of a legend go: x and line.
fn places(keys: &[Key]) -> Vec<(i32, u32)> {
    let (mut x, mut line) = (f64::from(LEFT), 0);
    let place = |key: &Key| {
        let width = 46.0 + width(&key.name);
        if x + width > f64::from(WIDTH) && x > f64::from(LEFT) {
            (x, line) = (f64::from(LEFT), line + 1);
        }
        let place = (x as i32, line);
        x += width;
        place
    };
    keys.iter().map(place).collect()
}

/// Width of a text, px, roughly.
pub(super) fn width(text: &str) -> f64 {
    text.chars().count() as f64 * LETTER_WIDTH
}

/// A name that fits.
pub(super) fn short(name: &str) -> String {
    if name.chars().count() <= LONGEST_NAME {
        return name.to_owned();
    }
    let kept: String = name.chars().take(LONGEST_NAME - 1).collect();
    kept + "…"
}

/// Write text whose top is at `at`.
pub(super) fn write_at(
    area: &Area<'_>,
    text: &str,
    at: (i32, i32),
    from: HPos,
    size: f64,
) -> Drawing<()> {
    let style = ("sans-serif", size).into_font().color(&INK);
    let style = style.pos(Pos::new(from, VPos::Top));
    let text: String = text.chars().map(printable).collect();
    area.draw_text(&text, &style, at).map_err(words)
}

/// How an axis counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// Given in ms.
    Time,
    /// Given as a share of 1.
    Percent,
    /// Multiples.
    Times,
    /// A plain number; the unit is in the name of the axis.
    Plain,
}

/// A linear or logarithmic axis.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Axis {
    range: Range<f64>,
    log: bool,
    pub(super) unit: Unit,
}

impl Axis {
    /// From 0 to a little above the largest value.
    pub(super) fn from_zero(values: impl Iterator<Item = f64>, unit: Unit) -> Self {
        let largest = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
        let end = if largest > 0.0 {
            largest * HEADROOM
        } else {
            1.0
        };
        Self {
            range: 0.0..end,
            log: false,
            unit,
        }
    }

    /// From one value to another.
    pub(super) fn between(from: f64, to: f64, unit: Unit) -> Self {
        let end = if to > from { to } else { from + 1.0 };
        Self {
            range: from..end,
            log: false,
            unit,
        }
    }

    /// Around every value, with 0 unless all are far from it.
    pub(super) fn around(values: impl Iterator<Item = f64> + Clone, unit: Unit) -> Self {
        let least = values.clone().fold(f64::INFINITY, f64::min);
        let mut axis = Self::from_zero(values, unit);
        let span = axis.range.end - least;
        if least.is_finite() && span < axis.range.end / 2.0 {
            let largest = axis.range.end / HEADROOM;
            let margin = ((largest - least) / 4.0).max(largest / 100.0);
            axis.range = least - margin..largest + margin;
        }
        axis
    }

    /// From 0 to all.
    pub(super) const fn share() -> Self {
        Self {
            range: 0.0..1.0,
            log: false,
            unit: Unit::Percent,
        }
    }

    /// Around every value above 0, on a logarithmic scale.
    pub(super) fn log(values: impl Iterator<Item = f64>, unit: Unit) -> Self {
        let (least, largest) = values
            .filter(|value| value.is_finite() && *value > 0.0)
            .fold((f64::INFINITY, 0.0), |(least, largest), value| {
                (value.min(least), value.max(largest))
            });
        let range = if largest > 0.0 {
            least / 1.25..largest * 1.25
        } else {
            1.0..10.0
        };
        Self {
            range,
            log: true,
            unit,
        }
    }

    /// Where it begins.
    pub(super) const fn least(&self) -> f64 {
        self.range.start
    }

    /// Where it ends.
    pub(super) const fn most(&self) -> f64 {
        self.range.end
    }

    fn scale(&self, value: f64) -> f64 {
        if self.log {
            value.max(self.range.start).log10()
        } else {
            value
        }
    }

    /// Ticks, at most `most`.
    fn ticks(&self, most: usize) -> Vec<f64> {
        if !self.log {
            return self.even_ticks(most);
        }
        let decades =
            self.range.start.log10().floor() as i32..=self.range.end.log10().ceil() as i32;
        let with = |multiples: &[f64]| -> Vec<f64> {
            decades
                .clone()
                .flat_map(|decade| multiples.iter().map(move |m| m * 10f64.powi(decade)))
                .filter(|tick| self.range.contains(tick))
                .collect()
        };
        let all = with(&[1.0, 2.0, 5.0]);
        if all.len() < FEWEST_TICKS {
            return self.even_ticks(most);
        }
        [all, with(&[1.0, 3.0])]
            .into_iter()
            .find(|ticks| ticks.len() <= most)
            .unwrap_or_else(|| with(&[1.0]))
    }

    fn even_ticks(&self, most: usize) -> Vec<f64> {
        let step = nice_step((self.range.end - self.range.start) / most.max(1) as f64);
        let first = (self.range.start / step).ceil() as i64;
        let last = (self.range.end / step + 1e-9).floor() as i64;
        (first..=last).map(|at| at as f64 * step).collect()
    }

    /// A tick in words.
    pub(super) fn label(&self, value: f64) -> String {
        Self::text(value, self.unit)
    }

    /// A value in words.
    pub(super) fn text(value: f64, unit: Unit) -> String {
        match unit {
            Unit::Time if value.abs() >= 1_000.0 => format!("{} s", trimmed(value / 1_000.0)),
            Unit::Time if value == 0.0 => "0".into(),
            Unit::Time => format!("{} ms", trimmed(value)),
            Unit::Percent => format!("{} %", trimmed(value * 100.0)),
            Unit::Times => format!("{}×", trimmed(value)),
            Unit::Plain => grouped(value),
        }
    }
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let (start, end) = (self.scale(self.range.start), self.scale(self.range.end));
        let share = ((self.scale(*value) - start) / (end - start)).clamp(0.0, 1.0);
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        self.ticks(hint.max_num_points())
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

/// The least of 1, 2, 5 times a power of ten that is not below `least`.
fn nice_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .map(|multiple| multiple * power)
        .into_iter()
        .find(|step| *step >= least * (1.0 - 1e-9))
        .unwrap_or(power * 10.0)
}

/// Up to three significant digits after rounding, without trailing zeros.
pub(super) fn trimmed(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 || size == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        grouped(value)
    }
}

/// With commas between thousands; small values as by [`trimmed`].
pub(super) fn grouped(value: f64) -> String {
    if value.abs() < 100.0 && value != 0.0 {
        return trimmed(value);
    }
    let digits = format!("{:.0}", value.abs());
    let mut text = String::from(if value < 0.0 { "-" } else { "" });
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Text for HTML and XML; characters that XML forbids become U+FFFD.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(printable(other)),
        }
    }
    escaped
}

/// The character, or U+FFFD where XML forbids it.
const fn printable(character: char) -> char {
    match character {
        '\t' | '\n' | '\r' => ' ',
        '\0'..='\u{1f}' | '\u{7f}' | '\u{fffe}' | '\u{ffff}' => char::REPLACEMENT_CHARACTER,
        other => other,
    }
}

pub(super) fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        let axis = Axis::from_zero([96.0].into_iter(), Unit::Plain);
        assert_eq!(axis.ticks(6), [0.0, 20.0, 40.0, 60.0, 80.0]);
        assert_eq!(
            Axis::share().ticks(5),
            [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]
        );
        let axis = Axis::log([8.0, 4_000.0].into_iter(), Unit::Time);
        assert_eq!(axis.ticks(4), [10.0, 100.0, 1_000.0]);
        let short = Axis::log([64.0, 112.0].into_iter(), Unit::Time);
        assert_eq!(short.ticks(5), [60.0, 80.0, 100.0, 120.0, 140.0]);
    }

    #[test]
    fn labels_carry_units() {
        let axis = |unit| Axis::from_zero([1.0].into_iter(), unit);
        assert_eq!(axis(Unit::Time).label(250.0), "250 ms");
        assert_eq!(axis(Unit::Time).label(2_500.0), "2.5 s");
        assert_eq!(axis(Unit::Percent).label(0.6000000000000001), "60 %");
        assert_eq!(axis(Unit::Times).label(1.5), "1.5×");
        assert_eq!(axis(Unit::Plain).label(12_345.6), "12,346");
    }

    #[test]
    fn an_axis_without_values_still_has_a_length() {
        let axis = Axis::log(std::iter::empty(), Unit::Time);
        assert_eq!(axis.map(&f64::NAN, (0, 100)), 0);
        assert_eq!(
            Axis::from_zero([f64::NAN].into_iter(), Unit::Plain).range(),
            0.0..1.0
        );
    }

    #[test]
    fn escaped_text_opens_nothing_and_holds_no_control_characters() {
        assert_eq!(
            escape("<a b=\"c\" d='e'>&\u{1}"),
            "&lt;a b=&quot;c&quot; d=&#39;e&#39;&gt;&amp;\u{fffd}"
        );
    }
}
