"""Reads a submission before it is compiled, and refuses what a kernel has no need of: macros, inline assembly, other
files, the C library, the harness itself.

A right result cannot be had by any of these, since another program judges it. But what is counted is counted in the
submission's own process: whoever gets hold of that process can falsify it. So the way there is closed by the source.
What the skeleton or the solution of the exercise uses is allowed in any case.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from exercises import ROOT, Exercise

MOST_BYTES = 256 * 1024

TOKEN = re.compile(r"""
    (?P<comment>//[^\n]*|/\*.*?\*/)
  | (?P<string>"(?:[^"\\\n]|\\.)*")
  | (?P<char>'(?:[^'\\\n]|\\.)+')
  | (?P<number>\.?[0-9](?:'?[A-Za-z0-9_]|(?<=[eEpP])[+-]|\.)*)
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<space>[ \t\r\v\f]+)
  | (?P<line>\n)
  | (?P<mark>::|\[\[|\]\]|.)
""", re.VERBOSE | re.DOTALL)

INCLUDES = {
    "<algorithm>", "<array>", "<bit>", "<cmath>", "<cstddef>", "<cstdint>", "<initializer_list>", "<limits>",
    "<numeric>", "<type_traits>", "<utility>", "<cooperative_groups.h>", "<cooperative_groups/reduce.h>",
    "<cuda_bf16.h>", "<cuda_fp16.h>", "<cuda_pipeline.h>", "<cuda_runtime.h>", "<math_constants.h>",
    '"common/device/arguments.h"', '"common/device/launch.cuh"', '"common/device/cluster.cuh"',
    '"common/harness/dtype.h"',
}
STANDARD = {
    "all_of", "any_of", "array", "bit_cast", "bit_ceil", "bit_floor", "bool_constant", "byte", "common_type_t",
    "conditional_t", "countr_zero", "decay_t", "declval", "enable_if_t", "false_type", "forward", "gcd",
    "has_single_bit", "initializer_list", "int16_t", "int32_t", "int64_t", "int8_t", "integral_constant",
    "invalid_argument", "is_convertible_v", "is_floating_point_v", "is_integral_v", "is_same", "is_same_v", "isfinite",
    "lcm", "max", "min", "move", "nullptr_t", "numeric_limits", "pair", "ptrdiff_t", "remove_const_t", "remove_cv_t",
    "remove_cvref_t", "remove_pointer_t", "remove_reference_t", "size", "size_t", "swap", "true_type", "uint16_t",
    "uint32_t", "uint64_t", "uint8_t", "uintptr_t",
}
KEYWORDS = {"asm", "extern", "export", "import", "module", "co_await", "co_return", "co_yield", "typeid"}
HARNESS = {
    "simt", "benchmark", "fmt", "CLI", "boost", "main", "launch_observer", "Program", "Variant", "Problem",
    "ProblemOptions", "Session", "Reference", "Workspace", "Binding", "TensorPointer", "DeviceArguments",
    "DeviceTensor", "DeviceMemory", "DeviceBuffer", "HostTensor", "Comparison", "Check", "Runner", "Case", "argc",
    "argv", "environ",
}
ATTRIBUTES = {"maybe_unused", "nodiscard", "likely", "unlikely", "fallthrough"}
CUDA_CALLS = {
    "cudaStream_t", "cudaError_t", "cudaSuccess", "cudaMemsetAsync", "cudaGetLastError", "cudaGetDevice",
    "cudaDeviceGetAttribute", "cudaFuncSetAttribute", "cudaOccupancyMaxActiveBlocksPerMultiprocessor",
    "cudaOccupancyMaxPotentialBlockSize",
}
COMPILERS = re.compile(
    r"__(builtin|attribute|asm|has|typeof|typeof__|FILE|BASE|real|wrap|GNUC|cplusplus|dso|cxa|gxx|libc|extension|"
    r"declspec|sync_|atomic_|tsan|sanitize)"
)
CUDA_CONSTANTS = re.compile(r"cuda(DevAttr|FuncAttribute|LaunchAttribute|Error)")
# Functions of the C library whose names a kernel's author may well give to a variable, and that can do no harm.
HARMLESS = {
    "abs", "access", "div", "index", "labs", "link", "llabs", "nice", "pause", "random", "rindex", "select", "sync",
    "tee", "time", "wait",
}


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
        self.directives = {" ".join(line.split()) for line in lines if line.lstrip().startswith("#")}
        self.namespaces = set(re.findall(r"^\s*(?:inline\s+)?namespace\s+([\w:]+)\s*\{", own[0], flags=re.MULTILINE))
        headers = [path.read_text(encoding="utf-8") for path in (ROOT / "common/simt/include").glob("**/*.h")]
        self.device_names = {name for header in headers for name in re.findall(r"\b__?[A-Za-z]\w*", header)}
        self.c_names = names_of_c_library(compiler) - HARMLESS

    def reasons(self, source: bytes, most: int = 5) -> list[str]:
        """Why the source is refused: sentences with lines, none where it is not."""
        try:
            text = source.decode("utf-8")
        except UnicodeDecodeError:
            return ["the file is not text in UTF-8"]
        found: list[str] = []

        def refuse(line: int, why: str) -> None:
            if all(not each.endswith(why) for each in found):
                found.append(f"line {line}: {why}")

        for number, line in enumerate(text.split("\n"), start=1):
            if line.rstrip().endswith("\\"):
                refuse(number, "a line that goes on in the next one, by a backslash")
            if re.search(r'\?\?[=/\'()!<>-]|<:|<%|%:|R"', line):
                refuse(number, "a digraph, a trigraph or a raw string")
        code = [token for token in tokens(text) if token.kind not in ("comment", "space")]
        self._vet_directives(code, refuse)
        # Directives have been looked at; what is left is code.
        pairs = zip([Token("line", "\n", 0), *code], code)
        directive_lines = {token.line for before, token in pairs if token.text == "#" and before.kind == "line"}
        self._vet_code([token for token in code if token.kind != "line" and token.line not in directive_lines], refuse)
        return found[:most]

    def _vet_directives(self, code: list[Token], refuse) -> None:
        lines: dict[int, list[Token]] = {}
        for token in code:
            if token.kind != "line":
                lines.setdefault(token.line, []).append(token)
        for number, words in lines.items():
            if words[0].text != "#":
                if any(token.text == "#" for token in words):
                    refuse(number, "a # in the middle of a line")
                continue
            kind = words[1].text if len(words) > 1 else ""
            rest = "".join(token.text for token in words[2:])
            shown = f"#{kind} {rest}".strip()
            there = {"".join(line.replace("# ", "#").split()) for line in self.directives}
            if shown.replace(" ", "") in there:
                continue
            if kind == "pragma" and (rest == "once" or rest.startswith("unroll")):
                continue
            if kind == "include" and rest in INCLUDES:
                continue
            what = "macros and conditions are not needed here"
            if kind == "include":
                what = "only what a kernel needs can be included"
            elif kind == "pragma":
                what = "of pragmas, only once and unroll"
            refuse(number, f"#{kind} {rest[:60]}: {what}")

    def _vet_code(self, code: list[Token], refuse) -> None:
        depth = 0
        opened: list[bool] = []  # of each open brace: is it a namespace?
        i = 0
        while i < len(code):
            token = code[i]
            text = token.text
            outside = all(opened)  # within namespaces alone, or at the top
            if text == "namespace" and outside:
                j = i + 1
                while j < len(code) and (code[j].kind == "name" or code[j].text == "::"):
                    j += 1
                name = "".join(each.text for each in code[i + 1 : j])
                if j < len(code) and code[j].text == "{":
                    if not opened and name not in self.namespaces:
                        own = " or ".join(sorted(self.namespaces))
                        refuse(token.line, f"namespace {name}: the kernels stay in {own}")
                    opened.append(True)
                    i = j + 1
                    continue
                following = [each.text for each in code[j : j + 3]]
                if not (j < len(code) and code[j].text == "=" and "cooperative_groups" in following):
                    refuse(token.line, "another name for a namespace")
                i = j
                continue
            if text == "{":
                opened.append(False)
            elif text == "}":
                if opened:
                    opened.pop()
            elif not opened and text != ";" and token.text not in self.names:
                refuse(token.line, f"'{text}' outside of the namespace {' or '.join(sorted(self.namespaces))}")
            self._vet_token(code, i, refuse)
            i += 1

    def _vet_token(self, code: list[Token], i: int, refuse) -> None:
        token, text = code[i], code[i].text
        before = code[i - 1] if i else Token("mark", "", 0)
        if token.kind == "mark" and (ord(text[0]) > 126 or text in ("\\", '"', "'", "`", "@", "$")):
            refuse(token.line, f"the character {text!r}")
        if token.kind in ("string", "char") and before.kind == "name" and before.text in ("R", "LR", "uR", "UR", "u8R"):
            refuse(token.line, "a raw string")
        if text == "::" and not (
            before.kind == "name"
            and before.text not in ("return", "case", "else", "throw", "new", "delete", "co_return")
            or before.text == ">"
        ):
            refuse(token.line, "a name of the global namespace")
        if text == "[[":
            inside = [each.text for each in code[i + 1 : i + 8]]
            names = inside[: inside.index("]]")] if "]]" in inside else inside
            if any(name not in ATTRIBUTES and name != "," for name in names):
                refuse(token.line, f"the attribute {' '.join(names)[:40]}")
        if token.kind != "name":
            return
        is_of_std = before.text == "::" and i > 1 and code[i - 2].text == "std"
        if is_of_std and text not in STANDARD and text not in self.names:
            refuse(token.line, f"std::{text} is nothing that a kernel needs")
        if text == "std" and before.text == "namespace":
            refuse(token.line, "using namespace std")
        if text in self.names:
            return
        is_reserved = text.startswith("_") and (text.startswith("__") or text[1:2].isupper())
        is_qualified = before.text == "::" and i > 1 and code[i - 2].kind == "name"
        if text in KEYWORDS:
            refuse(token.line, f"the keyword {text}")
        elif text in HARNESS:
            refuse(token.line, f"{text} is the harness's")
        elif COMPILERS.match(text) or is_reserved and text not in self.device_names:
            refuse(token.line, f"{text} is the compiler's, or CUDA's and not known here")
        elif re.fullmatch(r"cuda[A-Z]\w*", text) and text not in CUDA_CALLS and not CUDA_CONSTANTS.match(text):
            refuse(token.line, f"{text} is nothing that a kernel's launch needs")
        elif text in self.c_names and before.text not in (".", "->") and not is_qualified:
            refuse(token.line, f"{text} is a name of the C library; a variable of your own needs another name")


def tokens(text: str) -> list[Token]:
    found, line = [], 1
    for match in TOKEN.finditer(text):
        kind = match.lastgroup or "mark"
        found.append(Token(kind, match.group(), line))
        line += match.group().count("\n")
    return found


def names_of_c_library(compiler: Sequence[str]) -> set[str]:
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
