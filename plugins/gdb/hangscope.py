# hangscope inside gdb (9 or newer, rocgdb too): who blocks whom in the process or core that is open.
# It starts `hangscope bridge` and answers what that asks: plugins/PROTOCOL.md. A gdb without Python says only this:
echo = """: hangscope needs a gdb with Python (not gdb-minimal); or give `hangscope core` a core of the process\n
"""

import glob
import os
import re
from subprocess import PIPE, Popen

import gdb

BINARY = "hangscope"
VERSION = 1
MAIN = """Say which threads block each other, over which locks, and what to change. It only looks.
Options of all its commands: -v, -q, --threads all|blocked|cycle, --sysroot DIR, --debug-dir DIR, --answer-within 60s.
For scripts: $hangscope_verdict, $hangscope_headline, $hangscope_cycle_tids, $hangscope_exit_code."""


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
        told = gdb.execute("info files", to_string=True)
        kind = re.search(r"^(?:Native process|Local (core) dump file:\n\s*`(.*)', file type)", told, re.M)
        word = "remote" if not kind else kind.group(1) or "live"
        arch = inferior.architecture().name().replace(" ", "-")
        paths = [gdb.current_progspace().filename, kind and kind.group(2), gdb.parameter("sysroot")]
        return [word, arch, inferior.pid] + [hexed(p) for p in paths] + [tid_of(gdb.selected_thread() or threads[0])]

    def threads(*names):
        words = []
        for thread in threads_alive():
            values = []
            for name in names:
                try:
                    if not values:
                        thread.switch()
                        frame = gdb.newest_frame()
                    values.append("%x" % (int(frame.read_register(name)) & (1 << 64) - 1))
                except Exception:
                    values.append("-")
            words.append("%d:%s:%s" % (tid_of(thread), hexed(thread.name), ",".join(values)))
        return words

    def maps():
        line = r"^\s*0x(\w+)\s+0x(\w+)\s+0x\w+\s+0x(\w+)[ \t]*(?:([-r][-w][-x][-ps])(?=\s|$))?[ \t]*(.*?)[ \t]*$"
        found = re.findall(line, gdb.execute("info proc mappings", to_string=True), re.M)
        if found:
            return ["%s-%s:%s:%s:%s" % (a, b, p or "-", o, hexed(n)) for a, b, o, p, n in found]
        line = r"^\s*0x(\w+) - 0x(\w+) is ([^\s:]+)(?: in (.*))?$"  # a server that gives no files
        found = re.findall(line, gdb.execute("info files", to_string=True), re.M)
        program = gdb.current_progspace().filename
        return ["%s-%s:%s:-:%s" % (a, b, name, hexed(file or program)) for a, b, name, file in found]

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
            except Exception:
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
        before, thread, level = gdb.selected_thread(), next(t for t in threads_alive() if tid_of(t) == int(tid)), 0
        thread.switch()
        frame = gdb.newest_frame()
        while frame.pc() != int(pc, 16) or sp != "-" and int(frame.read_register("rsp")) != int(sp, 16):
            frame, level = frame.older(), level + 1
        (before or thread).switch()
        # gdb's own commands tell a graphical front end, too
        gdb.execute("thread %d.%d" % (gdb.selected_inferior().num, thread.num))
        if level:
            gdb.execute("frame level %d" % level)

    def end(code):
        gdb.set_convenience_variable("hangscope_exit_code", int(code))


def selected():
    try:
        return gdb.selected_thread(), gdb.selected_frame()
    except gdb.error:
        return gdb.selected_thread(), None


def converse(arguments):
    """Starts hangscope and answers it until it says `end`."""
    binary = os.path.expanduser(gdb.parameter("hangscope-binary") or BINARY)
    environment = dict(os.environ, COLUMNS=str(gdb.parameter("width") or 80))
    dumb = not os.isatty(1) or os.environ.get("TERM", "dumb") == "dumb"
    color = "never" if dumb or not gdb.parameter("style enabled") else "always"
    command = [binary, "bridge", "--color", color] + [os.path.expanduser(a) for a in arguments]
    errors, place, ended = open(os.memfd_create("hangscope"), "w+b"), selected(), False
    try:
        child = Popen(command, env=environment, stdin=PIPE, stdout=PIPE, stderr=errors)
    except OSError as error:
        raise gdb.GdbError("hangscope: cannot start '%s': %s; `set hangscope-binary PATH`" % (binary, error.strerror))
    try:
        for line in child.stdout:
            name, *words = line.decode("ascii", "replace").split() or [""]
            if name not in vars(Answers) or not name.isalpha():
                break
            try:
                answer = " ".join(["ok"] + [str(w) for w in getattr(Answers, name)(*words) or []])
            except Exception as error:
                answer = "no " + hexed(str(error))
            place = selected() if (name, answer) == ("select", "ok") else place
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
    died = "hangscope: '%s' died, or is no hangscope of this version: %s" % (binary, " ".join(said.split()[:60]))
    if not ended:
        raise gdb.GdbError(said if said.startswith("hangscope: ") else died)
    gdb.write(said and said + "\n", gdb.STDERR)


class Hangscope(gdb.Command):
    def __init__(self, verb, usage, text):
        self.verb, self.words = verb, re.findall(r"\w+(?=\|)|(?<=\|)\w+", usage)
        self.__doc__ = "%s\nUsage: %s" % (text, " ".join(["hangscope", verb, usage]).replace("  ", " "))
        super().__init__(("hangscope " + verb).strip(), gdb.COMMAND_STACK, prefix=not verb)

    def invoke(self, argument, _from_tty):
        self.dont_repeat()
        converse(self.verb.split() + gdb.string_to_argv(argument))

    def complete(self, text, word):
        before, _, last = text.rpartition(" ")
        found = self.words if not before else map(str, map(tid_of, threads_alive())) if self.verb == "goto" else []
        if "FILE" in self.__doc__ and (before or not self.words):
            found = glob.glob(glob.escape(last) + "*")
        return [f[len(last) - len(word or "") :] for f in found if f.startswith(last)]  # None: gdb 16 asks twice


WHAT = "The hangscope program that the command `hangscope` starts: its path, or its name on PATH."
Binary = type("Binary", (gdb.Parameter,), {"set_doc": WHAT, "show_doc": WHAT, "get_set_string": lambda _self: ""})
Binary("hangscope-binary", gdb.COMMAND_SUPPORT, gdb.PARAM_OPTIONAL_FILENAME).value = BINARY
Hangscope("", "[OPTIONS]", MAIN)
Hangscope("threads", "[OPTIONS]", "Show what every thread does, waits for and holds.")
Hangscope("graph", "[dot|svg [FILE]]", "Show who waits for whom, or draw it: for Graphviz, or as a picture.")
Hangscope("json", "[FILE]", "Write the report for programs, into FILE or to the screen.")
Hangscope("explain", "", "Say why it cannot go on, and what to change.")
Hangscope("goto", "waits|holds [TID]", "Select the frame that waits, or that took what the selected thread waits for.")
