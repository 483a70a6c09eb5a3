// SPDX-License-Identifier: Apache-2.0

//! The five plots of a group.
//!
//! - *TTFT over time*: one panel for each of the first policies by colour, on common axes, with the regimes
//!   that the policy saw behind its points. Panels, because clouds of points hide each other.
//! - *TTFT by share of requests*: the whole distribution, on a logarithmic scale, since tails differ by orders.
//! - *Load per worker*: one row for each policy and pool, a circle for each worker, relative to an even
//!   share; unlike bars this still reads with 32 workers and 20 policies.
//! - *Cache hits over time*: share of prompt tokens that came from an engine's cache.
//! - *Throughput against TTFT P99*: the front of what no other policy beats in both is joined.

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use regime_core::Regime;

use super::detail::{PoolDetail, RunDetail, thin};
use super::group::{COLOURS, Group, Row, ttft_p99};
use super::over_load::OVER_LOAD;
use super::paint::{
    Area, Axis, BOTTOM, Drawing, GREY, GRID, INK, Key, LEFT, PALETTE, Plot, RIGHT, Unit, plot,
    short, width, words, write_at,
};
use super::{MAX_POINTS, ReportError};
use crate::experiments::pareto_front;

const TTFT_OVER_TIME: &str = "ttft-over-time";
const TTFT_CDF: &str = "ttft-cdf";
const LOAD_PER_WORKER: &str = "load-per-worker";
const CACHE_HITS: &str = "cache-hits";
/// That of several groups.
pub(super) const TTFT_OVER_LOAD: &str = "ttft-over-load";
/// The one plot that shows all seeds.
const PARETO: &str = "pareto";
/// Policies with a panel of their own in TTFT over time.
const PANELS: usize = 4;
/// Height of a panel, px.
const PANEL: u32 = 145;
/// Height of the other plots, px.
pub(super) const HEIGHT: u32 = 340;
/// Height of a row in load per worker, px.
const ROW: u32 = 24;
/// Most rows in load per worker.
const MAX_ROWS: usize = 60;
/// Most circles in one of its rows.
const MAX_CIRCLES: usize = 128;
/// Points over all groups of a page, each of which has three to draw in a plot of points or lines.
const PAGE_POINTS: usize = 40_000;
/// Groups that are drawn; the others have tables only.
pub(super) const MAX_GROUPS: usize = 200;

/// Draw what can be drawn of group number `number` of `of`.
pub(super) fn draw(group: &Group<'_>, number: usize, of: usize) -> Result<Vec<Plot>, ReportError> {
    if number > MAX_GROUPS {
        return Ok(Vec::new());
    }
    let sheet = Sheet {
        group,
        prefix: format!("{number:02}-{}", slug(group)),
        points: (PAGE_POINTS / of.max(1)).clamp(150, MAX_POINTS),
    };
    let plots = [
        sheet.ttft_over_time()?,
        sheet.ttft_distribution()?,
        sheet.load_per_worker()?,
        sheet.cache_hits()?,
        sheet.pareto()?,
    ];
    Ok(plots.into_iter().flatten().collect())
}

/// Whether a file has the name of a plot: its number, what it is about, and which plot it is.
pub(super) fn is_ours(file: &str) -> bool {
    let number = file.split('-').next().unwrap_or_default();
    let numbered = number.len() >= 2 && number.bytes().all(|byte| byte.is_ascii_digit());
    let plots = [
        TTFT_OVER_TIME,
        TTFT_CDF,
        LOAD_PER_WORKER,
        CACHE_HITS,
        PARETO,
        OVER_LOAD,
        TTFT_OVER_LOAD,
        super::detection::NAME,
    ];
    numbered
        && plots
            .iter()
            .any(|plot| file.ends_with(&format!("-{plot}.svg")))
}

/// One group on its way to paper.
struct Sheet<'a> {
    group: &'a Group<'a>,
    /// Of its files.
    prefix: String,
    /// Most points in a plot.
    points: usize,
}

impl Sheet<'_> {
    fn plot(
        &self,
        name: &str,
        title: &str,
        note: String,
        keys: &[Key],
        height: u32,
        draw: impl FnOnce(&Area<'_>) -> Drawing<()>,
    ) -> Result<Option<Plot>, ReportError> {
        let seed = self.group.seed.filter(|_| name != PARETO);
        let note = match seed {
            Some(seed) => format!("{note} Seed {seed}."),
            None => note,
        };
        let file = format!("{}-{name}.svg", self.prefix);
        let mut subject = self.group.title();
        if subject.chars().count() > 62 {
            subject = subject.chars().take(61).chain(['…']).collect();
        }
        let title = format!("{title} (simulated) — {subject}");
        plot(file, title, note, keys, height, draw).map(Some)
    }

    fn ttft_over_time(&self) -> Result<Option<Plot>, ReportError> {
        let rows: Vec<_> = self.group.detailed();
        let rows = rows.get(..PANELS.min(rows.len())).unwrap_or_default();
        if rows
            .iter()
            .all(|(_, detail)| detail.first_tokens.is_empty())
        {
            return Ok(None);
        }
        let all = || rows.iter().flat_map(|(_, detail)| &detail.first_tokens);
        let x = Axis::from_zero(rows.iter().map(|(_, detail)| detail.end_ms), Unit::Time);
        let y = Axis::log(all().map(|point| point.ttft_ms), Unit::Time);
        let shaded: Vec<_> = rows
            .iter()
            .filter_map(|(_, detail)| shading(detail))
            .collect();
        let keys: Vec<_> = Regime::ALL
            .into_iter()
            .filter(|regime| {
                let mut seen = shaded.iter().flat_map(|pool| &pool.regimes);
                seen.any(|since| since.regime == *regime)
            })
            .map(regime_key)
            .collect();
        let pool = match shaded.first() {
            Some(pool) => format!(
                " Behind the points: the regime of the {} pool, as the policy saw it.",
                pool.role
            ),
            None => String::new(),
        };
        let note = format!(
            "Each point is a request: when it arrived, and how long its first token took (log scale); of many, those with the least and the largest TTFT of each stretch are drawn.{pool} {} of {} policies are shown.",
            rows.len(),
            self.group.rows.len()
        );
        let height = PANEL * rows.len() as u32 + BOTTOM;
        let most = self.points / rows.len().max(1);
        self.plot(
            TTFT_OVER_TIME,
            "TTFT over time",
            note,
            &keys,
            height,
            |area| {
                for (at, (row, detail)) in rows.iter().enumerate() {
                    let last = at + 1 == rows.len();
                    let bottom = PANEL * (at as u32 + 1) + if last { BOTTOM } else { 0 };
                    let (panel, _) = area.split_vertically(bottom);
                    let (_, panel) = panel.split_vertically(PANEL * at as u32);
                    let frame = Frame {
                        x: (x.clone(), if last { "time of arrival" } else { "" }),
                        y: (y.clone(), "TTFT"),
                        top: 22,
                    };
                    let mut chart = frame.chart(&panel, if last { BOTTOM } else { 0 })?;
                    if let Some(pool) = shading(detail) {
                        let ends = pool.regimes.iter().skip(1).map(|next| next.from_ms);
                        let (low, high) = (y.range().start, y.range().end);
                        chart
                            .draw_series(pool.regimes.iter().zip(ends.chain([detail.end_ms])).map(
                                |(since, end_ms)| {
                                    let corners = [(since.from_ms, low), (end_ms, high)];
                                    Rectangle::new(corners, shade(since.regime).filled())
                                },
                            ))
                            .map_err(words)?;
                    }
                    frame.mesh(&mut chart)?;
                    let dot = colour(row).mix(0.6).filled();
                    chart
                        .draw_series(
                            thin(&detail.first_tokens, most).iter().map(|point| {
                                Circle::new((point.arrival_ms, point.ttft_ms), 2, dot)
                            }),
                        )
                        .map_err(words)?;
                    let name = short(row.policy);
                    write_at(&panel, &name, (LEFT as i32 + 2, 4), HPos::Left, 14.0)?;
                }
                Ok(())
            },
        )
    }

    fn ttft_distribution(&self) -> Result<Option<Plot>, ReportError> {
        let mut rows = self.group.detailed();
        rows.retain(|(_, detail)| !detail.ttft_quantiles_ms.is_empty());
        if rows.is_empty() {
            return Ok(None);
        }
        let all = || {
            rows.iter()
                .flat_map(|(_, detail)| detail.ttft_quantiles_ms.iter().copied())
        };
        let frame = Frame {
            x: (Axis::log(all(), Unit::Time), "TTFT (log scale)"),
            y: (Axis::share(), "share of requests"),
            top: 8,
        };
        let note = "For each TTFT, the share of requests whose first token took at most that long; further left is better.";
        let keys = keys(rows.iter().map(|(row, _)| *row));
        let stride = (rows.len() * super::QUANTILES)
            .div_ceil(self.points.max(1) * 2)
            .max(1);
        self.plot(
            TTFT_CDF,
            "TTFT by share of requests",
            note.into(),
            &keys,
            HEIGHT,
            |area| {
                let mut chart = frame.chart(area, BOTTOM)?;
                frame.mesh(&mut chart)?;
                // Grey lines first, so that they hide nothing.
                for (row, detail) in rows.iter().rev() {
                    let quantiles = &detail.ttft_quantiles_ms;
                    let steps = quantiles.len().saturating_sub(1).max(1);
                    let line = quantiles
                        .iter()
                        .enumerate()
                        .filter(|(at, _)| at % stride == 0 || at + 1 == quantiles.len())
                        .map(|(at, ttft_ms)| (*ttft_ms, at as f64 / steps as f64));
                    chart
                        .draw_series(LineSeries::new(line, stroke(row)))
                        .map_err(words)?;
                }
                Ok(())
            },
        )
    }

    fn load_per_worker(&self) -> Result<Option<Plot>, ReportError> {
        let detailed = self.group.detailed();
        let rows: Vec<_> = detailed
            .iter()
            .flat_map(|(row, detail)| detail.pools.iter().map(move |pool| (*row, pool)))
            .filter_map(|(row, pool)| Some((row, pool, relative_load(pool)?)))
            .collect();
        let shown = rows.len().min(MAX_ROWS);
        if shown == 0 {
            return Ok(None);
        }
        let left_out = match rows.len() - shown {
            0 => String::new(),
            more => format!(" {more} more rows are left out."),
        };
        let rows = &rows[..shown];
        let x = Axis::around(
            rows.iter()
                .flat_map(|(_, _, loads)| loads.iter().copied())
                .chain([1.0]),
            Unit::Times,
        );
        let note = format!(
            "Each circle is a worker: prompt tokens computed plus tokens generated, relative to an even share of its pool. At 1× all are alike.{left_out}"
        );
        let names: Vec<_> = rows
            .iter()
            .map(|(row, pool, _)| match pool.role.as_str() {
                "aggregated" => short(row.policy),
                role => format!("{} {role}", short(row.policy)),
            })
            .collect();
        let left = names
            .iter()
            .map(|name| width(name))
            .fold(f64::from(LEFT), f64::max) as u32
            + 14;
        let height = ROW * shown as u32 + BOTTOM + 8;
        self.plot(
            LOAD_PER_WORKER,
            "Load per worker",
            note,
            &[],
            height,
            |area| {
                let x = (&x, "work of a worker relative to an even share");
                let mut chart = row_chart(area, x, shown, left)?;
                for (at, ((row, _, loads), name)) in rows.iter().zip(&names).enumerate() {
                    let y = shown as f64 - at as f64 - 0.5;
                    let top = 8 + (ROW * at as u32) as i32 + 5;
                    write_at(area, name, (left as i32 - 8, top), HPos::Right, 14.0)?;
                    let ring = colour(row).mix(0.9).stroke_width(2);
                    chart
                        .draw_series(
                            ends(loads, MAX_CIRCLES).map(|load| Circle::new((load, y), 5, ring)),
                        )
                        .map_err(words)?;
                }
                Ok(())
            },
        )
    }

    fn cache_hits(&self) -> Result<Option<Plot>, ReportError> {
        let mut rows = self.group.detailed();
        rows.retain(|(row, detail)| row.colour.is_some() && !detail.cache.is_empty());
        if rows.is_empty() {
            return Ok(None);
        }
        let frame = Frame {
            x: (
                Axis::from_zero(rows.iter().map(|(_, detail)| detail.end_ms), Unit::Time),
                "time of arrival",
            ),
            y: (Axis::share(), "prompt tokens from cache"),
            top: 8,
        };
        let note = format!(
            "Share of the prompt tokens that came from an engine's cache, of the requests that arrived within a sixtieth of the run. {} of {} policies are shown.",
            rows.len(),
            self.group.rows.len()
        );
        let keys = keys(rows.iter().map(|(row, _)| *row));
        self.plot(
            CACHE_HITS,
            "Cache hits over time",
            note,
            &keys,
            HEIGHT,
            |area| {
                let mut chart = frame.chart(area, BOTTOM)?;
                frame.mesh(&mut chart)?;
                for (row, detail) in rows.iter().rev() {
                    let line = detail
                        .cache
                        .iter()
                        .filter(|window| window.prompt_tokens > 0)
                        .map(|window| {
                            (
                                window.at_ms,
                                window.reused_tokens as f64 / window.prompt_tokens as f64,
                            )
                        });
                    chart
                        .draw_series(LineSeries::new(line, stroke(row)))
                        .map_err(words)?;
                }
                Ok(())
            },
        )
    }

    fn pareto(&self) -> Result<Option<Plot>, ReportError> {
        let mut rows: Vec<_> = self
            .group
            .rows
            .iter()
            .filter_map(|row| {
                let ttft = row.median(ttft_p99)?;
                Some((
                    row,
                    (ttft, row.median(|it| it.metrics.output_tokens_per_s)?),
                ))
            })
            .collect();
        if rows.is_empty() {
            return Ok(None);
        }
        rows.sort_by_key(|(row, _)| row.colour.unwrap_or(COLOURS));
        let points: Vec<_> = rows.iter().map(|(_, point)| *point).collect();
        let swapped: Vec<_> = points
            .iter()
            .map(|(ttft, tokens)| (*tokens, *ttft))
            .collect();
        let unbeaten = pareto_front(&swapped);
        let on_front = points
            .iter()
            .zip(&unbeaten)
            .filter(|(_, unbeaten)| **unbeaten);
        let mut front: Vec<_> = on_front.map(|(point, _)| *point).collect();
        front.sort_by(|a, b| a.0.total_cmp(&b.0));
        let frame = Frame {
            x: (
                Axis::log(points.iter().map(|point| point.0), Unit::Time),
                "TTFT P99 (log scale)",
            ),
            y: (
                Axis::around(points.iter().map(|point| point.1), Unit::Plain),
                "output tokens/s",
            ),
            top: 8,
        };
        let mut note =
            "Each point is a policy, by the medians over its seeds; up and to the left is better."
                .to_owned();
        let mut keys = keys(rows.iter().map(|(row, _)| *row));
        if front.len() > 1 {
            note += " No policy beats those on the line in both.";
            keys.push(Key::line("not beaten in both", INK));
        }
        self.plot(
            PARETO,
            "Throughput against TTFT P99",
            note,
            &keys,
            HEIGHT,
            |area| {
                let mut chart = frame.chart(area, BOTTOM)?;
                frame.mesh(&mut chart)?;
                chart
                    .draw_series(LineSeries::new(front, INK.stroke_width(1)))
                    .map_err(words)?;
                let mut taken = Vec::new();
                for ((row, point), unbeaten) in rows.iter().zip(&unbeaten).rev() {
                    let dot = Circle::new(*point, 6, colour(row).filled());
                    chart.draw_series([dot]).map_err(words)?;
                    // Coloured ones are in the legend.
                    if row.colour.is_none() && *unbeaten {
                        label(
                            area,
                            &short(row.policy),
                            chart.backend_coord(point),
                            &mut taken,
                        )?;
                    }
                }
                Ok(())
            },
        )
    }
}

pub(super) type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Axis, Axis>>;

/// Two axes with their names.
pub(super) struct Frame<'a> {
    pub(super) x: (Axis, &'a str),
    pub(super) y: (Axis, &'a str),
    pub(super) top: u32,
}

impl Frame<'_> {
    pub(super) fn chart<'a, 'b>(&self, area: &'a Area<'b>, bottom: u32) -> Drawing<Chart<'a, 'b>> {
        ChartBuilder::on(area)
            .margin_top(self.top)
            .margin_right(RIGHT)
            .set_label_area_size(LabelAreaPosition::Left, LEFT)
            .set_label_area_size(LabelAreaPosition::Bottom, bottom)
            .build_cartesian_2d(self.x.0.clone(), self.y.0.clone())
            .map_err(words)
    }

    pub(super) fn mesh(&self, chart: &mut Chart<'_, '_>) -> Drawing<()> {
        chart
            .configure_mesh()
            .max_light_lines(0)
            .bold_line_style(GRID)
            .axis_style(INK)
            .x_labels(10)
            .y_labels(6)
            .x_label_formatter(&|value| self.x.0.label(*value))
            .y_label_formatter(&|value| self.y.0.label(*value))
            .x_desc(self.x.1)
            .y_desc(self.y.1)
            .label_style(("sans-serif", 14).into_font().color(&INK))
            .draw()
            .map_err(words)
    }
}

/// So many rows, with a line at 1 of the horizontal axis; their names go into the `left` px.
pub(super) fn row_chart<'a, 'b>(
    area: &'a Area<'b>,
    (x, name): (&Axis, &str),
    rows: usize,
    left: u32,
) -> Drawing<ChartContext<'a, SVGBackend<'b>, Cartesian2d<Axis, RangedCoordf64>>> {
    let mut chart = ChartBuilder::on(area)
        .margin_top(8)
        .margin_right(RIGHT)
        .set_label_area_size(LabelAreaPosition::Left, left)
        .set_label_area_size(LabelAreaPosition::Bottom, BOTTOM)
        .build_cartesian_2d(x.clone(), 0.0..rows as f64)
        .map_err(words)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .max_light_lines(0)
        .bold_line_style(GRID)
        .axis_style(INK)
        .x_labels(10)
        .x_label_formatter(&|value| x.label(*value))
        .x_desc(name)
        .label_style(("sans-serif", 14).into_font().color(&INK))
        .draw()
        .map_err(words)?;
    let line = PathElement::new([(1.0, 0.0), (1.0, rows as f64)], INK.mix(0.6));
    chart.draw_series([line]).map_err(words)?;
    Ok(chart)
}

/// A name beside a point, unless it would cover another.
fn label(
    area: &Area<'_>,
    name: &str,
    at: (i32, i32),
    taken: &mut Vec<(i32, i32, i32)>,
) -> Drawing<()> {
    let (left, top) = area.get_base_pixel();
    let (x, y, wide) = (at.0 - left, at.1 - top, width(name) as i32);
    let fits_right = x + 10 + wide <= area.dim_in_pixel().0 as i32;
    let start = if fits_right { x + 10 } else { x - 10 - wide };
    let covers = |(from, to, line): &(i32, i32, i32)| {
        start < *to && *from < start + wide && (line - y).abs() < 14
    };
    if taken.iter().any(covers) {
        return Ok(());
    }
    taken.push((start, start + wide, y));
    if fits_right {
        write_at(area, name, (x + 10, y - 6), HPos::Left, 13.0)
    } else {
        write_at(area, name, (x - 10, y - 6), HPos::Right, 13.0)
    }
}

/// The pool whose regime stands behind the first tokens: the one that computes prompts, if it has any.
fn shading(detail: &RunDetail) -> Option<&PoolDetail> {
    detail.pools.iter().find(|pool| !pool.regimes.is_empty())
}

pub(super) fn regime_key(regime: Regime) -> Key {
    Key {
        name: format!("regime {regime}"),
        colour: shade(regime),
        patch: true,
    }
}

pub(super) fn shade(regime: Regime) -> RGBAColor {
    match regime {
        Regime::Unknown => GREY.mix(0.15),
        Regime::Below => RGBColor(0x56, 0xb4, 0xe9).mix(0.18),
        Regime::Transition => RGBColor(0xf0, 0xe4, 0x42).mix(0.4),
        Regime::Saturated => RGBColor(0xcc, 0x79, 0xa7).mix(0.45),
    }
}

pub(super) fn colour(row: &Row<'_>) -> RGBColor {
    row.colour
        .and_then(|at| PALETTE.get(at))
        .copied()
        .unwrap_or(GREY)
}

pub(super) fn stroke(row: &Row<'_>) -> ShapeStyle {
    colour(row).stroke_width(if row.colour.is_some() { 2 } else { 1 })
}

/// One key for each coloured policy, and one for all grey ones.
pub(super) fn keys<'a>(rows: impl Iterator<Item = &'a Row<'a>>) -> Vec<Key> {
    let mut keys = Vec::new();
    let mut grey = 0;
    for row in rows {
        if row.colour.is_some() {
            keys.push(Key::line(row.policy, colour(row)));
        } else {
            grey += 1;
        }
    }
    if grey > 0 {
        keys.push(Key::line(&format!("{grey} others"), GREY));
    }
    keys
}

/// Work of each worker over the mean, in ascending order; absent when there was none.
fn relative_load(pool: &PoolDetail) -> Option<Vec<f64>> {
    let total: f64 = pool
        .workers
        .iter()
        .map(|worker| worker.work_tokens as f64)
        .sum();
    let mean =
        crate::metrics::ratio(total, pool.workers.len() as f64).filter(|mean| *mean > 0.0)?;
    let loads = pool
        .workers
        .iter()
        .map(|worker| worker.work_tokens as f64 / mean);
    let mut loads: Vec<_> = loads.collect();
    loads.sort_unstable_by(f64::total_cmp);
    Some(loads)
}

/// At most `most` of ascending values, the first and the last among them.
fn ends(values: &[f64], most: usize) -> impl Iterator<Item = f64> {
    let shown = values.len().min(most);
    let last = values.len().saturating_sub(1);
    let at = move |index: usize| index * last / shown.saturating_sub(1).max(1);
    (0..shown).filter_map(move |index| values.get(at(index)).copied())
}

fn slug(group: &Group<'_>) -> String {
    slug_of(&format!(
        "{}-{}-{}",
        group.workload, group.topology, group.load
    ))
}

/// Letters, digits and hyphens that tell what a file is about.
pub(super) fn slug_of(text: &str) -> String {
    let mut slug = String::new();
    for character in text.chars() {
        if character.is_ascii_alphanumeric() {
            slug.push(character.to_ascii_lowercase());
        } else if !slug.ends_with('-') {
            slug.push('-');
        }
        if slug.len() >= 48 {
            break;
        }
    }
    slug.trim_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::WorkerDetail;

    #[test]
    fn load_is_relative_to_an_even_share() {
        let worker = |work_tokens| WorkerDetail {
            requests: 1,
            work_tokens,
            busy_ms: 1.0,
        };
        let pool = |workers| PoolDetail {
            role: "aggregated".into(),
            workers,
            regimes: Vec::new(),
        };
        assert_eq!(
            relative_load(&pool(vec![worker(300), worker(100)])),
            Some(vec![0.5, 1.5])
        );
        assert_eq!(relative_load(&pool(vec![worker(0)])), None);
        assert_eq!(relative_load(&pool(Vec::new())), None);
    }

    #[test]
    fn few_of_many_values_keep_both_ends() {
        let values: Vec<_> = (0..1_000).map(f64::from).collect();
        let few: Vec<_> = ends(&values, 11).collect();
        assert_eq!((few.len(), few[0], few[10]), (11, 0.0, 999.0));
        assert_eq!(ends(&values[..1], 11).collect::<Vec<_>>(), [0.0]);
        assert_eq!(ends(&[], 11).count(), 0);
    }

    #[test]
    fn file_names_hold_nothing_but_letters_digits_and_hyphens() {
        let words = "trace:../../etc/<x>-2P3D-0.5";
        assert_eq!(slug_of(words), "trace-etc-x-2p3d-0-5");
    }
}
