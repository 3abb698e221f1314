//! Call frame information: the row of rules for one address, from `.eh_frame` or `.debug_frame`.
//!
//! Rules are copied out of gimli's types, so that the unwinder may keep them by pc.

use super::landing::LandingTable;
use crate::arch::{REGISTERS, Reg};
use crate::memory::{FileBytes, u32_at, u64_at};
use crate::units::Vaddr;
use gimli::{
    BaseAddresses, CieOrFde, DebugFrame, EhFrame, EndianSlice, LittleEndian, RegisterRule, UnwindContext,
    UnwindContextStorage, UnwindSection, UnwindTableRow,
};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// How the caller's value of a register is had.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Rule {
    /// CFI says nothing: kept if the calling convention says the callee keeps it, else unknown.
    #[default]
    Unspecified,
    /// CFI says it cannot be had.
    Undefined,
    /// It is unchanged.
    Same,
    /// It is saved at CFA + this.
    Offset(i64),
    /// It is CFA + this.
    ValOffset(i64),
    /// It is in another register.
    Register(Reg),
    /// It is saved where this DWARF expression says (CFA is on the stack to begin with).
    Expression(Arc<[u8]>),
    /// It is what this DWARF expression gives (CFA is on the stack to begin with).
    ValExpression(Arc<[u8]>),
    /// It is this number.
    Constant(u64),
}

/// How the canonical frame address is had.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CfaRule {
    /// A register plus an offset.
    Register(Reg, i64),
    /// A DWARF expression.
    Expression(Arc<[u8]>),
}

/// What call frame information says of one address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnwindRow {
    /// The canonical frame address.
    pub cfa: CfaRule,
    /// One rule for each register, by DWARF number.
    pub rules: [Rule; REGISTERS],
    /// The register whose caller's value is the return address.
    pub return_address: Reg,
    /// Whether this is the frame of a signal trampoline.
    pub signal: bool,
    /// The addresses the frame description covers: usually one function, or its hot or cold part.
    pub covers: Range<u64>,
}

/// Room for gimli's unwind rows, reused from address to address.
pub struct RowScratch(UnwindContext<usize, Store>);

impl RowScratch {
    /// Fresh room.
    #[must_use]
    pub fn new() -> RowScratch {
        RowScratch(UnwindContext::new_in())
    }
}

impl Default for RowScratch {
    fn default() -> RowScratch {
        RowScratch::new()
    }
}

/// Bounded storage: hostile CFI that remembers state without end gets an error, not memory.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Store;

impl UnwindContextStorage<usize> for Store {
    type Rules = [(gimli::Register, RegisterRule<usize>); 96];
    type Stack = Box<[UnwindTableRow<usize, Store>; 16]>;
}

/// `.eh_frame` or `.debug_frame`, in whichever file it stands.
#[derive(Debug)]
pub(super) struct FrameSection {
    bytes: FileBytes,
    range: Range<usize>,
    vaddr: u64,
    debug: bool,
    table: Option<SearchTable>,
    index: OnceLock<Vec<IndexEntry>>,
}

#[derive(Debug, Clone, Copy)]
struct IndexEntry {
    start: u64,
    end: u64,
    offset: usize,
}

/// The binary search table of `.eh_frame_hdr` in its usual encoding (`DW_EH_PE_datarel | DW_EH_PE_sdata4`).
#[derive(Debug)]
struct SearchTable {
    range: Range<usize>,
    /// Address of `.eh_frame_hdr`, to which its entries are relative.
    base: u64,
}

/// Where `.eh_frame` begins and where the search table lies, by a parsed `.eh_frame_hdr`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EhFrameHdr {
    /// Address of `.eh_frame`.
    pub eh_frame: u64,
    /// Bytes of the table from the start of the header, when it has the usual encoding.
    pub table: Option<Range<usize>>,
}

const PCREL_SDATA4: u8 = 0x1b;
const ABSPTR: u8 = 0;
const UDATA4: u8 = 3;
const DATAREL_SDATA4: u8 = 0x3b;

impl EhFrameHdr {
    /// Bytes before its table, at most.
    pub(super) const HEAD: usize = 16;

    /// Parses the head of `.eh_frame_hdr`, which stands at `vaddr` and is `len` bytes long (LSB Core, "Exception Frame
    /// Header").
    pub(super) fn parse(bytes: &[u8], len: usize, vaddr: u64) -> Option<EhFrameHdr> {
        let [1, pointer, count, table] = *bytes.get(..4)? else { return None };
        let (eh_frame, at) = match pointer {
            PCREL_SDATA4 => {
                (vaddr.wrapping_add(4).wrapping_add_signed(i64::from(u32_at(bytes, 4)?.cast_signed())), 8usize)
            }
            ABSPTR => (u64_at(bytes, 4)?, 12),
            _ => return None,
        };
        let table = (count == UDATA4 && table == DATAREL_SDATA4)
            .then(|| {
                let count = usize::try_from(u32_at(bytes, at)?).ok()?;
                let from = at.checked_add(4)?;
                // a table cut short (a page missing from a core) is used as far as it goes
                let to = from.checked_add(count.checked_mul(8)?)?.min(len);
                (from < to).then(|| from..to - (to - from) % 8)
            })
            .flatten();
        Some(EhFrameHdr { eh_frame, table })
    }
}

impl FrameSection {
    /// `.eh_frame` at `vaddr`, its bytes at `range`. `table`: where the search table's bytes are, and the address of
    /// `.eh_frame_hdr`.
    pub(super) fn eh(bytes: FileBytes, range: Range<usize>, vaddr: u64, table: Option<(Range<usize>, u64)>) -> Self {
        let table = table.map(|(range, base)| SearchTable { range, base });
        FrameSection { bytes, range, vaddr, debug: false, table, index: OnceLock::new() }
    }

    /// `.debug_frame`.
    pub(super) fn debug(bytes: FileBytes, range: Range<usize>) -> Self {
        FrameSection { bytes, range, vaddr: 0, debug: true, table: None, index: OnceLock::new() }
    }

    fn section(&self) -> &[u8] {
        self.bytes.get(self.range.clone()).unwrap_or(&[])
    }

    fn bases(&self) -> BaseAddresses {
        BaseAddresses::default().set_eh_frame(self.vaddr)
    }

    /// The row for `at`; `None` where this section does not cover it or makes no sense there.
    pub(super) fn row(&self, at: Vaddr, scratch: &mut RowScratch) -> Option<UnwindRow> {
        if self.debug {
            let mut section = DebugFrame::new(self.section(), LittleEndian);
            section.set_address_size(8);
            self.row_in(&section, at.0, scratch)
        } else {
            let mut section = EhFrame::new(self.section(), LittleEndian);
            section.set_address_size(8);
            self.row_in(&section, at.0, scratch)
        }
    }

    /// The start and end of the frame description that covers `at`.
    pub(super) fn covers(&self, at: Vaddr) -> Option<Range<u64>> {
        let offset = self.offset_of(at.0)?;
        if self.debug {
            let mut section = DebugFrame::new(self.section(), LittleEndian);
            section.set_address_size(8);
            extent_of(&section, &self.bases(), offset)
        } else {
            let mut section = EhFrame::new(self.section(), LittleEndian);
            section.set_address_size(8);
            extent_of(&section, &self.bases(), offset)
        }
        .filter(|r| r.contains(&at.0))
    }

    /// Where the language-specific data of the frame description that covers `at` lies.
    pub(super) fn landing_table(&self, at: Vaddr) -> Option<LandingTable> {
        if self.debug {
            return None;
        }
        let mut section = EhFrame::new(self.section(), LittleEndian);
        section.set_address_size(8);
        let offset = self.offset_of(at.0)?;
        let fde = section.fde_from_offset(&self.bases(), offset.into(), EhFrame::cie_from_offset).ok()?;
        let covers = fde.initial_address()..fde.end_address();
        match fde.lsda()? {
            gimli::Pointer::Direct(at_table) if covers.contains(&at.0) => {
                Some(LandingTable { at: Vaddr(at_table), covers })
            }
            _ => None,
        }
    }

    fn row_in<'a, S: UnwindSection<Slice<'a>>>(
        &self,
        section: &S,
        at: u64,
        scratch: &mut RowScratch,
    ) -> Option<UnwindRow> {
        let bases = self.bases();
        let fde = section.fde_from_offset(&bases, S::Offset::from(self.offset_of(at)?), S::cie_from_offset).ok()?;
        if !fde.contains(at) {
            return None;
        }
        let covers = fde.initial_address()..fde.end_address();
        let return_address = Reg(fde.cie().return_address_register().0);
        let signal = fde.is_signal_trampoline();
        let row = fde.unwind_info_for_address(section, &bases, &mut scratch.0, at).ok()?;
        let expression =
            |e: &gimli::UnwindExpression<usize>| e.get(section).ok().map(|e| Arc::<[u8]>::from(e.0.slice()));
        let cfa = match row.cfa() {
            gimli::CfaRule::RegisterAndOffset { register, offset } => CfaRule::Register(Reg(register.0), *offset),
            gimli::CfaRule::Expression(e) => CfaRule::Expression(expression(e)?),
        };
        let mut rules: [Rule; REGISTERS] = Default::default();
        for (register, rule) in row.registers() {
            let Some(slot) = rules.get_mut(usize::from(register.0)) else { continue };
            *slot = match rule {
                RegisterRule::SameValue => Rule::Same,
                RegisterRule::Offset(n) => Rule::Offset(*n),
                RegisterRule::ValOffset(n) => Rule::ValOffset(*n),
                RegisterRule::Register(r) => Rule::Register(Reg(r.0)),
                RegisterRule::Expression(e) => expression(e).map_or(Rule::Undefined, Rule::Expression),
                RegisterRule::ValExpression(e) => expression(e).map_or(Rule::Undefined, Rule::ValExpression),
                RegisterRule::Constant(n) => Rule::Constant(*n),
                RegisterRule::Undefined | RegisterRule::Architectural => Rule::Undefined,
            };
        }
        Some(UnwindRow { cfa, rules, return_address, signal, covers })
    }

    /// The offset of the frame description that may cover `at`.
    fn offset_of(&self, at: u64) -> Option<usize> {
        if let Some(table) = &self.table {
            return self.search(table, at);
        }
        let index = self.index.get_or_init(|| self.build_index());
        // frame descriptions do not overlap in a sound file; in others the last that begins before `at` decides
        let i = index.partition_point(|e| e.start <= at).checked_sub(1)?;
        index.get(i).filter(|e| at < e.end).map(|e| e.offset)
    }

    fn search(&self, table: &SearchTable, at: u64) -> Option<usize> {
        let word = |i: usize| {
            let at = table.range.start.checked_add(i.checked_mul(4)?)?;
            let relative = u32_at(self.bytes.get_at(at, 4)?, 0)?.cast_signed();
            Some(table.base.wrapping_add_signed(i64::from(relative)))
        };
        let (mut low, mut high) = (0, table.range.len() / 8);
        while low < high {
            let middle = low + (high - low) / 2;
            if word(middle * 2)? <= at { low = middle + 1 } else { high = middle }
        }
        let fde = word(low.checked_sub(1)? * 2 + 1)?;
        usize::try_from(fde.checked_sub(self.vaddr)?).ok()
    }

    fn build_index(&self) -> Vec<IndexEntry> {
        let mut entries = if self.debug {
            let mut section = DebugFrame::new(self.section(), LittleEndian);
            section.set_address_size(8);
            index_of(&section, &self.bases())
        } else {
            let mut section = EhFrame::new(self.section(), LittleEndian);
            section.set_address_size(8);
            index_of(&section, &self.bases())
        };
        entries.sort_by_key(|e| (e.start, e.end));
        entries
    }
}

fn extent_of<'a, S: UnwindSection<Slice<'a>>>(section: &S, bases: &BaseAddresses, offset: usize) -> Option<Range<u64>> {
    let fde = section.fde_from_offset(bases, S::Offset::from(offset), S::cie_from_offset).ok()?;
    Some(fde.initial_address()..fde.end_address())
}

fn index_of<'a, S: UnwindSection<Slice<'a>>>(section: &S, bases: &BaseAddresses) -> Vec<IndexEntry> {
    let mut entries = Vec::new();
    let mut iter = section.entries(bases);
    // an entry that makes no sense ends the section: its length cannot be trusted to lead to the next
    while let Ok(Some(entry)) = iter.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let Ok(fde) = partial.parse(S::cie_from_offset) else { continue };
        // functions the linker dropped are left at 0
        if fde.initial_address() != 0 && fde.end_address() > fde.initial_address() {
            entries.push(IndexEntry { start: fde.initial_address(), end: fde.end_address(), offset: fde.offset() });
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A CIE (code align 1, data align −8, RA 16, CFA = rsp + 8) and one FDE for 0x1000..0x1100 with `program`.
    fn debug_frame(program: &[u8]) -> FrameSection {
        let mut cie = vec![0xff, 0xff, 0xff, 0xff, 1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1];
        cie.resize(cie.len().next_multiple_of(8) + 4, 0);
        let mut fde = vec![0, 0, 0, 0];
        fde.extend(0x1000u64.to_le_bytes());
        fde.extend(0x100u64.to_le_bytes());
        fde.extend(program);
        let mut bytes = Vec::new();
        for entry in [cie, fde] {
            bytes.extend((entry.len() as u32).to_le_bytes());
            bytes.extend(entry);
        }
        let len = bytes.len();
        FrameSection::debug(FileBytes::owned(bytes), 0..len)
    }

    #[test]
    fn the_row_of_an_address_is_the_one_in_force_there() {
        // advance 1; CFA = rsp + 16; rbp at CFA − 16; advance 4; CFA = rbp + 16
        let section = debug_frame(&[0x41, 0x0e, 16, 0x86, 2, 0x44, 0x0d, 6]);
        let mut scratch = RowScratch::new();
        let mut row = |at| section.row(Vaddr(at), &mut scratch);
        assert_eq!(row(0x1000).unwrap().cfa, CfaRule::Register(Reg(7), 8));
        let second = row(0x1001).unwrap();
        assert_eq!((second.cfa, second.rules[6].clone()), (CfaRule::Register(Reg(7), 16), Rule::Offset(-16)));
        assert_eq!(row(0x10ff).unwrap().cfa, CfaRule::Register(Reg(6), 16));
        assert_eq!(row(0x10ff).unwrap().covers, 0x1000..0x1100);
        assert!(row(0x1100).is_none());
        assert!(row(0xfff).is_none());
    }

    #[test]
    fn state_remembered_without_end_is_no_row() {
        let section = debug_frame(&[0x0a; 4000]);
        assert!(section.row(Vaddr(0x1000), &mut RowScratch::new()).is_none());
    }

    #[test]
    fn a_search_table_cut_short_is_used_as_far_as_it_goes() {
        let mut hdr = vec![1, PCREL_SDATA4, UDATA4, DATAREL_SDATA4];
        hdr.extend(0x1000u32.to_le_bytes());
        hdr.extend(u32::MAX.to_le_bytes());
        hdr.extend([0; 21]);
        let parsed = EhFrameHdr::parse(&hdr, hdr.len(), 0x400).unwrap();
        assert_eq!(parsed, EhFrameHdr { eh_frame: 0x1404, table: Some(12..28) });
        assert!(EhFrameHdr::parse(&hdr[..9], 9, 0x400).unwrap().table.is_none());
        assert!(EhFrameHdr::parse(&[2, 0, 0, 0], 4, 0).is_none());
    }
}
