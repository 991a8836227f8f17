#!/usr/bin/env python3
"""What a source uses of CUDA that the CPU layer does not have, and what to write instead.

The compiler of a cpu build meets <<<...>>> as a riddle about operators, and the linker an extern __shared__ array as a
symbol that is not defined. Where a build fails, these sentences stand in front of what they say.

    python3 common/classroom/not_on_cpu.py FILE|FOLDER ...      prints a sentence for each; always ends with 0
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "common/report"))
from source_hash import TOKEN, without_comments  # noqa: E402

LAUNCH = (
    "<<<...>>> is read by nvcc alone; write launch(kernel, {.grid = blocks, .block = threads}, arguments...), "
    "of common/device/launch.cuh"
)
SHARED = (
    "an extern __shared__ array is not on the CPU layer; write T* name = dynamic_shared<T>(), "
    "of common/device/launch.cuh, and give launch() its .shared_bytes"
)
ASSEMBLY = "inline PTX (asm) is not on the CPU layer; write it in CUDA C++"
TEXTURE = "textures and surfaces are not on the CPU layer; read through a pointer, or with __ldg()"
OLD_SHUFFLE = "{0}() is gone since compute capability 7.0; write {0}_sync(0xffffffff, ...)"
CUB = "cub::{} is not on the CPU layer, which has BlockReduce and WarpReduce of CUB; write it in CUDA C++"
DRIVER = "the driver API ({}) is not on the CPU layer; write it with the runtime API, cuda..."
LIBRARY = "{} is not on the CPU layer; write it in CUDA C++"

LIBRARIES = {
    "cub": "CUB", "thrust": "Thrust", "cuda": "libcu++", "nvcuda": "WMMA", "curand": "cuRAND", "cublas": "cuBLAS",
    "cudnn": "cuDNN", "cufft": "cuFFT", "cusparse": "cuSPARSE", "cusolver": "cuSOLVER", "nccl": "NCCL",
    "cutlass": "CUTLASS", "torch": "PyTorch",
}
OF_CUB = {  # what is there
    "BlockReduce", "WarpReduce", "Sum", "Max", "Min", "BLOCK_REDUCE_WARP_REDUCTIONS", "BLOCK_REDUCE_RAKING",
    "BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY", "BlockReduceAlgorithm",
}
INCLUDED = re.compile(
    r"\s*#\s*include\s*[<\"](?!cub/(?:cub|block/block_reduce|warp/warp_reduce)\.cuh)"
    r"(?:(cub|thrust|cuda|cutlass|torch)/|(curand|cublas|cudnn|cufft|cusparse|cusolver|nccl)|(mma\.h))"
)
CONDITION = re.compile(r"\s*#\s*(if|ifdef|ifndef|else|elif|endif)\b(.*)")
FOR_NVCC = re.compile(r"__CUDA_ARCH__|__CUDACC__|__NVCC__")
OLD_SHUFFLES = re.compile(r"__shfl(_up|_down|_xor)?|__(any|all|ballot)")
TEXTURES = re.compile(r"cudaTextureObject_t|cudaSurfaceObject_t|tex[123]D\w*|texCubemap\w*|surf[123]D\w*")
OF_DRIVER = re.compile(
    r"CU(?:result|context|device|module|function|deviceptr)|cu(?:Init|(?:Mem|Ctx|Module|Launch)[A-Z]\w*)"
)
SOURCES = {".cu", ".cuh", ".h"}


def read_by_all(text: str) -> str:
    """The text without comments, and with the lines blank that a condition keeps for nvcc."""
    open_conditions: list[bool] = []  # whether each is about the compiler
    lines = []
    for line in without_comments(text).splitlines():
        directive = CONDITION.match(line)
        if directive and directive[1] in ("if", "ifdef", "ifndef"):
            open_conditions.append(bool(FOR_NVCC.search(directive[2])))
        elif directive and directive[1] == "endif" and open_conditions:
            open_conditions.pop()
        lines.append("" if any(open_conditions) else line)
    return "\n".join(lines)


def uses(text: str) -> Iterator[tuple[int, str]]:
    """The line of each use, and the sentence about it."""
    text = read_by_all(text)
    for number, line in enumerate(text.splitlines(), 1):
        if included := INCLUDED.match(line):
            yield number, LIBRARY.format(LIBRARIES[included[1] or included[2] or "nvcuda"])
    tokens = [match for match in TOKEN.finditer(text) if match.lastgroup]
    words = [match.group() for match in tokens]
    for i, word in enumerate(words):
        after = words[i + 1 : i + 12]
        sentence = ""
        if word == "<<<":
            sentence = LAUNCH
        elif word == "extern":
            declaration = after[: after.index(";")] if ";" in after else after
            sentence = SHARED if "__shared__" in declaration else ""
        elif word in ("asm", "__asm", "__asm__"):
            strings = [other for other in after if other.startswith(('"', 'R"'))]
            sentence = ASSEMBLY if strings and strings[0] != '""' else ""  # an empty one is a hint to the compiler
        elif TEXTURES.fullmatch(word) or word == "texture" and after[:1] == ["<"]:
            sentence = TEXTURE
        elif OF_DRIVER.fullmatch(word):
            sentence = DRIVER.format(word)
        elif OLD_SHUFFLES.fullmatch(word) and after[:1] == ["("]:
            sentence = OLD_SHUFFLE.format(word)
        elif word == "cub" and after[:1] == ["::"] and after[1] not in OF_CUB:
            sentence = CUB.format(after[1])
        elif word in ("thrust", "nvcuda") and after[:1] == ["::"]:
            sentence = LIBRARY.format(LIBRARIES[word])
        if sentence:
            yield text.count("\n", 0, tokens[i].start()) + 1, sentence


def explain(text: str, name: str) -> list[str]:
    """Sentences about a source that is called `name`, each with the first line that it is about."""
    first: dict[str, int] = {}
    for line, sentence in uses(text):
        first[sentence] = min(line, first.get(sentence, line))
    return [f"{name}:{line}: {sentence}" for sentence, line in sorted(first.items(), key=lambda item: item[1])]


def explained(errors: str, text: str, name: str) -> str:
    """What a compiler or linker said against a source, behind the sentences about it."""
    return "\n".join([*explain(text, name), errors])


def explain_files(paths: Iterable[Path]) -> list[str]:
    """As above, of files and of all sources in folders."""
    files = []
    for path in paths:
        files += [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix in SOURCES)
    return [
        sentence for file in files
        for sentence in explain(file.read_text(encoding="utf-8", errors="replace"), str(file))
    ]


if __name__ == "__main__":
    for each in explain_files(map(Path, sys.argv[1:])):
        print(each)
