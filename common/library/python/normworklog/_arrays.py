"""Arrays that are not PyTorch's: numpy's, and whatever speaks DLPack. Both are read as a `View` of their memory."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13  # DLDeviceType
LEGACY_DEFAULT_STREAM = 1  # as DLPack numbers CUDA's streams
ELEMENT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}


class View(NamedTuple):
    """An array's memory. `owner` keeps it alive; strides are in elements."""

    pointer: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: tuple[str, int]
    readonly: bool
    owner: Any


class _Device(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),  # null: row-major
        ("byte_offset", ctypes.c_uint64),
    ]


class _Version(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32)]


class _VersionedTensor(ctypes.Structure):
    _fields_ = [
        ("version", _Version),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_READ_ONLY = 1  # of _VersionedTensor.flags
_DTYPES = {(2, 32): "fp32", (2, 16): "fp16", (4, 16): "bf16"}  # (DLDataTypeCode, bits)

_capsule_name = ctypes.pythonapi.PyCapsule_GetName
_capsule_name.restype, _capsule_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides, in elements, of a tensor without gaps whose last axis is the fastest."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def is_numpy(array: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(array, numpy.ndarray)


def view_of_bytes(array: Any, stream: int) -> tuple[int, Any]:
    """The address of an array that `empty` has made of bytes, and what keeps it alive."""
    if is_numpy(array):
        return array.ctypes.data, array
    found = _view_of_dlpack("y", array, stream, {(1, 8): "e4m3", (0, 8): "int8"})
    return found.pointer, found


def view(name: str, array: Any, stream: int) -> View:
    """What lies behind `array`, the argument called `name`. Raises TypeError where that cannot be told or used."""
    if is_numpy(array):
        return _view_of_numpy(name, array)
    if not hasattr(array, "__dlpack__") or not hasattr(array, "__dlpack_device__"):
        raise TypeError(
            f"{name} is a {type(array).__name__}; it must be a torch.Tensor, a numpy.ndarray or an array that speaks "
            "DLPack"
        )
    return _view_of_dlpack(name, array, stream)


def _view_of_numpy(name: str, array: Any) -> View:
    # ml_dtypes' bfloat16 is known by its name, so that this need not import it.
    dtype = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}.get(array.dtype.name)
    if dtype is None or not array.dtype.isnative:
        raise TypeError(
            f"{name} is of type {array.dtype}; it must be float32, float16 or ml_dtypes.bfloat16, in the machine's "
            "byte order"
        )
    if any(stride % array.itemsize for stride in array.strides):
        raise ValueError(f"{name} has strides of {array.strides} bytes, which are no whole numbers of elements")
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return View(array.ctypes.data, dtype, array.shape, strides, ("cpu", 0), not array.flags.writeable, array)


def _view_of_dlpack(name: str, array: Any, stream: int, dtypes: dict[tuple[int, int], str] = _DTYPES) -> View:
    kind, number = (int(part) for part in array.__dlpack_device__())
    if kind not in (CPU, CUDA, CUDA_HOST, CUDA_MANAGED):
        raise ValueError(f"{name} is on a device of DLPack's type {kind}; it must be on a CUDA device or on the CPU")
    # The producer makes the array's memory ready for work on our stream. 0 stands for the default stream in CUDA only.
    options = {"stream": stream or LEGACY_DEFAULT_STREAM} if kind in (CUDA, CUDA_MANAGED) else {}
    try:
        capsule = array.__dlpack__(max_version=(1, 0), **options)
    except TypeError:  # a producer of before DLPack 1.0
        capsule = array.__dlpack__(**options)
    if _capsule_name(capsule) == b"dltensor_versioned":
        address = _capsule_pointer(capsule, b"dltensor_versioned")
        managed = _VersionedTensor.from_address(address)
        if managed.version.major > 1:
            raise TypeError(f"{name} speaks version {managed.version.major} of DLPack; version 1 is understood")
        tensor, readonly = managed.tensor, bool(managed.flags & _READ_ONLY)
    else:
        tensor, readonly = _Tensor.from_address(_capsule_pointer(capsule, b"dltensor")), False
    dtype = dtypes.get((tensor.dtype.code, tensor.dtype.bits)) if tensor.dtype.lanes == 1 else None
    if dtype is None:
        raise TypeError(
            f"{name} has elements of DLPack's type ({tensor.dtype.code}, {tensor.dtype.bits} bits); it must be "
            "float32, float16 or bfloat16"
        )
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else row_major(shape)
    device = ("cpu" if kind in (CPU, CUDA_HOST) else "cuda", number)
    # Never renamed to "used_...", the capsule frees its tensor when it goes.
    return View((tensor.data or 0) + tensor.byte_offset, dtype, shape, strides, device, readonly, (array, capsule))


def is_row_major(array: View) -> bool:
    """Whether it has no gaps; an axis of one element may have any stride."""
    return math.prod(array.shape) == 0 or all(
        size == 1 or stride == wanted
        for size, stride, wanted in zip(array.shape, array.strides, row_major(array.shape))
    )


def rows_of(array: View) -> tuple[int, int, int] | None:
    """(rows, cols, elements from a row to the next), or None where the rows are not evenly spaced runs of elements."""
    *leading, cols = array.shape
    rows = math.prod(leading)
    if is_row_major(array):
        return rows, cols, cols
    if cols > 1 and array.strides[-1] != 1:
        return None
    # The leading axes that have more than one element: each must step over all of the next.
    steps = [(size, stride) for size, stride in zip(leading, array.strides) if size > 1]
    if any(outer != size * inner for (_, outer), (size, inner) in zip(steps, steps[1:])):
        return None
    stride = steps[-1][1] if steps else cols
    return (rows, cols, stride) if stride >= cols else None


def heads_of(array: View) -> tuple[int, int, int, int, int] | None:
    """(tokens, heads, head_dim, elements from a token to the next, from a head to the next) of [..., heads, head_dim],
    or None where the tokens are not evenly spaced, or do not hold their heads side by side."""
    *leading, heads, cols = array.shape
    tokens = math.prod(leading)
    if is_row_major(array):
        return tokens, heads, cols, heads * cols, cols
    if cols > 1 and array.strides[-1] != 1:
        return None
    steps = [(size, stride) for size, stride in zip(leading, array.strides) if size > 1]
    if any(outer != size * inner for (_, outer), (size, inner) in zip(steps, steps[1:])):
        return None
    head_stride = array.strides[-2] if heads > 1 else cols
    length = (heads - 1) * head_stride + cols  # of a token
    token_stride = steps[-1][1] if steps else length
    return (tokens, heads, cols, token_stride, head_stride) if head_stride >= cols and token_stride >= length else None


def lies_as_heads(array: View) -> bool:
    """Whether its rows are no evenly spaced runs, but those of heads."""
    return len(array.shape) > 2 and 0 not in array.shape and rows_of(array) is None and heads_of(array) is not None


def compact(name: str, array: Any) -> Any:
    """A copy without gaps, made by the array's own library."""
    if is_numpy(array):
        import numpy

        return numpy.ascontiguousarray(array)
    namespace = _namespace(array)
    if hasattr(namespace, "ascontiguousarray"):
        return namespace.ascontiguousarray(array)
    raise ValueError(
        f"{name} is not contiguous, and a {type(array).__name__} names no library that could copy it; please pass a "
        "contiguous one"
    )


def _namespace(array: Any) -> Any:
    """The module with the array's library's functions, or None."""
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__()
    # CuPy's arrays do not name their library in this way: it is the package that their type is from.
    package = sys.modules.get(type(array).__module__.partition(".")[0])
    return package if hasattr(package, "empty") and hasattr(package, "ascontiguousarray") else None


def empty(like: Any, shape: Sequence[int], dtype: str | None = None) -> Any:
    """A new array of the same library and device: of the same type, of float32, or of the bytes of e4m3 or int8."""
    name = {"e4m3": "uint8", "int8": "int8"}.get(dtype or "", "float32")
    if is_numpy(like):
        import numpy

        return numpy.empty(shape, dtype=like.dtype if dtype is None else getattr(numpy, name))
    namespace = _namespace(like)
    if namespace is None or not hasattr(namespace, "empty"):
        raise TypeError(
            f"a {type(like).__name__} names no library that could make arrays like it (__array_namespace__); "
            "please pass `out`, with arrays for every result"
        )
    kind = like.dtype if dtype is None else getattr(namespace, name)
    try:
        return namespace.empty(tuple(shape), dtype=kind, device=like.device)
    except TypeError:  # CuPy makes arrays on the current device, and is not told which
        return namespace.empty(tuple(shape), dtype=kind)
