//! The command line: options resolved once, and the exit codes of the contract.

use crate::diagnose;
use crate::units::harmless;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use std::error::Error;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Names the deadlock of a hung process: who holds what, who waits for whom, and why that is a cycle.
#[derive(Parser, Debug)]
#[command(name = "hangscope", version, max_term_width = 100, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// See [`Common`].
    #[command(flatten)]
    pub common: Common,
}

/// The verbs.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Stop processes for an instant, capture them, let them run on, then report
    Attach(Attach),
    /// Report on a core file
    Core(Core),
    /// Report on what a debugger has open; its plugin starts this and answers
    Bridge(Bridge),
    /// Print the plugin that brings `hangscope` into a debugger
    Plugin(Plugin),
    /// Run a command; where it hangs, name the deadlock, end it and exit 124
    Run(Run),
    /// Start a small program that deadlocks, report on it, end it
    Demo(Demo),
    /// Say what is possible here, and what mends what is not
    Doctor(Doctor),
    /// Become a demo
    #[command(hide = true)]
    DemoChild(DemoChild),
}

/// `hangscope attach`.
#[derive(Args, Debug)]
pub struct Attach {
    /// The processes
    #[arg(required = true, value_name = "PID", value_parser = parse_pid)]
    pub pids: Vec<i32>,
    /// Take all descendants of each PID too
    #[arg(long)]
    pub tree: bool,
    /// Looks to take; by default one, and a second where the first proves no deadlock
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub samples: Option<u32>,
    /// Time between two looks
    #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = parse_duration)]
    pub interval: Duration,
    /// Stop and trace nothing: only what /proc gives
    #[arg(long)]
    pub no_stop: bool,
    /// The longest the process may be held; what is not read by then is left out
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_duration)]
    pub max_pause: Duration,
    /// Write what was read as a small ELF core
    #[arg(long, value_name = "FILE")]
    pub save_core: Option<PathBuf>,
}

/// `hangscope core`.
#[derive(Args, Debug)]
pub struct Core {
    /// The core file
    #[arg(value_name = "CORE")]
    pub core: PathBuf,
    /// The program that dumped it, where the core's own path is of no use
    #[arg(long, value_name = "FILE")]
    pub exe: Option<PathBuf>,
}

/// `hangscope bridge`.
#[derive(Args, Debug)]
pub struct Bridge {
    /// The longest the debugger may take for one answer
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_duration)]
    pub answer_within: Duration,
    /// What to show; by default the report
    #[command(subcommand)]
    pub what: Option<Show>,
}

/// What the plugin's command shows.
#[derive(Subcommand, Debug)]
pub enum Show {
    /// Every thread's stack
    Threads,
    /// Who waits for whom; or draw it
    Graph {
        /// Draw it in this form
        form: Option<Drawing>,
        /// Where to; by default the debugger shows it
        file: Option<PathBuf>,
    },
    /// The report for programs
    Json {
        /// Where to; by default the debugger shows it
        file: Option<PathBuf>,
    },
    /// Why it cannot go on, and what to change
    Explain,
    /// Select the thread and frame that waits, or that holds what the selected thread waits for
    Goto {
        /// Which
        place: Place,
        /// Instead of the selected thread
        tid: Option<i32>,
    },
}

/// Forms of a drawing.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Drawing {
    /// For Graphviz
    Dot,
    /// A picture
    Svg,
}

/// Places of a hang.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Where the thread waits
    Waits,
    /// Where the holder of what it waits for took that
    Holds,
}

/// `hangscope plugin`.
#[derive(Args, Debug)]
pub struct Plugin {
    /// Whose
    pub debugger: Debugger,
}

/// Debuggers with a plugin.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Debugger {
    /// gdb 9 and later, rocgdb
    Gdb,
    /// lldb 16 and later
    Lldb,
}

/// `hangscope run`.
#[derive(Args, Debug)]
pub struct Run {
    /// How long the command may run; by default as long as it likes, until SIGQUIT asks for the report
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub timeout: Option<Duration>,
    /// How long the diagnosis may take before the command is ended without one
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = parse_duration)]
    pub report_within: Duration,
    /// The command and its arguments
    #[arg(required = true, value_name = "CMD", trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<OsString>,
}

/// `hangscope demo`.
#[derive(Args, Debug)]
pub struct Demo {
    /// Which; by default the loader's lock against the GIL where there is a python3, else two mutexes
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// List the demos
    #[arg(long)]
    pub list: bool,
    /// The Python to run it with
    #[arg(long, value_name = "FILE")]
    pub python: Option<PathBuf>,
}

/// The hidden verb by which a native demo is started.
#[derive(Args, Debug)]
pub struct DemoChild {
    /// Which
    pub name: String,
}

/// `hangscope doctor`.
#[derive(Args, Debug)]
pub struct Doctor {
    /// Look at this process too
    #[arg(value_name = "PID", value_parser = parse_pid)]
    pub pid: Option<i32>,
}

/// Options every verb takes.
#[derive(Args, Debug, Clone)]
pub struct Common {
    /// Form of the report
    #[arg(long, global = true, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Short for --format json
    #[arg(long, global = true)]
    pub json: bool,
    /// Write the report here instead of stdout
    #[arg(short, long, global = true, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Where the target's files are found, for cores from another machine
    #[arg(long, global = true, value_name = "DIR")]
    pub sysroot: Option<PathBuf>,
    /// A directory with separate debug files; may be given several times
    #[arg(long, global = true, value_name = "DIR")]
    pub debug_dir: Vec<PathBuf>,
    /// Colour in the text report
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto)]
    pub color: Color,
    /// Which stacks the text report shows
    #[arg(long, global = true, value_enum, default_value_t = Threads::Blocked)]
    pub threads: Threads,
    /// Show the local variables of Python frames: they may hold what should stay where it is
    #[arg(long, global = true)]
    pub locals: bool,
    /// Say more: every frame, every piece of evidence
    #[arg(short, long, global = true)]
    pub verbose: bool,
    /// Say less: no progress, no warnings on stderr
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
}

/// Forms of the report.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// For people
    Text,
    /// For programs: `hangscope/1`
    Json,
    /// Who waits for whom, for Graphviz
    Dot,
    /// Who waits for whom, as a picture
    Svg,
}

/// When to colour.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Color {
    /// On a terminal, unless `NO_COLOR` is set
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// Which stacks to show.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Threads {
    /// Every thread's
    All,
    /// Those of blocked threads
    Blocked,
    /// Only the cycle's
    Cycle,
}

impl Common {
    /// The form asked for.
    #[must_use]
    pub fn form(&self) -> Format {
        if self.json { Format::Json } else { self.format }
    }

    /// Whether text written to stdout (or to a file) is coloured.
    #[must_use]
    pub fn colored(&self, to_stderr: bool) -> bool {
        match self.color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => {
                let terminal =
                    if to_stderr { std::io::stderr().is_terminal() } else { std::io::stdout().is_terminal() };
                self.output.is_none() && terminal && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
            }
        }
    }

    /// The part of [`diagnose::Options`] that every door shares.
    #[must_use]
    pub fn diagnose_options(&self) -> diagnose::Options {
        diagnose::Options {
            sysroot: self.sysroot.clone(),
            debug_dirs: self.debug_dir.clone(),
            locals: self.locals,
            ..diagnose::Options::default()
        }
    }
}

/// Options that take a value, where it stands in a word of its own.
const WITH_VALUE: &[&str] = &[
    "--format",
    "--output",
    "-o",
    "--sysroot",
    "--debug-dir",
    "--color",
    "--threads",
    "--samples",
    "--interval",
    "--max-pause",
    "--save-core",
    "--exe",
    "--timeout",
    "--report-within",
];

/// The first word that is no option and no option's value.
fn first_word(arguments: &[OsString]) -> Option<&str> {
    let mut rest = arguments.iter().skip(1);
    while let Some(word) = rest.next() {
        match word.to_str() {
            Some(option) if WITH_VALUE.contains(&option) => drop(rest.next()),
            Some("--") => return None,
            Some(option) if option.starts_with('-') && option.len() > 1 => {}
            other => return other,
        }
    }
    None
}

/// The verb of a command line, if it has one.
#[must_use]
pub fn verb(arguments: &[OsString]) -> Option<String> {
    let word = first_word(arguments)?;
    Cli::command().find_subcommand(word).map(|verb| verb.get_name().to_owned())
}

/// The command line with its verb: `hangscope PID` is short for `attach`, `hangscope CORE` for `core`.
#[must_use]
pub fn with_verb(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let Some(word) = first_word(&arguments) else { return arguments };
    let file = Path::new(word);
    let verb = if word == "help" || Cli::command().find_subcommand(word).is_some() {
        return arguments;
    } else if !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit()) {
        "attach"
    } else if word.contains('/') || word.starts_with("core.") || word == "core" || file.exists() {
        "core"
    } else {
        return arguments;
    };
    arguments.insert(1, verb.into());
    arguments
}

/// What was wrong with a command line, as one line, and whether it only asked for help or the version. `verb`: whose help to
/// name (an empty one: that of all); `None` in a debugger.
#[must_use]
pub fn usage(error: &clap::Error, verb: Option<&str>) -> (String, bool) {
    let help = match verb {
        None => "`help hangscope` lists what there is".to_owned(),
        Some("") => "see `hangscope --help`".to_owned(),
        Some(verb) => format!("see `hangscope {verb} --help`"),
    };
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            return (help, true);
        }
        _ => {}
    }
    // a parser of ours says itself what is wrong
    if let (Some(why), Some(ContextValue::String(argument))) = (error.source(), error.get(ContextKind::InvalidArg))
        && why.to_string().starts_with(OURS)
    {
        let argument = argument.split(' ').next().unwrap_or(argument);
        let place = if argument.starts_with('-') { format!("{argument}: ") } else { String::new() };
        return (format!("{place}{}; {help}", why.to_string().chars().map(harmless).collect::<String>()), false);
    }
    let text = error.to_string().replace("\n  tip: ", "; ");
    let lines = text.lines().map(str::trim).take_while(|l| !l.starts_with("Usage:") && !l.starts_with("For more "));
    let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    let line: String = words.join(" ").chars().map(harmless).collect();
    (format!("{}; {help}", line.strip_prefix("error: ").unwrap_or(&line)), false)
}

/// How the messages of our own parsers begin.
const OURS: &str = "invalid ";

/// Reads a PID.
///
/// # Errors
/// One line that says what was wrong.
pub fn parse_pid(text: &str) -> Result<i32, String> {
    let pid = text.parse().ok().filter(|pid| *pid >= 0);
    pid.ok_or_else(|| format!("invalid PID '{text}'; a PID is a number: `ps -e` lists them"))
}

/// The longest duration taken: clocks count further, but not without end.
const LONGEST: Duration = Duration::from_secs(36_525 * 86_400);

/// Reads `60s`, `500ms`, `5m`, `1h30m`, `2.5s`, or a bare number of seconds.
///
/// # Errors
/// One line that says what was wrong.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("invalid duration '{text}'; write 60s, 500ms, 5m or 1h30m");
    let mut total = Duration::ZERO;
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let value: f64 = number.parse().map_err(|_| wrong())?;
        let letters = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let scale = match unit.trim() {
            "ms" => 0.001,
            "s" | "" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86400.0,
            _ => return Err(wrong()),
        };
        let part = Duration::try_from_secs_f64(value * scale).map_err(|_| wrong())?;
        total = total.checked_add(part).ok_or_else(wrong)?;
        rest = tail;
    }
    if total > LONGEST {
        return Err(format!("invalid duration '{text}'; a hundred years is the most"));
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read() {
        assert_eq!(parse_duration("60s"), Ok(Duration::from_secs(60)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse_duration("2.5"), Ok(Duration::from_millis(2500)));
        for bad in ["", "s", "5x", "1e999s", "-3s", "99999999999999999999d", "18000000000000000000s", "36526d"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn a_pid_or_a_core_needs_no_verb() {
        for (short, long) in [
            ("hangscope 4711", "hangscope attach 4711"),
            ("hangscope --json -o out 4711 4712", "hangscope attach --json -o out 4711 4712"),
            ("hangscope --tree 1", "hangscope attach --tree 1"),
            ("hangscope ./core", "hangscope core ./core"),
            ("hangscope --exe /bin/a /tmp/nowhere", "hangscope core --exe /bin/a /tmp/nowhere"),
            ("hangscope core.4711", "hangscope core core.4711"),
            ("hangscope attach 4711", "hangscope attach 4711"),
            ("hangscope help attach", "hangscope help attach"),
            ("hangscope -q run -- 4711", "hangscope -q run -- 4711"),
            ("hangscope nonsense", "hangscope nonsense"),
            ("hangscope", "hangscope"),
        ] {
            assert_eq!(with_verb(words(short)), words(long), "{short}");
        }
    }

    #[test]
    fn wrong_usage_is_told_in_one_line() {
        for (line, said) in [
            ("hangscope run --timeout 60x -- true", "--timeout: invalid duration '60x'; write 60s"),
            ("hangscope doctor x", "invalid PID 'x'"),
            ("hangscope --format xml 4711", "[possible values: text, json, dot, svg]"),
            ("hangscope attach", "<PID>"),
            ("hangscope atach 1", "'atach'"),
            ("hangscope attach --treee 1", "--tree"),
        ] {
            let arguments = words(line);
            let error = Cli::try_parse_from(with_verb(arguments.clone())).unwrap_err();
            let (told, asked) = usage(&error, verb(&arguments).as_deref().or(Some("")));
            assert!(!asked && told.contains(said) && told.contains("--help`"), "{told}");
            assert!(!told.contains('\n') && !told.contains("  "), "{told}");
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
