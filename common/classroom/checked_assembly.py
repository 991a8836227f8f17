"""Rewrites what the compiler has made of a submission, so that its code can write to nothing but what is its own.

The kernels run in one process with the counters and with what has come out. So the compiler writes assembly (x86-64,
AT&T syntax), and this puts in front of every instruction that writes to memory a call that looks at the address; a
return goes only to where the call came from, which is kept apart; a call through an address goes only to the start of
one of its functions; and of other functions it reaches only those that a kernel needs. No exception finds a way through
it: of that, the unwinder is told nothing. guard.cpp has the other side, and README.md what it all is against. What is
not understood here is refused, so that nothing passes unseen.

All that the object defines becomes its own: a function of a header that the harness has too is not the harness's, which
is not checked.
"""

from __future__ import annotations

import platform
import re
import secrets
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from objects import ALLOWED

SIZES = (1, 2, 4, 8, 16)
LARGE_FRAME = 1024  # bytes; what is smaller stays within what the check at a function's start leaves free

# Of the functions that a submission may need at all (ALLOWED), those that are closed while it is watched.
REFUSED_WHILE_GUARDED = re.compile(
    r"_Unwind_\w+|_ZSt\d+__throw_\w+|__cxa_(?:begin_catch|end_catch|rethrow|free_exception|call_unexpected|bad_cast)"
    r"|__dynamic_cast"
    r"|_ZNK?St\d+(?:runtime_error|logic_error|invalid_argument|out_of_range|exception)\w+"
)
# Of the harness, what the code that fills a kernel's arguments needs: it looks something up, and writes nothing.
LOOKED_UP = ("_ZN7worklog7spec_ofENS_9OperationE",)
EXCEPTION_MADE = re.compile(
    r"_ZNSt\d+(?:runtime_error|logic_error|invalid_argument|out_of_range)C[12]E(?:PKc|RKNSt7__cxx1112basic_string\w+)"
)
# What these write to: bytes behind the first argument that is an address.
WRITES_TO_FIRST = {
    "frexp": 4, "frexpf": 4, "frexpl": 4, "modf": 8, "modff": 4, "modfl": 16, "remquo": 4, "remquof": 4, "remquol": 4,
    "__cxa_guard_acquire": 8, "__cxa_guard_release": 8, "__cxa_guard_abort": 8,
}
DIRECTIVES = frozenset((
    ".file", ".loc", ".size", ".text", ".data", ".bss", ".align", ".p2align", ".balign", ".string", ".ascii", ".byte",
    ".value", ".long", ".quad", ".zero", ".uleb128", ".sleb128", ".ident", ".comm", ".local", ".octa", ".hidden",
    ".protected",
))
WITHOUT_OPERANDS = frozenset((
    "cltq", "cltd", "cqto", "cwtl", "cwtd", "cbtw", "nop", "pause", "ud2", "mfence", "sfence", "lfence", "rdtsc",
    "fabs", "fchs", "fxch", "fld1", "fldz", "fsqrt", "frndint", "fprem", "fprem1", "fscale", "fsin", "fcos", "fucompp",
    "fxam", "fnop",
))
NO_KERNEL_NEEDS = frozenset((
    "syscall", "sysenter", "int", "int3", "iret", "iretq", "enter", "std", "wrpkru", "maskmovdqu", "maskmovq", "xrstor",
    "fxrstor", "fldenv", "frstor", "fnstenv", "fstenv", "fnsave", "fsave", "fxsave", "xsave", "popf", "popfq",
    "wrfsbase", "wrgsbase", "cmpxchg16b", "lret", "lretq", "ljmp", "lcall",
))
SECTION = re.compile(
    r"(?:\.(?:text|data|bss|rodata|tdata|tbss|gcc_except_table|init_array|debug|note|lbss|ldata|lrodata)[\w.$-]*)"
)
SYMBOL = r"[\w.$]+"
MEMORY = re.compile(rf"(?P<fs>%fs:)?(?P<at>[\w.$+@-]*)(?:\((?P<base>%\w+)?(?:,(?P<index>%\w+)(?:,[1248])?)?\))?")
NUMBER = re.compile(r"-?\d+")

# Single operands in memory that are read only; every other instruction is taken to write to its last operand.
ONLY_READS = re.compile(
    r"cmp[bwlq]|test[bwlq]|u?comis[sd]|push[wq]?|(?:i?mul|i?div)[bwlq]|prefetch\w+|ldmxcsr|fldcw|fld[slt]?"
    r"|fild(?:s|l|ll)?|fi?(?:add|sub|subr|mul|div|divr|com|comp)[slp]*|bt[wlq]|nop[wl]?|lea[lq]|(?:v)?ptest"
)
JUMPS = re.compile(r"jmp|j[a-z]{1,3}|jr?cxz")
STRING = re.compile(r"(?:(rep[nez]*) )?(stos|movs|cmps|scas|lods)([bwlq])")


class AssemblyError(Exception):
    """What the compiler has written holds what nobody here knows, or what a submission may not have."""


@dataclass
class Frame:
    """What is known of the stack in a function: how far the stack pointer is below where it was before the call."""

    depth: int | None = 8  # None: it is counted from another register
    register: str = "%rsp"
    kept: list[tuple[int | None, str, int]] = field(default_factory=list)
    offset: int = 8

    def directive(self, name: str, rest: str) -> None:
        numbers = [int(word) for word in re.findall(r"-?\d+", rest)]
        if name == ".cfi_def_cfa_offset":
            self.offset = numbers[0]
        elif name == ".cfi_adjust_cfa_offset":
            self.offset += numbers[0]
        elif name == ".cfi_def_cfa_register":
            self.register = "%rsp" if numbers[0] == 7 else "other"
        elif name == ".cfi_def_cfa":
            self.register, self.offset = "%rsp" if numbers[0] == 7 else "other", numbers[1]
        elif name == ".cfi_escape":
            self.register = "other"
        elif name == ".cfi_remember_state":
            self.kept.append((self.depth, self.register, self.offset))
        elif name == ".cfi_restore_state":
            self.depth, self.register, self.offset = self.kept.pop()
        self.depth = self.offset if self.register == "%rsp" else None

    def holds(self, at: int, size: int) -> bool:
        """Whether bytes at this distance from the stack pointer are of this function's own frame, below its return
        address."""
        return self.depth is not None and 0 <= at and at + size <= self.depth - 8


def checks_assembly() -> bool:
    """Whether each write of a submission's is checked where it is made: on x86-64 only."""
    return platform.machine() == "x86_64"


def rewritten(text: str, replaced: Collection[str]) -> str:
    """The same program, checked. `replaced`: functions of others that are one of guard.cpp's before it is linked.
    Raises AssemblyError."""
    return "\n".join(Rewriting(text, replaced).lines()) + "\n"


class Rewriting:
    def __init__(self, text: str, replaced: Collection[str]) -> None:
        self.replaced = replaced
        self.source = text.split("\n")
        self.functions = set(re.findall(rf"^\t\.type\t({SYMBOL}), @function$", text, re.MULTILINE))
        self.defined = set(re.findall(rf"^({SYMBOL}):", text, re.MULTILINE))
        self.defined |= set(re.findall(rf"^\t\.(?:set|local|comm)\t({SYMBOL})", text, re.MULTILINE))
        aliases = re.findall(rf"^\t\.set\t({SYMBOL}),({SYMBOL})$", text, re.MULTILINE)
        self.aliases = {name for name, of in aliases if of in self.functions}
        self.functions |= self.aliases
        self.gates: dict[str, str] = {}
        self.frame: Frame | None = None
        self.begun: set[str] = set()  # functions whose label has been seen
        self.mark = secrets.randbits(62) | 1 << 62

    def lines(self) -> Iterator[str]:
        starts = False  # between a function's label and its first instruction
        in_text = True
        for line in self.source:
            if not line.strip():
                continue
            if label := re.fullmatch(rf"({SYMBOL}):", line):
                if label[1] in self.functions:
                    yield from ("\t.p2align 4", "\t.skip 8, 0xcc", f"\t.quad {self.mark}")
                    starts, self.frame = True, None
                    self.begun.add(label[1])
                yield line
                continue
            if line.startswith("\t."):
                name, rest = (line.split(None, 1) + [""])[:2]
                if name == ".cfi_startproc":
                    if not starts:
                        raise AssemblyError("a function without a name")
                    self.frame, starts = Frame(), False
                    yield from ("\tleaq\t771f(%rip), %r11", "\tjmp\tworklog_enter", "771:")
                    continue
                if name in (".section", ".text", ".data", ".bss"):
                    in_text = name == ".text" or name == ".section" and rest.startswith(".text")
                if in_text and self.frame and name in (
                    ".byte", ".long", ".quad", ".value", ".zero", ".string", ".ascii", ".octa"
                ):
                    raise AssemblyError("bytes among the instructions")
                if self.frame and name.startswith(".cfi_"):
                    self.frame.directive(name, rest)
                if name == ".cfi_endproc":
                    self.frame = None
                if not name.startswith(".cfi_"):
                    yield from self.directive(line, name, rest)
                continue
            if re.fullmatch(r"[.\w$]+:", line) or line.startswith("#") and not re.match(r"#\s*(NO_)?APP", line):
                yield line
                continue
            if not re.match(r"\t[a-z]", line):
                raise AssemblyError(f"assembly that is not known here: {line.strip()[:80]}")
            if self.frame is None:
                raise AssemblyError("instructions outside of functions")
            yield from self.instruction(line[1:])
        yield from self.ending()

    # --- Directives ---
    def directive(self, line: str, name: str, rest: str) -> Iterator[str]:
        if name in (".globl", ".weak"):
            if rest == "main" or rest not in self.defined:
                yield line
        elif name == ".type":
            yield line.replace("@gnu_unique_object", "@object")
        elif name == ".set":
            parts = re.fullmatch(rf"({SYMBOL}),({SYMBOL})", rest)
            if not parts or parts[2] not in self.defined:
                raise AssemblyError(f"another name for what is not there: {rest[:80]}")
            yield line
        elif name == ".section":
            words = rest.split(",")
            if not SECTION.fullmatch(words[0]):
                raise AssemblyError(f"a section of its own, {words[0][:80]}")
            if words[0].startswith(".text"):
                yield "\t.text"
                return
            if len(words) > 1 and "G" in words[1]:  # found in several objects, of which the linker keeps one
                words = [words[0], words[1].replace("G", ""), *words[2:-2]]
            yield "\t.section\t" + ",".join(words)
        elif name in DIRECTIVES:
            yield line
        else:
            raise AssemblyError(f"a directive that is not known here: {name[:80]}")

    # --- Instructions ---
    def instruction(self, line: str) -> Iterator[str]:
        mnemonic, _, rest = line.partition("\t")
        words = mnemonic.split()
        if words[0] in ("lock", "rep", "repz", "repnz", "notrack", "data16"):
            if len(words) == 1:
                parts = rest.split(None, 1)
                words, rest = [words[0], *parts[:1]], parts[1] if len(parts) > 1 else ""
        plain = words[-1]
        operands = split_operands(rest)
        if words in (["ret"], ["rep", "ret"]):
            yield "\tjmp\tworklog_leave"
            return
        if string := STRING.fullmatch(" ".join(words)) if not operands else None:
            if string[2] in ("stos", "movs"):
                size = {"b": 1, "w": 2, "l": 4, "q": 8}[string[3]]
                times = "rep_" if string[1] else ""
                yield from checked_address("(%rdi)", f"worklog_{times}store_{size}")
                if string[2] == "movs":
                    yield from checked_address("(%rsi)", f"worklog_{times}load_{size}")
            yield "\t" + line
            return
        if words[0] in ("rep", "repz", "repnz") and not re.fullmatch(r"nop|bsf[wlq]", plain):  # the latter is tzcnt
            raise AssemblyError(f"an instruction that is not known here: {line[:80]}")
        if plain == "call":
            yield self.call(rest)
            return
        if JUMPS.fullmatch(plain):
            if not re.fullmatch(rf"\.L{SYMBOL}", rest) and rest not in self.functions:
                raise AssemblyError(f"a jump to what is not its own: {rest[:80]}")
            yield "\t" + line
            return
        if plain in NO_KERNEL_NEEDS or not operands and plain not in (*WITHOUT_OPERANDS, "leave"):
            raise AssemblyError(f"the instruction {plain}, which a kernel has no need of")
        if plain.startswith(("xchg", "xadd", "cmpxchg")) and "%rsp" in operands:
            raise AssemblyError("the stack pointer is exchanged")
        if any(operand in ("%ss", "%ds", "%es", "%fs", "%gs", "%cs") or operand.startswith("%gs:")
               for operand in operands):
            raise AssemblyError(f"a segment: {line[:80]}")
        compares = re.fullmatch(r"(?:cmp|test)[bwlq]", plain)
        if plain == "leave" or operands and operands[-1] in ("%rsp", "%esp", "%sp", "%spl") and not compares:
            yield from self.stack_pointer(plain, operands)
            yield "\t" + line
            return
        if plain.startswith("lea") or plain.startswith(("nop", "prefetch")):
            yield "\t" + line
            return
        yield from self.accesses(plain, operands, line)
        yield "\t" + line

    def accesses(self, mnemonic: str, operands: Sequence[str], line: str) -> Iterator[str]:
        """The checks in front of an instruction."""
        of_memory = [operand for operand in operands if is_memory(operand)]
        if not of_memory:
            return
        if mnemonic.startswith(("bts", "btr", "btc")) or mnemonic.startswith("bt") and operands[0].startswith("%"):
            raise AssemblyError(f"bits at any distance: {line[:80]}")
        if mnemonic.startswith("pop"):
            raise AssemblyError(f"memory that is popped to: {line[:80]}")
        for operand in of_memory:
            last = operand is operands[-1]
            writes = last and not ONLY_READS.fullmatch(mnemonic) or mnemonic.startswith("xchg")
            size = size_of(mnemonic, operands, line)
            yield from self.check(operand, size, writes, line)

    def check(self, operand: str, size: int, writes: bool, line: str) -> Iterator[str]:
        parts = MEMORY.fullmatch(operand)
        if not parts:
            raise AssemblyError(f"an address that is not known here: {line[:80]}")
        at, base, index = parts["at"], parts["base"], parts["index"]
        if not writes and (parts["fs"] or base in (None, "%rip")):
            return
        if base == "%rsp" and index is None:
            if NUMBER.fullmatch(at or "0") and self.frame and self.frame.holds(int(at or "0"), size):
                return
        yield from checked_address(operand.removeprefix("%fs:"), f"worklog_{'store' if writes else 'load'}_"
                                   f"{'fs_' if parts['fs'] else ''}{size}")

    def stack_pointer(self, mnemonic: str, operands: Sequence[str]) -> Iterator[str]:
        """Where the stack pointer is moved: by a little that is known, or to where it is looked at before."""
        amount = int(operands[0][1:]) if operands and re.fullmatch(r"\$-?\d+", operands[0]) else None
        if mnemonic == "leave":
            yield from checked_address("(%rbp)", "worklog_frame")
        elif mnemonic == "popq":
            raise AssemblyError("the stack pointer is popped")
        elif mnemonic == "subq" and amount is not None and 0 <= amount < LARGE_FRAME:
            return
        elif mnemonic == "addq" and amount is not None and (amount > 0 or amount > -LARGE_FRAME):
            return  # what was taken before is given back
        elif mnemonic in ("subq", "addq") and amount is not None:
            yield from checked_address(f"{-abs(amount)}(%rsp)", "worklog_frame")
        elif mnemonic == "andq" and amount is not None and -256 <= amount <= -16:
            return
        elif mnemonic == "movq" and operands[0].startswith("%"):
            yield from checked_address(f"({operands[0]})", "worklog_frame")
        elif mnemonic == "leaq" and is_memory(operands[0]):
            yield from checked_address(operands[0], "worklog_frame")
        else:
            raise AssemblyError("an array on the stack whose size is known only when it runs")

    def call(self, target: str) -> str:
        name = target.removesuffix("@PLT")
        if name in self.functions or re.fullmatch(r"__x86_indirect_thunk_r\w+", name):
            return f"\tcall\t{target}"
        if not re.fullmatch(SYMBOL, name) or name in self.defined:
            raise AssemblyError(f"a call of what is no function: {target[:80]}")
        if name in self.replaced or name in LOOKED_UP:
            return f"\tcall\t{target}"
        if name in WRITES_TO_FIRST or not ALLOWED.fullmatch(name) or REFUSED_WHILE_GUARDED.fullmatch(name):
            return f"\tcall\t{self.gates.setdefault(name, f'.Lworklog_gate_{len(self.gates)}')}"
        return f"\tcall\t{target}"

    def ending(self) -> Iterator[str]:
        if missing := self.functions - self.begun - self.aliases:
            raise AssemblyError(f"a function that has no start: {sorted(missing)[0][:80]}")
        yield "\t.text"
        for name, gate in self.gates.items():
            yield f"{gate}:"
            size = 16 if EXCEPTION_MADE.fullmatch(name) else WRITES_TO_FIRST.get(name)
            if size:
                yield from checked_address("(%rdi)", f"worklog_store_{size}")
            else:
                yield from ("\tcmpb\t$0, worklog_guard_is_on(%rip)", "\tjne\tworklog_refuse_call")
            yield f"\tjmp\t{name}@PLT"
        yield from ("\t.section\t.rodata", "\t.balign 8", "\t.globl\tworklog_entry_mark",
                    "\t.type\tworklog_entry_mark, @object", "\t.size\tworklog_entry_mark, 8", "worklog_entry_mark:",
                    f"\t.quad\t{self.mark}", '\t.section\t.note.GNU-stack,"",@progbits')


def checked_address(operand: str, check: str) -> Iterator[str]:
    """Calls a function of guard.cpp with the address of an operand. All registers and flags stay as they are."""
    if moved := re.fullmatch(r"(-?\d*)(\(%rsp.*)", operand):
        operand = f"{int(moved[1] or '0') + 8}{moved[2]}"  # below what is pushed
    elif "(%rsp" in operand:
        raise AssemblyError(f"an address that is not known here: {operand[:80]}")
    yield from ("\tpushq\t%rax", f"\tleaq\t{operand}, %rax", f"\tcall\t{check}", "\tpopq\t%rax")


def split_operands(text: str) -> list[str]:
    return [word.strip() for word in re.findall(r"(?:[^,(]|\([^)]*\))+", text)]


def is_memory(operand: str) -> bool:
    return not operand.startswith(("$", "%")) or operand.startswith("%fs:")


def size_of(mnemonic: str, operands: Sequence[str], line: str) -> int:
    """Bytes that an instruction reads or writes in memory; at least."""
    has_wide = any(operand.startswith(("%xmm", "%mm")) for operand in operands)
    if any(operand.startswith(("%ymm", "%zmm")) for operand in operands):
        raise AssemblyError(f"wide registers: {line[:80]}")
    if mnemonic.startswith("f"):
        return {"fstcw": 2, "fnstcw": 2, "fldcw": 2, "fnstsw": 2}.get(mnemonic, 16 if mnemonic.endswith("t") else
               4 if re.fullmatch(r"fi?(?:ld|st|stp|add|sub|mul|div|com|comp|subr|divr)s", mnemonic) else 8)
    if mnemonic in ("stmxcsr", "ldmxcsr"):
        return 4
    if extended := re.fullmatch(r"mov([sz])([bwl])[wlq]", mnemonic):
        return {"b": 1, "w": 2, "l": 4}[extended[2]]
    if mnemonic.startswith("set"):
        return 1
    if mnemonic in ("movd", "movss") or re.fullmatch(r"(?:cvt(?:t?ss2si|ss2sd|si2s[sd]l?)|\w+ss)[lq]?", mnemonic):
        return 8 if re.fullmatch(r"cvtsi2s[sd]q", mnemonic) else 4
    if re.fullmatch(r"cvtsi2s[sd]q|cvtt?sd2si[lq]?|cvtsd2ss|cvtps2pd|cvtdq2pd|mov[lh]p[sd]|movq|\w+sd", mnemonic):
        return 8
    if has_wide:
        if extracted := re.fullmatch(r"p(?:extr|insr)([bwdq])", mnemonic):
            return {"b": 1, "w": 2, "d": 4, "q": 8}[extracted[1]]
        return 16
    if re.fullmatch(r"movabs[bwlq]|[a-z]+[bwlq]|cmov[a-z]+|xadd[bwlq]|cmpxchg[bwlq]|bswap", mnemonic):
        if mnemonic.startswith("cmov"):
            return register_size(operands[-1], line)
        return {"b": 1, "w": 2, "l": 4, "q": 8}[mnemonic[-1]]
    raise AssemblyError(f"an instruction that is not known here: {line[:80]}")


def register_size(register: str, line: str) -> int:
    if re.fullmatch(r"%r(?:\d+|[a-ds][xipi]|[sb]p)", register):
        return 8
    if re.fullmatch(r"%e\w\w|%r\d+d", register):
        return 4
    if re.fullmatch(r"%\w\w|%r\d+w", register):
        return 2
    raise AssemblyError(f"a register that is not known here: {line[:80]}")
