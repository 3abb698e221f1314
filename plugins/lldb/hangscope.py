"""hangscope inside lldb (16 or newer): who blocks whom in the process or core that is open.

It decides nothing: it starts `hangscope bridge` and answers what that asks. See plugins/PROTOCOL.md.
"""

import os
import shlex
import sys
from subprocess import PIPE, Popen

import lldb

BINARY = "hangscope"
VERSION = 1
SHORT = "Say which threads block each other, over which locks, and what to change."


def hexed(text):
    return (text or "").encode(errors="surrogateescape").hex() or "-"


def unhexed(word, errors="surrogateescape"):
    return "" if word == "-" else bytes.fromhex(word).decode(errors=errors)


def mapped_cores():
    """The cores that this lldb has mapped: before 18 it does not name the core of a process."""
    with open("/proc/self/maps", errors="surrogateescape") as maps:
        paths = {line.rstrip("\n").split(None, 5)[5] for line in maps if " /" in line}
    for path in sorted(filter(os.path.isfile, paths)):
        with open(path, "rb") as file:
            head = file.read(18)
        if head[:4] == b"\x7fELF" and head[16:18] == b"\x04\x00":
            yield path


class Answers:
    """One method for each request; it returns the words of the answer, or raises what keeps it from it."""

    def __init__(self, debugger, result):
        self.debugger, self.result, self.target = debugger, result, debugger.GetSelectedTarget()
        self.held = self.target.GetProcess()
        self.all = [self.held.GetThreadAtIndex(i) for i in range(self.held.GetNumThreads())]

    def hello(self, _version, _theirs):
        return [VERSION, "lldb", self.debugger.GetVersionString().split()[2]]

    def process(self):
        state, core = self.held.GetState(), ""
        if state in (lldb.eStateRunning, lldb.eStateStepping, lldb.eStateAttaching, lldb.eStateLaunching):
            return ["running"]
        if state not in (lldb.eStateStopped, lldb.eStateCrashed, lldb.eStateSuspended) or not self.all:
            return ["none"]
        kind = "core" if self.held.GetPluginName().endswith(("core", "minidump")) else "live"
        if kind == "core" and hasattr(self.held, "GetCoreFile"):
            core = self.held.GetCoreFile().fullpath
        elif kind == "core":
            cores = list(mapped_cores())
            core = cores[0] if len(cores) == 1 else ""
        arch, exe = self.target.GetTriple().split("-")[0], self.target.GetExecutable().fullpath
        selected = self.held.GetSelectedThread().GetThreadID()
        return [kind, arch, self.held.GetProcessID(), hexed(exe), hexed(core), "-", selected]

    def threads(self, *names):
        words = []
        for thread in self.all:
            found = [thread.GetFrameAtIndex(0).FindRegister(name) for name in names]
            values = ["%x" % v.GetValueAsUnsigned() if v.IsValid() and v.GetError().Success() else "-" for v in found]
            words.append("%d:%s:%s" % (thread.GetThreadID(), hexed(thread.GetName()), ",".join(values)))
        return words

    def maps(self):
        regions, region, words = self.held.GetMemoryRegions(), lldb.SBMemoryRegionInfo(), []
        for i in range(regions.GetSize()):
            if regions.GetMemoryRegionAtIndex(i, region) and region.IsMapped():
                rights = (region.IsReadable(), "r"), (region.IsWritable(), "w"), (region.IsExecutable(), "x")
                rights = "".join(c if has else "-" for has, c in rights) + "p"
                at = region.GetRegionBase(), region.GetRegionEnd()
                words.append("%x-%x:%s:-:%s" % (at + (rights, hexed(region.GetName()))))
        # a server or a minidump may tell no files
        return words if any(not w.endswith("-") for w in words) else words + list(self.sections())

    def sections(self):
        for module in self.target.module_iter():
            for part in [part for whole in module.section_iter() for part in list(whole) or [whole]]:
                at, size = part.GetLoadAddress(self.target), part.GetByteSize()
                if at != lldb.LLDB_INVALID_ADDRESS:
                    name = part.GetName() or "section"
                    yield "%x-%x:%s:-:%s" % (at, at + size, name, hexed(module.GetFileSpec().fullpath))

    def auxv(self):
        raise ValueError("lldb does not tell the auxiliary vector")

    def files(self):
        return [
            hexed(self.target.GetModuleAtIndex(i).GetFileSpec().fullpath) for i in range(self.target.GetNumModules())
        ]

    def read(self, *words):
        answers = []
        for at, count in zip(words[::2], words[1::2]):
            data = self.held.ReadMemory(int(at, 16), int(count, 16), lldb.SBError())
            answers.append(data.hex() if data and len(data) == int(count, 16) else "-")
        return answers

    def fetch(self, theirs, ours):
        theirs, ours = lldb.SBFileSpec(unhexed(theirs), False), lldb.SBFileSpec(unhexed(ours), False)
        error = self.target.GetPlatform().Get(theirs, ours)
        if error.Fail():
            raise ValueError(error.GetCString())

    def print(self, text):
        self.result.PutCString(unhexed(text, "replace").rstrip("\n"))

    def set(self, name, value):
        setattr(lldb, "hangscope_" + name, unhexed(value))

    def select(self, tid, pc, sp):
        thread = next(t for t in self.all if t.GetThreadID() == int(tid))
        frames = [thread.GetFrameAtIndex(i) for i in range(thread.GetNumFrames())]
        right = [f for f in frames if f.GetPC() == int(pc, 16) and (sp == "-" or f.GetSP() == int(sp, 16))]
        self.result.PutCString("%s\n%s" % (thread, right[0]))
        self.held.SetSelectedThread(thread)
        thread.SetSelectedFrame(right[0].GetFrameID())

    def end(self, code):
        lldb.hangscope_exit_code = int(code)


def hangscope(debugger, command, _context, result, _internal):
    """Say which threads block each other, over which locks, and what to change.

    hangscope [-v]                    the report
    hangscope threads [-v]            what every thread does, waits for and holds
    hangscope graph [dot|svg [FILE]]  who waits for whom, or draw it
    hangscope json [FILE]             the report for programs
    hangscope explain                 why it cannot go on, and what to change
    hangscope goto waits|holds [TID]  select the frame that waits, or that took what the selected thread waits for

    Options of all: -v, -q, --threads all|blocked|cycle, --sysroot DIR, --debug-dir DIR, --answer-within 60s.
    It only looks. For scripts: lldb.hangscope_verdict, ._headline, ._cycle_tids and ._exit_code."""
    color = "always" if debugger.GetUseColor() and os.isatty(1) else "never"
    binary = os.path.expanduser(BINARY)
    errors, ended, answers = open(os.memfd_create("hangscope"), "w+b"), False, Answers(debugger, result)
    environment = dict(os.environ, COLUMNS=str(debugger.GetTerminalWidth() or 80))
    try:
        words = [binary, "bridge", "--color", color] + [os.path.expanduser(a) for a in shlex.split(command)]
        child = Popen(words, env=environment, stdin=PIPE, stdout=PIPE, stderr=errors)
    except ValueError as error:
        return result.SetError("hangscope: %s" % error)
    except OSError as error:
        where = "hangscope: cannot start '%s': %s; say where it is: `script %s.BINARY = 'PATH'`"
        return result.SetError(where % (binary, error.strerror, __name__))
    try:
        for line in child.stdout:
            name, *words = line.decode("ascii", "replace").split() or [""]
            if name not in vars(Answers) or not name.isalpha():
                break
            try:
                answer = " ".join(["ok"] + [str(w) for w in getattr(answers, name)(*words) or []])
            except Exception as error:
                answer = "no " + hexed(str(error))
            ended = name == "end"
            child.stdin.write(answer.encode("ascii") + b"\n")
            child.stdin.flush()
    except BrokenPipeError:
        pass
    finally:
        if not ended:
            child.kill()
        child.wait()
    errors.seek(0)
    said = errors.read().decode(errors="replace").strip()
    died = "hangscope: '%s' died, or is no hangscope of this version: %s" % (binary, " ".join(said.split()[:60]))
    if not ended:
        result.SetError(said if said.startswith("hangscope: ") else died)
    elif said:
        print(said, file=sys.stderr)


def __lldb_init_module(debugger, _internal):
    debugger.HandleCommand("command script add -o -h '%s' -f %s.hangscope hangscope" % (SHORT, __name__))
