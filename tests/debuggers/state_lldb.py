"""lldb: `state FILE` writes down all of a session that a person would miss."""

import lldb

TOLD = """thread info|frame info|thread list|breakpoint list -f|watchpoint list|target list|target stop-hook list
settings show|register read --all|process status|process handle|image list|memory region --all|frame variable"""


def state(debugger, argument, _result, _internal):
    with open(argument, "w") as file:
        for command in TOLD.replace("\n", "|").split("|"):
            said = lldb.SBCommandReturnObject()
            debugger.GetCommandInterpreter().HandleCommand(command, said)
            file.write("== %s\n%s%s\n" % (command, said.GetOutput(), said.GetError()))


def __lldb_init_module(debugger, _internal):
    debugger.HandleCommand("command script add -o -f state_lldb.state state")
