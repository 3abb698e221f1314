//! Rust source text as words, for the tests that read our own sources.

use std::fs;
use std::path::{Path, PathBuf};

/// Every `.rs` file below `under`, sorted.
pub fn source_files(under: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(under).expect("a readable directory") {
        let path = entry.expect("a directory entry").path();
        if path.is_dir() {
            found.extend(source_files(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// A word or a punctuation mark, with its line. `::` is one token.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// The word or the mark; for a literal its opening quote and its content as written.
    pub text: String,
    /// Counted from 1.
    pub line: usize,
}

/// Splits source text; comments vanish; a literal is one token that begins with `"`.
pub fn tokens(text: &str) -> Vec<Token> {
    let c: Vec<char> = text.chars().collect();
    let at = |i: usize| c.get(i).copied().unwrap_or('\0');
    let (mut i, mut line, mut out) = (0, 1, Vec::new());
    while i < c.len() {
        let start = i;
        let mut push: Option<String> = None;
        match c[i] {
            '/' if at(i + 1) == '/' => {
                while i < c.len() && c[i] != '\n' {
                    i += 1;
                }
            }
            '/' if at(i + 1) == '*' => {
                let mut depth = 0;
                while i < c.len() {
                    match (c[i], at(i + 1)) {
                        ('/', '*') => (depth, i) = (depth + 1, i + 2),
                        ('*', '/') => (depth, i) = (depth - 1, i + 2),
                        _ => i += 1,
                    }
                    if depth == 0 {
                        break;
                    }
                }
            }
            '"' => {
                i = end_of_string(&c, i);
                push = Some(c[start..i.min(c.len()).saturating_sub(1).max(start)].iter().collect());
            }
            // a lifetime is `'a` without a closing quote right after one character
            '\'' if at(i + 1) == '\\' || at(i + 2) == '\'' => {
                i += if at(i + 1) == '\\' { 3 } else { 2 };
                while i < c.len() && c[i] != '\'' {
                    i += 1;
                }
                i += 1;
                push = Some("\"".into());
            }
            w if w.is_alphanumeric() || w == '_' => {
                while at(i).is_alphanumeric() || at(i) == '_' {
                    i += 1;
                }
                let word: String = c[start..i].iter().collect();
                let hashes = c[i..].iter().take_while(|h| **h == '#').count();
                if matches!(word.as_str(), "r" | "br" | "cr") && at(i + hashes) == '"' {
                    let content = i + hashes + 1;
                    i = end_of_raw_string(&c, content, hashes);
                    push = Some(format!("\"{}", c[content..i - hashes - 1].iter().collect::<String>()));
                } else if !(word == "r" && hashes == 1) {
                    push = Some(word);
                } else {
                    i += 1; // r#name: the name follows
                }
            }
            ':' if at(i + 1) == ':' => {
                i += 2;
                push = Some("::".into());
            }
            other => {
                i += 1;
                push = (!other.is_whitespace()).then(|| other.to_string());
            }
        }
        out.extend(push.map(|text| Token { text, line }));
        line += c[start..i.min(c.len())].iter().filter(|n| **n == '\n').count();
    }
    out
}

fn end_of_string(c: &[char], open: usize) -> usize {
    let mut i = open + 1;
    while i < c.len() && c[i] != '"' {
        i += if c[i] == '\\' { 2 } else { 1 };
    }
    i + 1
}

fn end_of_raw_string(c: &[char], from: usize, hashes: usize) -> usize {
    (from..c.len())
        .find(|i| c[*i] == '"' && c[i + 1..].iter().take(hashes).filter(|h| **h == '#').count() == hashes)
        .map_or(c.len(), |i| i + 1 + hashes)
}

/// Leaves out every item under `#[cfg(test)]`.
pub fn without_tests(tokens: Vec<Token>) -> Vec<Token> {
    const CFG_TEST: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let (mut out, mut i) = (Vec::new(), 0);
    while i < tokens.len() {
        let here = tokens[i..].iter().take(7).map(|t| t.text.as_str());
        if here.eq(CFG_TEST) {
            i = end_of_item(&tokens, i + 7);
        } else {
            out.push(tokens[i].clone());
            i += 1;
        }
    }
    out
}

/// One past the item that starts at `i`: its closing brace, or its semicolon.
fn end_of_item(tokens: &[Token], mut i: usize) -> usize {
    let mut depth = 0;
    while let Some(t) = tokens.get(i) {
        i += 1;
        match t.text.as_str() {
            "{" | "(" | "[" => depth += 1,
            ")" | "]" => depth -= 1,
            "}" => {
                depth -= 1;
                if depth == 0 {
                    // `use a::{b};` goes on to its semicolon
                    return if tokens.get(i).is_some_and(|t| t.text == ";") { i + 1 } else { i };
                }
            }
            ";" if depth == 0 => return i,
            _ => {}
        }
    }
    i
}
