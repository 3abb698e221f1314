#!/usr/bin/env python3
"""Makes the tables of this folder from offset files.

    convert.py OFFSETS_DIRECTORY

An offset file is JSON: `about` (what it came from), `constants`, and `structs.NAME.{size,fields}`, where a field is a
byte offset or, for a bit field, `[byte, bit, width]`. They are read from the DWARF of an interpreter with gdb's
`ptype /o`, or from an object compiled against the interpreter's headers. One table is written per minor version and
build kind, with what opcodes.py printed under each interpreter (opcodes.json); where two micro versions differ, both structs stand in it and `applies` tells them apart.
"""
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
# table -> offset files; of a struct that differs between them, the first is the older micro version
TABLES = {
    "3.8": ["3.8"], "3.9": ["3.9"], "3.10": ["3.10"], "3.11": ["3.11"], "3.12": ["3.12"],
    "3.13": ["3.13.0", "3.13.18"], "3.14": ["3.14"], "3.15": ["3.15"],
    "3.13t": ["3.13.5t", "3.13t"], "3.14t": ["3.14.7t", "3.14t"], "3.15t": ["3.15t"],
}
# what tells two micro versions apart, per table: (older, newer)
APPLIES = {"3.13": ('version = "<3.13.5"', 'version = ">=3.13.5"'), "3.13t": ('version = "<3.13.15"', 'version = ">=3.13.15"'),
           "3.14t": ('version = "<3.14.10"', 'version = ">=3.14.10"')}

TYPES = {
    "i32": """_status.word holds_gil _whence state gil_requested gilstate_counter gi_frame_state_int co_argcount
        co_posonlyargcount co_kwonlyargcount co_nlocals co_nlocalsplus co_stacksize co_flags co_firstlineno co_framesize
        co_ncellvars co_nfreevars co_version co_opcache_flag co_opcache_size eval_breaker_int f_lasti f_lineno f_iblock f_stackdepth b_type b_handler b_level stacktop own_gil
        locked_int enabled collecting ml_flags maxvalue kind handed_off tlbc_index count_int task_state fut_state
        _key _is_initialized preinitialized initialized check_enabled _initialized""",
    "i8": "owner is_entry f_state gi_frame_state f_executing",
    "u8": """_bits mutex_byte thread_is_exiting once requested world_stopped is_global v has_threads_waiting
        dk_log2_size dk_log2_index_bytes dk_kind capacity size embedded valid ob_mutex ob_gc_bits visited task_is_task
        task_awaited_by_is_set fut_is_task dk_mutex is_unparking has_os_handle stop_event use_tracing gi_running""",
    "u16": "return_offset co_warmup",
    "u32": "ob_ref_local dk_version dk_refcnt_32",
    "i64": "id next_id main_thread dk_size dk_usable dk_nentries length hash ma_used ob_size thread_countdown time_to_be_fair",
    "u64": """thread_id native_thread_id interval switch_number ob_refcnt tp_flags tp_basicsize tp_itemsize tp_dictoffset
        tp_weaklistoffset lv_tag ident os_handle level thread rlock_owner rlock_count last_tid num_waiters cookie version
        free_threaded me_hash""",
}
BY_NAME = {n: t for t, names in TYPES.items() for n in names.split()}
EXACT = {
    ("_gil_runtime_state", "locked"): "i32", ("PyInterpreterState", "_gil.locked"): "i32",
    ("_PyRuntimeState", "ceval.gil.locked"): "i32", ("lockobject", "locked"): "u8", ("lockobject", "lock"): "u8",
    ("buffered", "owner"): "u64", ("SemLockObject", "count"): "i32", ("simplequeueobject", "locked"): "i32",
    ("rlockobject", "lock.mutex"): "u8", ("PyInterpreterState", "imports.lock.mutex"): "u8",
    ("PyInterpreterState", "imports.lock.level"): "u64", ("ThreadHandle", "mutex"): "u8", ("ThreadHandle", "state"): "i32",
    ("_PyRecursiveMutex", "mutex"): "u8", ("Bucket", "mutex"): "u64", ("PyGenObject", "gi_running"): "u8",
    ("PyInterpreterState", "stoptheworld.mutex"): "u8", ("_PyRuntimeState", "stoptheworld.mutex"): "u8",
    ("_PyRuntimeState", "stoptheworld_mutex"): "u8", ("PyObject", "ob_flags"): "u16",
    ("PyObject", "ob_overflow"): "u16", ("PyFrameObject", "f_executing"): "u8", ("_PyRWMutex", "bits"): "u64",
    ("PyCodeObject", "co_nplaincellvars"): "i32",
    ("PyInterpreterState", "ceval.eval_breaker"): "i32", ("PyObject", "ob_refcnt"): "u32", ("PyObject", "ob_refcnt_full"): "u64",
    ("PyASCIIObject", "state.interned"): "u8", ("_PyCodeArray", "size"): "i64", ("PyThreadState", "_initialized"): "i32",
}
# made from headers, and compared afterwards with the DWARF of such an interpreter and with programs it ran
COMPARED = {"3.14t"}
STRUCT = {"cond", "mutex", "switch_cond", "switch_mutex", "f_blockstack", "f_localsplus", "localsplus", "ob_item_inline",
          "co_code_adaptive", "dk_indices", "values", "entries", "ob_sval", "ob_digit", "gi_iframe", "sema", "node",
          "platform_sem", "root", "_gil", "_initial_thread", "_main_interpreter", "interpreters.mutex", "qsbr", "mimalloc",
          "brc", "freelists", "gc", "base", "_cs_base", "task_node", "f_frame_data", "root_cframe", "ob_base", "d_common"}

# values of PyGenObject.gi_frame_state, as bytes, that mean suspended (enum _frameState of pycore_frame.h)
GEN_SUSPENDED = {"3.11": [255], "3.12": [255], "3.13": [254, 255], "3.14": [254, 255], "3.15": [1, 2, 3]}

# structs the offset files leave out, the same in every version they are given for (first, last): read with `ptype /o` from
# CPython 3.8.18, 3.10.13, 3.12.1 and 3.13.0 built with debug information. Where a struct begins with an object header,
# that of the free-threaded build is larger by so many bytes (last).
EXTRA = [
    ("PySetObject", 200, {"fill": [16, "i64"], "used": [24, "i64"], "mask": [32, "i64"], "table": [40, "ptr"]}, 8, 15, 16),
    ("setentry", 16, {"key": [0, "ptr"], "hash": [8, "i64"]}, 8, 15, 0),
    ("deque_block", 528, {"leftlink": [0, "ptr"], "data": [8, "u64[64]"], "rightlink": [520, "ptr"]}, 8, 15, 0),
]


def extra_text(table):
    minor, free = int(table.rstrip("t").split(".")[1]), table.endswith("t")
    for name, size, fields, first, last, header in EXTRA:
        if first <= minor <= last:
            shift = header if free else 0
            body = "\n".join(f'{f} = [{at + shift}, "{kind}"]' for f, (at, kind) in fields.items())
            source = f"`{name.replace('deque_block', 'BLOCK')}` of CPython 3.8.18, 3.10.13, 3.12.1, 3.13.0: DWARF"
            source += ", moved by the larger object header" if shift else ""
            yield f'[[struct]]\nname = "{name}"\nsize = {size + shift}\nsource = "{source}"\n[struct.fields]\n{body}\n'



def kind(struct, field, fields):
    """The schema's type of a field; None for a struct inside a struct, whose own fields stand in the table."""
    if struct.endswith("DebugOffsets"):
        return None if any(f.startswith(field + ".") for f in fields) else "u64"
    if (struct, field) in EXACT:
        return EXACT[struct, field]
    last = field.rsplit(".", 1)[-1]
    if field in STRUCT or last in STRUCT:
        return "u8[0]"
    if any(f.startswith(field + ".") for f in fields):
        return None
    return BY_NAME.get(last, "ptr")


def struct_text(name, size, fields, source, applies):
    out = []
    for field, at in sorted(fields.items(), key=lambda kv: (kv[1][0] if isinstance(kv[1], list) else kv[1], kv[0])):
        key = field if field.replace("_", "").isalnum() else f'"{field}"'
        if isinstance(at, list):
            out.append(f'{key} = [{at[0]}, "bits {at[1]} {at[2]}"]')
        elif (k := kind(name, field, fields)) is not None:
            out.append(f'{key} = [{at}, "{k}"]')
    when = f"applies = {{ {applies} }}\n" if applies else ""
    body = "\n".join(out)
    return f'[[struct]]\nname = "{name}"\n{when}size = {size}\nsource = "{source}"\n[struct.fields]\n{body}\n'


def derive(given):
    """Adds to a free-threaded table that came from headers the structs private to C files: the GIL build's, moved by the
    larger object header where the struct begins with one (so in 3.13, where both were measured)."""
    shift = given["constants"].get("header_shift")
    model = given.get("model")
    if not shift or not model:
        return
    for name in ("lockobject", "rlockobject", "buffered", "SemLockObject", "simplequeueobject", "PyThreadHandleObject"):
        if name not in given["structs"] and name in model:
            fields = {f: at + shift for f, at in model[name]["fields"].items() if f != "ob_base"}
            given["structs"][name] = {"size": model[name]["size"] + shift, "fields": fields}
            given.setdefault("derived", []).append(name)
    for name in ("ThreadHandle", "wait_entry", "mutex_entry"):
        if name not in given["structs"] and name in model:
            given["structs"][name] = model[name]
            given.setdefault("derived", []).append(name)


def main(directory):
    opcodes = json.loads((HERE / "opcodes.json").read_text())
    for table, files in TABLES.items():
        given = [json.loads((directory / f"{f}.json").read_text()) for f in files]
        model = directory / f"{table.rstrip('t')}.json"
        if table.endswith("t") and model.exists():
            for g in given:
                g["model"] = json.loads(model.read_text())["structs"]
        version, build = table.rstrip("t"), "free-threaded" if table.endswith("t") else "gil"
        newest = given[-1]
        source = "; ".join(f'{g["about"]["interpreter"]}: {g["about"]["derived_by"].split(":")[0]}' for g in given)
        text = [f"# CPython {version}, {build} build, x86_64: struct layouts and constants. Made by convert.py.",
                f"# From {source}.", "", "[constants]"]
        # never compared with an interpreter that runs: what is read by it is told so
        if newest["about"]["derived_by"].startswith("headers") and table not in COMPARED:
            text.append('made_from = "headers"')
        constants = newest["constants"]
        for key in ("line_table", "jump_backward_all_forms", "jump_backward_cache_units", "stackref_tag_mask", "PyThread_type_lock"):
            if key in constants:
                text.append(f"{key} = {json.dumps(constants[key])}")
        if version in GEN_SUSPENDED:
            text.append(f"gen_suspended = {GEN_SUSPENDED[version]}")
        for key, value in opcodes.get(version, {}).items():
            text.append(f"{key} = {json.dumps(value)}")
        for key, value in sorted(constants.get("opcodes", {}).items()):
            text.append(f"{key} = {value}")
        # EXTENDED_ARG is 144 in every version up to 3.12; the offset files name it where they need it
        if version in ("3.8", "3.9", "3.10", "3.11"):
            text.append("EXTENDED_ARG = 144")
        text.append("")
        for g in given:
            derive(g)
        names = []
        for g in given:
            names += [n for n in g["structs"] if n not in names]
        for name in names:
            seen = []
            for i, g in enumerate(given):
                s = g["structs"].get(name)
                if s and s not in [x for _, x in seen]:
                    seen.append((i, s))
            for i, s in seen:
                applies = APPLIES[table][0 if i == 0 else 1] if len(seen) > 1 else None
                about = given[i]["about"]
                what = about["interpreter"].split(" built")[0].split(" (")[0]
                c_name = about["structs"].get(name, name)
                if name in given[i].get("derived", []):
                    how = "the GIL build's, moved by the larger object header where it begins with one"
                else:
                    how = "headers compiled" if about["derived_by"].startswith("headers") else "DWARF"
                text.append(struct_text(name, s["size"], s["fields"], f"`{c_name}` of {what}: {how}", applies))
        text += extra_text(table)
        (HERE / f"{table}.toml").write_text("\n".join(text))


main(pathlib.Path(sys.argv[1]))
