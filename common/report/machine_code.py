#!/usr/bin/env python3
"""The machine code of a program's kernels, as nvcc left it: what a measured time is a time of.

    python3 common/report/machine_code.py build/gpu/bin/03_warp_shuffle    each kernel with the hash of its code

A cubin is an ELF file with a section `.text.<kernel>` for each kernel. nvcc puts one for each architecture into a fat
binary, the section `.nv_fatbin` of an object file or program. A kernel's hash is taken over the bytes of its code
(trailing NOPs aside), its registers, its static shared memory, its constants, and what it refers to: the functions that
it calls, with their code, and the variables that it uses, with their first values. Names, debug information and the
places of kernels in the file do not count, so that a kernel that was only renamed or moved keeps its hash.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import re
import struct
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

MACHINE_OF_CUBINS = 190  # EM_CUDA
TEXT = ".text."
HASH_DIGITS = 16
INSTRUCTION_BYTES = 16  # since sm_70
NOP_OPCODE = 0x918  # the low 12 bits of an instruction

# The fat binary: a header for each file that was compiled, then an entry for each architecture.
CONTAINER = struct.Struct("<IHHQ")  # magic, version, bytes of this header, bytes that follow it
CONTAINER_MAGIC = 0xBA55ED50
ENTRY = struct.Struct("<HHIQI")  # kind, version, bytes of this header, bytes of the content, and without padding
ENTRY_ELF = 2
FLAGS_AT, SIZE_AT = 40, 56  # in an entry's header: its flags, and the bytes of what was compressed
LZ4, ZSTANDARD = 0x2000, 0x8000  # flags; nvcc compresses large files
RESERVED_SHARED = 1024  # bytes of a block's that the system keeps, and that the files of sm_90 and newer count

# .nv.info: attributes of four bytes and their value.
INFO_SIZED, INFO_REGISTERS = 4, 0x2F
SHN_UNDEFINED = 0
SHT_RELA, SHT_NOBITS, SHT_REL = 4, 8, 9


class CodeError(Exception):
    """One sentence on why the code of this file cannot be read."""


@dataclass(frozen=True)
class Section:
    name: str
    kind: int
    link: int
    info: int
    size: int
    content: bytes


@dataclass(frozen=True)
class Symbol:
    name: str
    section: int
    value: int
    size: int


@dataclass(frozen=True)
class Relocation:
    offset: int
    kind: int
    symbol: Symbol
    addend: int


class Elf:
    """The sections, symbols and relocations of a 64-bit little-endian ELF file."""

    def __init__(self, data: bytes) -> None:
        if data[:6] != b"\x7fELF\x02\x01":
            raise CodeError("this is no 64-bit ELF file")
        self.data = data
        (self.machine,) = struct.unpack_from("<H", data, 18)
        (self.flags,) = struct.unpack_from("<I", data, 48)
        (at,) = struct.unpack_from("<Q", data, 40)
        size, count, names = struct.unpack_from("<HHH", data, 58)
        # Where there are more sections than 16 bits count, the first one's header says how many.
        first = struct.unpack_from("<IIQQQQIIQQ", data, at)
        count, names = count or first[5], first[6] if names == 0xFFFF else names
        headers = [struct.unpack_from("<IIQQQQIIQQ", data, at + i * size) for i in range(count)]
        strings = self._bytes(headers[names])
        self.sections = [Section(text_at(strings, h[0]), h[1], h[6], h[7], h[5], self._bytes(h)) for h in headers]

    def _bytes(self, header: tuple[int, ...]) -> bytes:
        kind, offset, size = header[1], header[4], header[5]
        return b"" if kind == SHT_NOBITS else self.data[offset : offset + size]

    def section(self, name: str) -> Section | None:
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> dict[str, Section]:
        return {section.name: section for section in self.sections}

    @cached_property
    def symbols(self) -> list[Symbol]:
        table = self.section(".symtab")
        if table is None:
            return []
        strings = self.sections[table.link].content
        wide = self.section(".symtab_shndx")  # of the sections whose numbers do not fit the symbol
        found = []
        for i, (name, _, _, section, value, size) in enumerate(struct.iter_unpack("<IBBHQQ", table.content)):
            if section == 0xFFFF and wide:
                (section,) = struct.unpack_from("<I", wide.content, 4 * i)
            found.append(Symbol(text_at(strings, name), section, value, size))
        return found

    def relocations(self, section: Section) -> Iterator[Relocation]:
        """Of what lies in `section`, in the order of their places."""
        found = []
        for prefix, form in ((".rela", "<QQq"), (".rel", "<QQ")):
            table = self.section(prefix + section.name)
            if table is None or table.kind not in (SHT_RELA, SHT_REL):
                continue
            for offset, info, *addend in struct.iter_unpack(form, table.content):
                symbol = self.symbols[info >> 32]
                found.append(Relocation(offset, info & 0xFFFFFFFF, symbol, addend[0] if addend else 0))
        return iter(sorted(found, key=lambda r: (r.offset, r.kind)))


def text_at(strings: bytes, offset: int) -> str:
    return strings[offset : strings.index(b"\0", offset)].decode()


@dataclass(frozen=True)
class Kernel:
    symbol: str
    code: str  # the hash
    registers: int  # of a thread
    shared_bytes: int  # of a block, static


@dataclass
class Cubin:
    """One architecture's code of one compilation."""

    elf: Elf
    _texts: dict[str, str] = field(default_factory=dict)

    @property
    def architecture(self) -> str:
        """sm_90, from the ELF header's flags, whose place has moved with the format's version."""
        version = self.elf.data[8]
        return f"sm_{(self.elf.flags >> 8) & 0xFFFF if version >= 8 else self.elf.flags & 0xFF}"

    @cached_property
    def registers(self) -> dict[str, int]:
        """Of a thread, of each function."""
        info = self.elf.section(".nv.info")
        data, at, found = info.content if info else b"", 0, {}
        while at < len(data):
            form, attribute, size = struct.unpack_from("<BBH", data, at)
            if form == INFO_SIZED and attribute == INFO_REGISTERS:
                symbol, count = struct.unpack_from("<II", data, at + 4)
                found[self.elf.symbols[symbol].name] = count
            at += 4 + (size if form == INFO_SIZED else 0)
        return found

    @cached_property
    def _constants(self) -> dict[str, list[tuple[str, Section]]]:
        """Constant banks of each function: its parameters' bytes, and values that its code reads. "": those of all."""
        found: dict[str, list[tuple[str, Section]]] = {}
        for section in self.elf.sections:
            if match := re.fullmatch(r"\.nv\.(constant\d+)(?:\.(.+))?", section.name):
                found.setdefault(match[2] or "", []).append((match[1], section))
        return found

    def kernels(self) -> dict[str, Kernel]:
        """Every kernel: a function that has parameters in a constant bank of its own."""
        found = {}
        for section in self.elf.sections:
            name = section.name.removeprefix(TEXT)
            if section.name.startswith(TEXT) and self.elf.section(f".nv.constant0.{name}"):
                section_of_shared = self.elf.section(f".nv.shared.{name}")
                shared = max(0, section_of_shared.size - self._reserved()) if section_of_shared else 0
                code = hashlib.sha256("\n".join(self._described(section, ())).encode()).hexdigest()[:HASH_DIGITS]
                found[name] = Kernel(name, code, self.registers.get(name, 0), shared)
        return found

    def _described(self, section: Section, above: tuple[str, ...]) -> list[str]:
        """All that a function's hash is taken over. `above` are the functions that it is called from."""
        name = section.name.removeprefix(TEXT)
        shared = self.elf.section(f".nv.shared.{name}")
        lines = [
            f"code {hashlib.sha256(without_padding(section.content)).hexdigest()}",
            f"registers {self.registers.get(name, 0)}",
            f"shared {self._shared_of(shared, above)}",
        ]
        # Those of the module, `__constant__` variables: code that reads them does not say which.
        for bank, constants in [*self._constants.get(name, ()), *self._constants.get("", ())]:
            lines.append(f"{bank} {hashlib.sha256(constants.content).hexdigest()} {constants.size}")
        for relocation in self.elf.relocations(section):
            lines.append(f"at {relocation.offset} {relocation.kind} {relocation.addend}")
            lines += self._target(relocation.symbol, section, above)
        return lines

    def _shared_of(self, shared: Section | None, above: tuple[str, ...]) -> int:
        """What is reserved counts in every kernel: the section of one without shared memory of its own has it only
        where another kernel of the module has some."""
        size = shared.size if shared else 0
        return size if above else max(size, self._reserved())

    def _reserved(self) -> int:
        return RESERVED_SHARED if int(self.architecture.removeprefix("sm_")) >= 90 else 0

    def _target(self, symbol: Symbol, origin: Section, above: tuple[str, ...]) -> list[str]:
        """What a reference leads to: a function by its code, a variable by its first value."""
        if symbol.section == SHN_UNDEFINED or symbol.section >= len(self.elf.sections):
            return [f"outside {symbol.name}"]
        section = self.elf.sections[symbol.section]
        if section is origin or section.name in above:
            return [f"within {len(above)} {symbol.value}"]
        if section.name.startswith(TEXT):
            return [f"function {symbol.value}", *self._described(section, (*above, origin.name))]
        value = section.content[symbol.value : symbol.value + symbol.size]
        kind = ".".join(section.name.split(".")[:3])
        return [f"variable {kind} {symbol.size} {hashlib.sha256(value).hexdigest()}"]


def without_padding(code: bytes) -> bytes:
    """Code without the NOPs behind it."""
    end = len(code)
    while end >= INSTRUCTION_BYTES and int.from_bytes(code[end - 16 : end - 14], "little") & 0xFFF == NOP_OPCODE:
        end -= INSTRUCTION_BYTES
    return code[:end]


def cubins_in(path: Path) -> list[Cubin]:
    """The cubins of a cubin file, an object file, a program or a shared library. Raises CodeError, OSError."""
    elf = Elf(path.read_bytes())
    if elf.machine == MACHINE_OF_CUBINS:
        return [Cubin(elf)]
    fat = elf.section(".nv_fatbin")
    if fat is None:
        raise CodeError(f"{path} has no device code in it: it is not of a gpu build")
    return [Cubin(Elf(data)) for data in entries(fat.content, path)]


def entries(fat: bytes, path: Path) -> Iterator[bytes]:
    """The cubins of a fat binary. Raises CodeError where they cannot be decompressed."""
    at = 0
    while (at := fat.find(CONTAINER_MAGIC.to_bytes(4, "little"), at)) >= 0:
        _, _, header, size = CONTAINER.unpack_from(fat, at)
        end, at = at + header + size, at + header
        while at < end:
            kind, _, entry_header, padded, compressed = ENTRY.unpack_from(fat, at)
            (flags,) = struct.unpack_from("<I", fat, at + FLAGS_AT)
            begin = at + entry_header
            if kind == ENTRY_ELF and flags & (LZ4 | ZSTANDARD):
                (whole,) = struct.unpack_from("<Q", fat, at + SIZE_AT)
                yield decompressed(fat[begin : begin + compressed], whole, flags, path)
            elif kind == ENTRY_ELF:
                yield fat[begin : begin + padded]
            at = begin + padded


def decompressed(data: bytes, size: int, flags: int, path: Path) -> bytes:
    """`size` bytes. By the system's libraries, which Python has no module of its own for before 3.14."""
    name = "libzstd.so.1" if flags & ZSTANDARD else "liblz4.so.1"
    try:
        library = ctypes.CDLL(name)
    except OSError:
        raise CodeError(
            f"{path} holds compressed machine code, and there is no {name} here to read it with; "
            "nvcc's --compress-mode=none leaves it as it is"
        ) from None
    room = ctypes.create_string_buffer(size)
    if flags & ZSTANDARD:
        library.ZSTD_decompress.restype = ctypes.c_size_t
        made = library.ZSTD_decompress(room, ctypes.c_size_t(size), data, ctypes.c_size_t(len(data)))
    else:
        made = library.LZ4_decompress_safe(data, room, len(data), size)
    if made != size:
        raise CodeError(f"{path} holds machine code that {name} cannot decompress")
    return room.raw


def kernels_in(path: Path, architecture: str) -> dict[str, Kernel]:
    """Every kernel of a file that was compiled for `architecture`, by its symbol. Raises CodeError without any."""
    found: dict[str, Kernel] = {}
    others = set()
    for cubin in cubins_in(path):
        if cubin.architecture == architecture:
            found |= cubin.kernels()
        else:
            others.add(cubin.architecture)
    if not found:
        raise CodeError(f"{path} has no code for {architecture}; it has: {', '.join(sorted(others)) or 'none'}")
    return found


def code_of_all(kernels: Iterable[Kernel]) -> str:
    """One hash of a stage's kernels, whatever their names. The harness's own, private to their file, do not count."""
    codes = sorted({kernel.code for kernel in kernels if "_GLOBAL__N_" not in kernel.symbol})
    return hashlib.sha256("\n".join(codes).encode()).hexdigest()[:HASH_DIGITS]


def as_cpp(cubins: list[Cubin]) -> str:
    """The hashes as the function that common/harness/provenance.h declares."""
    lines = sorted(
        f'    {{"{kernel.symbol}", {cubin.architecture.removeprefix("sm_")}, "{kernel.code}"}},'
        for cubin in cubins
        for kernel in cubin.kernels().values()
    )
    return "\n".join(
        [
            "// Written by common/report/machine_code.py at build time.",
            '#include "common/harness/provenance.h"',
            "",
            "namespace worklog {",
            "std::string_view code_of(std::string_view symbol, int architecture) {",
            "  struct Entry {",
            "    std::string_view symbol;",
            "    int architecture;",
            "    std::string_view code;",
            "  };",
            "  static constexpr Entry entries[] = {",
            *lines,
            "  };",
            "  for (const Entry& entry : entries) {",
            "    if (entry.symbol == symbol && entry.architecture == architecture) return entry.code;",
            "  }",
            "  return {};",
            "}",
            "}  // namespace worklog",
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, help="cubins, object files, programs or libraries")
    parser.add_argument("--cpp", type=Path, help="write the hashes to this file, as C++")
    options = parser.parse_args()
    try:
        cubins = [cubin for path in options.files for cubin in cubins_in(path)]
    except (CodeError, OSError) as error:
        print(f"machine_code: {error}", file=sys.stderr)
        return 2
    if options.cpp:
        options.cpp.write_text(as_cpp(cubins), encoding="utf-8")
        return 0
    for cubin in cubins:
        for kernel in cubin.kernels().values():
            print(f"{cubin.architecture} {kernel.code} {kernel.registers:4} {kernel.shared_bytes:6} {kernel.symbol}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
