//! Who waits for whom as a picture that needs no other program: the cycle is a ring at the right, what queues stands left of it.

use super::Case;
use super::drawing::{Drawing, Edge, Node};
use std::collections::BTreeMap;
use std::f64::consts::TAU;
use std::fmt::Write;

/// Pixels: of a line of text, of a character, around a label, between columns and rows, around everything.
const LINE: f64 = 15.0;
const CHAR: f64 = 6.7;
const PAD: f64 = 10.0;
const COLUMN: f64 = 110.0;
const ROW: f64 = 26.0;
const MARGIN: f64 = 24.0;

/// Where a node's middle lies, and half its size.
#[derive(Clone, Copy)]
struct Spot {
    x: f64,
    y: f64,
    w: f64,
    h: f64,
}

/// The picture as SVG, ending with a newline. Equal cases give equal bytes.
#[must_use]
pub fn svg(case: &Case<'_>) -> String {
    let drawing = Drawing::of(case);
    let title: Vec<&str> = drawing.title.lines().collect();
    let top = MARGIN + LINE * title.len() as f64 + PAD;
    let spots = place(&drawing, top);
    let right = spots.iter().map(|s| s.x + s.w).fold(400.0, f64::max);
    let right = title.iter().map(|l| MARGIN + l.chars().count() as f64 * CHAR * 1.1).fold(right, f64::max) + MARGIN;
    let bottom = spots.iter().map(|s| s.y + s.h).fold(top, f64::max) + MARGIN;
    let mut out = String::new();
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{right:.0}\" height=\"{bottom:.0}\" viewBox=\"0 0 {right:.0} {bottom:.0}\" \
         font-family=\"sans-serif\" font-size=\"12\">"
    );
    let arrow = |id: &str, color: &str| {
        format!(
            "<marker id=\"{id}\" viewBox=\"0 0 10 10\" refX=\"9\" refY=\"5\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\">\
             <path d=\"M0 0L10 5L0 10z\" fill=\"{color}\"/></marker>"
        )
    };
    let _ = writeln!(out, "<defs>{}{}</defs>", arrow("a", "#555"), arrow("b", "#c00"));
    let _ = writeln!(out, "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>");
    for (i, line) in title.iter().enumerate() {
        let y = MARGIN + LINE * i as f64;
        let _ = writeln!(out, "<text x=\"{MARGIN}\" y=\"{y:.1}\" font-weight=\"bold\">{}</text>", escaped(line));
    }
    for edge in &drawing.edges {
        if let (Some(from), Some(to)) = (spots.get(edge.from), spots.get(edge.to)) {
            out += &line(edge, *from, *to);
        }
    }
    for (node, spot) in drawing.nodes.iter().zip(&spots) {
        out += &shape(node, *spot);
    }
    out += "</svg>\n";
    out
}

/// The ring stands on an ellipse; every other node in the column of its distance from what it leads to.
fn place(drawing: &Drawing, top: f64) -> Vec<Spot> {
    let size = |n: &Node| {
        let columns = n.lines.iter().map(|l| l.chars().count()).max().unwrap_or(1);
        let round = if n.thread { 1.0 } else { 1.25 };
        ((columns as f64 * CHAR / 2.0 + PAD) * round, n.lines.len() as f64 * LINE / 2.0 + PAD * 0.8)
    };
    let sizes: Vec<(f64, f64)> = drawing.nodes.iter().map(size).collect();
    let widest = sizes.iter().map(|s| s.0).fold(40.0, f64::max);
    let ring = drawing.nodes.iter().filter(|n| n.ring.is_some()).count();
    let depth = depths(drawing);
    let deepest = depth.iter().copied().max().unwrap_or(0);
    let mut columns: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (i, d) in depth.iter().enumerate().filter(|(i, _)| drawing.nodes.get(*i).is_some_and(|n| n.ring.is_none())) {
        columns.entry(*d).or_default().push(i);
    }
    let height = |nodes: &[usize]| nodes.iter().filter_map(|i| sizes.get(*i)).map(|s| s.1 * 2.0 + ROW).sum::<f64>();
    let (rx, ry) = if ring == 0 { (0.0, 0.0) } else { (widest + COLUMN, 40.0 + 34.0 * ring as f64) };
    let tallest = columns.values().map(|c| height(c)).fold(ry * 2.0 + 60.0, f64::max);
    let step = widest * 2.0 + COLUMN;
    let mut spots: Vec<Spot> = sizes.iter().map(|(w, h)| Spot { x: 0.0, y: 0.0, w: *w, h: *h }).collect();
    for (d, nodes) in &columns {
        let mut y = top + (tallest - height(nodes)) / 2.0;
        for i in nodes {
            if let Some(spot) = spots.get_mut(*i) {
                spot.x = MARGIN + widest + step * (deepest - d) as f64;
                spot.y = y + spot.h + ROW / 2.0;
                y += spot.h * 2.0 + ROW;
            }
        }
    }
    let left = MARGIN + step * deepest as f64 + widest;
    for (node, spot) in drawing.nodes.iter().zip(&mut spots) {
        if let Some(n) = node.ring {
            let angle = TAU * (n as f64 / ring.max(1) as f64) - TAU / 2.0;
            (spot.x, spot.y) = (left + rx * (1.0 + angle.cos()), top + tallest / 2.0 + ry * angle.sin());
        }
    }
    spots
}

/// How many edges a node lies before the ring, or before what leads nowhere.
fn depths(drawing: &Drawing) -> Vec<usize> {
    let mut depth = vec![0usize; drawing.nodes.len()];
    // other cycles than the first would go on for ever
    for _ in 0..drawing.nodes.len().min(64) {
        let mut changed = false;
        for edge in &drawing.edges {
            let free = drawing.nodes.get(edge.from).is_some_and(|n| n.ring.is_none());
            let next = depth.get(edge.to).copied().unwrap_or(0) + 1;
            if let Some(d) = depth.get_mut(edge.from).filter(|d| free && **d < next && next < 16) {
                *d = next;
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    depth
}

fn shape(node: &Node, at: Spot) -> String {
    let (fill, stroke) = match (node.alarm, node.thread) {
        (true, true) => ("#ffecec", "#c00"),
        (true, false) => ("#fff", "#c00"),
        (false, true) => ("#eef3fa", "#555"),
        (false, false) => ("#fff", "#555"),
    };
    let Spot { x, y, w, h } = at;
    let mut out = match node.thread {
        true => format!(
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"4\" fill=\"{fill}\" stroke=\"{stroke}\"/>",
            x - w,
            y - h,
            w * 2.0,
            h * 2.0
        ),
        false => format!(
            "<ellipse cx=\"{x:.1}\" cy=\"{y:.1}\" rx=\"{w:.1}\" ry=\"{h:.1}\" fill=\"{fill}\" stroke=\"{stroke}\"/>"
        ),
    };
    for (i, line) in node.lines.iter().enumerate() {
        let y = y + LINE * (i as f64 - (node.lines.len() as f64 - 1.0) / 2.0) + 4.0;
        let _ = write!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{}</text>", escaped(line));
    }
    out.push('\n');
    out
}

fn line(edge: &Edge, from: Spot, to: Spot) -> String {
    let (dx, dy) = (to.x - from.x, to.y - from.y);
    // where the straight line leaves the box of each end
    let leave = |s: Spot| 1.0 / (dx.abs() / s.w).max(dy.abs() / s.h).max(1.0);
    let (a, b) = (leave(from), leave(to));
    let (x1, y1, x2, y2) = (from.x + dx * a, from.y + dy * a, to.x - dx * b, to.y - dy * b);
    let (color, mark, width) = if edge.alarm { ("#c00", "b", 2) } else { ("#555", "a", 1) };
    let label = |paint: &str| {
        let (x, y) = ((x1 + x2) / 2.0, (y1 + y2) / 2.0 + 3.0);
        let text = escaped(&edge.label);
        format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\" font-size=\"10\" {paint}>{text}</text>")
    };
    // on a white edge of its own, so that it can be read across the line
    let (under, over) = (label("stroke=\"#fff\" stroke-width=\"4\""), label(&format!("fill=\"{color}\"")));
    format!(
        "<path d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}\" stroke=\"{color}\" stroke-width=\"{width}\" marker-end=\"url(#{mark})\"/>\
         {under}{over}\n"
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
