//! What a suspended task is in, as the person who wrote it called it: `asyncio.Queue.get`, `asyncio.sleep`, `asyncio.TaskGroup`.

use super::objects::Objects;
use super::place::Framed;
use crate::units::Addr;

/// The call of asyncio's that a task is in.
#[derive(Clone, Debug)]
pub(super) struct Call {
    /// The object whose method it is; none of a function.
    pub object: Option<Addr>,
    /// The class it is looked up in: `Lock`, `Queue`; of a function nothing.
    pub class: String,
    /// The function.
    pub function: String,
    /// Whether a time-out is around it.
    pub timed: bool,
}

/// Whether a frame is asyncio's own.
pub(super) fn is_asyncios(framed: &Framed) -> bool {
    framed.code.as_ref().is_some_and(|c| c.is_of_asyncio())
}

impl Call {
    /// The outermost of asyncio's frames that a task's innermost ones are, time-outs aside.
    pub(super) fn of(objects: &Objects<'_>, frames: &[Framed]) -> Option<Call> {
        let inner = || frames.iter().take_while(|f| is_asyncios(f));
        // what only bounds or begins another call is not what is waited for
        let bounds = |f: &Framed| f.is("tasks.py", "wait_for") || f.is("timeouts.py", "__aexit__");
        let timed = inner().any(bounds);
        let framed = inner().filter(|f| !bounds(f)).last().or_else(|| inner().last())?;
        let code = framed.code.as_ref()?;
        let this =
            framed.first_argument(objects).filter(|_| code.function.contains('.') || is_method(code.file_name()));
        let class =
            this.and_then(|t| objects.type_of(t)).map(|t| t.name.rsplit('.').next().unwrap_or_default().to_owned());
        let (object, class) = match class {
            Some(class) if !PLAIN.contains(&class.as_str()) => (this, class),
            _ => (None, String::new()),
        };
        Some(Call { object, class, function: code.name.clone(), timed })
    }

    /// What is waited for, with what a person calls the object.
    pub(super) fn words(&self, named: Option<&str>) -> String {
        let at = self.object.map(|o| o.to_string());
        let object = match (named, &at) {
            (Some(name), _) => format!("asyncio.{} {name}", self.class),
            (None, Some(at)) => format!("asyncio.{} at {at}", self.class),
            (None, None) => String::new(),
        };
        let object = if self.object.is_some() { object } else { String::new() };
        let text = match (self.class.as_str(), self.function.as_str()) {
            ("", function) => format!("asyncio.{function}"),
            ("Lock" | "Semaphore" | "BoundedSemaphore", "acquire" | "__aenter__") | ("Event", "wait") => object,
            ("Condition", "acquire" | "__aenter__") => format!("the lock of {object}"),
            ("Condition" | "Barrier", "wait" | "wait_for" | "__aenter__") => object,
            (class, "get") if class.contains("Queue") => format!("an item of {object}"),
            (class, "put") if class.contains("Queue") => format!("room in {object}"),
            (class, "join") if class.contains("Queue") => format!("the end of all work of {object}"),
            ("TaskGroup", "__aexit__") => format!("the tasks of {object}"),
            (class, function) => format!("asyncio.{class}.{function} of {}", named.or(at.as_deref()).unwrap_or("?")),
        };
        if self.timed { format!("{text}, with a time-out") } else { text }
    }
}

/// Types of first arguments that are no `self`.
const PLAIN: [&str; 14] = [
    "int",
    "float",
    "str",
    "bytes",
    "tuple",
    "list",
    "dict",
    "set",
    "NoneType",
    "function",
    "coroutine",
    "generator",
    "bool",
    "type",
];

/// Up to 3.10 a code object does not know its class: files of asyncio whose functions are methods.
fn is_method(file: &str) -> bool {
    matches!(file, "locks.py" | "queues.py" | "streams.py" | "subprocess.py" | "taskgroups.py" | "base_events.py")
}
