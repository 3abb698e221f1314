/* code_object.h: a code object for gfx900 with one kernel that does nothing, made in memory: no compiler for GPUs is needed.
 *
 * It is a shared object of code object version 4, as HIP of all generations loads it: a kernel descriptor `NAME.kd`, code
 * (s_endpgm), and the metadata that names the kernel. See "User Guide for AMDGPU Backend" of LLVM, the code object chapters.
 */
#ifndef HANGSCOPE_CODE_OBJECT_H
#define HANGSCOPE_CODE_OBJECT_H
#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { CODE_TEXT = 0x1000, CODE_DYNAMIC = 0x2000, CODE_SECTIONS = 0x2100, CODE_SIZE = 0x3000 };

/* A string of MessagePack. */
static unsigned char *code_text(unsigned char *at, const char *text)
{
    size_t n = strlen(text);
    if (n < 32) {
        *at++ = (unsigned char)(0xa0 | n);
    } else {
        *at++ = 0xd9;
        *at++ = (unsigned char)n;
    }
    memcpy(at, text, n);
    return at + n;
}

static unsigned char *code_number(unsigned char *at, const char *key, unsigned value)
{
    at = code_text(at, key);
    *at++ = 0xcd;
    *at++ = (unsigned char)(value >> 8);
    *at++ = (unsigned char)value;
    return at;
}

static unsigned char *code_metadata(unsigned char *at, const char *kernel, const char *descriptor)
{
    *at++ = 0x83; /* a map of three */
    at = code_text(at, "amdhsa.kernels");
    *at++ = 0x91;
    *at++ = 0x8a;
    at = code_number(at, ".group_segment_fixed_size", 0);
    at = code_number(at, ".kernarg_segment_align", 8);
    at = code_number(at, ".kernarg_segment_size", 0);
    at = code_number(at, ".max_flat_workgroup_size", 256);
    at = code_text(code_text(at, ".name"), kernel);
    at = code_number(at, ".private_segment_fixed_size", 0);
    at = code_number(at, ".sgpr_count", 8);
    at = code_text(code_text(at, ".symbol"), descriptor);
    at = code_number(at, ".vgpr_count", 4);
    at = code_number(at, ".wavefront_size", 64);
    at = code_text(code_text(at, "amdhsa.target"), "amdgcn-amd-amdhsa--gfx900");
    at = code_text(at, "amdhsa.version");
    *at++ = 0x92;
    *at++ = 1;
    *at++ = 1;
    return at;
}

static void code_section(Elf64_Shdr *section, uint32_t name, uint32_t type, uint64_t flags, uint64_t at, uint64_t size)
{
    section->sh_name = name;
    section->sh_type = type;
    section->sh_flags = flags;
    section->sh_addr = flags ? at : 0;
    section->sh_offset = at;
    section->sh_size = size;
    section->sh_addralign = 4;
}

/* The image, with this kernel in it; always the same bytes for the same name. */
static const void *code_object(const char *kernel)
{
    static const char names[] = "\0.note\0.dynsym\0.hash\0.dynstr\0.rodata\0.text\0.dynamic\0.shstrtab\0.strtab\0.symtab";
    enum { NOTE = 1, DYNSYM = 7, HASH = 15, DYNSTR = 21, RODATA = 29, TEXT = 37, DYNAMIC = 43, SHSTRTAB = 52, STRTAB = 62, SYMTAB = 70 };
    /* Not in .bss: HSA takes that for a part of the library's file. */
    static unsigned char *kept;
    if (!kept)
        kept = mmap(NULL, CODE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned char *image = kept;
    char descriptor[128];
    snprintf(descriptor, sizeof descriptor, "%s.kd", kernel);
    if (image == MAP_FAILED)
        return NULL;
    memset(image, 0, CODE_SIZE);

    /* the note */
    size_t note = sizeof(Elf64_Ehdr) + 5 * sizeof(Elf64_Phdr);
    Elf64_Nhdr *head = (Elf64_Nhdr *)(image + note);
    unsigned char *metadata = image + note + sizeof *head + 8;
    memcpy(metadata - 8, "AMDGPU", 7);
    head->n_namesz = 7;
    head->n_descsz = (uint32_t)(code_metadata(metadata, kernel, descriptor) - metadata);
    head->n_type = 32; /* NT_AMDGPU_METADATA */
    size_t note_size = sizeof *head + 8 + ((head->n_descsz + 3) & ~3u);

    /* names and symbols */
    size_t dynstr = (note + note_size + 63) & ~63ul, code_name = 1, kd_name = code_name + strlen(kernel) + 1;
    size_t dynstr_size = kd_name + strlen(descriptor) + 1;
    strcpy((char *)image + dynstr + code_name, kernel);
    strcpy((char *)image + dynstr + kd_name, descriptor);
    size_t dynsym = (dynstr + dynstr_size + 63) & ~63ul, hash = dynsym + 3 * sizeof(Elf64_Sym);
    size_t rodata = (hash + 8 * sizeof(uint32_t) + 63) & ~63ul;
    Elf64_Sym *symbol = (Elf64_Sym *)(image + dynsym);
    symbol[1] = (Elf64_Sym){ .st_name = (uint32_t)code_name, .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
                             .st_other = STV_PROTECTED, .st_shndx = 6, .st_value = CODE_TEXT, .st_size = 4 };
    symbol[2] = (Elf64_Sym){ .st_name = (uint32_t)kd_name, .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_OBJECT),
                             .st_other = STV_PROTECTED, .st_shndx = 5, .st_value = rodata, .st_size = 64 };
    memcpy(image + hash, (uint32_t[]){ 1, 3, 1, 0, 2, 0 }, 24); /* one bucket: symbol 1, then 2 */

    /* the kernel descriptor, and the code */
    *(int64_t *)(image + rodata + 16) = (int64_t)(CODE_TEXT - rodata); /* kernel_code_entry_byte_offset */
    *(uint32_t *)(image + rodata + 48) = 0x00ac0040;                   /* compute_pgm_rsrc1 */
    *(uint32_t *)(image + rodata + 52) = 0x84;                         /* compute_pgm_rsrc2 */
    *(uint16_t *)(image + rodata + 56) = 8;                            /* wants the kernel arguments' address */
    *(uint32_t *)(image + CODE_TEXT) = 0xbf810000;                     /* s_endpgm */

    Elf64_Dyn dynamic[] = {
        { DT_HASH, { hash } }, { DT_STRTAB, { dynstr } }, { DT_SYMTAB, { dynsym } },
        { DT_STRSZ, { dynstr_size } }, { DT_SYMENT, { sizeof *symbol } }, { DT_NULL, { 0 } },
    };
    memcpy(image + CODE_DYNAMIC, dynamic, sizeof dynamic);

    Elf64_Shdr *section = (Elf64_Shdr *)(image + CODE_SECTIONS);
    code_section(&section[1], NOTE, SHT_NOTE, SHF_ALLOC, note, note_size);
    code_section(&section[2], DYNSYM, SHT_DYNSYM, SHF_ALLOC, dynsym, 3 * sizeof *symbol);
    code_section(&section[3], HASH, SHT_HASH, SHF_ALLOC, hash, 24);
    code_section(&section[4], DYNSTR, SHT_STRTAB, SHF_ALLOC, dynstr, dynstr_size);
    code_section(&section[5], RODATA, SHT_PROGBITS, SHF_ALLOC, rodata, 64);
    code_section(&section[6], TEXT, SHT_PROGBITS, SHF_ALLOC | SHF_EXECINSTR, CODE_TEXT, 4);
    code_section(&section[7], DYNAMIC, SHT_DYNAMIC, SHF_ALLOC | SHF_WRITE, CODE_DYNAMIC, sizeof dynamic);
    size_t shstrtab = CODE_SECTIONS + 11 * sizeof *section;
    code_section(&section[8], SHSTRTAB, SHT_STRTAB, 0, shstrtab, sizeof names);
    code_section(&section[9], STRTAB, SHT_STRTAB, 0, dynstr, dynstr_size); /* HIP wants it */
    code_section(&section[10], SYMTAB, SHT_SYMTAB, 0, dynsym, 3 * sizeof *symbol); /* HSA wants it */
    section[10].sh_link = 9;
    section[10].sh_info = 1;
    section[10].sh_entsize = sizeof *symbol;
    memcpy(image + shstrtab, names, sizeof names);
    section[2].sh_link = section[7].sh_link = 4;
    section[2].sh_info = 1;
    section[2].sh_entsize = sizeof *symbol;
    section[3].sh_link = 2;
    section[3].sh_entsize = 4;
    section[7].sh_entsize = sizeof *dynamic;

    Elf64_Ehdr *elf = (Elf64_Ehdr *)image;
    memcpy(elf->e_ident, "\x7f"
                         "ELF\x02\x01\x01\x40\x02", 9); /* 64 bits, little endian, AMD HSA, version 4 of the ABI */
    elf->e_type = ET_DYN;
    elf->e_machine = EM_AMDGPU;
    elf->e_version = EV_CURRENT;
    elf->e_phoff = sizeof *elf;
    elf->e_shoff = CODE_SECTIONS;
    elf->e_flags = 0x12c; /* gfx900, XNACK on or off */
    elf->e_ehsize = sizeof *elf;
    elf->e_phentsize = sizeof(Elf64_Phdr);
    elf->e_phnum = 5;
    elf->e_shentsize = sizeof *section;
    elf->e_shnum = 11;
    elf->e_shstrndx = 8;
    Elf64_Phdr *segment = (Elf64_Phdr *)(image + elf->e_phoff);
    segment[0] = (Elf64_Phdr){ PT_LOAD, PF_R, 0, 0, 0, rodata + 64, rodata + 64, 4096 };
    segment[1] = (Elf64_Phdr){ PT_LOAD, PF_R | PF_X, CODE_TEXT, CODE_TEXT, CODE_TEXT, 4, 4, 4096 };
    segment[2] = (Elf64_Phdr){ PT_LOAD, PF_R | PF_W, CODE_DYNAMIC, CODE_DYNAMIC, CODE_DYNAMIC, sizeof dynamic, sizeof dynamic, 4096 };
    segment[3] = (Elf64_Phdr){ PT_DYNAMIC, PF_R | PF_W, CODE_DYNAMIC, CODE_DYNAMIC, CODE_DYNAMIC, sizeof dynamic, sizeof dynamic, 8 };
    segment[4] = (Elf64_Phdr){ PT_NOTE, PF_R, note, note, note, note_size, note_size, 4 };
    return image;
}

#endif
