"""Reads a submission before it is compiled, and refuses what a kernel has no need of: inline assembly, other files,
the C library, the harness itself. It says so with the line, in words for the student.

What is written so that a reader of words misses it is found in the compiled object (objects.py), which names all that
it calls. Only here are found: assembly, attributes, macros that would change the exercise's own program, and
specializations of the harness's templates. What the skeleton or the solution of the exercise uses is allowed in any
case.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from exercises import ROOT, Exercise

MOST_BYTES = 256 * 1024

TOKEN = re.compile(r"""
    (?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))
  | (?P<string>"(?:[^"\\\n]|\\.)*")
  | (?P<char>'(?:[^'\\\n]|\\.)+')
  | (?P<open>"(?:[^"\\\n]|\\.)*|'(?:[^'\\\n]|\\.)+)
  | (?P<number>\.?[0-9](?:'?[A-Za-z0-9_]|(?<=[eEpP])[+-]|\.)*)
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<space>[ \t\r\v\f]+)
  | (?P<line>\n)
  | (?P<mark>::|->|.)
""", re.VERBOSE | re.DOTALL)

INCLUDES = {
    "<algorithm>", "<array>", "<bit>", "<cassert>", "<cfloat>", "<climits>", "<cmath>", "<concepts>", "<cstddef>",
    "<cstdint>", "<cstdio>", "<cstdlib>", "<cstring>", "<functional>", "<initializer_list>", "<iterator>", "<limits>",
    "<math.h>", "<memory>", "<numbers>", "<numeric>", "<optional>", "<stddef.h>", "<stdexcept>", "<stdint.h>",
    "<stdio.h>", "<string>", "<tuple>", "<type_traits>", "<utility>", "<vector>",
    "<cooperative_groups.h>", "<cooperative_groups/reduce.h>", "<cuda_bf16.h>", "<cuda_fp16.h>", "<cuda_pipeline.h>",
    "<cuda_runtime.h>", "<math_constants.h>", '"common/device/arguments.h"', '"common/device/launch.cuh"',
    '"common/device/cluster.cuh"', '"common/harness/dtype.h"',
}
# Of std, what works on files, processes and threads. The C library's functions are refused by their own names.
NOT_OF_STD = {
    "async", "atexit", "basic_filebuf", "basic_fstream", "basic_ifstream", "basic_ofstream", "cerr", "cin", "clog",
    "condition_variable", "cout", "filebuf", "filesystem", "fstream", "future", "ifstream", "jthread", "launder",
    "mutex", "ofstream", "promise", "set_new_handler", "set_terminate", "terminate", "this_thread", "thread",
}
KEYWORDS = {"asm", "extern", "export", "import", "module", "co_await", "co_return", "co_yield", "typeid"}
# After which a name is used, not declared.
STATEMENTS = {"return", "case", "else", "throw", "new", "delete", "do", "goto", "and", "or", "not", "sizeof"}
# No macro may have the name of one: whatever is written in terms of it would mean something else.
WORDS_OF_THE_LANGUAGE = STATEMENTS | {
    "alignas", "alignof", "auto", "bool", "break", "catch", "char", "class", "concept", "const", "const_cast",
    "consteval", "constexpr", "constinit", "continue", "decltype", "default", "defined", "double", "dynamic_cast",
    "enum", "explicit", "false", "float", "for", "friend", "if", "inline", "int", "long", "mutable", "namespace",
    "noexcept", "nullptr", "operator", "private", "protected", "public", "register", "reinterpret_cast", "requires",
    "short", "signed", "static", "static_assert", "static_cast", "std", "struct", "switch", "template", "this",
    "thread_local", "true", "try", "typedef", "typename", "union", "unsigned", "using", "virtual", "void", "volatile",
    "while",
}
# Namespaces that belong to others.
OF_OTHERS = {
    "std", "simt", "cooperative_groups", "nvcuda", "cuda", "benchmark", "fmt", "CLI", "boost", "nlohmann",
}
# Of the compiler's words, those that students write.
HARMLESS_WORDS = {"__restrict__", "__restrict", "__inline__", "__inline", "__builtin_expect", "__func__"}
CONDITIONS = {"__CUDA_ARCH__", "__CUDACC__", "__NVCC__", "defined"}
HARNESS = {
    "simt", "benchmark", "fmt", "CLI", "boost", "main", "launch_observer", "Program", "Variant", "Problem",
    "ProblemOptions", "Session", "Reference", "Workspace", "Binding", "TensorPointer", "DeviceArguments",
    "DeviceTensor", "DeviceMemory", "DeviceBuffer", "HostTensor", "Comparison", "Check", "Runner", "Case", "argc",
    "argv", "environ",
}
ATTRIBUTES = {"maybe_unused", "noreturn", "no_unique_address", "nodiscard", "likely", "unlikely", "fallthrough"}
CUDA_CALLS = {
    "cudaStream_t", "cudaError_t", "cudaSuccess", "cudaMemsetAsync", "cudaGetLastError", "cudaPeekAtLastError",
    "cudaGetErrorName", "cudaGetErrorString", "cudaGetDevice",
    "cudaDeviceGetAttribute", "cudaFuncSetAttribute", "cudaOccupancyMaxActiveBlocksPerMultiprocessor",
    "cudaOccupancyMaxPotentialBlockSize",
}
COMPILERS = re.compile(
    r"__(builtin|attribute|asm|has|typeof|typeof__|FILE|BASE|real|wrap|GNUC|cplusplus|dso|cxa|gxx|libc|extension|"
    r"declspec|sync_|atomic_|tsan|sanitize)"
)
CUDA_CONSTANTS = re.compile(r"cuda(DevAttr|FuncAttribute|LaunchAttribute|Error)")
# Functions of the C library whose names a kernel's author may well give to something of their own, and that can do no
# harm.
HARMLESS = {
    "abs", "access", "assert", "div", "index", "labs", "link", "llabs", "memcmp", "memcpy", "memmove", "memset", "nice",
    "pause", "random", "rindex", "select", "strcmp", "strlen", "sync", "tee", "time", "wait",
}
# Those that nobody names in a kernel for another purpose.
NEVER = re.compile(
    r"_?exit|_Exit|abort|at_?(quick_)?exit|quick_exit|system|popen|v?fork|execv?[lpe]*|dl(open|sym|iterate_phdr)|mmap|"
    r"munmap|mprotect|mremap|ptrace|prctl|syscall|kill|raise|sig(action|nal|longjmp|setjmp)|(long|set)jmp|fopen|"
    r"freopen|openat|getenv|setenv|putenv|unlink|socket"
)


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    line: int


class Vetting:
    """What may stand in the submissions of one exercise."""

    def __init__(self, exercise: Exercise, compiler: Sequence[str]) -> None:
        """`compiler`: the words that compile a file, without the file; it is asked which names the C library
        declares."""
        own = exercise.skeleton.read_text(encoding="utf-8"), exercise.solution()
        all_tokens = [token for source in own for token in tokens(source)]
        self.names = {token.text for token in all_tokens if token.kind not in ("comment", "space", "line")}
        of_stage = [] if exercise.is_bug else exercise.stage_texts()  # whoever begins with them has their includes
        lines = [line for source in (*own, *of_stage) for line in source.split("\n")]
        self.directives = {"".join(line.split()) for line in lines if line.lstrip().startswith("#")}
        self.namespaces = set(re.findall(r"^\s*(?:inline\s+)?namespace\s+([\w:]+)\s*\{", own[0], flags=re.MULTILINE))
        headers = [path.read_text(encoding="utf-8") for path in (ROOT / "common/simt/include").glob("**/*.h")]
        self.device_names = {name for header in headers for name in re.findall(r"\b__?[A-Za-z]\w*", header)}
        self.c_names = names_of_c_library(tuple(compiler)) - HARMLESS
        # No macro may have these names: the exercise's program comes after the submission, in the same file.
        self.of_program = {token.text for token in tokens(exercise.main.read_text(encoding="utf-8"))}

    def reasons(self, source: bytes, most: int = 5) -> list[str]:
        """Why the source is refused: sentences with lines, none where it is not."""
        try:
            text = source.decode("utf-8-sig")
        except UnicodeDecodeError:
            return ["the file is not text in UTF-8"]
        if alone := re.search(r"\r(?!\n)", text):  # which ends a line, and a comment, for g++
            return [f"line {1 + text.count(chr(10), 0, alone.start())}: a carriage return that ends no line"]
        found: list[str] = []

        def refuse(line: int, why: str) -> None:
            if len(found) < most and all(not each.endswith(why) for each in found):
                found.append(f"line {line}: {why}")

        for token in tokens(text):  # none of these has a meaning in a comment
            if token.kind != "comment" and re.search(r'\?\?[=/\'()!<>-]', token.text):
                refuse(token.line, "a trigraph")
        everything = tokens(text)
        if everything and re.match(r"/\*(?!.*\*/)", everything[-1].text, re.DOTALL):
            return [f"line {everything[-1].line}: a comment that does not end"]
        for first, second in zip(everything, everything[1:]):
            pair = first.text + second.text
            if pair in ("<:", "<%", "%:", "??") and first.kind == second.kind == "mark":
                refuse(first.line, "a digraph or a trigraph")
        code = [token for token in everything if token.kind not in ("comment", "space")]
        self._vet_directives(code, refuse)
        # Of the directives, macros hold code; the others have been looked at.
        lines: dict[int, list[Token]] = {}
        number = 0
        for token in code:
            number += token.kind == "line"
            if token.kind != "line":
                lines.setdefault(number, []).append(token)
        plain, of_macros = [], []
        for words in lines.values():
            if words[0].text != "#":
                plain += words
            elif len(words) > 2 and words[1].text == "define":
                of_macros.append(words[3:])
        self._declared = {
            token.text for before, token in zip(plain, plain[1:]) if token.kind == "name"
            and (before.kind == "name" and before.text not in STATEMENTS or before.text in (">", "*", "&", "[", ","))
        }
        self._vet_code(plain, refuse)
        for body in of_macros:
            for i in range(len(body)):
                self._vet_token(body, i, refuse)
        return found

    def _vet_directives(self, code: list[Token], refuse) -> None:
        lines: list[list[Token]] = [[]]
        for token in code:
            if token.kind == "line":
                lines.append([])
            else:
                lines[-1].append(token)
        for words in lines:
            if not words:
                continue
            number = words[0].line
            if words[0].text != "#":
                if any(token.text == "#" for token in words):
                    refuse(number, "a # in the middle of a line")
                continue
            kind = words[1].text if len(words) > 1 else ""
            rest = "".join(token.text for token in words[2:])
            shown = f"#{kind} {' '.join(token.text for token in words[2:])}".strip()[:60]
            if f"#{kind}{rest}" in self.directives or kind in ("", "else", "endif"):
                continue
            if kind == "pragma":
                if rest != "once" and not rest.startswith(("unroll", "GCCunroll", "GCCivdep", "nounroll")):
                    refuse(number, f"{shown}: of pragmas, only once and unroll")
            elif kind == "include":
                if rest not in INCLUDES:
                    refuse(number, f"#include {rest[:50]}: only what a kernel needs can be included")
            elif kind in ("define", "undef", "if", "elif", "ifdef", "ifndef"):
                self._vet_macro(kind, words[2:], shown, refuse)
            else:
                refuse(number, f"{shown}: this is not needed here")

    def _vet_macro(self, kind: str, words: list[Token], shown: str, refuse) -> None:
        line = words[0].line if words else 0
        names = [token.text for token in words if token.kind == "name"]
        if any(token.text == "#" for token in words):
            refuse(line, f"{shown}: a macro with # makes names that nobody can read before it is used")
        # A macro's name; in a condition, all names.
        for name in names[:1] if kind in ("define", "undef") else names:
            is_reserved = name.startswith("_") or name in WORDS_OF_THE_LANGUAGE or name in HARNESS or name in KEYWORDS
            taken = name in self.of_program or name in self.c_names or name in self.device_names
            if is_reserved or taken:
                if kind in ("define", "undef") or name not in CONDITIONS:
                    refuse(line, f"{shown}: {name} has a meaning already; a macro of your own needs another name")

    def _vet_code(self, code: list[Token], refuse) -> None:
        i = 0
        while i < len(code):
            token = code[i]
            if token.text == "namespace" and (i == 0 or code[i - 1].text != "using"):
                j = i + 1
                while j < len(code) and (code[j].kind == "name" or code[j].text == "::"):
                    j += 1
                name = "".join(each.text for each in code[i + 1 : j])
                if j < len(code) and code[j].text == "{":
                    if name not in self.namespaces and OF_OTHERS & set(name.split("::")):
                        refuse(token.line, f"namespace {name} is another's: the kernels stay in "
                               f"{' or '.join(sorted(self.namespaces))}")
                    i = j + 1
                    continue
                following = [each.text for each in code[j : j + 3]]
                if not (j < len(code) and code[j].text == "=" and "cooperative_groups" in following):
                    refuse(token.line, "another name for a namespace")
            self._vet_token(code, i, refuse)
            i += 1

    def _vet_token(self, code: list[Token], i: int, refuse) -> None:
        token, text = code[i], code[i].text
        nothing = Token("mark", "", 0)
        before, after = code[i - 1] if i else nothing, code[i + 1] if i + 1 < len(code) else nothing
        if token.kind == "mark" and (ord(text[0]) > 126 or text in ("\\", '"', "'", "`", "@", "$")):
            refuse(token.line, f"the character {text!r}")
        if token.kind == "open":
            refuse(token.line, f"the character {text[0]!r}")
        if token.kind in ("string", "char") and before.kind == "name" and before.text in ("R", "LR", "uR", "UR", "u8R"):
            refuse(token.line, "a raw string")
        if text == "[" and after.text == "[":
            inside = []
            for each in code[i + 2 : i + 12]:
                if each.text == "]":
                    break
                inside.append(each.text)
            # A[[]{...}()] is no attribute, and nothing that anybody writes.
            if any(name not in ATTRIBUTES and name != "," for name in inside):
                refuse(token.line, f"the attribute {' '.join(inside)[:40]}")
        if token.kind != "name":
            return
        named_by = code[i - 2].text if i > 1 and before.text == "::" and code[i - 2].kind == "name" else ""
        if named_by in STATEMENTS:
            named_by = ""
        if named_by == "std" and text in NOT_OF_STD:
            refuse(token.line, f"std::{text} is nothing that a kernel needs")
        if text in self.names:
            return
        is_reserved = text.startswith("_") and (text.startswith("__") or text[1:2].isupper())
        is_call = after.text == "(" and before.text not in (".", "->") and text not in self._declared
        if text in KEYWORDS:
            instead = {"extern": "; dynamic shared memory is dynamic_shared<T>()", "asm": "; assembly is not graded"}
            refuse(token.line, f"the keyword {text}{instead.get(text, '')}")
        elif text in HARNESS:
            refuse(token.line, f"{text} is the harness's")
        elif text in HARMLESS_WORDS:
            return
        elif COMPILERS.match(text) or is_reserved and text not in self.device_names:
            refuse(token.line, f"{text} is the compiler's, or CUDA's and not known here")
        elif re.fullmatch(r"cuda[A-Z]\w*", text) and text not in CUDA_CALLS and not CUDA_CONSTANTS.match(text):
            refuse(token.line, f"{text} is nothing that a kernel's launch needs")
        elif text in ("printf", "puts", "putchar"):
            refuse(token.line, f"{text} is for looking at a kernel; take it out before you hand it in")
        elif text in self.c_names and (is_call and named_by in ("", "std") or NEVER.fullmatch(text)):
            refuse(token.line, f"{text} is a function of the C library, which a kernel has no need of")


def tokens(text: str) -> list[Token]:
    """As the compiler reads it: a backslash at the end of a line joins it with the next one, in comments, too."""
    pieces = re.split(r"\\[ \t\r\f\v]*\n", text)
    joints = []  # where lines were joined
    at = 0
    for piece in pieces[:-1]:
        at += len(piece)
        joints.append(at)
    found, line, joined = [], 1, 0
    for match in TOKEN.finditer("".join(pieces)):
        while joined < len(joints) and joints[joined] <= match.start():
            joined += 1
        found.append(Token(match.lastgroup or "mark", match.group(), line + joined))
        line += match.group().count("\n")
    return found


@cache
def names_of_c_library(compiler: tuple[str, ...]) -> set[str]:
    """Every function of the C library, as far as its headers are included by a stage's program; mathematics aside."""
    words = [word for word in compiler if not word.startswith("-fsanitize")]
    headers = ("<unistd.h>", "<fcntl.h>", "<sys/mman.h>", "<sys/wait.h>", "<dlfcn.h>", "<signal.h>")
    source = "".join(f"#include {header}\n" for header in ('"common/harness/program.h"', *headers))
    done = subprocess.run([*words, "-E", "-"], input=source, cwd=ROOT, capture_output=True, text=True, check=True)
    names = {"stdin", "stdout", "stderr"}
    is_library = False
    for line in done.stdout.split("\n"):
        if marker := re.match(r'# \d+ "([^"]*)"', line):
            path = Path(marker[1])
            of_others = {"c++", "benchmark", "fmt", "CLI", "boost"}
            is_library = path.is_relative_to("/usr/include") and not of_others & set(path.parts)
            is_library = is_library and not path.name.startswith("math")
        elif is_library:
            names.update(re.findall(r"\b([a-zA-Z]\w*)\s*\(", line))
    return names - {
        "throw", "noexcept", "sizeof", "if", "while", "for", "switch", "return", "void", "int", "char", "long",
    }
