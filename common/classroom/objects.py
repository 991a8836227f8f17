"""Reads what the compiler has made of a submission, before it is linked: what it calls, what it defines, and whether
some of it would run before or after main().

The text of a source can hide a name in many ways; the object names all that it needs, or it cannot be linked. So
vetting.py is there for messages with a line, and this for the certainty. What the exercise's skeleton has is allowed in
any case: a baseline that is compiled by the same command.
"""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# Of the ELF format (elf.h).
SYMTAB, NOBITS, INIT_ARRAY, FINI_ARRAY, PREINIT_ARRAY = 2, 8, 14, 15, 16
ALLOCATED = 2
LOCAL, GLOBAL, WEAK, UNIQUE = 0, 1, 2, 10
FUNCTION, IFUNC = 2, 10
STARTS_OR_ENDS = re.compile(r"\.(init|fini|ctors|dtors|preinit_array|init_array|fini_array)(\.\d+)?")
ORDINARY = re.compile(
    r"\.(text|data|bss|rodata|tdata|tbss|eh_frame|gcc_except_table|data\.rel\.ro|note|lbss|ldata|lrodata)(\..*)?"
)

# What a kernel and its launch may need beyond the skeleton. The CPU layer's functions are those that stand behind
# device code; those that count, copy, allocate or report are not among them.
OF_DEVICE = (
    "atomic_changed_nothing", "block_barrier", "called_on_host", "cluster_shape", "commit_copies", "converged_lanes",
    "copy_later", "group_arrive", "group_wait", "lane_id", "launch", "launched_cooperatively", "map_to_rank",
    "multiprocessors", "rank_of_shared", "trap", "turns_without_change", "wait_for_copies", "warp_collective", "yield",
)
OF_RUNTIME = (
    "cudaDeviceGetAttribute", "cudaFuncGetAttributes", "cudaFuncSetAttribute", "cudaGetDevice", "cudaGetErrorName",
    "cudaGetErrorString", "cudaGetLastError", "cudaMemsetAsync", "cudaOccupancyMaxActiveBlocksPerMultiprocessor",
    "cudaOccupancyMaxActiveClusters", "cudaPeekAtLastError",
)
MATHEMATICS = (
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "copysign", "cos", "cosh", "erf",
    "erfc", "exp", "exp10", "exp2", "expm1", "fabs", "fdim", "floor", "fma", "fmax", "fmin", "fmod", "frexp", "hypot",
    "ilogb", "ldexp", "lgamma", "llrint", "llround", "log", "log10", "log1p", "log2", "logb", "lrint", "lround", "modf",
    "nan", "nearbyint", "nextafter", "pow", "remainder", "remquo", "rint", "round", "roundeven", "scalbln", "scalbn",
    "sin", "sincos", "sinh", "sqrt", "tan", "tanh", "tgamma", "trunc",
)
ALLOWED = re.compile("|".join((
    rf"(?:{'|'.join(MATHEMATICS)})[fl]?",
    rf"_ZN4simt6detail\d+(?:{'|'.join(OF_DEVICE)})E\w*",
    rf"_Z\d+(?:{'|'.join(OF_RUNTIME)})\w*",
    r"threadIdx|blockIdx|blockDim|gridDim|warpSize|worklog_dynamic_shared",
    # What the compiler itself calls: copies of structs, wide arithmetic, exceptions, static variables of functions.
    r"mem(?:cpy|move|set|cmp)|str(?:len|cmp)|_GLOBAL_OFFSET_TABLE_|__tls_get_addr|__stack_chk_fail|__assert_fail",
    r"__(?:u?div|u?mod|mul|ashl|ashr|lshr)[dt]i3|__popcount[dt]i2|__c[lt]z[dt]i2|__(?:fix|float|extend|trunc)\w+",
    r"__tsan_\w+|__x86_indirect_thunk_\w+|_Unwind_Resume|__gxx_personality_v0|__libc_single_threaded",
    r"__cxa_(?:allocate_exception|free_exception|throw|rethrow|begin_catch|end_catch|call_unexpected|guard_\w+"
    r"|pure_virtual|throw_bad_array_new_length|bad_cast)",
    r"_ZSt\d+__throw_\w+|_ZSt9terminatev|_Zn[wa]m|_Zd[la]Pvm?|_ZTVN10__cxxabiv1\d+\w+",
    r"_ZT[IV]St\w+|_ZNK?St\d+(?:runtime_error|logic_error|invalid_argument|out_of_range|exception)\w+",
)))
# The C library's names, the C++ library's, and what the compiler makes for them.
OF_THE_SYSTEM = re.compile(r"(?!_Z)|_ZN?[VKrO]*(?:St|S[a-z]|9__gnu_cxx|10__cxxabiv1)|_Z[nd][wal]|_ZT\w+S[a-z]")


class ObjectError(Exception):
    """The file is no object of this kind of machine."""


@dataclass(frozen=True)
class Symbol:
    name: str
    binding: int
    kind: int
    defined: bool


@dataclass(frozen=True)
class ObjectFile:
    symbols: tuple[Symbol, ...]
    sections: dict[str, int]  # of those that are loaded: bytes, for all of one name together
    starts_or_ends: dict[str, int]  # sections whose functions run before or after main(): bytes

    def names(self, defined: bool) -> set[str]:
        return {each.name for each in self.symbols if each.defined == defined and each.name}


def read_object(data: bytes) -> ObjectFile:
    """Of an ELF object of 64 bits, little endian. Raises ObjectError."""
    try:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ObjectError("the compiler has written no object file")
        (offset,) = struct.unpack_from("<Q", data, 40)
        entry, count, of_names = struct.unpack_from("<HHH", data, 58)
        if count == 0:  # more than a half-word can count
            (count,) = struct.unpack_from("<Q", data, offset + 32)
        if of_names == 0xFFFF:
            (of_names,) = struct.unpack_from("<I", data, offset + 40)
        headers = [struct.unpack_from("<IIQQQQIIQQ", data, offset + i * entry) for i in range(count)]
        names = text_of(data, headers[of_names])
        sections: dict[str, int] = {}
        starts_or_ends: dict[str, int] = {}
        symbols: list[Symbol] = []
        for header in headers:
            name, kind, flags, size = string_at(names, header[0]), header[1], header[2], header[5]
            if kind in (INIT_ARRAY, FINI_ARRAY, PREINIT_ARRAY) or STARTS_OR_ENDS.fullmatch(name):
                starts_or_ends[name] = starts_or_ends.get(name, 0) + size
            if flags & ALLOCATED:
                sections[name] = sections.get(name, 0) + size
            if kind == SYMTAB:
                strings = text_of(data, headers[header[6]])
                for at in range(header[4], header[4] + size, 24):
                    where, info, _, place = struct.unpack_from("<IBBH", data, at)
                    symbols.append(Symbol(string_at(strings, where), info >> 4, info & 15, place != 0))
    except (struct.error, IndexError, UnicodeDecodeError):
        raise ObjectError("the compiler has written no object file that can be read") from None
    return ObjectFile(tuple(symbols), sections, starts_or_ends)


def text_of(data: bytes, header: Sequence[int]) -> bytes:
    return data[header[4] : header[4] + header[5]]


def string_at(strings: bytes, offset: int) -> str:
    return strings[offset : strings.index(b"\0", offset)].decode() if offset < len(strings) else ""


@cache
def defined_in(library: Path) -> dict[str, bool]:
    """What a library, or an object of ours, defines for others; and whether it is weak, as a header's functions are."""
    words = ["nm", "-P", "-g", "--defined-only", *(["-D"] if ".so" in library.name else []), str(library)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    words_of_lines = [line.split() for line in done.stdout.splitlines()]
    return {words[0]: words[1] in "WVwvu" for words in words_of_lines if len(words) > 1}


class ObjectVetting:
    """What the object of a submission may hold: what the baseline's has, and what a kernel needs."""

    def __init__(self, baseline: bytes, others: Iterable[Path], keeps_its_own: bool = False) -> None:
        """`others`: the libraries and objects that it is linked with. `keeps_its_own`: what it defines is made its own
        (checked_assembly.py), so that it may hold functions of headers that others hold, too."""
        self.baseline = read_object(baseline)
        theirs = [(name, is_weak) for path in others for name, is_weak in defined_in(path).items()]
        self.of_others = {name for name, _ in theirs}
        self.not_again = {name for name, is_weak in theirs if not (is_weak and keeps_its_own)}

    def reasons(self, data: bytes, most: int = 5) -> list[str]:
        """Why the object is refused: a sentence each, none where it is not."""
        try:
            found = read_object(data)
        except ObjectError as error:
            return [str(error)]
        sentences = []
        for name, size in found.starts_or_ends.items():
            if size > self.baseline.starts_or_ends.get(name, 0):
                when = "after" if re.match(r"\.(fini|dtors)", name) else "before"
                what = "a variable outside of functions has to be constant" if when == "before" else "nothing may"
                sentences.append(f"the compiled code holds functions that run {when} main(): {what}")
        for name in found.sections.keys() - self.baseline.sections.keys():
            if not ORDINARY.fullmatch(name) and not STARTS_OR_ENDS.fullmatch(name):
                sentences.append(f"the compiled code has a section of its own, '{name}'")
        if any(each.kind == IFUNC for each in found.symbols):
            sentences.append("the compiled code chooses a function while the program is loaded (ifunc)")
        needed = {name for name in found.names(defined=False) if not ALLOWED.fullmatch(name)}
        # What nobody has is left to the linker, whose message names the place.
        there_is = {name for name in needed if name in self.of_others or OF_THE_SYSTEM.match(name)}
        for name in readable(sorted(there_is - self.baseline.names(defined=False))):
            sentences.append(f"the compiled code needs {name}, which a kernel has no need of")
        there = self.baseline.names(defined=True)
        mine = {each.name for each in found.symbols if each.defined and each.binding != LOCAL} - there - {""}
        replaces = {
            name for name in mine
            if name in self.not_again or re.match(r"_Z[nd][wal]", name) or not name.startswith(("_Z", "DW.ref."))
        }
        for name in readable(sorted(replaces)):
            sentences.append(f"the compiled code defines {name}, which is another's name")
        return sentences[:most]


def readable(names: Sequence[str]) -> list[str]:
    """Names of C++ as they are written, without what they take."""
    if not names:
        return []
    done = subprocess.run(["c++filt", "-p"], input="\n".join(names), capture_output=True, text=True, check=False)
    shown = done.stdout.splitlines()
    return shown if len(shown) == len(names) else list(names)
