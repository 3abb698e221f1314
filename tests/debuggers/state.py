"""gdb: `state FILE` writes down all of a session that a person would miss. What hangscope itself sets is left out."""

import gdb

TOLD = """thread|frame|info threads|info inferiors|info breakpoints|info display|info signals|info registers|info line|info source
info symbol $pc|show|show convenience|show values|info skip|info checkpoints|info program"""


class State(gdb.Command):
    def __init__(self):
        super().__init__("state", gdb.COMMAND_USER)

    def invoke(self, argument, _from_tty):
        with open(argument, "w") as file:
            for command in TOLD.replace("\n", "|").split("|"):
                try:
                    said = gdb.execute(command, to_string=True)
                except gdb.error as error:
                    said = str(error)
                # the newest variable stands behind the title
                lines = [line.replace("convenience:  ", "") for line in said.splitlines()]
                lines = [line for line in lines if "hangscope_" not in line]
                file.write("\n".join(["== " + command] + lines) + "\n")


State()
