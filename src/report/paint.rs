//! Colour and line breaking for the text report.

/// How a piece of text looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Style {
    Plain,
    Bold,
    Dim,
    /// Something is stuck.
    Alarm,
    /// Something waits.
    Warn,
    /// All is well; a proof is firm.
    Good,
    /// A thing one waits for.
    Thing,
    /// A frame of the program's own language.
    Code,
    /// A section's title.
    Title,
}

impl Style {
    fn codes(self) -> &'static str {
        match self {
            Style::Plain => "",
            Style::Bold => "1",
            Style::Dim => "2",
            Style::Alarm => "1;31",
            Style::Warn => "33",
            Style::Good => "32",
            Style::Thing => "35",
            Style::Code => "36",
            Style::Title => "1;4",
        }
    }
}

/// A pen that knows whether colours are wanted and how wide the page is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pen {
    pub color: bool,
    pub width: usize,
}

impl Pen {
    /// One piece of text in a style.
    pub(super) fn ink(self, style: Style, text: &str) -> String {
        if !self.color || style == Style::Plain || text.is_empty() {
            return text.to_owned();
        }
        format!("\u{1b}[{}m{text}\u{1b}[0m", style.codes())
    }

    /// Lays spans out as one paragraph: broken at blanks (not at no-break blanks, which are printed as blanks), never wider
    /// than the page; the first line begins with `first`, the others with `rest`, both `indent` wide. Ends with a newline.
    pub(super) fn flow(self, first: &str, rest: &str, indent: usize, spans: &[(Style, &str)]) -> String {
        let room = self.width.saturating_sub(indent).max(16);
        let mut out = String::from(first);
        let mut used = 0usize;
        for word in words(spans, room) {
            let len: usize = word.iter().map(|(_, piece)| piece.chars().count()).sum();
            if used > 0 && used + 1 + len > room {
                out.push('\n');
                out += rest;
                used = 0;
            } else if used > 0 {
                out.push(' ');
                used += 1;
            }
            for (style, piece) in word {
                out += &self.ink(style, &piece.replace(HARD, " "));
            }
            used += len;
        }
        out.push('\n');
        out
    }

    /// A paragraph in one style with the same indent on all lines.
    pub(super) fn paragraph(self, indent: usize, style: Style, text: &str) -> String {
        let pad = " ".repeat(indent);
        self.flow(&pad, &pad, indent, &[(style, text)])
    }
}

/// The blank no line is broken at.
pub(super) const HARD: char = '\u{a0}';

/// A phrase no line is broken in, where it fits one.
pub(super) fn unbroken(phrase: &str) -> String {
    phrase.replace(' ', "\u{a0}")
}

/// The words of spans: pieces that no blank parts, each with its style. A word no line can hold is broken at its no-break
/// blanks, else anywhere.
fn words<'a>(spans: &[(Style, &'a str)], room: usize) -> Vec<Vec<(Style, std::borrow::Cow<'a, str>)>> {
    use std::borrow::Cow;
    let mut out: Vec<Vec<(Style, Cow<'a, str>)>> = vec![Vec::new()];
    for (style, text) in spans {
        for (n, piece) in text.split(' ').enumerate() {
            if n > 0 {
                out.push(Vec::new());
            }
            if !piece.is_empty() {
                out.last_mut().into_iter().for_each(|word| word.push((*style, Cow::Borrowed(piece))));
            }
        }
    }
    out.retain(|word| !word.is_empty());
    let mut cut: Vec<Vec<(Style, Cow<'a, str>)>> = Vec::new();
    for word in out {
        if word.iter().map(|(_, p)| p.chars().count()).sum::<usize>() <= room {
            cut.push(word);
            continue;
        }
        for (style, piece) in word {
            for part in piece.split(HARD) {
                let chars: Vec<char> = part.chars().collect();
                cut.extend(chars.chunks(room).map(|c| vec![(style, Cow::Owned(c.iter().collect::<String>()))]));
            }
        }
    }
    cut
}

/// Text cut to `width` characters, its middle replaced by `…` where it is longer.
pub(super) fn squeeze(text: &str, width: usize) -> String {
    let chars: Vec<char> = text.chars().collect();
    if chars.len() <= width {
        return text.to_owned();
    }
    let keep = width.saturating_sub(1);
    let head = keep - keep / 3;
    let tail = keep / 3;
    chars.iter().take(head).chain(&['…']).chain(chars.iter().skip(chars.len() - tail)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paragraph_keeps_to_the_page() {
        let pen = Pen { color: false, width: 24 };
        let text = pen.paragraph(4, Style::Plain, "one two three four five abcdefghijklmnopqrstuvwxyz end");
        assert!(text.lines().all(|l| l.chars().count() <= 24), "{text}");
        assert!(text.lines().all(|l| l.starts_with("    ")));
        assert_eq!(text.split_whitespace().collect::<String>(), "onetwothreefourfiveabcdefghijklmnopqrstuvwxyzend");
    }

    #[test]
    fn spans_join_where_no_blank_is_written() {
        let pen = Pen { color: false, width: 40 };
        assert_eq!(pen.flow("> ", "  ", 2, &[(Style::Bold, "a b"), (Style::Plain, ", c")]), "> a b, c\n");
    }

    #[test]
    fn colours_change_nothing_but_colours() {
        let plain = Pen { color: false, width: 30 };
        let painted = Pen { color: true, width: 30 };
        let spans = [(Style::Alarm, "DEADLOCK, 2 threads"), (Style::Plain, ": and so on, and so on, and so on")];
        let strip = |s: String| {
            let mut out = String::new();
            let mut rest = s.as_str();
            while let Some(i) = rest.find('\u{1b}') {
                out += &rest[..i];
                rest = &rest[i..];
                rest = &rest[rest.find('m').unwrap() + 1..];
            }
            out + rest
        };
        assert_eq!(strip(painted.flow("", "", 0, &spans)), plain.flow("", "", 0, &spans));
    }

    #[test]
    fn long_names_lose_their_middle() {
        assert_eq!(squeeze("abcdefghij", 10), "abcdefghij");
        assert_eq!(squeeze("abcdefghijk", 10), "abcdef…ijk");
    }
}
