#!/usr/bin/env python3
"""Prints, as JSON, what convert.py needs of the running interpreter's opcodes (3.8 to 3.15):

attribute_loads   opcodes that load an attribute or method by its name, in all specialised forms
attribute_shift   how far their argument is shifted to give the index into co_names
global_loads      opcodes that load a global by its name, and the shift of their argument (global_shift)
name_loads        the same in a module's own code, never shifted
cache_units       inline cache units that follow each opcode, by number
"""
import json
import opcode
import sys

numbers = dict(opcode.opmap)
specialised = {}
if sys.version_info >= (3, 13):
    import _opcode_metadata
    numbers.update(_opcode_metadata._specialized_opmap)
    specialised = _opcode_metadata._specializations
elif sys.version_info >= (3, 11):
    specialised = opcode._specializations
    # the numbers that opmap leaves free, in order (Lib/opcode.py and Tools/build/generate_opcode_h.py)
    free = [n for n in range(1, 256) if opcode.opname[n].startswith("<")]
    numbers.update(zip(opcode._specialized_instructions, [n for n in free]))
base = {s: b for b, all in specialised.items() for s in all}


def family(*names):
    plain = {n: base.get(name, name).replace("INSTRUMENTED_", "") for name, n in numbers.items()}
    return sorted(n for n, name in plain.items() if name in names and n < 256)


entries = getattr(opcode, "_inline_cache_entries", {})
by_name = dict(entries) if hasattr(entries, "items") else {opcode.opname[n]: c for n, c in enumerate(entries)}
caches = [0] * 256
for name, n in numbers.items():
    plain = base.get(name, name).replace("INSTRUMENTED_", "")
    if n < 256:
        caches[n] = by_name.get(plain, 0)
while caches and caches[-1] == 0:
    caches.pop()
print(json.dumps({
    "attribute_loads": family("LOAD_ATTR", "LOAD_METHOD"),
    "attribute_shift": int(sys.version_info >= (3, 12)),
    "global_loads": family("LOAD_GLOBAL"),
    "global_shift": int(sys.version_info >= (3, 11)),
    "name_loads": family("LOAD_NAME"),
    "cache_units": caches,
}))
