//! The offsets one interpreter is read with: the table of its version, and over it what the interpreter itself says in
//! `_Py_DebugOffsets` (since CPython 3.13, gh-106597).
//!
//! A field that a version has not is `None`; nobody asks for the version to find out.

use super::attached::AttachOffsets;
use super::containers::ContainerOffsets;
use super::futures::AsyncioOffsets;
use super::inferred::CallOffsets;
use super::locks::LockOffsets;
use super::with_blocks::WithOffsets;
use crate::layout::{Field, Layouts, Subject, Table, Version};
use crate::memory::{Memory, MemoryExt};
use crate::units::Addr;

/// Why a version cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum NoOffsets {
    /// There is no table for it.
    UnknownVersion,
    /// The table lacks a field that every version has.
    Lacks(String),
}

/// How line tables are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LineTable {
    /// `co_lnotab`, up to 3.9.
    Lnotab,
    /// `co_linetable` of 3.10.
    Ranges,
    /// `co_linetable` since 3.11 (gh-90997, PEP 657).
    Locations,
}

/// Where an object's reference count is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct CountOffsets {
    /// `ob_refcnt`, of which the low half counts.
    pub whole: Option<u64>,
    /// `ob_ref_local` and `ob_ref_shared`: free-threaded.
    pub split: Option<(u64, u64)>,
}

/// Where a thread's newest frame hangs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FrameRoot {
    /// A pointer in the thread state: `frame` up to 3.10, `current_frame` since 3.13.
    Direct(u64),
    /// A pointer to a `_PyCFrame`, and the offset in it: 3.11 and 3.12.
    Through(u64, u64),
}

/// A frame's code object, position and links: `PyFrameObject` up to 3.10.
#[derive(Clone, Debug)]
pub(super) struct ObjectFrame {
    pub back: u64,
    pub code: u64,
    pub lasti: u64,
    /// Bytes of code per unit of `f_lasti`: 1 up to 3.9, 2 in 3.10.
    pub lasti_unit: u64,
    pub valuestack: u64,
    pub iblock: u64,
    pub blockstack: u64,
    pub localsplus: u64,
    pub globals: u64,
    pub block_size: u64,
    pub block_type: u64,
    pub block_level: u64,
    pub block_handler: u64,
}

/// The same for `_PyInterpreterFrame`, since 3.11.
#[derive(Clone, Debug)]
pub(super) struct InlineFrame {
    pub previous: u64,
    pub executable: u64,
    /// `prev_instr` or `instr_ptr`.
    pub instruction: u64,
    pub owner: u64,
    /// 3.11 only.
    pub is_entry: Option<u64>,
    pub localsplus: u64,
    pub globals: u64,
    /// Since free-threaded 3.14.
    pub tlbc_index: Option<u64>,
    pub size: usize,
}

#[derive(Clone, Debug)]
pub(super) enum FrameLayout {
    Object(ObjectFrame),
    Inline(InlineFrame),
}

/// A dictionary's table of keys.
#[derive(Clone, Debug)]
pub(super) struct DictKeys {
    /// Up to 3.10: the number of slots.
    pub dk_size: Option<u64>,
    /// Since 3.11: log2 of the index table's bytes.
    pub log2_index_bytes: Option<u64>,
    /// Since 3.11: 0 means entries with a hash.
    pub kind: Option<u64>,
    pub nentries: u64,
    pub indices: u64,
}

/// Where instances keep their attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Attributes {
    /// A dict at `tp_dictoffset`, up to 3.10.
    DictOffset,
    /// 3.11: values pointer at −32, dict pointer at −24.
    ValuesPointer,
    /// 3.12: one tagged word at −24.
    TaggedWord,
    /// Since 3.13: values after the object, dict pointer at this offset before it.
    Inline(i64),
}

/// Everything the readers of this room ask for. Offsets in bytes.
#[derive(Clone, Debug)]
pub(super) struct Offsets {
    pub line_table: LineTable,

    // _PyRuntimeState
    pub runtime_head: u64,
    pub runtime_main: u64,
    pub runtime_gil: Option<u64>,
    pub runtime_tstate_current: Option<u64>,
    pub runtime_tss_key: Option<u64>,

    // PyInterpreterState
    pub interp_next: u64,
    pub interp_id: u64,
    pub interp_threads: u64,
    pub interp_modules: u64,
    pub interp_gil: Option<u64>,
    pub interp_own_gil: Option<u64>,
    /// Since 3.12; a `_PyRecursiveMutex` since 3.13.
    pub imports_lock: Option<u64>,

    // PyThreadState
    pub tstate_size: usize,
    pub tstate_next: u64,
    pub tstate_interp: u64,
    pub tstate_thread_id: u64,
    pub tstate_native_id: Option<u64>,
    pub tstate_holds_gil: Option<Field>,
    pub tstate_bound_gilstate: Option<Field>,
    pub tstate_chunk: Option<u64>,
    pub tstate_chunk_top: Option<u64>,
    pub frame_root: FrameRoot,

    pub frame: FrameLayout,
    /// Owners from this number on are no Python frames.
    pub first_shim_owner: Option<u8>,
    /// Bits of a stack reference that are no part of the pointer, and the bit pattern of no pointer at all.
    pub stack_mask: u64,

    // PyCodeObject
    pub code_size: usize,
    pub code_filename: u64,
    pub code_name: u64,
    pub code_qualname: Option<u64>,
    pub code_firstlineno: u64,
    pub code_linetable: u64,
    pub code_exceptiontable: Option<u64>,
    pub code_stacksize: u64,
    pub code_nlocals: u64,
    pub code_names: u64,
    pub code_nlocalsplus: Option<u64>,
    /// The code as a `bytes` object (up to 3.10) …
    pub code_bytes: Option<u64>,
    /// … or in place.
    pub code_adaptive: Option<u64>,
    /// Free-threaded since 3.14: copies of the code for each thread.
    pub code_tlbc: Option<u64>,
    /// Up to 3.10: locals, cells, frees as three tuples.
    pub code_varnames: Option<(u64, u64, u64)>,
    /// Since 3.11: one tuple and the kinds.
    pub code_localsplus: Option<(u64, u64)>,

    // objects
    pub ob_type: u64,
    pub counts: CountOffsets,
    pub ob_size: u64,
    pub str_size: u64,
    pub str_compact_size: u64,
    pub str_length: u64,
    pub str_kind: Field,
    pub str_compact: Field,
    pub str_ascii: Field,
    pub str_data: u64,
    pub bytes_data: u64,
    pub tuple_items: u64,
    /// Up to 3.11: digits after a signed size; since 3.12: after a tag.
    pub int_tag: Option<u64>,
    pub int_digits: u64,
    pub dict_keys: u64,
    pub dict_values: u64,
    pub keys: DictKeys,
    pub values_header: u64,
    pub values_valid: Option<u64>,
    pub attributes: Attributes,
    pub type_name: u64,
    pub type_basicsize: u64,
    pub type_flags: u64,
    pub type_dict: u64,
    pub type_dictoffset: u64,
    pub type_mro: u64,
    pub type_cached_keys: u64,
    pub cfunction_ml: u64,
    pub cfunction_self: u64,
    pub methoddef_name: u64,
    pub methoddescr_method: u64,
    pub method_func: u64,
    pub method_self: u64,
    pub function_name: u64,
    pub function_code: u64,
    pub function_globals: u64,
    pub code_consts: u64,
    pub cell_ref: u64,
    pub module_dict: u64,
    pub list_items: u64,
    pub queue_ring: Option<u64>,
    pub queue_list: Option<u64>,
    pub weakref_object: Option<u64>,
    pub gen_frame: Option<u64>,
    pub gen_iframe: Option<u64>,
    pub gen_state: Option<u64>,
    /// Values of it that mean suspended in a yield or an await.
    pub gen_suspended: Vec<u8>,

    /// `PyFrameObject.f_frame`: since 3.11 a frame object is no frame itself.
    pub frame_object_frame: Option<u64>,
    /// The thread state of the thread that ends the interpreter; null before that.
    pub runtime_finalizing: Option<u64>,

    pub gil: GilOffsets,
    /// Builds without the GIL only.
    pub attach: Option<AttachOffsets>,
    /// Whether the table was made from headers alone, and never compared with a running interpreter.
    pub by_headers: bool,
    pub locks: LockOffsets,
    pub containers: ContainerOffsets,
    pub asyncio: AsyncioOffsets,
    pub with: WithOffsets,
    pub calls: CallOffsets,
}

/// `struct _gil_runtime_state`.
#[derive(Clone, Copy, Debug)]
pub(super) struct GilOffsets {
    /// Free-threaded builds only.
    pub enabled: Option<u64>,
    pub last_holder: u64,
    pub locked: u64,
    pub cond: u64,
    pub mutex: u64,
    pub switch_cond: u64,
    pub switch_mutex: u64,
    pub size: usize,
}

/// Bytes of glibc's `pthread_cond_t` and `pthread_mutex_t` on x86-64.
pub(super) const COND_SIZE: u64 = 48;

struct Chooser<'a> {
    table: &'a Table,
    subject: Subject,
    own: Vec<(&'static str, &'static str, u64)>,
}

impl Chooser<'_> {
    fn field(&self, name: &str, field: &str) -> Option<Field> {
        let mut found = self.table.layout(name, &self.subject)?.field(field)?;
        if let Some((_, _, own)) = self.own.iter().find(|(s, f, _)| *s == name && *f == field) {
            found.offset = *own;
        }
        Some(found)
    }

    fn opt(&self, name: &str, field: &str) -> Option<u64> {
        self.field(name, field).map(|f| f.offset)
    }

    fn need(&self, name: &str, field: &str) -> Result<u64, NoOffsets> {
        self.opt(name, field).ok_or_else(|| NoOffsets::Lacks(format!("{name}.{field}")))
    }

    fn need_field(&self, name: &str, field: &str) -> Result<Field, NoOffsets> {
        self.field(name, field).ok_or_else(|| NoOffsets::Lacks(format!("{name}.{field}")))
    }

    fn any(&self, name: &str, fields: &[&str]) -> Result<u64, NoOffsets> {
        fields
            .iter()
            .find_map(|f| self.opt(name, f))
            .ok_or_else(|| NoOffsets::Lacks(format!("{name}.{}", fields.join(" or "))))
    }

    fn size(&self, name: &str) -> Result<u64, NoOffsets> {
        self.table.layout(name, &self.subject).and_then(|s| s.size).ok_or_else(|| NoOffsets::Lacks(name.to_owned()))
    }

    fn size_usize(&self, name: &str) -> Result<usize, NoOffsets> {
        usize::try_from(self.size(name)?).map_err(|_| NoOffsets::Lacks(name.to_owned()))
    }
}

/// What `_Py_DebugOffsets` calls a field, and what the tables call it.
const OWN_ACCOUNT: &[(&str, &str, &str)] = &[
    ("runtime_state.finalizing", "_PyRuntimeState", "_finalizing"),
    ("runtime_state.interpreters_head", "_PyRuntimeState", "interpreters.head"),
    ("interpreter_state.id", "PyInterpreterState", "id"),
    ("interpreter_state.next", "PyInterpreterState", "next"),
    ("interpreter_state.threads_head", "PyInterpreterState", "threads.head"),
    ("interpreter_state.imports_modules", "PyInterpreterState", "imports.modules"),
    ("interpreter_state.ceval_gil", "PyInterpreterState", "ceval.gil"),
    ("thread_state.next", "PyThreadState", "next"),
    ("thread_state.interp", "PyThreadState", "interp"),
    ("thread_state.current_frame", "PyThreadState", "current_frame"),
    ("thread_state.thread_id", "PyThreadState", "thread_id"),
    ("thread_state.native_thread_id", "PyThreadState", "native_thread_id"),
    ("thread_state.datastack_chunk", "PyThreadState", "datastack_chunk"),
    ("interpreter_frame.previous", "_PyInterpreterFrame", "previous"),
    ("interpreter_frame.executable", "_PyInterpreterFrame", "f_executable"),
    ("interpreter_frame.instr_ptr", "_PyInterpreterFrame", "instr_ptr"),
    ("interpreter_frame.localsplus", "_PyInterpreterFrame", "localsplus"),
    ("interpreter_frame.owner", "_PyInterpreterFrame", "owner"),
    ("interpreter_frame.stackpointer", "_PyInterpreterFrame", "stackpointer"),
    ("interpreter_frame.tlbc_index", "_PyInterpreterFrame", "tlbc_index"),
    ("code_object.filename", "PyCodeObject", "co_filename"),
    ("code_object.name", "PyCodeObject", "co_name"),
    ("code_object.qualname", "PyCodeObject", "co_qualname"),
    ("code_object.linetable", "PyCodeObject", "co_linetable"),
    ("code_object.firstlineno", "PyCodeObject", "co_firstlineno"),
    ("code_object.localsplusnames", "PyCodeObject", "co_localsplusnames"),
    ("code_object.localspluskinds", "PyCodeObject", "co_localspluskinds"),
    ("code_object.co_code_adaptive", "PyCodeObject", "co_code_adaptive"),
    ("pyobject.ob_type", "PyObject", "ob_type"),
    ("type_object.tp_name", "PyTypeObject", "tp_name"),
    ("type_object.tp_flags", "PyTypeObject", "tp_flags"),
    ("tuple_object.ob_item", "PyTupleObject", "ob_item"),
    ("list_object.ob_item", "PyListObject", "ob_item"),
    ("dict_object.ma_keys", "PyDictObject", "ma_keys"),
    ("dict_object.ma_values", "PyDictObject", "ma_values"),
    ("bytes_object.ob_sval", "PyBytesObject", "ob_sval"),
    ("unicode_object.length", "PyASCIIObject", "length"),
];

/// Offsets beyond this are no offsets: the largest struct of any version is 460 kB.
const MAX_OFFSET: u64 = 1 << 20;

/// Reads the interpreter's own account of its layout at `runtime`, by the table's idea of where each number stands.
fn read_own_account(
    table: &Table,
    subject: &Subject,
    runtime: Addr,
    memory: &dyn Memory,
) -> Vec<(&'static str, &'static str, u64)> {
    let Some(layout) = table.layout("_Py_DebugOffsets", subject) else { return Vec::new() };
    OWN_ACCOUNT
        .iter()
        .filter_map(|(name, structure, field)| {
            let at = layout.offset(name)?;
            let value = memory.read_u64(runtime.checked_add(at)?).ok()?;
            (value < MAX_OFFSET).then_some((*structure, *field, value))
        })
        .collect()
}

impl Offsets {
    /// Chooses the offsets of CPython `version`, whose `_PyRuntime` lies at `runtime`.
    pub(super) fn choose(
        version: (u32, Option<u32>),
        free_threaded: bool,
        own_account: Option<(Addr, &dyn Memory)>,
    ) -> Result<Offsets, NoOffsets> {
        let (minor, micro) = version;
        let table = Layouts::cpython(minor, free_threaded).ok_or(NoOffsets::UnknownVersion)?;
        let table = table.map_err(|e| NoOffsets::Lacks(e.to_string()))?;
        // a micro version nobody told: the newest is the likeliest
        let version = Version::parse(&format!("3.{minor}.{}", micro.unwrap_or(99)));
        let subject = Subject::version(version);
        let own = own_account.map_or_else(Vec::new, |(at, memory)| read_own_account(&table, &subject, at, memory));
        Offsets::from_table(&Chooser { table: &table, subject, own }, free_threaded)
    }

    fn from_table(c: &Chooser<'_>, free_threaded: bool) -> Result<Offsets, NoOffsets> {
        let runtime_head = c.need("_PyRuntimeState", "interpreters.head")?;
        let gil = GilOffsets {
            enabled: c.opt("_gil_runtime_state", "enabled"),
            last_holder: c.need("_gil_runtime_state", "last_holder")?,
            locked: c.need("_gil_runtime_state", "locked")?,
            cond: c.need("_gil_runtime_state", "cond")?,
            mutex: c.need("_gil_runtime_state", "mutex")?,
            switch_cond: c.need("_gil_runtime_state", "switch_cond")?,
            switch_mutex: c.need("_gil_runtime_state", "switch_mutex")?,
            size: c.size_usize("_gil_runtime_state")?,
        };
        let frame = match c.opt("_PyInterpreterFrame", "localsplus") {
            Some(localsplus) => FrameLayout::Inline(InlineFrame {
                previous: c.need("_PyInterpreterFrame", "previous")?,
                executable: c.any("_PyInterpreterFrame", &["f_executable", "f_code"])?,
                instruction: c.any("_PyInterpreterFrame", &["instr_ptr", "prev_instr"])?,
                owner: c.need("_PyInterpreterFrame", "owner")?,
                is_entry: c.opt("_PyInterpreterFrame", "is_entry"),
                localsplus,
                globals: c.need("_PyInterpreterFrame", "f_globals")?,
                tlbc_index: c.opt("_PyInterpreterFrame", "tlbc_index"),
                size: c.size_usize("_PyInterpreterFrame")?,
            }),
            None => FrameLayout::Object(ObjectFrame {
                back: c.need("PyFrameObject", "f_back")?,
                code: c.need("PyFrameObject", "f_code")?,
                lasti: c.need("PyFrameObject", "f_lasti")?,
                lasti_unit: if c.opt("PyCodeObject", "co_linetable").is_some() { 2 } else { 1 },
                valuestack: c.need("PyFrameObject", "f_valuestack")?,
                iblock: c.need("PyFrameObject", "f_iblock")?,
                blockstack: c.need("PyFrameObject", "f_blockstack")?,
                localsplus: c.need("PyFrameObject", "f_localsplus")?,
                globals: c.need("PyFrameObject", "f_globals")?,
                block_size: c.size("PyTryBlock")?,
                block_type: c.need("PyTryBlock", "b_type")?,
                block_level: c.need("PyTryBlock", "b_level")?,
                block_handler: c.need("PyTryBlock", "b_handler")?,
            }),
        };
        let frame_root = match (c.opt("_PyCFrame", "current_frame"), c.opt("PyThreadState", "cframe")) {
            (Some(inner), Some(outer)) => FrameRoot::Through(outer, inner),
            _ => FrameRoot::Direct(c.any("PyThreadState", &["current_frame", "frame"])?),
        };
        let attributes = if c.opt("PyDictValues", "embedded").is_some() {
            Attributes::Inline(if free_threaded { -8 } else { -24 })
        } else if c.opt("PyASCIIObject", "state.statically_allocated").is_some() {
            Attributes::TaggedWord
        } else if c.opt("PyDictUnicodeEntry", "me_key").is_some() {
            Attributes::ValuesPointer
        } else {
            Attributes::DictOffset
        };
        let line_table = match c.table.word("line_table") {
            Some("lnotab") => LineTable::Lnotab,
            Some("linetable_310") => LineTable::Ranges,
            Some("locations_311") => LineTable::Locations,
            _ => return Err(NoOffsets::Lacks("line_table".to_owned())),
        };
        let has_shims = c.opt("_PyInterpreterFrame", "return_offset").is_some();
        Ok(Offsets {
            line_table,
            runtime_head,
            // right behind it in every version
            runtime_main: runtime_head + 8,
            runtime_gil: c.opt("_PyRuntimeState", "ceval.gil.interval"),
            runtime_tstate_current: c.opt("_PyRuntimeState", "gilstate.tstate_current"),
            runtime_tss_key: c.any("_PyRuntimeState", &["autoTSSkey._key", "gilstate.autoTSSkey._key"]).ok(),
            interp_next: c.need("PyInterpreterState", "next")?,
            interp_id: c.need("PyInterpreterState", "id")?,
            interp_threads: c.any("PyInterpreterState", &["threads.head", "tstate_head"])?,
            interp_modules: c.any("PyInterpreterState", &["imports.modules", "modules"])?,
            interp_gil: c.opt("PyInterpreterState", "ceval.gil"),
            interp_own_gil: c.opt("PyInterpreterState", "ceval.own_gil"),
            imports_lock: c.opt("PyInterpreterState", "imports.lock.mutex"),
            tstate_size: c.size_usize("PyThreadState")?,
            tstate_next: c.need("PyThreadState", "next")?,
            tstate_interp: c.need("PyThreadState", "interp")?,
            tstate_thread_id: c.need("PyThreadState", "thread_id")?,
            tstate_native_id: c.opt("PyThreadState", "native_thread_id"),
            tstate_holds_gil: c
                .field("PyThreadState", "holds_gil")
                .or_else(|| c.field("PyThreadState", "_status.holds_gil"))
                .or_else(|| c.field("PyThreadState", "_status.active")),
            tstate_bound_gilstate: c.field("PyThreadState", "_status.bound_gilstate"),
            tstate_chunk: c.opt("PyThreadState", "datastack_chunk"),
            tstate_chunk_top: c.opt("PyThreadState", "datastack_top"),
            frame_root,
            frame,
            first_shim_owner: has_shims.then_some(3),
            stack_mask: match c.opt("_PyInterpreterFrame", "stackpointer") {
                Some(_) if free_threaded => 1,
                Some(_) => 3,
                None => 0,
            },
            code_size: c.size_usize("PyCodeObject")?,
            code_filename: c.need("PyCodeObject", "co_filename")?,
            code_name: c.need("PyCodeObject", "co_name")?,
            code_qualname: c.opt("PyCodeObject", "co_qualname"),
            code_firstlineno: c.need("PyCodeObject", "co_firstlineno")?,
            code_linetable: c.any("PyCodeObject", &["co_linetable", "co_lnotab"])?,
            code_exceptiontable: c.opt("PyCodeObject", "co_exceptiontable"),
            code_stacksize: c.need("PyCodeObject", "co_stacksize")?,
            code_nlocals: c.need("PyCodeObject", "co_nlocals")?,
            code_names: c.need("PyCodeObject", "co_names")?,
            code_nlocalsplus: c.opt("PyCodeObject", "co_nlocalsplus"),
            code_bytes: c.opt("PyCodeObject", "co_code"),
            code_adaptive: c.opt("PyCodeObject", "co_code_adaptive"),
            code_tlbc: c.opt("PyCodeObject", "co_tlbc"),
            code_varnames: (|| {
                Some((
                    c.opt("PyCodeObject", "co_varnames")?,
                    c.opt("PyCodeObject", "co_cellvars")?,
                    c.opt("PyCodeObject", "co_freevars")?,
                ))
            })(),
            code_localsplus: c
                .opt("PyCodeObject", "co_localsplusnames")
                .zip(c.opt("PyCodeObject", "co_localspluskinds")),
            ob_type: c.need("PyObject", "ob_type")?,
            counts: CountOffsets {
                whole: c.opt("PyObject", "ob_refcnt"),
                split: c.opt("PyObject", "ob_ref_local").zip(c.opt("PyObject", "ob_ref_shared")),
            },
            ob_size: c.need("PyVarObject", "ob_size")?,
            str_size: c.size("PyASCIIObject")?,
            str_compact_size: c.size("PyCompactUnicodeObject")?,
            str_length: c.need("PyASCIIObject", "length")?,
            str_kind: c.need_field("PyASCIIObject", "state.kind")?,
            str_compact: c.need_field("PyASCIIObject", "state.compact")?,
            str_ascii: c.need_field("PyASCIIObject", "state.ascii")?,
            str_data: c.need("PyUnicodeObject", "data")?,
            bytes_data: c.need("PyBytesObject", "ob_sval")?,
            tuple_items: c.need("PyTupleObject", "ob_item")?,
            int_tag: c.opt("PyLongObject", "long_value.lv_tag"),
            int_digits: c.any("PyLongObject", &["long_value.ob_digit", "ob_digit"])?,
            dict_keys: c.need("PyDictObject", "ma_keys")?,
            dict_values: c.need("PyDictObject", "ma_values")?,
            keys: DictKeys {
                dk_size: c.opt("PyDictKeysObject", "dk_size"),
                log2_index_bytes: c.opt("PyDictKeysObject", "dk_log2_index_bytes"),
                kind: c.opt("PyDictKeysObject", "dk_kind"),
                nentries: c.need("PyDictKeysObject", "dk_nentries")?,
                indices: c.need("PyDictKeysObject", "dk_indices")?,
            },
            values_header: c.opt("PyDictValues", "values").unwrap_or(0),
            values_valid: c.opt("PyDictValues", "valid"),
            attributes,
            type_name: c.need("PyTypeObject", "tp_name")?,
            type_basicsize: c.need("PyTypeObject", "tp_basicsize")?,
            type_flags: c.need("PyTypeObject", "tp_flags")?,
            type_dict: c.need("PyTypeObject", "tp_dict")?,
            type_dictoffset: c.need("PyTypeObject", "tp_dictoffset")?,
            type_mro: c.need("PyTypeObject", "tp_mro")?,
            type_cached_keys: c.need("PyHeapTypeObject", "ht_cached_keys")?,
            cfunction_ml: c.need("PyCFunctionObject", "m_ml")?,
            cfunction_self: c.need("PyCFunctionObject", "m_self")?,
            methoddef_name: c.need("PyMethodDef", "ml_name")?,
            methoddescr_method: c.need("PyMethodDescrObject", "d_method")?,
            method_func: c.need("PyMethodObject", "im_func")?,
            method_self: c.need("PyMethodObject", "im_self")?,
            function_name: c.need("PyFunctionObject", "func_name")?,
            function_code: c.need("PyFunctionObject", "func_code")?,
            function_globals: c.need("PyFunctionObject", "func_globals")?,
            code_consts: c.need("PyCodeObject", "co_consts")?,
            cell_ref: c.need("PyCellObject", "ob_ref")?,
            module_dict: match c.opt("PyModuleObject", "md_dict") {
                Some(at) => at,
                // first field after the header; the struct is private to C files and absent where only headers were had
                None => c.size("PyObject")?,
            },
            list_items: c.need("PyListObject", "ob_item")?,
            queue_ring: c.opt("simplequeueobject", "buf"),
            queue_list: c.opt("simplequeueobject", "lst"),
            weakref_object: c.opt("PyWeakReference", "wr_object"),
            gen_frame: c.opt("PyGenObject", "gi_frame"),
            gen_iframe: c.opt("PyGenObject", "gi_iframe"),
            gen_state: c.opt("PyGenObject", "gi_frame_state"),
            gen_suspended: c.table.numbers("gen_suspended").iter().filter_map(|n| u8::try_from(*n).ok()).collect(),
            gil,
            attach: AttachOffsets::choose(c.table, &c.subject),
            by_headers: c.table.word("made_from") == Some("headers"),
            frame_object_frame: c.opt("PyFrameObject", "f_frame"),
            runtime_finalizing: c
                .opt("_PyRuntimeState", "_finalizing")
                .or_else(|| c.opt("_PyRuntimeState", "finalizing")),
            locks: LockOffsets::choose(c.table, &c.subject),
            containers: ContainerOffsets::choose(c.table, &c.subject),
            asyncio: AsyncioOffsets::choose(c.table, &c.subject),
            with: with_offsets(c.table),
            calls: call_offsets(c.table),
        })
    }
}

/// What the `with` technique needs of the constants.
fn with_offsets(table: &Table) -> WithOffsets {
    let opcode = |name: &str| table.number(name).and_then(|n| u8::try_from(n).ok());
    WithOffsets {
        except_start: opcode("WITH_EXCEPT_START"),
        jumps: table.numbers("jump_backward_all_forms").iter().filter_map(|n| u8::try_from(*n).ok()).collect(),
        jump_cache: table.number("jump_backward_cache_units").and_then(|n| u32::try_from(n).ok()).unwrap_or(0),
        extended_arg: opcode("EXTENDED_ARG"),
        // the special-method lookup of 3.14 puts the unbound method and the manager on the stack
        pair: opcode("LOAD_SPECIAL").is_some(),
        block_type: table.number("SETUP_FINALLY").and_then(|n| i32::try_from(n).ok()),
        setup_with: opcode("SETUP_WITH"),
        before_with: opcode("BEFORE_WITH"),
        load_special: opcode("LOAD_SPECIAL"),
    }
}

/// What the look for calls of `acquire` needs of the constants.
fn call_offsets(table: &Table) -> CallOffsets {
    let opcodes = |name: &str| table.numbers(name).iter().filter_map(|n| u8::try_from(*n).ok()).collect();
    let shift = |name: &str| table.number(name).and_then(|n| u32::try_from(n).ok()).unwrap_or(0).min(8);
    CallOffsets {
        attribute_loads: opcodes("attribute_loads"),
        attribute_shift: shift("attribute_shift"),
        global_loads: opcodes("global_loads"),
        global_shift: shift("global_shift"),
        name_loads: opcodes("name_loads"),
        cache_units: table.numbers("cache_units").to_vec(),
        extended_arg: table.number("EXTENDED_ARG").and_then(|n| u8::try_from(n).ok()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Fake;

    #[test]
    fn every_known_version_has_every_field_that_is_asked_for() {
        for (minor, free) in Layouts::cpython_versions() {
            let o = Offsets::choose((minor, None), free, None).unwrap_or_else(|e| panic!("3.{minor} {free}: {e:?}"));
            assert_eq!(matches!(o.frame, FrameLayout::Object(_)), minor <= 10, "3.{minor}");
            assert_eq!(o.gil.enabled.is_some(), free, "3.{minor}");
        }
        assert_eq!(Offsets::choose((99, None), false, None).unwrap_err(), NoOffsets::UnknownVersion);
    }

    #[test]
    fn the_interpreters_own_account_goes_before_the_table() {
        let mut m = Fake::new();
        m.put(Addr(0x1000), &[0xff; 584]);
        m.put_u64(Addr(0x1000 + 72), 4711); // interpreter_state.threads_head
        let o = Offsets::choose((13, Some(18)), false, Some((Addr(0x1000), &m))).unwrap();
        assert_eq!(o.interp_threads, 4711);
        assert_eq!(o.interp_next, 7264, "nonsense is no account");
    }

    #[test]
    fn places_are_where_the_interpreters_keep_them() {
        let old = Offsets::choose((8, None), false, None).unwrap();
        assert_eq!((old.runtime_head, old.runtime_gil, old.interp_gil), (32, Some(1152), None));
        assert_eq!(old.attributes, Attributes::DictOffset);
        let o = Offsets::choose((12, Some(1)), false, None).unwrap();
        assert_eq!((o.interp_gil, o.frame_root), (Some(384), FrameRoot::Through(56, 0)));
        assert_eq!((o.attributes, o.stack_mask), (Attributes::TaggedWord, 0));
        let o = Offsets::choose((11, Some(2)), false, None).unwrap();
        assert_eq!((o.attributes, o.first_shim_owner), (Attributes::ValuesPointer, None));
        let o = Offsets::choose((14, None), false, None).unwrap();
        assert_eq!((o.attributes, o.stack_mask, o.first_shim_owner), (Attributes::Inline(-24), 3, Some(3)));
    }
}
