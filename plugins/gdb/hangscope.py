# hangscope inside gdb (9 or newer, rocgdb too): who blocks whom in the process or core that is open.
# It starts `hangscope bridge` and answers what that asks: plugins/PROTOCOL.md. A gdb without Python says only this:
echo = """: hangscope needs a gdb with Python (not gdb-minimal); or give `hangscope core` a core of the process\n
"""

import os
import re
import subprocess
import tempfile

import gdb

BINARY = "hangscope"
VERSION = 1
MAIN = """Say which threads block each other, over which locks, and what to change. It only looks.
For scripts: $hangscope_verdict, $hangscope_headline, $hangscope_cycle_tids, $hangscope_exit_code."""
TROUBLE = (gdb.error, RuntimeError, ValueError, OverflowError, OSError, AttributeError, LookupError, TypeError)


def hexed(text):
    data = text.encode(errors="surrogateescape") if isinstance(text, str) else b""
    return data.hex() or "-"


def unhexed(word, errors="surrogateescape"):
    return b"" if word == "-" else bytes.fromhex(word).decode(errors=errors)


def threads_alive():
    found = [t for t in gdb.selected_inferior().threads() if t.is_valid() and not t.is_exited()]
    return sorted(found, key=lambda t: t.num)


def tid_of(thread):
    return thread.ptid[1] or thread.ptid[2] or thread.ptid[0]


def register(frame, name):
    return int(frame.read_register(name)) & (1 << 64) - 1


class Answers:
    """One method for each request; it returns the words of the answer, or raises what keeps it from it."""

    def hello(version, _theirs):
        return [VERSION, "gdb", gdb.VERSION.split()[-1]]

    def process():
        inferior, threads = gdb.selected_inferior(), threads_alive()
        if not inferior.pid or not threads:
            return ["none"]
        if any(t.is_running() for t in threads):
            return ["running"]
        kind = getattr(getattr(inferior, "connection", None), "type", None)  # since gdb 12
        told = "\n" + gdb.execute("info files", to_string=True) if kind in (None, "core") else ""
        if kind is None:
            titles = {"\nNative process:": "native", "\nRemote": "remote", "\nExtended remote": "remote"}
            kind = next((k for title, k in titles.items() if title in told), "core")
        core = re.search(r"^Local core dump file:\n\s*`(.*)', file type", told, re.M)
        word = {"native": "live", "core": "core"}.get(kind, "remote")
        arch = getattr(inferior, "architecture", gdb.newest_frame().architecture)().name().replace(" ", "-")
        paths = [gdb.current_progspace().filename, core and core.group(1), gdb.parameter("sysroot")]
        return [word, arch, inferior.pid] + [hexed(p) for p in paths] + [tid_of(gdb.selected_thread())]

    def threads(*names):
        words = []
        for thread in threads_alive():
            values = []
            for name in names:
                try:
                    if not values:
                        thread.switch()
                        frame = gdb.newest_frame()
                    values.append("%x" % register(frame, name))
                except TROUBLE:
                    values.append("-")
            words.append("%d:%s:%s" % (tid_of(thread), hexed(thread.name), ",".join(values)))
        return words

    def maps():
        line = r"^\s*0x(\w+)\s+0x(\w+)\s+0x\w+\s+0x(\w+)[ \t]*(?:([-r][-w][-x][-ps])(?=\s|$))?[ \t]*(.*?)[ \t]*$"
        found = re.findall(line, gdb.execute("info proc mappings", to_string=True), re.M)
        return ["%s-%s:%s:%s:%s" % (a, b, p or "-", o, hexed(n)) for a, b, o, p, n in found]

    def auxv():
        found = re.findall(r"^(\d+) .*?(0x[0-9a-f]+|\d+)(?: \".*\")?$", gdb.execute("info auxv", to_string=True), re.M)
        return ["%x=%x" % (int(kind), int(value, 0)) for kind, value in found]

    def files():
        return [hexed(o.filename) for o in gdb.objfiles() if o.filename]

    def read(*words):
        inferior, answers = gdb.selected_inferior(), []
        for at, count in zip(words[::2], words[1::2]):
            try:
                answers.append(inferior.read_memory(int(at, 16), int(count, 16)).tobytes().hex())
            except TROUBLE:
                answers.append("-")
        return answers

    def fetch(*paths):
        quoted = [unhexed(p).replace("\\", "\\\\").replace('"', '\\"') for p in paths]
        gdb.execute('remote get "%s" "%s"' % tuple(quoted), to_string=True)

    def print(text):
        gdb.write(unhexed(text, "replace"))

    def set(name, value):
        gdb.set_convenience_variable("hangscope_" + name, unhexed(value))

    def select(tid, pc, sp):
        next(t for t in threads_alive() if tid_of(t) == int(tid)).switch()
        frame = gdb.newest_frame()
        while frame.pc() != int(pc, 16) or sp != "-" and register(frame, "rsp") != int(sp, 16):
            frame = frame.older()
        frame.select()
        gdb.write("".join(gdb.execute(c, to_string=True) for c in ("thread", "frame")))

    def end(code):
        gdb.set_convenience_variable("hangscope_exit_code", int(code))


def selected():
    try:
        return gdb.selected_thread(), gdb.selected_frame()
    except gdb.error:
        return gdb.selected_thread(), None


def converse(arguments):
    """Starts hangscope and answers it until it says `end`."""
    binary, width = os.path.expanduser(gdb.parameter("hangscope-binary") or BINARY), gdb.parameter("width")
    color = "always" if gdb.parameter("style enabled") and os.isatty(1) else "never"
    command = [binary, "bridge", "--color", color] + [os.path.expanduser(a) for a in arguments]
    errors, place, ended = tempfile.TemporaryFile(), selected(), False
    pipe = subprocess.PIPE
    try:
        environment = dict(os.environ, COLUMNS=str(width or 80))
        child = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=errors)
    except OSError as error:
        raise gdb.GdbError("hangscope: cannot start '%s': %s; `set hangscope-binary PATH`" % (binary, error.strerror))
    try:
        for line in child.stdout:
            name, *words = line.decode("ascii").split()
            try:
                answer = " ".join(["ok"] + [str(w) for w in getattr(Answers, name)(*words) or []])
            except TROUBLE + (StopIteration,) as error:
                answer = "no " + hexed(str(error))
            if name == "select" and answer == "ok":
                place = selected()
            ended = name == "end"
            child.stdin.write(answer.encode("ascii") + b"\n")
            child.stdin.flush()
    except BrokenPipeError:
        pass
    finally:
        if not ended:
            child.kill()
        child.wait()
        for at, select in zip(place, (gdb.InferiorThread.switch, gdb.Frame.select)):
            if at is not None and at.is_valid():
                select(at)
    errors.seek(0)
    said = errors.read().decode(errors="replace").strip()
    if not ended:
        raise gdb.GdbError(said or "hangscope: it ended without a word")
    gdb.write(said and said + "\n", gdb.STDERR)


class Binary(gdb.Parameter):
    """The hangscope program that the command `hangscope` starts."""

    set_doc = show_doc = "The hangscope program: its path, or its name on PATH."

    def get_set_string(self):
        return ""


class Hangscope(gdb.Command):
    def __init__(self, verb, usage, text):
        self.verb, self.words = verb, re.findall(r"\w+(?=\|)|(?<=\|)\w+", usage)
        self.__doc__ = "%s\nUsage: %s" % (text, " ".join(["hangscope", verb, usage]).replace("  ", " "))
        super().__init__(("hangscope " + verb).strip(), gdb.COMMAND_STACK, prefix=not verb)

    def invoke(self, argument, _from_tty):
        self.dont_repeat()
        converse(self.verb.split() + gdb.string_to_argv(argument))

    def complete(self, text, word):
        return [w for w in self.words if w.startswith(word)] if text == word and self.words else gdb.COMPLETE_FILENAME


Binary("hangscope-binary", gdb.COMMAND_SUPPORT, gdb.PARAM_OPTIONAL_FILENAME).value = BINARY
Hangscope("", "[-v]", MAIN)
Hangscope("threads", "[-v]", "Show what every thread does, waits for and holds.")
Hangscope("graph", "[dot|svg [FILE]]", "Show who waits for whom, or draw it.")
Hangscope("json", "[FILE]", "Write the report for programs.")
Hangscope("explain", "", "Say why it cannot go on, and what to change.")
Hangscope("goto", "waits|holds [TID]", "Select the frame that waits, or that took what the selected thread waits for.")
