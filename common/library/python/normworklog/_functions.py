"""The functions of the package: on PyTorch tensors through .torch, on all other arrays here."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from . import _arrays, _library
from ._arrays import View

Array = Any  # numpy.ndarray, torch.Tensor, or whatever speaks DLPack
Function = TypeVar("Function", bound=Callable[..., Any])


def _is_tensor(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def _also_on_tensors(function: Function) -> Function:
    """The function of the same name in .torch, where the first argument is a torch.Tensor."""
    name = function.__name__
    first_name = function.__code__.co_varnames[0]
    tensor_type, on_tensors = type("NoneYet", (), {}), function  # until the first tensor is seen

    @functools.wraps(function)
    def dispatched(*args: Any, **kwargs: Any) -> Any:
        nonlocal tensor_type, on_tensors
        first = args[0] if args else kwargs.get(first_name)
        if isinstance(first, tensor_type):
            return on_tensors(*args, **kwargs)
        if _is_tensor(first):
            from . import torch as tensors

            tensor_type, on_tensors = tensors.Tensor, getattr(tensors, name)
            return on_tensors(*args, **kwargs)
        return function(*args, **kwargs)

    return dispatched  # type: ignore[return-value]


# --- What is accepted -------------------------------------------------------------------------------------------------
class Call:
    """One call: its arguments as they were given and as memory. Views stay here until it has returned."""

    def __init__(self, stream: int | None, outputs: Sequence[str], out: Any) -> None:
        self.stream = stream or 0
        self.views: list[View] = []
        self.outputs = outputs
        if out is None:
            self.given: dict[str, Any] = {}
            return
        given = out if isinstance(out, (tuple, list)) else (out,)
        if len(given) != len(outputs):
            raise TypeError(f"out has {len(given)} arrays; it must have {len(outputs)}: {', '.join(outputs)}")
        self.given = dict(zip(outputs, given))

    def view(self, name: str, array: Any) -> View:
        if _is_tensor(array):
            raise TypeError(f"{name} is a torch.Tensor, but the first argument is not; they must all be of one library")
        found = _arrays.view(name, array, self.stream)
        library = _library.load()
        if found.device[0] != library.device_type:
            where = "a CUDA device" if library.on_gpu else "the CPU"
            raise ValueError(
                f"{name} is on {found.device[0]}; it must be on {where}, which is what this build of the library works "
                "on"
            )
        self.views.append(found)
        return found

    def like(self, name: str, array: Any, x: View) -> View:
        found = self.view(name, array)
        if found.dtype != x.dtype:
            raise TypeError(f"{name} is {found.dtype}; it must be {x.dtype}, as x is")
        if found.shape != x.shape:
            raise ValueError(f"{name} has the shape {found.shape}; it must be {x.shape}, as that of x")
        self.same_device(name, found, x)
        return found

    def same_device(self, name: str, found: View, x: View) -> None:
        if found.device != x.device:
            raise ValueError(f"{name} is on {found.device[0]} {found.device[1]}, but x on {x.device[0]} {x.device[1]}")

    def vector(self, name: str, array: Any, size: int, x: View, dtype: str | None = None) -> View | None:
        """[size] elements of `dtype`, or else of x's type or fp32; None where there is none."""
        if array is None:
            return None
        found = self.view(name, array)
        allowed = (dtype,) if dtype else tuple(dict.fromkeys((x.dtype, "fp32")))
        if found.dtype not in allowed:
            raise TypeError(f"{name} is {found.dtype}; it must be {' or '.join(allowed)}")
        if found.shape != (size,):
            raise ValueError(f"{name} has the shape {found.shape}; it must be ({size},)")
        self.same_device(name, found, x)
        return found if _arrays.is_row_major(found) else self.view(name, _arrays.compact(name, array))

    def parameters(self, gamma: Any, beta: Any, size: int, x: View) -> tuple[int, int, int]:
        """The addresses of gamma and beta, and their type: that of x where both are absent."""
        gamma_at = self.vector("gamma", gamma, size, x)
        beta_at = self.vector("beta", beta, size, x, gamma_at.dtype if gamma_at else None)
        some = gamma_at or beta_at or x
        return address(gamma_at), address(beta_at), _library.DTYPES[some.dtype]

    def rows(self, name: str, array: Any, found: View) -> tuple[int, int, int, int]:
        """(address, rows, cols, stride) of the last axis, of a copy where its rows are not evenly spaced runs of
        elements."""
        if not found.shape or found.shape[-1] == 0:
            raise ValueError(
                f"{name} has the shape {found.shape}; it must have at least one axis, of which the last must not be "
                "empty"
            )
        at = _arrays.rows_of(found)
        if at is None:
            found = self.view(name, _arrays.compact(name, array))
            at = _arrays.rows_of(found)
            assert at is not None
        return found.pointer, *at

    def result(self, name: str, like: Any, x: View, shape: Sequence[int], dtype: str | None = None) -> tuple[Any, int]:
        """The array that a result is written to, given or new, and its address."""
        array = self.given[name] if self.given else _arrays.empty(like, shape, dtype)
        found = self.view(f"out ({name})" if self.given else name, array)
        wanted = dtype or x.dtype
        if found.dtype != wanted:
            raise TypeError(f"out ({name}) is {found.dtype}; it must be {wanted}")
        if found.shape != tuple(shape):
            raise ValueError(f"out ({name}) has the shape {found.shape}; it must be {tuple(shape)}")
        if found.readonly or not _arrays.is_row_major(found):
            raise ValueError(
                f"out ({name}) is {'read-only' if found.readonly else 'not contiguous'}; it must be a contiguous array "
                "that can be written to"
            )
        self.same_device(f"out ({name})", found, x)
        return array, found.pointer


def address(found: View | None) -> int:
    return found.pointer if found else 0


# --- Norms over rows --------------------------------------------------------------------------------------------------
def _forward(
    x: Array, residual: Array | None, gamma: Array | None, beta: Array | None, eps: float, centered: bool,
    round_before_gamma: bool, offset: float, outputs: Sequence[str], out: Any, stream: int | None,
) -> list[Array]:
    """The `outputs` of a norm, in their order: of y, h, mean and rstd."""
    call = Call(stream, outputs, out)
    x_view = call.view("x", x)
    if not centered and residual is None and out is None and _arrays.lies_as_heads(x_view):  # two strides: no copy
        found = _norms_of_heads(
            x, None, gamma, None, eps, offset, round_before_gamma, False, len(outputs) == 2, None, stream
        )
        return [found[0], *[rstd.reshape(-1) for rstd in found[1:]]]
    x_at, rows, cols, x_stride = call.rows("x", x, x_view)
    gamma_at, beta_at, parameter_type = call.parameters(gamma, beta, cols, x_view)
    made: dict[str, tuple[Any, int]] = {}
    for name in outputs:
        wide = name in ("y", "h")
        made[name] = call.result(name, x, x_view, x_view.shape if wide else (rows,), None if wide else "fp32")
    at = {name: made[name][1] if name in made else 0 for name in ("y", "h", "mean", "rstd")}
    if residual is None:
        function = _library.layer_norm if centered else _library.rms_norm
        function(
            x_at, gamma_at, beta_at, at["y"], at["mean"], at["rstd"], rows, cols, x_stride, cols, eps,
            round_before_gamma, _library.DTYPES[x_view.dtype], parameter_type, call.stream, offset,
        )
    else:
        residual_view = call.like("residual", residual, x_view)
        residual_at, _, _, residual_stride = call.rows("residual", residual, residual_view)
        function = _library.add_layer_norm if centered else _library.add_rms_norm
        function(
            x_at, residual_at, gamma_at, beta_at, at["h"], at["y"], at["mean"], at["rstd"], rows, cols, x_stride,
            residual_stride, cols, cols, eps, round_before_gamma, _library.DTYPES[x_view.dtype], parameter_type,
            call.stream, offset,
        )
    return [made[name][0] for name in outputs]


@_also_on_tensors
def layer_norm(
    x: Array, gamma: Array | None = None, beta: Array | None = None, eps: float = 1e-5, *, offset: float = 0.0,
    out: Any = None, stream: int | None = None,
) -> Array:
    """y = (x - mean) / sqrt(variance + eps) * gamma + beta over the last axis of x.

    x may have any number of axes; gamma and beta are [cols], of x's type or float32, None for ones and zeros. Rows that
    lie apart by a fixed stride are read where they are, other layouts are copied first. `offset` is added to gamma
    where there is one: 1 for weights about zero. `out` takes the result
    instead of a new array, and `stream` is a cudaStream_t as an integer (both for arrays other than PyTorch's, which
    are allocated by PyTorch and computed on its current stream). Raises TypeError and ValueError that name the
    argument.
    """
    return _forward(x, None, gamma, beta, eps, True, False, offset, ("y",), out, stream)[0]


@_also_on_tensors
def rms_norm(
    x: Array, gamma: Array | None = None, eps: float = 1e-6, round_before_gamma: bool = False, *,
    offset: float = 0.0, out: Any = None, stream: int | None = None,
) -> Array:
    """y = x / sqrt(mean(x^2) + eps) * gamma over the last axis of x. With `round_before_gamma` the quotient is rounded
    to x's type before it is multiplied, as LLaMA's code has it. All else as in layer_norm."""
    return _forward(x, None, gamma, None, eps, False, round_before_gamma, offset, ("y",), out, stream)[0]


@_also_on_tensors
def add_layer_norm(
    x: Array, residual: Array, gamma: Array | None = None, beta: Array | None = None, eps: float = 1e-5, *,
    offset: float = 0.0, out: Any = None, stream: int | None = None,
) -> tuple[Array, Array]:
    """(y, h): h = x + residual, rounded to x's type, and y = layer_norm(h), in one trip through memory."""
    y, h = _forward(x, _given(residual), gamma, beta, eps, True, False, offset, ("y", "h"), out, stream)
    return y, h


@_also_on_tensors
def add_rms_norm(
    x: Array, residual: Array, gamma: Array | None = None, eps: float = 1e-6, round_before_gamma: bool = False, *,
    offset: float = 0.0, out: Any = None, stream: int | None = None,
) -> tuple[Array, Array]:
    """(y, h): h = x + residual, rounded to x's type, and y = rms_norm(h), in one trip through memory."""
    y, h = _forward(x, _given(residual), gamma, None, eps, False, round_before_gamma, offset, ("y", "h"), out, stream)
    return y, h


def _given(residual: Array) -> Array:
    if residual is None:
        raise TypeError("residual is None; it must be an array")
    return residual


@_also_on_tensors
def layer_norm_forward(
    x: Array, gamma: Array | None = None, beta: Array | None = None, eps: float = 1e-5, *,
    offset: float = 0.0, out: Any = None, stream: int | None = None,
) -> tuple[Array, Array, Array]:
    """(y, mean, rstd): layer_norm, with what its backward pass needs: float32, [rows], rows being the leading axes'
    product."""
    y, mean, rstd = _forward(x, None, gamma, beta, eps, True, False, offset, ("y", "mean", "rstd"), out, stream)
    return y, mean, rstd


@_also_on_tensors
def rms_norm_forward(
    x: Array, gamma: Array | None = None, eps: float = 1e-6, round_before_gamma: bool = False, *,
    offset: float = 0.0, out: Any = None, stream: int | None = None,
) -> tuple[Array, Array]:
    """(y, rstd): rms_norm, with what its backward pass needs."""
    y, rstd = _forward(x, None, gamma, None, eps, False, round_before_gamma, offset, ("y", "rstd"), out, stream)
    return y, rstd


@_also_on_tensors
def add_layer_norm_forward(
    x: Array, residual: Array, gamma: Array | None = None, beta: Array | None = None, eps: float = 1e-5, *,
    offset: float = 0.0, out: Any = None, stream: int | None = None,
) -> tuple[Array, Array, Array, Array]:
    """(y, h, mean, rstd): add_layer_norm, with what its backward pass needs; that is layer_norm_backward of h."""
    y, h, mean, rstd = _forward(
        x, _given(residual), gamma, beta, eps, True, False, offset, ("y", "h", "mean", "rstd"), out, stream
    )
    return y, h, mean, rstd


@_also_on_tensors
def add_rms_norm_forward(
    x: Array, residual: Array, gamma: Array | None = None, eps: float = 1e-6, round_before_gamma: bool = False, *,
    offset: float = 0.0, out: Any = None, stream: int | None = None,
) -> tuple[Array, Array, Array]:
    """(y, h, rstd): add_rms_norm, with what its backward pass needs; that is rms_norm_backward of h."""
    y, h, rstd = _forward(
        x, _given(residual), gamma, None, eps, False, round_before_gamma, offset, ("y", "h", "rstd"), out, stream
    )
    return y, h, rstd


# --- Eight bits out ---------------------------------------------------------------------------------------------------
def _quantized(
    x: Array, residual: Array | None, gamma: Array | None, beta: Array | None, eps: float, centered: bool, format: str,
    scaling: str, scale: Array | None, stream: int | None,
) -> tuple[Array, ...]:
    """(y, h if there is a residual, scales if none is given)."""
    scaling = _library.check_quantized(format, scaling, scale is not None)
    call = Call(stream, (), None)
    x_view = call.view("x", x)
    x_at, rows, cols, x_stride = call.rows("x", x, x_view)
    gamma_at, beta_at, parameter_type = call.parameters(gamma, beta, cols, x_view)
    residual_at, residual_stride = 0, cols
    if residual is not None:
        residual_at, _, _, residual_stride = call.rows("residual", residual, call.like("residual", residual, x_view))
    y = _arrays.empty(x, x_view.shape, format)
    y_at, owner = _arrays.view_of_bytes(y, call.stream)
    h, h_at = (None, 0) if residual is None else call.result("h", x, x_view, x_view.shape)
    scales, scales_at = None, 0
    if scale is None:
        blocks = (_library.scales_of_row(scaling, cols),) if scaling == "block" else ()
        scales, scales_at = call.result("scales", x, x_view, (*x_view.shape[:-1], *blocks), "fp32")
    scale_at = address(call.vector("scale", scale, 1, x_view, "fp32"))
    _library.quantized_norm(
        x_at, residual_at, gamma_at, beta_at, h_at, y_at, scale_at, scales_at, rows, cols, x_stride, residual_stride,
        eps, centered, format, scaling, _library.DTYPES[x_view.dtype], parameter_type, call.stream,
    )
    del owner
    return tuple(array for array in (y, h, scales) if array is not None)


@_also_on_tensors
def rms_norm_quantized(
    x: Array, gamma: Array | None = None, eps: float = 1e-6, *, format: str = "e4m3", scaling: str = "row",
    scale: Array | None = None, stream: int | None = None,
) -> tuple[Array, ...]:
    """(y, scales): rms_norm in eight bits, y = round(rms_norm(x) / scale), for inference. There is no gradient.

    `format` is "e4m3" (torch.float8_e4m3fn; in other libraries the bits, uint8) or "int8". `scaling` is "row", a scale
    for each row, [...]; or "block", one for each 128 columns of it, [..., ceil(cols / 128)]. A scale is the largest |y|
    over 448, or 127, and at least 2^-126. With `scale`, one float32 on x's device, nothing is measured, and (y,) is
    returned. y is rounded once, from float32, to nearest even, and saturates; a NaN is NaN in e4m3, 0 in int8, and NaN
    in its scale. All else as in layer_norm.
    """
    return _quantized(x, None, gamma, None, eps, False, format, scaling, scale, stream)


@_also_on_tensors
def layer_norm_quantized(
    x: Array, gamma: Array | None = None, beta: Array | None = None, eps: float = 1e-5, *, format: str = "e4m3",
    scaling: str = "row", scale: Array | None = None, stream: int | None = None,
) -> tuple[Array, ...]:
    """(y, scales): layer_norm in eight bits; all else as in rms_norm_quantized."""
    return _quantized(x, None, gamma, beta, eps, True, format, scaling, scale, stream)


@_also_on_tensors
def add_rms_norm_quantized(
    x: Array, residual: Array, gamma: Array | None = None, eps: float = 1e-6, *, format: str = "e4m3",
    scaling: str = "row", scale: Array | None = None, stream: int | None = None,
) -> tuple[Array, ...]:
    """(y, h, scales): h = x + residual, rounded to x's type, and rms_norm_quantized(h), in one trip through memory."""
    return _quantized(x, _given(residual), gamma, None, eps, False, format, scaling, scale, stream)


@_also_on_tensors
def add_layer_norm_quantized(
    x: Array, residual: Array, gamma: Array | None = None, beta: Array | None = None, eps: float = 1e-5, *,
    format: str = "e4m3", scaling: str = "row", scale: Array | None = None, stream: int | None = None,
) -> tuple[Array, ...]:
    """(y, h, scales): h = x + residual, rounded to x's type, and layer_norm_quantized(h), in one trip."""
    return _quantized(x, _given(residual), gamma, beta, eps, True, format, scaling, scale, stream)


def _backward(
    dy: Array, x: Array, dh: Array | None, mean: Array | None, rstd: Array, gamma: Array | None, centered: bool,
    offset: float, outputs: Sequence[str], out: Any, stream: int | None,
) -> list[Array]:
    call = Call(stream, outputs, out)
    x_view = call.view("x", x)
    x_at, rows, cols, x_stride = call.rows("x", x, x_view)
    dy_at, _, _, dy_stride = call.rows("dy", dy, call.like("dy", dy, x_view))
    dh_at, _, _, dh_stride = call.rows("dh", dh, call.like("dh", dh, x_view)) if dh is not None else (0, 0, 0, cols)
    statistics = [
        address(call.vector(name, array, rows, x_view, "fp32")) for name, array in (("mean", mean), ("rstd", rstd))
    ]
    gamma_view = call.vector("gamma", gamma, cols, x_view)
    parameter = gamma_view.dtype if gamma_view else x_view.dtype
    made = [call.result("dx", x, x_view, x_view.shape)]
    made += [
        call.result(name, gamma if gamma_view else x, x_view, (cols,), parameter if parameter != x_view.dtype else None)
        for name in outputs[1:]
    ]
    at = [pointer for _, pointer in made] + [0] * (3 - len(made))
    function = _library.layer_norm_backward if centered else _library.rms_norm_backward
    function(
        dy_at, x_at, dh_at, address(gamma_view), *statistics, *at, 0, 0, rows, cols, dy_stride, x_stride, dh_stride,
        cols, _library.DTYPES[x_view.dtype], _library.DTYPES[parameter], call.stream, offset,
    )
    return [array for array, _ in made]


@_also_on_tensors
def layer_norm_backward(
    dy: Array, x: Array, mean: Array, rstd: Array, gamma: Array | None = None, dh: Array | None = None, *,
    offset: float = 0.0, out: Any = None, stream: int | None = None,
) -> tuple[Array, Array, Array]:
    """(dx, dgamma, dbeta) from the gradient dy of y, with the mean and rstd of the forward pass.

    For add_layer_norm, x is its h, dh is the gradient that reaches h past the norm, and dx that of x and residual
    alike. dgamma and dbeta are of gamma's type. The sums over rows come out the same in every run.
    """
    dx, dgamma, dbeta = _backward(
        dy, x, dh, _needed("mean", mean), _needed("rstd", rstd), gamma, True, offset, ("dx", "dgamma", "dbeta"), out,
        stream,
    )
    return dx, dgamma, dbeta


@_also_on_tensors
def rms_norm_backward(
    dy: Array, x: Array, rstd: Array, gamma: Array | None = None, dh: Array | None = None, *,
    offset: float = 0.0, out: Any = None, stream: int | None = None,
) -> tuple[Array, Array]:
    """(dx, dgamma) from the gradient dy of y, with the rstd of the forward pass. dh as in layer_norm_backward."""
    dx, dgamma = _backward(dy, x, dh, None, _needed("rstd", rstd), gamma, False, offset, ("dx", "dgamma"), out, stream)
    return dx, dgamma


def _needed(name: str, array: Array) -> Array:
    if array is None:
        raise TypeError(f"{name} is None; it must be an array")
    return array


# --- Heads of q and k -------------------------------------------------------------------------------------------------
class _Heads:
    """q or k as memory, [..., heads, head_dim]; nothing where there is no k."""

    def __init__(self, call: Call, name: str, array: Any, q: View | None = None) -> None:
        self.view: View | None = None
        self.pointer, self.tokens, self.heads, self.head_dim, self.strides = 0, 0, 0, 0, (0, 0)
        if array is None:
            return
        found = call.view(name, array)
        if q is not None and found.dtype != q.dtype:
            raise TypeError(f"{name} is {found.dtype}; it must be {q.dtype}, as q is")
        if len(found.shape) < 3 or 0 in found.shape[-2:]:
            raise ValueError(
                f"{name} has the shape {found.shape}; it must be [..., heads, head_dim], neither of them 0"
            )
        if q is not None and (found.shape[:-2] != q.shape[:-2] or found.shape[-1] != q.shape[-1]):
            raise ValueError(
                f"{name} has the shape {found.shape}; but for its heads it must be {q.shape}, as that of q"
            )
        if q is not None:
            call.same_device(name, found, q)
        at = _arrays.heads_of(found)
        self.is_copy = at is None
        if at is None:
            found = call.view(name, _arrays.compact(name, array))
            at = _arrays.heads_of(found)
            assert at is not None
        self.view, self.pointer = found, found.pointer
        self.tokens, self.heads, self.head_dim, *strides = at
        self.strides = (strides[0], strides[1])

    def dense(self) -> tuple[int, int]:
        return self.heads * self.head_dim, self.head_dim


def _norms_of_heads(
    q: Array, k: Array | None, q_gamma: Array | None, k_gamma: Array | None, eps: float, offset: float,
    round_before_gamma: bool, inplace: bool, statistics: bool, out: Any, stream: int | None,
) -> list[Array]:
    both = ("q", "k") if k is not None else ("q",)
    outputs = [f"{name}_out" for name in both] + ([f"{name}_rstd" for name in both] if statistics else [])
    if inplace and out is not None:
        raise ValueError("out is given, and inplace is True: the results can only be in one place")
    call = Call(stream, outputs, out)
    arrays = {"q": q, "k": k}
    at = {"q": _Heads(call, "q", q)}
    at["k"] = _Heads(call, "k", k, at["q"].view)
    q_view = at["q"].view
    assert q_view is not None
    gammas = {"q": call.vector("q_gamma", q_gamma, at["q"].head_dim, q_view)}
    gammas["k"] = call.vector(
        "k_gamma", k_gamma, at["q"].head_dim, q_view, gammas["q"].dtype if gammas["q"] else None
    )
    results: dict[str, tuple[Any, int]] = {}
    strides: list[int] = [*at["q"].strides, *at["k"].strides]
    for name, heads in at.items():
        if heads.view is None:
            strides += (0, 0)
        elif inplace:
            if heads.is_copy or heads.view.readonly:
                raise ValueError(
                    f"{name} cannot be written in place: it is read-only, or its heads are not evenly spaced"
                )
            results[f"{name}_out"] = arrays[name], heads.pointer
            strides += heads.strides
        else:
            shape = call.view(name, arrays[name]).shape
            results[f"{name}_out"] = call.result(f"{name}_out", arrays[name], q_view, shape)
            strides += heads.dense()
        if statistics and heads.view is not None:
            shape = (heads.tokens, heads.heads)
            results[f"{name}_rstd"] = call.result(f"{name}_rstd", arrays[name], q_view, shape, "fp32")
    addresses = [results[name][1] if name in results else 0 for name in ("q_out", "k_out", "q_rstd", "k_rstd")]
    some = gammas["q"] or gammas["k"] or q_view
    _library.qk_norm(
        [at["q"].pointer, at["k"].pointer, address(gammas["q"]), address(gammas["k"]), *addresses], at["q"].tokens,
        at["q"].heads, at["k"].heads, at["q"].head_dim, strides, eps, offset, round_before_gamma,
        _library.DTYPES[q_view.dtype], _library.DTYPES[some.dtype], call.stream,
    )
    return [results[name][0] for name in outputs]


@_also_on_tensors
def qk_norm(
    q: Array, k: Array | None = None, q_gamma: Array | None = None, k_gamma: Array | None = None, eps: float = 1e-6,
    offset: float = 0.0, round_before_gamma: bool = False, inplace: bool = False, *, out: Any = None,
    stream: int | None = None,
) -> Any:
    """RMSNorm of each head of q and of k, in one launch: x / sqrt(mean(x^2) + eps) * (gamma + offset).

    q and k are [..., heads, head_dim] of the same leading axes, which are tokens; they may be views of the projection
    that q, k and v come out of, and are read where they lie. The result is (q, k), new and without gaps, or with
    `inplace` q and k themselves; without k it is q alone. `offset` is 1 where gamma is stored about zero (Gemma), and
    None for a gamma stands for a factor of 1. `round_before_gamma`, `out` and `stream` as in rms_norm.
    """
    found = _norms_of_heads(
        q, k, q_gamma, k_gamma, eps, offset, round_before_gamma, inplace, False, out, stream
    )
    return found[0] if k is None else tuple(found)


@_also_on_tensors
def qk_norm_forward(
    q: Array, k: Array | None = None, q_gamma: Array | None = None, k_gamma: Array | None = None, eps: float = 1e-6,
    offset: float = 0.0, round_before_gamma: bool = False, *, out: Any = None, stream: int | None = None,
) -> tuple[Array, ...]:
    """(q, k, q_rstd, k_rstd), or (q, q_rstd) without k: qk_norm, with what its backward pass needs, which is float32,
    [tokens, heads]."""
    return tuple(_norms_of_heads(q, k, q_gamma, k_gamma, eps, offset, round_before_gamma, False, True, out, stream))


@_also_on_tensors
def qk_norm_backward(
    dq_out: Array, dk_out: Array | None, q: Array, k: Array | None, q_rstd: Array, k_rstd: Array | None = None,
    q_gamma: Array | None = None, k_gamma: Array | None = None, offset: float = 0.0, *, out: Any = None,
    stream: int | None = None,
) -> tuple[Array, ...]:
    """(dq, dk, dq_gamma, dk_gamma) from the gradients of qk_norm's results, or (dq, dq_gamma) where k is None. The
    sums over tokens and heads come out the same in every run."""
    both = ("q", "k") if k is not None else ("q",)
    outputs = [f"d{name}" for name in both] + [f"d{name}_gamma" for name in both]
    call = Call(stream, outputs, out)
    at = {"q": _Heads(call, "q", q)}
    q_view = at["q"].view
    assert q_view is not None
    at["k"] = _Heads(call, "k", k, q_view)
    gradients = {}
    for name, given, like in (("q", dq_out, q), ("k", dk_out if k is not None else None, k)):
        if given is None and like is not None:
            raise TypeError(f"d{name}_out is None; it must be an array")
        gradients[name] = _Heads(call, f"d{name}_out", given, q_view)
        if gradients[name].heads != at[name].heads:
            raise ValueError(f"d{name}_out has {gradients[name].heads} heads; it must have those of {name}, "
                             f"{at[name].heads}")
    dim = at["q"].head_dim
    rstd = [
        address(_statistic_of_heads(call, f"{name}_rstd", array, at[name], q_view))
        for name, array in (("q", q_rstd), ("k", k_rstd))
    ]
    gammas = {"q": call.vector("q_gamma", q_gamma, dim, q_view)}
    gammas["k"] = call.vector("k_gamma", k_gamma, dim, q_view, gammas["q"].dtype if gammas["q"] else None)
    some = gammas["q"] or gammas["k"] or q_view
    parameter = some.dtype if some.dtype != q_view.dtype else None
    likes = {"q": q, "k": k}
    made: dict[str, tuple[Any, int]] = {}
    for name in both:
        shape = call.view(name, likes[name]).shape
        made[f"d{name}"] = call.result(f"d{name}", likes[name], q_view, shape)
        like = next((array for array in (q_gamma, k_gamma) if array is not None), q)
        made[f"d{name}_gamma"] = call.result(f"d{name}_gamma", like, q_view, (dim,), parameter)
    results = [made[name][1] if name in made else 0 for name in ("dq", "dk", "dq_gamma", "dk_gamma")]
    strides = [*gradients["q"].strides, *gradients["k"].strides, *at["q"].strides, *at["k"].strides,
               *at["q"].dense(), *at["k"].dense()]
    _library.qk_norm_backward(
        [gradients["q"].pointer, gradients["k"].pointer, at["q"].pointer, at["k"].pointer, address(gammas["q"]),
         address(gammas["k"]), *rstd, *results], 0, 0, at["q"].tokens, at["q"].heads, at["k"].heads, dim, strides,
        offset, _library.DTYPES[q_view.dtype], _library.DTYPES[some.dtype], call.stream,
    )
    return tuple(made[name][0] for name in outputs)


def _statistic_of_heads(call: Call, name: str, array: Any, heads: _Heads, q: View) -> View | None:
    if heads.view is None:
        return None
    found = call.view(name, _needed(name, array))
    if found.dtype != "fp32" or found.shape != (heads.tokens, heads.heads) or not _arrays.is_row_major(found):
        raise ValueError(
            f"{name} must be contiguous float32 of the shape {(heads.tokens, heads.heads)}, as the forward pass wrote "
            "it"
        )
    call.same_device(name, found, q)
    return found


# --- BatchNorm --------------------------------------------------------------------------------------------------------
def _channels(name: str, x: View, channel_axis: int) -> tuple[int, int, int, bool]:
    """(samples, channels, pixels, whether the channels come first)."""
    if len(x.shape) < 2:
        raise ValueError(f"{name} has the shape {x.shape}; it must have at least two axes")
    if channel_axis not in (1, -1, len(x.shape) - 1):
        raise ValueError(f"channel_axis is {channel_axis}; it must be 1 ([N, C, ...]) or -1 ([N, ..., C])")
    if not _arrays.is_row_major(x):
        raise ValueError(f"{name} is not contiguous")
    first = channel_axis == 1
    pixels = 1
    for size in x.shape[2:] if first else x.shape[1:-1]:
        pixels *= size
    return x.shape[0], x.shape[1] if first else x.shape[-1], pixels, first


def _contiguous(call: Call, name: str, array: Array, found: View) -> View:
    return found if _arrays.is_row_major(found) else call.view(name, _arrays.compact(name, array))


def _train(
    x: Array, running_mean: Array | None, running_var: Array | None, gamma: Array | None, beta: Array | None,
    momentum: float, eps: float, channel_axis: int, statistics: bool, out: Any, stream: int | None,
) -> list[Array]:
    outputs = ("y", "save_mean", "save_invstd") if statistics else ("y",)
    call = Call(stream, outputs, out)
    x_view = _contiguous(call, "x", x, call.view("x", x))
    samples, channels, pixels, first = _channels("x", x_view, channel_axis)
    if samples * pixels == 1:
        raise ValueError(f"x has the shape {x_view.shape}; training takes more than one value per channel")
    if (running_mean is None) != (running_var is None):
        raise ValueError(
            f"{'running_mean' if running_mean is None else 'running_var'} is None; both running statistics must be "
            "given, or neither"
        )
    gamma_at, beta_at, parameter_type = call.parameters(gamma, beta, channels, x_view)
    running = [
        _in_place(call, name, array, channels, x_view)
        for name, array in (("running_mean", running_mean), ("running_var", running_var))
    ]
    y, y_at = call.result("y", x, x_view, x_view.shape)
    made = [call.result(name, x, x_view, (channels,), "fp32") if statistics else _scratch(call, name, x, channels)
            for name in ("save_mean", "save_invstd")]
    _library.batch_norm_train(
        x_view.pointer, gamma_at, beta_at, y_at, *running, made[0][1], made[1][1], 0, 0, samples, channels, pixels,
        first, momentum, eps, _library.DTYPES[x_view.dtype], parameter_type, call.stream,
    )
    return [y, *[array for array, _ in made]]


def _scratch(call: Call, name: str, like: Array, size: int) -> tuple[Array, int]:
    """Room for statistics that nobody asked for."""
    array = _arrays.empty(like, (size,), "fp32")
    return array, call.view(name, array).pointer


def _in_place(call: Call, name: str, array: Array | None, channels: int, x: View) -> int:
    found = call.vector(name, array, channels, x, "fp32")
    if found is None:
        return 0
    given = call.view(name, array)
    if given.readonly or not _arrays.is_row_major(given):
        raise ValueError(
            f"{name} is {'read-only' if given.readonly else 'not contiguous'}; it must be contiguous and writable, "
            "since it is updated"
        )
    return given.pointer


@_also_on_tensors
def batch_norm(
    x: Array, running_mean: Array | None = None, running_var: Array | None = None, gamma: Array | None = None,
    beta: Array | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5, *,
    channel_axis: int = 1, out: Any = None, stream: int | None = None,
) -> Array:
    """y = (x - mean) / sqrt(variance + eps) * gamma + beta for each channel of x, which is [N, C] or [N, C, ...].

    In training, mean and variance are those of the batch, and the running statistics (float32, [C], may be None) are
    updated in place: running += momentum * (new - running), with the unbiased variance. Else they are the running
    statistics. The argument `channel_axis` may be -1 for [N, ..., C]; PyTorch's tensors say by their strides where
    their channels lie.
    """
    if training:
        return _train(x, running_mean, running_var, gamma, beta, momentum, eps, channel_axis, False, out, stream)[0]
    for name, array in (("running_mean", running_mean), ("running_var", running_var)):
        if array is None:
            raise ValueError(f"{name} is None; it must be given where training is False")
    call = Call(stream, ("y",), out)
    x_view = _contiguous(call, "x", x, call.view("x", x))
    samples, channels, pixels, first = _channels("x", x_view, channel_axis)
    gamma_at, beta_at, parameter_type = call.parameters(gamma, beta, channels, x_view)
    running = [
        address(call.vector(name, array, channels, x_view, "fp32"))
        for name, array in (("running_mean", running_mean), ("running_var", running_var))
    ]
    y, y_at = call.result("y", x, x_view, x_view.shape)
    _library.batch_norm_inference(
        x_view.pointer, gamma_at, beta_at, *running, y_at, samples, channels, pixels, first, eps,
        _library.DTYPES[x_view.dtype], parameter_type, call.stream,
    )
    return y


@_also_on_tensors
def batch_norm_forward(
    x: Array, running_mean: Array | None = None, running_var: Array | None = None, gamma: Array | None = None,
    beta: Array | None = None, momentum: float = 0.1, eps: float = 1e-5, *, channel_axis: int = 1, out: Any = None,
    stream: int | None = None,
) -> tuple[Array, Array, Array]:
    """(y, save_mean, save_invstd): batch_norm in training, with what its backward pass needs."""
    y, save_mean, save_invstd = _train(
        x, running_mean, running_var, gamma, beta, momentum, eps, channel_axis, True, out, stream
    )
    return y, save_mean, save_invstd


@_also_on_tensors
def batch_norm_backward(
    dy: Array, x: Array, save_mean: Array, save_invstd: Array, gamma: Array | None = None, *, channel_axis: int = 1,
    out: Any = None, stream: int | None = None,
) -> tuple[Array, Array, Array]:
    """(dx, dgamma, dbeta) from the gradient dy of y, with the statistics of the forward pass in training."""
    call = Call(stream, ("dx", "dgamma", "dbeta"), out)
    x_view = _contiguous(call, "x", x, call.view("x", x))
    samples, channels, pixels, first = _channels("x", x_view, channel_axis)
    dy_view = _contiguous(call, "dy", dy, call.like("dy", dy, x_view))
    statistics = [address(call.vector(name, _needed(name, array), channels, x_view, "fp32"))
                  for name, array in (("save_mean", save_mean), ("save_invstd", save_invstd))]
    gamma_view = call.vector("gamma", gamma, channels, x_view)
    parameter = gamma_view.dtype if gamma_view else x_view.dtype
    made = [call.result("dx", x, x_view, x_view.shape)]
    made += [
        call.result(
            name, gamma if gamma_view else x, x_view, (channels,), parameter if parameter != x_view.dtype else None
        )
        for name in ("dgamma", "dbeta")
    ]
    _library.batch_norm_backward(
        dy_view.pointer, x_view.pointer, address(gamma_view), *statistics, *[pointer for _, pointer in made], 0, 0,
        samples, channels, pixels, first, _library.DTYPES[x_view.dtype], _library.DTYPES[parameter], call.stream,
    )
    dx, dgamma, dbeta = (array for array, _ in made)
    return dx, dgamma, dbeta
