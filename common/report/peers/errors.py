#!/usr/bin/env python3
"""How far PyTorch's layer_norm is off, on exactly the inputs that the stages are checked on.

    python3 common/report/peers/errors.py --program build/gpu/bin/05_welford [--peers common/report/peers/h200.json]

A stage's program writes its inputs as .npy (--save-tensors). PyTorch normalizes them on the GPU, and its y, mean and
rstd are compared with float64 as common/harness/compare.cpp compares a variant's: the same tolerance and the same unit,
the last place at max(|want|, the root mean square of the wanted row). The rows go into the peers' file as `checks` of
the variant "torch", beside PyTorch's times. Needs PyTorch with CUDA, and numpy.

    python3 common/report/peers/errors.py --program build/gpu/bin/07_backward \\
        --column-sums docs/data/column_sums_h200.json

The same for dgamma and dbeta over many rows, of PyTorch and of stage 07's final kernel, on the same saved data.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from origins import commit_now  # noqa: E402

if TYPE_CHECKING:
    import numpy
    import torch

OPERATION = "layernorm_forward"
U = 2.0**-24
EPS = 9.999999974752427e-07  # the float next to 1e-6, which is what the harness gives the kernels

# significant bits (the hidden one included), exponent of the smallest normal number, largest value, and the tolerance
# of torch.testing.assert_close: those of dtype.cpp and compare.cpp
FORMATS = {
    "fp32": (24, -126, float.fromhex("0x1.fffffep127"), 1.3e-6, 1e-5),
    "fp16": (11, -14, 65504.0, 1e-3, 1e-5),
    "bf16": (8, -126, float.fromhex("0x1.fep127"), 1.6e-2, 1e-5),
}


def ulp_at(dtype: str, magnitude: numpy.ndarray) -> numpy.ndarray:
    """The distance between neighboring numbers of the type at `magnitude`."""
    import numpy as np

    digits, smallest, *_ = FORMATS[dtype]
    _, exponent = np.frexp(magnitude)  # magnitude = m * 2^exponent with m in [0.5, 1)
    exponent = np.where(magnitude == 0, smallest, exponent - 1)
    return np.exp2(np.maximum(exponent, smallest) - digits + 1.0)


class Examined:
    """What compare.cpp counts over an operation's outputs."""

    def __init__(self) -> None:
        self.compared = self.differing = 0
        self.largest_error = self.largest_ulp = 0.0

    def add(
        self, dtype: str, got: numpy.ndarray, want: numpy.ndarray, slack: numpy.ndarray, rms: numpy.ndarray, *,
        counts_ulp: bool,
    ) -> None:
        """One output; `rms` is that of each element's row (of the whole vector, for a vector)."""
        import numpy as np

        _, _, largest, rtol, atol = FORMATS[dtype]
        overflows = np.abs(want) >= largest + ulp_at(dtype, np.array(largest)) / 2
        want = np.where(np.isfinite(want) & overflows, np.copysign(np.inf, want), want)
        finite = np.isfinite(want)
        own_ulp = ulp_at(dtype, np.where(finite, np.abs(want), 0.0))
        unit = np.maximum(own_ulp, ulp_at(dtype, np.where(rms > 0, rms, 1.0)))
        with np.errstate(invalid="ignore"):
            alike = (got == want) | (np.isnan(got) & np.isnan(want))
            error = np.where(np.isfinite(got), np.abs(got - want), np.inf)
            wrong = np.where(finite, ~(error <= atol + rtol * np.abs(want) + slack), ~alike)
        self.compared += want.size
        self.differing += int(np.count_nonzero(wrong))
        if finite.any():
            self.largest_error = max(self.largest_error, float(np.max(error, where=finite, initial=0.0)))
            if counts_ulp:
                self.largest_ulp = max(self.largest_ulp, float(np.max(np.where(finite, error / unit, 0.0))))


def rms_of_finite(values: numpy.ndarray) -> numpy.ndarray:
    """Over the last axis, kept as an axis of one."""
    import numpy as np

    finite = np.isfinite(values)
    count = np.maximum(finite.sum(axis=-1, keepdims=True), 1)
    return np.sqrt((np.where(finite, values, 0.0) ** 2).sum(axis=-1, keepdims=True) / count)


def examine(
    dtype: str, x: numpy.ndarray, gamma: numpy.ndarray, beta: numpy.ndarray, outputs: dict[str, numpy.ndarray]
) -> Examined:
    """All arrays in float64. The reference and the slack are those of common/harness/reference.h."""
    import numpy as np

    cols = x.shape[1]
    with np.errstate(invalid="ignore", over="ignore"):
        mean = x.mean(axis=1, keepdims=True)
        variance = ((x - mean) ** 2).mean(axis=1, keepdims=True)
        rstd = 1 / np.sqrt(variance + EPS)
        xhat = (x - mean) * rstd
        roundings = 4 + np.sqrt(cols)
        mean_slack = roundings * U * np.abs(x).mean(axis=1, keepdims=True)
        shift = mean_slack * rstd
        rstd_slack = (roundings / 2 + 2) * U + shift * shift / 2
        y = xhat * gamma + beta
        y_slack = np.abs(gamma) * (shift + np.abs(xhat) * (rstd_slack + 2 * U)) + 2 * U * np.abs(beta)
    found = Examined()
    found.add(dtype, outputs["y"], y, y_slack, rms_of_finite(y), counts_ulp=True)
    for name, want, slack in (("mean", mean, mean_slack), ("rstd", rstd, rstd_slack * rstd)):
        want, slack = want.reshape(-1), slack.reshape(-1)
        found.add("fp32", outputs[name], want, slack, rms_of_finite(want), counts_ulp=False)
    return found


def in_float64(stored: numpy.ndarray) -> numpy.ndarray:
    """The values of a tensor as the harness stored it; bf16, which numpy does not know, is stored as its bits."""
    import numpy as np

    if stored.dtype == np.uint16:
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float64)


def on_gpu(stored: numpy.ndarray) -> torch.Tensor:
    import numpy as np
    import torch

    if stored.dtype == np.uint16:
        return torch.from_numpy(stored.view(np.int16)).view(torch.bfloat16).cuda()
    return torch.from_numpy(stored).cuda()


def check(folder: Path, dtype: str, shape: tuple[int, int], name: str) -> dict[str, Any]:
    """PyTorch on one saved problem, as a `checks` row."""
    import numpy as np
    import torch

    x, gamma, beta = (np.load(folder / f"{tensor}.npy") for tensor in ("x", "gamma", "beta"))
    y, mean, rstd = torch.native_layer_norm(on_gpu(x), [shape[1]], on_gpu(gamma), on_gpu(beta), EPS)
    tensors = {"y": y, "mean": mean.reshape(-1), "rstd": rstd.reshape(-1)}
    outputs = {key: tensor.double().cpu().numpy() for key, tensor in tensors.items()}
    found = examine(dtype, in_float64(x), in_float64(gamma), in_float64(beta), outputs)
    finite = found.largest_ulp < float("inf")
    return {
        "variant": "torch", "operation": OPERATION, "dtype": dtype, "rows": shape[0], "cols": shape[1], "input": name,
        "verdict": "passed" if found.differing == 0 else "failed",
        "max_ulp_error": found.largest_ulp if finite else None,
        "max_abs_error": found.largest_error if found.largest_error < float("inf") else None,
        "differing": found.differing, "compared": found.compared,
    }


def column_sum_errors(folder: Path, outputs: dict[str, numpy.ndarray]) -> dict[str, dict[str, float]]:
    """The largest error of a column's sum, and the root of the mean of their squares: of few columns the largest is a
    matter of luck. Both in units of 2^-24 of the sum's usual size, the root of its terms' squares."""
    import numpy as np

    x, dy, mean, rstd = (in_float64(np.load(folder / f"{tensor}.npy")) for tensor in ("x", "dy", "mean", "rstd"))
    terms = {"dgamma": dy * (x - mean.reshape(-1, 1)) * rstd.reshape(-1, 1), "dbeta": dy}
    found = {}
    for name, of in terms.items():
        errors = np.abs(outputs[name] - of.sum(axis=0)) / np.sqrt((of * of).sum(axis=0)) / U
        found[name] = {"largest": float(np.max(errors)), "rms": float(np.sqrt(np.mean(errors * errors)))}
    return found


def torch_column_sums(folder: Path, cols: int) -> dict[str, numpy.ndarray]:
    import numpy as np
    import torch

    names = ("dy", "x", "mean", "rstd", "gamma")
    dy, x, mean, rstd, gamma = (on_gpu(np.load(folder / f"{name}.npy")) for name in names)
    _, dgamma, dbeta = torch.ops.aten.native_layer_norm_backward(
        dy, x, [cols], mean.reshape(-1, 1), rstd.reshape(-1, 1), gamma, torch.zeros_like(gamma), [False, True, True])
    return {"dgamma": dgamma.double().cpu().numpy(), "dbeta": dbeta.double().cpu().numpy()}


def compare_column_sums(program: Path, file: Path) -> None:
    """Writes the figures of both to `file`, in the form of docs/data."""
    import numpy as np
    import torch

    shape = (2**20, 32)
    with tempfile.TemporaryDirectory() as folder:
        command = [
            program, "--check-only", "--shapes", f"{shape[0]}x{shape[1]}", "--input", "normal", "--dtype", "fp32",
            "--operation", "layernorm_backward", "--variant", "persistent", "--save-tensors", folder,
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        problem = next(Path(folder).iterdir())
        ours = {name: in_float64(np.load(problem / "persistent" / f"{name}.npy")) for name in ("dgamma", "dbeta")}
        errors = {
            "persistent": column_sum_errors(problem, ours),
            "torch": column_sum_errors(problem, torch_column_sums(problem, shape[1])),
        }
    meanings = {"largest": "largest error of a column", "rms": "root of the mean square of the columns' errors"}
    figures = {
        f"{who}_{name}" + ("" if kind == "largest" else f"_{kind}"): {
            "value": round(error, 2),
            "unit": "count",
            "meaning": f"{name}: {meanings[kind]}, in units of 2^-24 of the root of a column's terms' squares",
        }
        for who, found in errors.items()
        for name, kinds in found.items()
        for kind, error in kinds.items()
    }
    source = {
        "title": "dgamma and dbeta over many rows: the error of stage 07's final kernel "
        "and of PyTorch on the same data",
        "gpu": torch.cuda.get_device_name(),
        "dtype": "fp32",
        "shape": f"{shape[0]}x{shape[1]}",
        "torch": torch.__version__,
        "commit": commit_now(),
        "commit_note": "The tree that the program was built from",
    }
    file.write_text(dump({"source": source, "figures": figures}), encoding="utf-8")
    for who, found in errors.items():
        said = [f"{name} {kinds['largest']:.1f} ({kinds['rms']:.1f})" for name, kinds in found.items()]
        print(f"{who}: {', '.join(said)}")


def main() -> int:
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--program", required=True, type=Path, help="a stage's program that does all three types: 05_welford"
    )
    parser.add_argument("--shapes", default="1024x1024", help="ROWSxCOLS, a list (default: 1024x1024)")
    parser.add_argument(
        "--peers",
        type=Path,
        default=here / "h200.json",
        help="the file whose checks are written anew (default: h200.json)",
    )
    parser.add_argument(
        "--column-sums",
        type=Path,
        metavar="FILE",
        help="compare dgamma and dbeta over 2^20 rows instead, and write FILE; the program is 07_backward",
    )
    options = parser.parse_args()

    import torch

    if not torch.cuda.is_available():
        print("errors.py: PyTorch sees no GPU here", file=sys.stderr)
        return 2
    if options.column_sums:
        compare_column_sums(options.program, options.column_sums)
        return 0
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        command = [
            options.program, "--check-only", "--shapes", options.shapes, "--input", "all", "--operation", OPERATION,
            "--variant", "layer_norm", "--param-dtype", "same", "--save-tensors", folder,
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        for problem in sorted(Path(folder).iterdir()):
            _, dtype, shape, name = problem.name.split("-")
            rows_cols = tuple(int(word) for word in shape.split("x"))
            rows.append(check(problem, dtype, (rows_cols[0], rows_cols[1]), name))
            print(f"{dtype} {shape} {name}: {rows[-1]['verdict']}, {rows[-1]['max_ulp_error']} ulp")
    document = json.loads(options.peers.read_text(encoding="utf-8"))
    document["context"]["checks"] = (
        f"torch {torch.__version__} layer_norm on {torch.cuda.get_device_name()}, on the harness's inputs, "
        "held against float64 as common/harness/compare.cpp does"
    )
    document["checks"] = rows
    options.peers.write_text(dump(document), encoding="utf-8")
    return 0


def dump(document: dict[str, Any]) -> str:
    """In the layout that the file has: a line for each row."""
    parts = []
    for key, value in document.items():
        if isinstance(value, list):
            entries, (opening, closing) = [json.dumps(row) for row in value], "[]"
        else:
            entries, (opening, closing) = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()], "{}"
        lines = ",\n".join(f"    {entry}" for entry in entries)
        parts.append(f"  {json.dumps(key)}: {opening}\n{lines}\n  {closing}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    sys.exit(main())
