//! The curves, as pictures for the documentation.

use std::path::Path;

use anyhow::Context as _;
use plotters::prelude::*;
use serde_json::{Map, Value};

const SIZE: (u32, u32) = (720, 400);

/// A curve: what is along each axis, and which figures of which measurement it is made of.
struct Curve {
    file: &'static str,
    title: &'static str,
    x: (&'static str, &'static str),
    y: (&'static str, &'static str),
    of: &'static str,
}

const CURVES: [Curve; 3] = [
    Curve {
        file: "throughput.svg",
        title: "Steps a second, as blocks, by steps in flight",
        x: ("in flight", "/in_flight"),
        y: ("steps/s", "/steps_per_s"),
        of: "throughput_by_in_flight",
    },
    Curve {
        file: "timers.svg",
        title: "How late a timer fires (p99), by how many others sleep",
        x: ("sleepers", "/sleepers"),
        y: ("ms", "/late_ms/p99"),
        of: "timers",
    },
    Curve {
        file: "history.svg",
        title: "What a step costs, by how many have been settled before",
        x: ("settled steps", "/settled_steps"),
        y: ("µs a step", "/us_per_step"),
        of: "cost_by_history",
    },
];

/// Draws every curve that was measured.
pub(crate) fn draw(found: &Map<String, Value>, directory: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(directory)?;
    for curve in CURVES {
        let number = |point: &Value, pointer| point.pointer(pointer).and_then(Value::as_f64);
        let points: Vec<(f64, f64)> = found
            .get(curve.of)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            // Nobody at all has no place on an axis of orders of magnitude.
            .filter_map(|point| Some((number(point, curve.x.1)?.max(1.0), number(point, curve.y.1)?)))
            .collect();
        if points.len() > 1 {
            let file = directory.join(curve.file);
            one(&file, &curve, &points).with_context(|| format!("drawing {}", file.display()))?;
        }
    }
    Ok(())
}

fn one(file: &Path, curve: &Curve, points: &[(f64, f64)]) -> anyhow::Result<()> {
    let most = points.iter().map(|(_, y)| *y).fold(0.0, f64::max) * 1.2;
    let (first, last) = (points[0].0, points[points.len() - 1].0);
    let area = SVGBackend::new(file, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(curve.title, ("sans-serif", 18))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d((first..last).log_scale(), 0.0..most)?;
    chart
        .configure_mesh()
        .x_desc(curve.x.0)
        .y_desc(curve.y.0)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .draw()?;
    chart.draw_series(LineSeries::new(points.iter().copied(), &BLUE))?;
    chart.draw_series(points.iter().map(|point| Circle::new(*point, 4, BLUE.filled())))?;
    let label = |(x, y): &(f64, f64)| Text::new(format!("{y:.1}"), (*x, y + most * 0.05), ("sans-serif", 13));
    chart.draw_series(points.iter().map(label))?;
    area.present()?;
    Ok(())
}
