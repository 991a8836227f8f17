"""Plain CUDA rewritten for an ordinary compiler: what nvcc alone can read becomes calls of plain_cuda.h.

    norm<<<grid, block, bytes, s>>>(x, n);        worklog::plain::of_kernel(norm).with(grid, block, bytes, s)(x, n);
    extern __shared__ float s[];                  float (&s)[] = worklog::plain::DynamicShared();

Only these words change, each where it stands, so that a line keeps its number and a message of the compiler or of the
CPU layer names the line of the source. Comments, strings, raw strings and lines that a backslash continues are read as
C++ reads them. What lies in a header beside the source is put in its place.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from exercises import ExerciseError
from grade import read_untrusted
from not_on_cpu import TOKEN

LAUNCHER = "::worklog::plain::"
# Headers of the Toolkit whose names the runtime API's header has on the CPU layer.
OF_RUNTIME = {
    "cuda.h", "cuda_runtime_api.h", "device_functions.h", "device_launch_parameters.h", "driver_types.h",
    "builtin_types.h", "math_functions.h", "sm_30_intrinsics.h",
}
INCLUDE = re.compile(r"[ \t]*#[ \t]*include[ \t]*([<\"])([^>\"\n]+)[>\"]")
LINE = re.compile(r'#line (\d+) "([^"]*)"')
ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once\b", re.MULTILINE)
OPENING, CLOSING = {"(": ")", "[": "]", "{": "}"}, {")", "]", "}"}
ANGLES = {"<": 1, "<<": 2, ">": -1, ">>": -2, ">>>": -3}


@dataclass(frozen=True)
class Token:
    text: str
    kind: str
    start: int  # in the source
    end: int
    in_directive: bool
    is_outside: bool  # of every function and class: at the top, or in namespaces alone

    @property
    def is_word(self) -> bool:
        return self.kind == "word"


def lexed(text: str) -> list[Token]:
    """The tokens of a source, without comments. A backslash at a line's end joins it to the next."""
    joins = [match.start() for match in re.finditer(r"\\\r?\n", text)]
    spliced, places, at = [], [0], [0]  # where each piece begins, in what is joined and in the source
    begin = 0
    for join in joins:
        spliced.append(text[begin:join])
        begin = text.index("\n", join) + 1
        places.append(places[-1] + len(spliced[-1]))
        at.append(begin)
    joined = "".join([*spliced, text[begin:]])

    def in_source(place: int, is_end: bool = False) -> int:
        piece = bisect_right(places, place - is_end) - 1
        return at[piece] + place - places[piece]

    found: list[Token] = []
    opened: list[bool] = []  # of each brace: does it open a namespace?
    statement = 0  # where the statement began
    line_end = -1  # of the directive
    for match in TOKEN.finditer(joined):
        if not match.lastgroup:
            continue
        word, start = match.group(), match.start()
        if word == "#" and not joined[joined.rfind("\n", 0, start) + 1 : start].strip():
            end = joined.find("\n", start)
            line_end = len(joined) if end < 0 else end
        in_directive = start < line_end
        if word == "}" and opened and not in_directive:
            opened.pop()
        begin, end = in_source(start), in_source(match.end(), True)
        found.append(Token(word, match.lastgroup, begin, end, in_directive, all(opened)))
        if in_directive:
            continue
        if word == "{":
            head = [token.text for token in found[statement:-1] if not token.in_directive]
            opened.append("namespace" in head[:2] or head[:1] == ["extern"] and head[-1:] in (['"C"'], ['"C++"']))
        if word in (";", "{", "}"):
            statement = len(found)
    return found


# --- Reading ----------------------------------------------------------------------------------------------------------
def closing(tokens: Sequence[Token], opening: int) -> int:
    """The index of what closes a parenthesis, a bracket or a brace; the end where nothing does."""
    depth = 0
    for i in range(opening, len(tokens)):
        depth += (tokens[i].text in OPENING) - (tokens[i].text in CLOSING)
        if depth == 0:
            return i
    return len(tokens)


def closing_angle(tokens: Sequence[Token], opening: int) -> int:
    depth, i = 0, opening
    while i < len(tokens):
        if tokens[i].text in OPENING:
            i = closing(tokens, i)
        else:
            depth += ANGLES.get(tokens[i].text, 0)
        if depth <= 0:
            return i
        i += 1
    return i


def opening_of(tokens: Sequence[Token], last: int) -> int:
    """The index of what `last`, a closing parenthesis, bracket or angle, closes."""
    of_angles = tokens[last].text in ANGLES
    depth, i = 0, last
    while i >= 0:
        text = tokens[i].text
        if of_angles and text in CLOSING:
            i = opening_of(tokens, i)
        elif of_angles:
            depth -= ANGLES.get(text, 0)
        else:
            depth += (text in CLOSING) - (text in OPENING)
        if depth <= 0:
            return i
        i -= 1
    return 0


def commas(tokens: Sequence[Token], begin: int, end: int) -> list[int]:
    """Those between begin and end that stand in no brackets of their own."""
    found, i = [], begin
    while i < end:
        if tokens[i].text in OPENING:
            i = closing(tokens, i)
        elif tokens[i].text == "<" and i > begin and tokens[i - 1].is_word:
            skipped = closing_angle(tokens, i)
            i = skipped if skipped < end else i
        elif tokens[i].text == ",":
            found.append(i)
        i += 1
    return found


def split(tokens: Sequence[Token], begin: int, end: int) -> list[Sequence[Token]]:
    edges = [begin - 1, *commas(tokens, begin, end), end]
    return [tokens[a + 1 : b] for a, b in zip(edges, edges[1:]) if b > a + 1]


@dataclass
class KernelNames:
    """Of a source's kernels, how each can be named: those that have no address by their name alone are called."""

    required: dict[str, int] = field(default_factory=dict)  # of templates: arguments that have no default
    definitions: dict[str, int] = field(default_factory=dict)
    has_defaults: set[str] = field(default_factory=set)  # of its parameters
    known: set[str] = field(default_factory=set)

    def is_deduced(self, name: str, given: int, in_macro: bool) -> bool:
        if in_macro and name not in self.known:  # a parameter of the macro: it may stand for any of them
            return bool(self.required or self.has_defaults)
        overloaded = self.definitions.get(name, 0) > 1 and name not in self.required
        of_template = name in self.required and (given == 0 or given < self.required[name])
        return of_template or overloaded or name in self.has_defaults


def kernels_in(tokens: Sequence[Token]) -> KernelNames:
    found = KernelNames()
    for i, token in enumerate(tokens):
        if token.text != "__global__":
            continue
        head = i
        while head > 0 and tokens[head - 1].text not in (";", "}", "{") and not tokens[head - 1].in_directive:
            head -= 1
        name = i + 1
        while name + 1 < len(tokens) and tokens[name].text not in (";", "{"):
            is_attribute = tokens[name].text in ("__launch_bounds__", "__attribute__")
            if tokens[name].is_word and tokens[name + 1].text == "(" and not is_attribute:
                break
            name = closing(tokens, name) + 1 if tokens[name].text == "(" else name + 1
        if name + 1 >= len(tokens) or not tokens[name].is_word:
            continue
        end = closing(tokens, name + 1)
        kernel = tokens[name].text
        found.known.add(kernel)
        if any("=" in [token.text for token in parameter] for parameter in split(tokens, name + 2, end)):
            found.has_defaults.add(kernel)
        if end + 1 < len(tokens) and tokens[end + 1].text == "{":
            found.definitions[kernel] = found.definitions.get(kernel, 0) + 1
        if tokens[head].text == "template" and tokens[head + 2].text != ">":
            parameters = split(tokens, head + 2, closing_angle(tokens, head + 1))
            texts = [[token.text for token in parameter] for parameter in parameters]
            found.required[kernel] = sum("=" not in text and "..." not in text for text in texts)
            if any("..." in text for text in texts):
                found.required[kernel] = len(tokens)  # a pack can always be longer
    return found


def device_bodies(tokens: Sequence[Token]) -> list[range]:
    """Of the functions that run on the device alone, where their bodies are."""
    found = []
    for i, token in enumerate(tokens):
        if token.text not in ("__global__", "__device__") or token.in_directive:
            continue
        words = [each.text for each in tokens[max(i - 2, 0) : i + 3]]
        end = i
        while end < len(tokens) and tokens[end].text not in (";", "{", "="):
            end = closing(tokens, end) + 1 if tokens[end].text == "(" else end + 1
        if end < len(tokens) and tokens[end].text == "{" and "__host__" not in words:
            found.append(range(end, closing(tokens, end)))
    return found


# --- Rewriting --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Edit:
    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Rewritten:
    text: str
    deduced: frozenset[str]  # kernels that are called rather than named


def rewritten(text: str, name: str = "the source") -> Rewritten:
    """The source for an ordinary compiler. Raises ExerciseError where a launch cannot be read."""
    tokens = lexed(text)
    kernels = kernels_in(tokens)
    on_device = device_bodies(tokens)
    edits: list[Edit] = []
    deduced: set[str] = set()
    for i, token in enumerate(tokens):
        before = tokens[i - 1].text if i else ""
        if token.text == "<<<":
            where = place(text, text.count("\n", 0, token.start) + 1, name)
            if any(i in body for body in on_device):
                raise ExerciseError(
                    f"{where}: a launch from a kernel (dynamic parallelism) is not on the CPU layer; launch it from "
                    "solve(), or call it as a __device__ function"
                )
            launch_edits(tokens, i, kernels, edits, deduced, where)
        elif token.text == "extern":
            shared_edits(tokens, i, edits)
        elif token.text in ("cudaLaunchKernel", "cudaLaunchCooperativeKernel"):
            cast_edits(tokens, i + 1, edits)
        elif token.text == "main" and token.is_outside and tokens[i + 1 : i + 2] and tokens[i + 1].text == "(":
            edits.append(Edit(token.start, token.end, "worklog_learners_main"))  # solve() is called instead
        elif token.text == "__noinline__" and before != "(":  # a word of libstdc++'s, and so no macro of the layer's
            edits.append(Edit(token.start, token.end, "__attribute__((noinline))"))
    for edit in sorted(edits, key=lambda each: (each.start, each.end), reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return Rewritten(text, frozenset(deduced))


def body_of_macro(tokens: Sequence[Token], at: int) -> int:
    """The index where the body of the macro begins that `at` is in; -1 where it is in none."""
    define = at
    while define > 0 and tokens[define].in_directive and tokens[define].text != "define":
        define -= 1
    if tokens[define].text != "define" or define + 2 >= len(tokens):
        return -1
    name, after = tokens[define + 1], tokens[define + 2]
    return closing(tokens, define + 2) + 1 if after.text == "(" and after.start == name.end else define + 2


def launch_edits(
    tokens: Sequence[Token], at: int, kernels: KernelNames, edits: list[Edit], deduced: set[str], place: str
) -> None:
    last = at - 1
    given = 0
    i = last
    if i < 0 or tokens[i].in_directive != tokens[at].in_directive or body_of_macro(tokens, at) == at:
        raise ExerciseError(f"{place}: this <<< has no kernel in front of it; a macro needs both, kernel<<<...>>>")
    if tokens[i].text in (">", ">>", ">>>"):
        begin = opening_of(tokens, i)
        given = len(commas(tokens, begin + 1, i)) + 1 if i > begin + 1 else 0
        i = begin - 1
    name = tokens[i].text if i >= 0 and tokens[i].is_word else ""
    if not name and tokens[i].text in CLOSING:
        i = opening_of(tokens, i)
        i -= i > 0 and tokens[i - 1].is_word
    elif not name:
        raise ExerciseError(f"{place}: the kernel in front of <<< cannot be read")
    while i > 0 and tokens[i - 1].text in ("::", ".", "->"):
        i -= 1
        if i > 0 and tokens[i - 1].text in (">", ">>") and tokens[i].text == "::":
            i = opening_of(tokens, i - 1)
        i -= i > 0 and tokens[i - 1].is_word and tokens[i - 1].text not in ("return", "else", "do")
    end, depth = at + 1, 0
    while end < len(tokens) and not (depth == 0 and tokens[end].text == ">>>"):
        depth += (tokens[end].text in OPENING) - (tokens[end].text in CLOSING)
        end += 1
    if end >= len(tokens):
        raise ExerciseError(f"{place}: this <<< has no >>>")
    start = tokens[i].start
    if kernels.is_deduced(name, given, tokens[at].in_directive):
        shown = name if name in kernels.known else "kernel_of_a_macro"
        deduced.add(shown)
        edits.append(Edit(start, start, f"{LAUNCHER}deduced<::worklog::plain::kernels::{shown}>([=](auto... its) {{ "))
        edits.append(Edit(tokens[at].start, tokens[at].end, "(its...); }).with("))
    else:
        edits.append(Edit(start, start, f"{LAUNCHER}of_kernel("))
        edits.append(Edit(tokens[at].start, tokens[at].end, ").with("))
    edits.append(Edit(tokens[end].start, tokens[end].end, ")"))


def cast_edits(tokens: Sequence[Token], opening: int, edits: list[Edit]) -> None:
    """Takes away the cast of the first argument to void*: the type of the kernel says what it takes."""
    texts = [token.text for token in tokens[opening : opening + 8]]
    cast = [text for text in texts if text != "const"]
    if texts[:1] == ["("] and cast[1:5] == ["(", "void", "*", ")"]:
        edits += [Edit(token.start, token.end, "") for token in tokens[opening + 1 : closing(tokens, opening + 1) + 1]]
    elif cast[:1] + cast[2:6] == ["(", "<", "void", "*", ">"] and cast[1] in ("reinterpret_cast", "static_cast"):
        end = opening + texts.index(">")
        edits += [Edit(token.start, token.end, "") for token in tokens[opening + 1 : end + 1]]


def shared_edits(tokens: Sequence[Token], at: int, edits: list[Edit]) -> None:
    """Of a declaration that begins with `extern`, if it is of dynamic shared memory."""
    end = at
    while end < len(tokens) and tokens[end].text not in (";", "{", "("):
        end = closing(tokens, end + 1) if tokens[end].text in ("__align__", "alignas", "__attribute__") else end
        end += 1
    if end >= len(tokens) or tokens[end].text != ";" or "__shared__" not in [t.text for t in tokens[at:end]]:
        return
    in_block = not tokens[at].is_outside
    edits.append(Edit(tokens[at].start, tokens[at].end, "" if in_block else "extern __thread"))
    i = at + 1
    while i < end:
        text = tokens[i].text
        if text == "__shared__":
            edits.append(Edit(tokens[i].start, tokens[i].end, ""))
        elif text in ("__align__", "alignas", "__attribute__"):
            last = closing(tokens, i + 1)
            if in_block:  # the array is aligned as it is: at 128 bytes
                edits += [Edit(token.start, token.end, "") for token in tokens[i : last + 1]]
            i = last
        elif tokens[i].is_word and tokens[i + 1].text == "[":
            if in_block:
                edits.append(Edit(tokens[i].start, tokens[i].end, f"(&{text})"))
            while tokens[i + 1].text == "[":
                i = closing(tokens, i + 1)
            name = " = ::worklog::plain::DynamicShared()" if in_block else ' __asm__("worklog_dynamic_shared")'
            edits.append(Edit(tokens[i].end, tokens[i].end, name))
        i += 1


# --- A source with the headers beside it ------------------------------------------------------------------------------
def with_headers(path: Path, most_bytes: int) -> str:
    """The source, with the headers of its own folder instead of their includes. Raises ExerciseError."""
    folder = path.resolve().parent
    once: set[Path] = set()

    def read(file: Path, around: tuple[Path, ...]) -> str:
        shown = str(file.relative_to(folder))
        try:
            data = read_untrusted(file, most_bytes)
        except ValueError as error:
            raise ExerciseError(str(error)) from None
        if b"\0" in data:
            raise ExerciseError(f"{shown} is no text, and so no source")
        text = data.decode("utf-8-sig", errors="replace")  # comments in another encoding are none of nvcc's business
        if ONCE.search(text):
            once.add(file)
        lines = ONCE.sub("", text).split("\n")
        for number, line in enumerate(lines):
            if not (match := INCLUDE.match(line)):
                continue
            header = (file.parent / match[2]).resolve()
            if match[2] in OF_RUNTIME:
                lines[number] = line.replace(match[2], "cuda_runtime.h")
            elif match[1] == '"' and header.is_file() and header.is_relative_to(folder):
                inside = "" if header in once or header in around else read(header, (*around, header))
                lines[number] = f'#line 1 "{header.relative_to(folder)}"\n{inside}\n#line {number + 2} "{shown}"'
        if sum(map(len, lines)) > most_bytes:
            raise ExerciseError(f"{shown} and what it includes have more than {most_bytes} bytes")
        return "\n".join(lines)

    return read(path.resolve(), (path.resolve(),))


def place(text: str, line: int, name: str) -> str:
    """The file and line, as a compiler would name it, of a line of a source with headers in it."""
    lines = text.split("\n")[: line - 1]
    for back, earlier in enumerate(reversed(lines)):
        if match := LINE.match(earlier):
            return f"{match[2]}:{int(match[1]) + back}"
    return f"{name}:{line}"
