//! Who waits for whom as a Graphviz digraph: threads are boxes, resources ellipses, the verdict's cycle red.

use super::Case;
use super::drawing::{Drawing, Node};

/// The graph in DOT, ending with a newline. Equal cases give equal bytes.
#[must_use]
pub fn dot(case: &Case<'_>) -> String {
    let drawing = Drawing::of(case);
    let mut out = String::from("digraph hangscope {\n  rankdir=LR;\n");
    out += &format!("  label={};\n", quoted(&drawing.title));
    out += "  node [fontname=\"sans-serif\", fontsize=10];\n  edge [fontname=\"sans-serif\", fontsize=9];\n";
    for (i, Node { lines, thread, alarm, .. }) in drawing.nodes.iter().enumerate() {
        let shape = if *thread { "box" } else { "ellipse" };
        let color = if *alarm { ", color=red" } else { "" };
        out += &format!("  n{i} [shape={shape}, label={}{color}];\n", quoted(&lines.join("\n")));
    }
    for edge in &drawing.edges {
        let color = if edge.alarm { ", color=red, penwidth=2" } else { "" };
        out += &format!("  n{} -> n{} [label={}{color}];\n", edge.from, edge.to, quoted(&edge.label));
    }
    out += "}\n";
    out
}

fn quoted(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("\"{text}\"")
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_cannot_leave_their_quotes() {
        assert_eq!(super::quoted("a\"; b\\\n"), "\"a\\\"; b\\\\\\n\"");
    }
}
