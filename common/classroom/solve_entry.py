"""The entry of a learner's source: which of solve()'s parameters is what, and the function that calls it.

solve() takes the tensors of an operation as pointers, in LeetGPU's order or any other in which their names say what
they are, then their sizes, then eps. Or it takes the struct of common/library/norm_worklog.h and a stream.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from exercises import ExerciseError
from plain_cuda import Token, closing, lexed, place, split

# Of each operation: the tensors that solve() must take, and those that it may take too; those that it writes. The order
# is the one where names do not tell.
TENSORS = {
    "layernorm_forward": ("x gamma beta y", "mean rstd"),
    "rmsnorm_forward": ("x gamma y", "rstd"),
    "add_layernorm_forward": ("x residual gamma beta y", "h mean rstd"),
    "add_rmsnorm_forward": ("x residual gamma y", "h rstd"),
    "layernorm_backward": ("dy x gamma mean rstd dx dgamma dbeta", ""),
    "rmsnorm_backward": ("dy x gamma rstd dx dgamma", ""),
    "add_layernorm_backward": ("dy x dh gamma mean rstd dx dgamma dbeta", ""),
    "batchnorm_train": ("x gamma beta y", "running_mean running_var save_mean save_invstd"),
    "batchnorm_inference": ("x gamma beta running_mean running_var y", ""),
    "batchnorm_backward": ("dy x gamma save_mean save_invstd dx dgamma dbeta", ""),
    "groupnorm_forward": ("x gamma beta y", "mean rstd"),
}
# Judged as another one: LayerNorm over rows of a group's values each, whose gamma and beta solve.cpp takes out.
JUDGED_AS = {"groupnorm_forward": "layernorm_forward"}
OPTIONAL = {"gamma", "beta", "mean", "rstd", "running_mean", "running_var", "dx", "dgamma", "dbeta"}
IN_STRUCT = {"add_layernorm_backward": "layernorm_backward"}  # whose struct has a dh

# LeetGPU's norms, by the number of the problem.
LEETGPU = {
    "40": "batchnorm_train",
    "50": "rmsnorm_forward",
    "83": "add_rmsnorm_forward",
    "105": "groupnorm_forward",
    "113": "layernorm_forward",
}
# How the sizes of a group norm are called; without the names, they are in the order of LeetGPU.
GROUP_SIZES = {
    "samples": "n b batch batch_size samples", "channels": "c channels num_channels", "height": "h height",
    "width": "w width", "pixels": "hw spatial pixels s", "groups": "g groups num_groups n_groups",
}
GROUP_ORDERS = {4: "samples channels pixels groups", 5: "samples channels height width groups"}

NAMES = {
    "x": "x in input inp inputs a src data",
    "residual": "residual res skip r",
    "gamma": "gamma weight weights w scale g",
    "beta": "beta bias b shift",
    "y": "y out output outputs o dst result norm",
    "h": "h sum added residual_out",
    "mean": "mean means mu mean_out save_mean",
    "rstd": "rstd inv_std invstd rsigma rstd_out inv_rms save_rstd",
    "dy": "dy dout d_y d_out grad_out grad_output grad_y",
    "dh": "dh dresidual grad_residual",
    "dx": "dx dinp dinput grad_in grad_input grad_x",
    "dgamma": "dgamma dweight dw grad_gamma grad_weight",
    "dbeta": "dbeta dbias db grad_beta grad_bias",
    "running_mean": "running_mean moving_mean",
    "running_var": "running_var moving_var running_variance",
    "save_mean": "save_mean saved_mean mean batch_mean",
    "save_invstd": "save_invstd saved_invstd invstd inv_std rstd batch_invstd",
}
DTYPES = {
    "float": "fp32", "half": "fp16", "__half": "fp16", "nv_bfloat16": "bf16", "__nv_bfloat16": "bf16",
    "float4": "fp32", "float2": "fp32",
}
INTEGERS = {
    "int", "unsigned", "long", "short", "size_t", "ssize_t", "int32_t", "int64_t", "uint32_t", "uint64_t", "uint",
}
NUMBERS = {"float", "double"}


@dataclass(frozen=True)
class Parameter:
    type: str
    name: str
    kind: str  # pointer, size, number, stream, struct


@dataclass(frozen=True)
class Entry:
    """What solve() takes, in its order: tensors, rows, cols, eps, momentum, one, zero (a scalar gamma or beta); of a
    group norm samples, channels, height, width, pixels and groups."""

    operation: str
    dtype: str
    param_dtype: str
    words: tuple[str, ...]
    call: str  # the source of worklog_solve()
    notes: tuple[str, ...] = ()

    @property
    def without(self) -> list[str]:
        """The optional tensors that it does not take."""
        known = " ".join(TENSORS[self.operation]).split()
        given = set(self.words) - ({"gamma", "beta"} if "groups" in self.words else set())
        return [name for name in known if name in OPTIONAL and name not in given]

    @property
    def judged_as(self) -> str:
        """The operation of the harness."""
        return JUDGED_AS.get(self.operation, self.operation)

    @property
    def told(self) -> str:
        """As solve.cpp reads it."""
        return " ".join([self.judged_as, self.dtype, self.param_dtype, *self.words])

    @property
    def shim(self) -> str:
        """What stands behind the source."""
        return f'extern "C" const char worklog_solve_entry[] = "{self.told}";\n{self.call}'


def expected(operation: str) -> str:
    """How solve() is declared for an operation."""
    required = TENSORS[operation][0].split()
    outputs = ("y", "dx", "dgamma", "dbeta")
    pointers = [f"{'' if name in outputs else 'const '}float* {name}" for name in required]
    eps = [] if operation.endswith("backward") else ["float eps"]
    sizes = ["int N", "int C", "int H", "int W", "int G"] if operation == "groupnorm_forward" else ["int N", "int D"]
    return f'extern "C" void solve({", ".join([*pointers, *sizes, *eps])})'


def find_entry(text: str, operation: str, name: str) -> Entry:
    """The entry in a source. Raises ExerciseError, with what is wanted."""
    tokens = lexed(text)
    found = [
        i for i, token in enumerate(tokens)
        if token.text == "solve" and token.is_outside and not token.in_directive and tokens[i + 1].text == "("
        and tokens[i - 1].is_word
    ]
    bodies = [i for i in found if tokens[closing(tokens, i + 1) + 1 : closing(tokens, i + 1) + 2]
              and tokens[closing(tokens, i + 1) + 1].text == "{"]
    inside = [i for i, token in enumerate(tokens[:-1]) if token.text == "solve" and tokens[i + 1].text == "("
              and not token.is_outside and not token.in_directive and tokens[i - 1].text == "void"]
    if not bodies and inside:
        line = text.count("\n", 0, tokens[inside[0]].start) + 1
        raise ExerciseError(
            f"{place(text, line, name)}: this solve() stands inside of another function or class; is a brace missing "
            "above?"
        )
    if len(bodies) != 1:
        many = "more than one solve()" if bodies else "no solve()"
        raise ExerciseError(f"{name} has {many}; it needs one: {expected(operation)}, all of them device pointers")
    at = bodies[0]
    where = place(text, text.count("\n", 0, tokens[at].start) + 1, name)
    if any("namespace" in head for head in heads_around(tokens, at)):
        raise ExerciseError(f"{where}: this solve() stands in a namespace, where nobody looks for it; put it outside")
    end = closing(tokens, at + 1)
    parameters = [parameter_of(each, where) for each in split(tokens, at + 2, end)]
    if any(parameter.kind == "struct" for parameter in parameters):
        return with_struct(parameters, operation, where)
    pointers = [parameter for parameter in parameters if parameter.kind == "pointer"]
    tensors = dict(zip(map(id, pointers), tensors_of(pointers, parameters, operation, where)))
    words: list[str] = []
    types: dict[str, str] = {}
    sizes = sizes_of([each.name for each in parameters if each.kind == "size"], operation, where)
    for parameter in parameters:
        if parameter.kind == "pointer":
            words.append(tensors[id(parameter)])
            types[words[-1]] = parameter.type
        elif parameter.kind == "size":
            words.append(sizes.pop(0))
        elif parameter.kind == "number":
            words.append(number_named(parameter.name))
    notes: list[str] = []
    if {"one", "zero"} & set(words):
        notes.append("gamma and beta are numbers here: it was judged with 1 and 0.")
    if "groups" in words:
        notes.append(
            "A row is a group of a sample here, and its columns are the values of the group's channels; gamma and beta "
            "are taken out of what is told of y."
        )
    elif "rows" not in words:
        notes.append("solve() takes one size: it was judged with one row.")
    if "eps" not in words and not operation.endswith("backward"):
        notes.append("solve() takes no eps: its own must be the one that it was judged with (--eps).")
    dtype = dtype_of(types.get("x") or types.get("dy", ""), where)
    if operation == "groupnorm_forward" and any(dtype_of(each, where) != "fp32" for each in types.values()):
        raise ExerciseError(f"{where}: a group norm is judged in float alone")
    own = next((types[name] for name in ("gamma", "beta", "dgamma") if name in types), None)
    return Entry(operation, dtype, dtype_of(own, where) if own else dtype, tuple(words), shim_of(parameters),
                 tuple(notes))


def heads_around(tokens: Sequence[Token], at: int) -> list[list[str]]:
    """Of each brace that is open there, the words that stand in front of it."""
    opened: list[list[str]] = []
    head: list[str] = []
    for token in tokens[:at]:
        if token.in_directive:
            continue
        if token.text == "{":
            opened.append(head)
        elif token.text == "}" and opened:
            opened.pop()
        head = [] if token.text in ("{", "}", ";") else [*head, token.text]
    return opened


def parameter_of(tokens: Sequence[Token], where: str) -> Parameter:
    words = [token.text for token in tokens]
    if "=" in words:
        words = words[: words.index("=")]
    if words == ["void"]:
        raise ExerciseError(f"{where}: solve() takes nothing, and there is nothing that it could write to")
    is_array = words[-1:] == ["]"]
    if is_array:
        words = words[: words.index("[")]
    name, type_words = words[-1], words[:-1]
    if is_array:
        type_words.append("*")
    kept = [word for word in type_words if word not in ("__restrict__", "__restrict", "restrict")]
    joined = re.sub(r" ?(::|\*|<|>) ?", r"\1", " ".join(kept))
    bare = set(kept) - {"const", "std", "::", "*"}
    if any(word.startswith("nw_") for word in bare):
        kind = "struct"
    elif "*" in kept and kept.count("*") == 1:
        kind = "pointer"
    elif bare <= INTEGERS | {"long", "signed"} and bare:
        kind = "size"
    elif bare <= NUMBERS and bare:
        kind = "number"
    elif bare == {"cudaStream_t"}:
        kind = "stream"
    else:
        raise ExerciseError(
            f"{where}: solve() takes a {joined} {name}, and what is known is pointers to float, half or __nv_bfloat16, "
            "whole sizes, float numbers and a cudaStream_t"
        )
    return Parameter(joined, name, kind)


def tensors_of(
    pointers: Sequence[Parameter], parameters: Sequence[Parameter], operation: str, where: str
) -> list[str]:
    """Of each pointer, the tensor that it is: by the names where all of them tell, else by their order."""
    required, more = (names.split() for names in TENSORS[operation])
    known = required + more
    written = {"y", "dx"} & set(known)
    by_name = [tensor_named(parameter.name, known) for parameter in pointers]
    found = [name for name in by_name if name]
    if len(found) == len(set(found)) == len(pointers) and "x" in found and written & set(found):
        return found
    given = {number_named(each.name) for each in parameters if each.kind == "number"}
    scalars = {"gamma"} if "one" in given else set()
    scalars |= {"beta"} if "zero" in given else set()
    order = [name for name in required if name not in scalars]
    if len(pointers) == len(order):
        return order
    raise ExerciseError(
        f"{where}: solve() takes {len(pointers)} pointers, whose names do not tell which tensors of {operation} they "
        f"are; {expected(operation)} is known"
    )


def tensor_named(name: str, known: Sequence[str]) -> str | None:
    lowered = name.lower().rstrip("_").removesuffix("_ptr")
    for word in (lowered, lowered.removeprefix("d_"), lowered.removeprefix("p_")):
        for tensor in known:
            if word in NAMES[tensor].split():
                return tensor
    return None


def sizes_of(names: Sequence[str], operation: str, where: str) -> list[str]:
    count = len(names)
    if operation == "groupnorm_forward":
        by_name = [size for name in names for size, known in GROUP_SIZES.items() if name.lower() in known.split()]
        if sorted(by_name) in map(sorted, map(str.split, GROUP_ORDERS.values())):
            return by_name
        if count in GROUP_ORDERS:
            return GROUP_ORDERS[count].split()
        raise ExerciseError(f"{where}: solve() takes {count} sizes; of a group norm they are N, C, H, W and G")
    if count == 1 and not operation.startswith("batchnorm"):
        return ["cols"]
    if count == 2:
        return ["rows", "cols"]
    raise ExerciseError(f"{where}: solve() takes {count} sizes, and rows and columns are two")


def number_named(name: str) -> str:
    lowered = name.lower()
    if lowered in NAMES["gamma"].split():
        return "one"
    if lowered in NAMES["beta"].split():
        return "zero"
    return "momentum" if lowered.startswith("mom") else "eps"


def dtype_of(type_text: str, where: str) -> str:
    element = re.sub(r"\bconst\b|[*\s]", "", type_text)
    if element not in DTYPES:
        raise ExerciseError(
            f"{where}: solve() takes {type_text.strip()}, and what is known is float, half and __nv_bfloat16"
        )
    return DTYPES[element]


def shim_of(parameters: Sequence[Parameter]) -> str:
    """worklog_solve(), of which solve.cpp hands over each parameter by its number among its kind."""
    counts: dict[str, int] = {}
    given = []
    for parameter in parameters:
        number = counts.get(parameter.kind, 0)
        counts[parameter.kind] = number + 1
        if parameter.kind == "stream":
            given.append("stream")
        elif parameter.kind == "pointer":
            given.append(f"({parameter.type})pointers[{number}]")
        else:
            given.append(f"({parameter.type}){'sizes' if parameter.kind == 'size' else 'numbers'}[{number}]")
    return shim(f"solve({', '.join(given)});")


def shim(body: str) -> str:
    return (
        'extern "C" void worklog_solve(void* const* pointers, const long long* sizes, const float* numbers,\n'
        "                              cudaStream_t stream) {\n"
        "  (void)pointers, (void)sizes, (void)numbers, (void)stream;\n"
        f"  {body}\n"
        "}\n"
    )


def with_struct(parameters: Sequence[Parameter], operation: str, where: str) -> Entry:
    """solve(const nw_OPERATION_args*, stream): in fp32, with every tensor that the operation has."""
    if operation in JUDGED_AS:
        raise ExerciseError(
            f"{where}: the library has no {operation}, and so no struct; {expected(operation)} is known"
        )
    struct = f"nw_{IN_STRUCT.get(operation, operation)}_args"
    kinds = [parameter.kind for parameter in parameters]
    if kinds not in (["struct"], ["struct", "stream"]) or struct not in parameters[0].type.split("*")[0].split():
        raise ExerciseError(f"{where}: solve() takes a struct; for {operation} that is const {struct}*, and a stream")
    tensors = " ".join(TENSORS[operation]).split()
    matrices = [name for name in tensors if name in ("x", "residual", "y", "h", "dy", "dh", "dx")]
    is_batchnorm = operation.startswith("batchnorm")
    fields = {"size": "sizeof(args)"}
    fields |= {name: f"(decltype(args.{name}))pointers[{number}]" for number, name in enumerate(tensors)}
    if is_batchnorm:
        fields |= {"samples": "sizes[0]", "channels": "sizes[1]", "pixels": "1"}
    else:
        fields |= {"rows": "sizes[0]", "cols": "sizes[1]"}
        fields |= {f"{name}_stride": "sizes[1]" for name in matrices}
    numbers = [] if operation.endswith("backward") else ["eps"]
    numbers += ["momentum"] if operation == "batchnorm_train" else []
    fields |= {name: f"numbers[{number}]" for number, name in enumerate(numbers)}
    lines = [f"{struct} args = {{}};", *(f"args.{name} = {value};" for name, value in fields.items())]
    pointer = "&args" if "*" in parameters[0].type else "args"
    lines.append(f"solve({pointer}{', stream' if len(kinds) > 1 else ''});")
    words = (*tensors, "rows", "cols", *numbers)
    return Entry(operation, "fp32", "fp32", words, shim("\n  ".join(lines)))
