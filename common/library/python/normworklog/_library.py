"""libnormworklog: finding it, and calling it.

The functions below mirror those of common/library/norm_worklog.h. They take addresses and numbers and know nothing of
arrays. Each packs its arguments as the C struct lies in memory and passes one pointer: from Python that takes a third
of the time that ctypes takes for as many arguments of a call.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ABI_VERSION = 1
FP32, FP16, BF16 = 0, 1, 2  # nw_dtype
DTYPES = {"fp32": FP32, "fp16": FP16, "bf16": BF16}
LIBRARY_NAME = "libnormworklog.so"

_TYPE_ERROR = 3  # nw_status
_VALUE_ERRORS = range(1, 12)
_NO_DEVICE = 12
_OUT_OF_MEMORY = 13

# Operations, for nw_workspace_size.
_LAYERNORM_BACKWARD, _BATCHNORM_TRAIN, _QK_NORM_BACKWARD = 4, 6, 10


class Error(RuntimeError):
    """The library could not be loaded, or a CUDA call in it failed."""


def _struct(fields: str) -> struct.Struct:
    """As C lays it out: the size and the two types first, padded at its end to its alignment."""
    return struct.Struct(f"@Nii{fields}0q")


# One letter for a field: P pointer, N size_t, q int64_t, i int32_t, f float.
_LAYERNORM = _struct("6P4qf4xqf")
_RMSNORM = _struct("4P4qfiqf")
_ADD_LAYERNORM = _struct("8P6qf4xqf")
_ADD_RMSNORM = _struct("6P6qfiqf")
_LAYERNORM_GRAD = _struct("10PN7qf")
_RMSNORM_GRAD = _struct("8PN7qf")
_BATCHNORM_TRAIN_ARGS = _struct("9PN3qiff")
_BATCHNORM_INFERENCE_ARGS = _struct("6P3qif")
_BATCHNORM_GRAD = _struct("9PN3qi")
_QK_NORM = _struct("8P12qffq")
_QK_NORM_GRAD = _struct("13PN16qf")
_QUANTIZED = _struct("8P7qf3i")


class Library:
    """What was loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.functions = ctypes.CDLL(str(path))
            self.functions.nw_abi_version.restype = ctypes.c_int32
            abi_version = self.functions.nw_abi_version()
        except (OSError, AttributeError) as error:
            raise Error(f"{path} cannot be loaded as {LIBRARY_NAME}: {error}") from None
        if abi_version != ABI_VERSION:
            raise Error(
                f"{path} has version {abi_version} of the C interface, and this package needs version {ABI_VERSION}; "
                "please build both from one tree"
            )
        for name in ("nw_version", "nw_backend", "nw_last_error"):
            getattr(self.functions, name).restype = ctypes.c_char_p
        self.functions.nw_workspace_size.argtypes = [ctypes.c_int32, ctypes.c_char_p, ctypes.POINTER(ctypes.c_size_t)]
        self.backend: str = self.functions.nw_backend().decode()
        self.version: str = self.functions.nw_version().decode()
        self.on_gpu = self.backend == "cuda"
        self.device_type = "cuda" if self.on_gpu else "cpu"

    def operation(self, name: str) -> Callable[[bytes, int], int]:
        function = getattr(self.functions, name)
        function.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
        function.restype = ctypes.c_int32
        return function

    def fail(self, status: int) -> None:
        """Raises what nw_last_error() says."""
        sentence = self.functions.nw_last_error().decode(errors="replace")
        if status == _TYPE_ERROR:
            raise TypeError(sentence)
        if status in _VALUE_ERRORS:
            raise ValueError(sentence)
        if status == _NO_DEVICE:  # CUDA speaks of an old driver where there is none
            raise Error(f"NW_ERROR_NO_DEVICE: there is no CUDA device here, or no driver for it ({sentence})")
        if status == _OUT_OF_MEMORY:
            raise MemoryError(sentence)
        raise Error(sentence)


# --- Finding it -------------------------------------------------------------------------------------------------------
def candidates() -> Iterator[Path]:
    """Where the library is looked for: as the environment says, in the installed package, in the builds of this
    tree."""
    named = os.environ.get("NORMWORKLOG_LIBRARY")
    if named:
        yield Path(named)
        return
    package = Path(__file__).resolve().parent
    yield package / "lib" / LIBRARY_NAME
    for folder in package.parents:
        if (folder / "common" / "library" / "norm_worklog.h").is_file():
            for backend in ("gpu", "cpu"):
                yield folder / "build" / backend / "lib" / LIBRARY_NAME


_loaded: Library | None = None
_loading = threading.Lock()


def load() -> Library:
    """The library, loaded once. Raises Error where there is none."""
    global _loaded
    if _loaded is None:
        with _loading:
            if _loaded is None:
                _loaded = _load()
    return _loaded


def _load() -> Library:
    looked = list(candidates())
    for path in looked:
        if path.is_file():
            return Library(path)
    places = ", ".join(str(path) for path in looked)
    raise Error(
        f"there is no {LIBRARY_NAME} (looked for: {places}); build the CMake target normworklog, or set "
        "NORMWORKLOG_LIBRARY to the file"
    )


# --- Calling it -------------------------------------------------------------------------------------------------------
class _Functions:
    """The C functions as attributes. Each is looked up at its first use, which loads the library."""

    def __getattr__(self, name: str) -> Callable[[bytes, int], int]:
        function = load().operation(f"nw_{name}")
        setattr(self, name, function)
        return function


_c = _Functions()


# 1 or 0, for the whole process: backward passes run in threads of PyTorch's own. Its C++ way reads it where it lies.
_batch_invariant = ctypes.c_int64(0)


def set_batch_invariant(on: bool) -> None:
    """From here on, all norms over rows of this process give a row the same bits whatever the batch: y, h, mean, rstd
    and dx. norm_worklog.h says what they still depend on. It may cost time."""
    _batch_invariant.value = int(bool(on))


def is_batch_invariant() -> bool:
    return bool(_batch_invariant.value)


# Norms with and without a mean have one signature here: an RMSNorm leaves beta and mean aside, a LayerNorm the
# rounding. `offset`, 0 or 1, is added to gamma.
def layer_norm(
    x: int, gamma: int, beta: int, y: int, mean: int, rstd: int, rows: int, cols: int, x_stride: int, y_stride: int,
    eps: float, round_before_gamma: bool, dtype: int, param_dtype: int, stream: int, offset: float = 0.0,
) -> None:
    packed = _LAYERNORM.pack(
        _LAYERNORM.size, dtype, param_dtype, x, gamma, beta, y, mean, rstd, rows, cols, x_stride, y_stride, eps,
        _batch_invariant.value, offset,
    )
    status = _c.layernorm_forward(packed, stream)
    if status:
        load().fail(status)


def rms_norm(
    x: int, gamma: int, beta: int, y: int, mean: int, rstd: int, rows: int, cols: int, x_stride: int, y_stride: int,
    eps: float, round_before_gamma: bool, dtype: int, param_dtype: int, stream: int, offset: float = 0.0,
) -> None:
    packed = _RMSNORM.pack(
        _RMSNORM.size, dtype, param_dtype, x, gamma, y, rstd, rows, cols, x_stride, y_stride, eps,
        round_before_gamma, _batch_invariant.value, offset,
    )
    status = _c.rmsnorm_forward(packed, stream)
    if status:
        load().fail(status)


def add_layer_norm(
    x: int, residual: int, gamma: int, beta: int, h: int, y: int, mean: int, rstd: int, rows: int, cols: int,
    x_stride: int, residual_stride: int, h_stride: int, y_stride: int, eps: float, round_before_gamma: bool, dtype: int,
    param_dtype: int, stream: int, offset: float = 0.0,
) -> None:
    packed = _ADD_LAYERNORM.pack(
        _ADD_LAYERNORM.size, dtype, param_dtype, x, residual, gamma, beta, h, y, mean, rstd, rows, cols, x_stride,
        residual_stride, h_stride, y_stride, eps, _batch_invariant.value, offset,
    )
    status = _c.add_layernorm_forward(packed, stream)
    if status:
        load().fail(status)


def add_rms_norm(
    x: int, residual: int, gamma: int, beta: int, h: int, y: int, mean: int, rstd: int, rows: int, cols: int,
    x_stride: int, residual_stride: int, h_stride: int, y_stride: int, eps: float, round_before_gamma: bool, dtype: int,
    param_dtype: int, stream: int, offset: float = 0.0,
) -> None:
    packed = _ADD_RMSNORM.pack(
        _ADD_RMSNORM.size, dtype, param_dtype, x, residual, gamma, h, y, rstd, rows, cols, x_stride,
        residual_stride, h_stride, y_stride, eps, round_before_gamma, _batch_invariant.value, offset,
    )
    status = _c.add_rmsnorm_forward(packed, stream)
    if status:
        load().fail(status)


def layer_norm_backward(
    dy: int, x: int, dh: int, gamma: int, mean: int, rstd: int, dx: int, dgamma: int, dbeta: int, workspace: int,
    workspace_bytes: int, rows: int, cols: int, dy_stride: int, x_stride: int, dh_stride: int, dx_stride: int,
    dtype: int, param_dtype: int, stream: int, offset: float = 0.0,
) -> None:
    packed = _LAYERNORM_GRAD.pack(
        _LAYERNORM_GRAD.size, dtype, param_dtype, dy, x, dh, gamma, mean, rstd, dx, dgamma, dbeta, workspace,
        workspace_bytes, rows, cols, dy_stride, x_stride, dh_stride, dx_stride,
        _batch_invariant.value, offset,
    )
    status = _c.layernorm_backward(packed, stream)
    if status:
        load().fail(status)


def rms_norm_backward(
    dy: int, x: int, dh: int, gamma: int, mean: int, rstd: int, dx: int, dgamma: int, dbeta: int, workspace: int,
    workspace_bytes: int, rows: int, cols: int, dy_stride: int, x_stride: int, dh_stride: int, dx_stride: int,
    dtype: int, param_dtype: int, stream: int, offset: float = 0.0,
) -> None:
    packed = _RMSNORM_GRAD.pack(
        _RMSNORM_GRAD.size, dtype, param_dtype, dy, x, dh, gamma, rstd, dx, dgamma, workspace, workspace_bytes,
        rows, cols, dy_stride, x_stride, dh_stride, dx_stride, _batch_invariant.value, offset,
    )
    status = _c.rmsnorm_backward(packed, stream)
    if status:
        load().fail(status)


def batch_norm_train(
    x: int, gamma: int, beta: int, y: int, running_mean: int, running_var: int, save_mean: int, save_invstd: int,
    workspace: int, workspace_bytes: int, samples: int, channels: int, pixels: int, channels_first: bool,
    momentum: float, eps: float, dtype: int, param_dtype: int, stream: int,
) -> None:
    packed = _BATCHNORM_TRAIN_ARGS.pack(
        _BATCHNORM_TRAIN_ARGS.size, dtype, param_dtype, x, gamma, beta, y, running_mean, running_var, save_mean,
        save_invstd, workspace, workspace_bytes, samples, channels, pixels, channels_first, momentum, eps,
    )
    status = _c.batchnorm_train(packed, stream)
    if status:
        load().fail(status)


def batch_norm_inference(
    x: int, gamma: int, beta: int, running_mean: int, running_var: int, y: int, samples: int, channels: int,
    pixels: int, channels_first: bool, eps: float, dtype: int, param_dtype: int, stream: int,
) -> None:
    packed = _BATCHNORM_INFERENCE_ARGS.pack(
        _BATCHNORM_INFERENCE_ARGS.size, dtype, param_dtype, x, gamma, beta, running_mean, running_var, y, samples,
        channels, pixels, channels_first, eps,
    )
    status = _c.batchnorm_inference(packed, stream)
    if status:
        load().fail(status)


def batch_norm_backward(
    dy: int, x: int, gamma: int, save_mean: int, save_invstd: int, dx: int, dgamma: int, dbeta: int, workspace: int,
    workspace_bytes: int, samples: int, channels: int, pixels: int, channels_first: bool, dtype: int, param_dtype: int,
    stream: int,
) -> None:
    packed = _BATCHNORM_GRAD.pack(
        _BATCHNORM_GRAD.size, dtype, param_dtype, dy, x, gamma, save_mean, save_invstd, dx, dgamma, dbeta,
        workspace, workspace_bytes, samples, channels, pixels, channels_first,
    )
    status = _c.batchnorm_backward(packed, stream)
    if status:
        load().fail(status)


def qk_norm(
    pointers: Sequence[int], tokens: int, q_heads: int, k_heads: int, head_dim: int, strides: Sequence[int],
    eps: float, offset: float, round_before_gamma: bool, dtype: int, param_dtype: int, stream: int,
) -> None:
    """`pointers`: q, k, q_gamma, k_gamma, q_out, k_out, q_rstd, k_rstd. `strides`: of the token and of the head, of q,
    k, q_out and k_out."""
    packed = _QK_NORM.pack(
        _QK_NORM.size, dtype, param_dtype, *pointers, tokens, q_heads, k_heads, head_dim, *strides, eps, offset,
        round_before_gamma,
    )
    status = _c.qk_norm(packed, stream)
    if status:
        load().fail(status)


def qk_norm_backward(
    pointers: Sequence[int], workspace: int, workspace_bytes: int, tokens: int, q_heads: int, k_heads: int,
    head_dim: int, strides: Sequence[int], offset: float, dtype: int, param_dtype: int, stream: int,
) -> None:
    """`pointers`: dq_out, dk_out, q, k, q_gamma, k_gamma, q_rstd, k_rstd, dq, dk, dq_gamma, dk_gamma. `strides`: of the
    token and of the head, of dq_out, dk_out, q, k, dq and dk."""
    packed = _QK_NORM_GRAD.pack(
        _QK_NORM_GRAD.size, dtype, param_dtype, *pointers, workspace, workspace_bytes, tokens, q_heads, k_heads,
        head_dim, *strides, offset,
    )
    status = _c.qk_norm_backward(packed, stream)
    if status:
        load().fail(status)


FORMATS = {"e4m3": 0, "int8": 1}  # nw_byte_format
SCALINGS = {"row": 0, "block": 1, "given": 2}  # nw_scaling


def scales_of_row(scaling: str, cols: int) -> int:
    """How many scales a row of `cols` has."""
    return -(-cols // 128) if scaling == "block" else 1


def quantized_norm(
    x: int, residual: int, gamma: int, beta: int, h: int, y: int, scale: int, scales: int, rows: int, cols: int,
    x_stride: int, residual_stride: int, eps: float, centered: bool, format: str, scaling: str, dtype: int,
    param_dtype: int, stream: int,
) -> None:
    packed = _QUANTIZED.pack(
        _QUANTIZED.size, dtype, param_dtype, x, residual, gamma, beta, h, y, scale, scales, rows, cols, x_stride,
        residual_stride, cols, cols, scales_of_row(scaling, cols), eps, centered, FORMATS[format], SCALINGS[scaling],
    )
    status = _c.quantized_norm(packed, stream)
    if status:
        load().fail(status)


def check_quantized(format: str, scaling: str, has_scale: bool) -> str:
    """The scaling that is meant; raises ValueError where the words are none, or do not fit together."""
    if format not in FORMATS:
        raise ValueError(f"format is {format!r}; it must be 'e4m3' or 'int8'")
    if scaling not in ("row", "block"):
        raise ValueError(f"scaling is {scaling!r}; it must be 'row' or 'block', or `scale` must be given")
    return "given" if has_scale else scaling


# --- Workspaces -------------------------------------------------------------------------------------------------------
# What was asked before is kept: for one type the size depends on the width alone, and for BatchNorm on nothing.
_workspace_bytes: dict[tuple[int, int, int, int], int] = {}


def _workspace(operation: int, dtype: int, param_dtype: int, cols: int, arguments: Callable[[], bytes]) -> int:
    key = operation, dtype, param_dtype, cols
    found = _workspace_bytes.get(key)
    if found is None:
        size = ctypes.c_size_t()
        status = load().functions.nw_workspace_size(operation, arguments(), ctypes.byref(size))
        if status:
            load().fail(status)
        found = _workspace_bytes[key] = size.value
    return found


def backward_workspace_bytes(centered: bool, rows: int, cols: int, dtype: int, param_dtype: int) -> int:
    """What layer_norm_backward (centered) and rms_norm_backward work in."""
    args, pointers = (_LAYERNORM_GRAD, 10) if centered else (_RMSNORM_GRAD, 8)

    def arguments() -> bytes:
        return args.pack(args.size, dtype, param_dtype, *[0] * pointers, 0, rows, cols, cols, cols, cols, cols, 0, 0.0)

    return _workspace(_LAYERNORM_BACKWARD if centered else _LAYERNORM_BACKWARD + 1, dtype, param_dtype, cols, arguments)


def qk_norm_workspace_bytes(head_dim: int, dtype: int, param_dtype: int) -> int:
    """What qk_norm_backward works in."""

    def arguments() -> bytes:
        args = _QK_NORM_GRAD
        return args.pack(args.size, dtype, param_dtype, *[0] * 14, 1, 1, 0, head_dim, *[0] * 12, 0.0)

    return _workspace(_QK_NORM_BACKWARD, dtype, param_dtype, head_dim, arguments)


def batch_norm_workspace_bytes(
    backward: bool, samples: int, channels: int, pixels: int, channels_first: bool, dtype: int, param_dtype: int
) -> int:
    """What batch_norm_train and batch_norm_backward work in."""

    def arguments() -> bytes:
        if backward:
            args = _BATCHNORM_GRAD
            return args.pack(args.size, dtype, param_dtype, *[0] * 10, samples, channels, pixels, channels_first)
        args = _BATCHNORM_TRAIN_ARGS
        return args.pack(args.size, dtype, param_dtype, *[0] * 10, samples, channels, pixels, channels_first, 0.0, 0.0)

    return _workspace(_BATCHNORM_TRAIN + 2 * backward, dtype, param_dtype, 0, arguments)
