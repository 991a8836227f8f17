"""From PyTorch tensors to a call of the library: what every path to the kernels, eager or compiled, ends in.

Nothing here knows of autograd. Each function checks its arguments (ValueError and TypeError name them), makes the
results and launches on the current stream of the tensors' device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .. import _library

DTYPES = {torch.float32: _library.FP32, torch.float16: _library.FP16, torch.bfloat16: _library.BF16}

# PyTorch gives the raw stream of a device, and the current device, in a tenth of the time in which it makes objects of
# them.
_raw_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", None) or (
    lambda index: torch.cuda.current_stream(index).cuda_stream
)
_current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", None) or torch.cuda.current_device


def launch(x: Tensor, function: Callable[..., None], *arguments: object, **named: object) -> None:
    """Calls a function of `_library` with the current stream of x's device."""
    index = x.get_device()
    if index < 0:  # on the CPU
        function(*arguments, 0, **named)
    elif index == _current_device():
        function(*arguments, _raw_stream(index), **named)
    else:
        with torch.cuda.device(index):
            function(*arguments, _raw_stream(index), **named)


# --- What is accepted -------------------------------------------------------------------------------------------------
def check_tensor(name: str, tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} is a {type(tensor).__name__}; it must be a torch.Tensor")
    if tensor.dtype not in DTYPES:
        raise TypeError(f"{name} is of {tensor.dtype}; it must be of torch.float32, torch.float16 or torch.bfloat16")
    if not (tensor.is_cuda if _library.load().on_gpu else tensor.is_cpu):
        where = "a CUDA device" if _library.load().on_gpu else "the CPU"
        raise ValueError(
            f"{name} is on {tensor.device}; it must be on {where}, which is what this build of the library works on"
        )


def check_like(name: str, tensor: Tensor, x: Tensor, x_name: str = "x") -> None:
    """A tensor of the same shape, type and device as x."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} is a {type(tensor).__name__}; it must be a torch.Tensor")
    if tensor.dtype != x.dtype:
        raise TypeError(f"{name} is of {tensor.dtype}; it must be of {x.dtype}, as {x_name} is")
    if tensor.device != x.device:
        raise ValueError(f"{name} is on {tensor.device}, but {x_name} on {x.device}")
    if tensor.shape != x.shape:
        raise ValueError(
            f"{name} has the shape {tuple(tensor.shape)}; it must be {tuple(x.shape)}, as that of {x_name}"
        )


def check_vector(name: str, vector: Tensor, size: int, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A contiguous vector of `size` elements on x's device, of `dtype` or else of x's type or float32."""
    if not isinstance(vector, Tensor):
        raise TypeError(f"{name} is a {type(vector).__name__}; it must be a torch.Tensor or None")
    given = vector.dtype
    if given != dtype and (dtype is not None or (given != x.dtype and given != torch.float32)):
        raise TypeError(
            f"{name} is of {given}; it must be of "
            f"{dtype or ' or '.join(dict.fromkeys((str(x.dtype), 'torch.float32')))}"
        )
    if vector.device != x.device:
        raise ValueError(f"{name} is on {vector.device}, but x on {x.device}")
    if vector.dim() != 1 or vector.shape[0] != size:
        raise ValueError(f"{name} has the shape {tuple(vector.shape)}; it must be ({size},)")
    return vector if vector.is_contiguous() else vector.contiguous()


def is_vector(vector: Tensor, size: int, x: Tensor) -> bool:
    """Whether check_vector would return the vector as it is: in a third of its time, and true of nearly every call.
    A tensor without memory (of the device `meta`) has the CPU's number."""
    return (
        (vector.dtype is x.dtype or vector.dtype is torch.float32)
        and vector.get_device() == x.get_device()
        and vector.is_contiguous()
        and (vector.shape == (size,))
        and vector.data_ptr() != 0
    )


def check_parameters(
    gamma: Tensor | None, beta: Tensor | None, size: int, x: Tensor
) -> tuple[Tensor | None, Tensor | None, int]:
    """gamma and beta as vectors, and the code of their type: that of x where both are absent."""
    kind = None
    if gamma is not None:
        if not is_vector(gamma, size, x):
            gamma = check_vector("gamma", gamma, size, x)
        kind = gamma.dtype
    if beta is not None:
        if not is_vector(beta, size, x) or (kind is not None and beta.dtype is not kind):
            beta = check_vector("beta", beta, size, x, kind)
        kind = beta.dtype
    return gamma, beta, DTYPES[kind or x.dtype]


def rows_of(name: str, tensor: Tensor) -> tuple[Tensor, int, int, int]:
    """The last axis as (tensor, rows, cols, elements from a row to the next). Where the rows are not evenly spaced runs
    of elements, the tensor is a contiguous copy."""
    shape = tensor.shape
    cols = shape[-1] if shape else 0
    if cols == 0:
        raise ValueError(
            f"{name} has the shape {tuple(shape)}; it must have at least one axis, of which the last must not be empty"
        )
    if tensor.is_contiguous():
        return tensor, tensor.numel() // cols, cols, cols
    flat = tensor.reshape(-1, cols)  # a view where the leading axes step over each other evenly
    if (cols > 1 and flat.stride(1) != 1) or (flat.shape[0] > 1 and flat.stride(0) < cols):
        flat = flat.contiguous()
    return flat, flat.shape[0], cols, flat.stride(0) if flat.shape[0] > 1 else cols


def pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


# --- Norms over rows --------------------------------------------------------------------------------------------------
def forward(
    x: Tensor, residual: Tensor | None, gamma: Tensor | None, beta: Tensor | None, eps: float, centered: bool,
    round_before_gamma: bool, offset: float, mean: int, rstd: int,
) -> tuple[Tensor, Tensor | None]:
    """y, and h = x + residual where there is a residual. `mean` and `rstd` are addresses of [rows] floats; 0: not
    wanted."""
    check_tensor("x", x)
    if residual is None and not centered and lies_as_heads(x):
        return heads_forward(x, None, gamma, None, eps, offset, round_before_gamma, False, rstd, 0)[0], None
    flat, rows, cols, stride = rows_of("x", x)
    gamma, beta, parameter_type = check_parameters(gamma, beta, cols, x)
    y = torch.empty_like(x) if flat is x else torch.empty(x.shape, dtype=x.dtype, device=x.device)
    dtype = DTYPES[x.dtype]
    if residual is None:
        launch(
            x, _library.layer_norm if centered else _library.rms_norm, flat.data_ptr(),
            0 if gamma is None else gamma.data_ptr(), 0 if beta is None else beta.data_ptr(), y.data_ptr(), mean, rstd,
            rows, cols, stride, cols, eps, round_before_gamma, dtype, parameter_type, offset=offset,
        )
        return y, None
    check_like("residual", residual, x)
    residual_flat, _, _, residual_stride = rows_of("residual", residual)
    h = torch.empty_like(y)
    launch(
        x, _library.add_layer_norm if centered else _library.add_rms_norm, flat.data_ptr(), residual_flat.data_ptr(),
        pointer(gamma), pointer(beta), h.data_ptr(), y.data_ptr(), mean, rstd, rows, cols, stride, residual_stride,
        cols, cols, eps, round_before_gamma, dtype, parameter_type, offset=offset,
    )
    return y, h


BYTES = {"e4m3": torch.float8_e4m3fn, "int8": torch.int8}


def shape_of_scales(x: Tensor, scaling: str) -> tuple[int, ...]:
    leading = tuple(x.shape[:-1])
    return (*leading, _library.scales_of_row(scaling, x.shape[-1])) if scaling == "block" else leading


def quantized(
    x: Tensor, residual: Tensor | None, gamma: Tensor | None, beta: Tensor | None, scale: Tensor | None, eps: float,
    centered: bool, format: str, scaling: str,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """y in eight bits, h where there is a residual, and scales where no scale is given."""
    scaling = _library.check_quantized(format, scaling, scale is not None)
    check_tensor("x", x)
    flat, rows, cols, stride = rows_of("x", x)
    gamma, beta, parameter_type = check_parameters(gamma, beta, cols, x)
    residual_flat, residual_stride, h = None, cols, None
    if residual is not None:
        check_like("residual", residual, x)
        residual_flat, _, _, residual_stride = rows_of("residual", residual)
        h = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    scales = None
    if scale is None:
        scales = torch.empty(shape_of_scales(x, scaling), dtype=torch.float32, device=x.device)
    elif isinstance(scale, Tensor) and scale.dim() == 0:
        scale = scale.reshape(1)
    scale = None if scale is None else check_vector("scale", scale, 1, x, torch.float32)
    y = torch.empty(x.shape, dtype=BYTES[format], device=x.device)
    launch(
        x, _library.quantized_norm, flat.data_ptr(), pointer(residual_flat), pointer(gamma), pointer(beta), pointer(h),
        y.data_ptr(), pointer(scale), pointer(scales), rows, cols, stride, residual_stride, eps, centered, format,
        scaling, DTYPES[x.dtype], parameter_type,
    )
    return y, h, scales


def backward(
    dy: Tensor, x: Tensor, dh: Tensor | None, gamma: Tensor | None, mean: int, rstd: int,
    wanted: tuple[bool, bool, bool], parameter_type: torch.dtype | None, centered: bool, offset: float,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """dx, dgamma and dbeta as far as they are `wanted`; dgamma and dbeta are of the type of gamma, else
    `parameter_type`, else that of x."""
    check_tensor("x", x)
    check_like("dy", dy, x)
    if dh is None and not centered and (lies_as_heads(x) or lies_as_heads(dy)):
        dx, _, dgamma, _ = heads_backward(
            dy, None, x, None, gamma, None, rstd, 0, offset, (wanted[0], False, wanted[1], False)
        )
        return dx, dgamma, None
    flat, rows, cols, stride = rows_of("x", x)
    dy_flat, _, _, dy_stride = rows_of("dy", dy)
    dh_at, dh_stride = 0, cols
    if dh is not None:
        check_like("dh", dh, x)
        dh_flat, _, _, dh_stride = rows_of("dh", dh)
        dh_at = dh_flat.data_ptr()
    if gamma is not None:
        gamma = check_vector("gamma", gamma, cols, x)
    kind = gamma.dtype if gamma is not None else parameter_type or x.dtype
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device) if wanted[0] else None
    dgamma = torch.empty(cols, dtype=kind, device=x.device) if wanted[1] else None
    dbeta = torch.empty(cols, dtype=kind, device=x.device) if wanted[2] else None
    room_bytes = _library.backward_workspace_bytes(centered, rows, cols, DTYPES[x.dtype], DTYPES[kind])
    room = torch.empty(room_bytes, dtype=torch.uint8, device=x.device) if room_bytes else None
    launch(
        x, _library.layer_norm_backward if centered else _library.rms_norm_backward, dy_flat.data_ptr(),
        flat.data_ptr(), dh_at, pointer(gamma), mean, rstd, pointer(dx), pointer(dgamma), pointer(dbeta), pointer(room),
        room_bytes, rows, cols, dy_stride, stride, dh_stride, cols, DTYPES[x.dtype], DTYPES[kind], offset=offset,
    )
    return dx, dgamma, dbeta


# --- Heads of q and k -------------------------------------------------------------------------------------------------
class Heads(NamedTuple):
    tensor: Tensor  # [tokens, heads, head_dim]
    tokens: int
    heads: int
    head_dim: int
    strides: tuple[int, int]  # from a token to the next, from a head to the next


NO_HEADS = Heads(torch.empty(0), 0, 0, 0, (0, 0))


def heads_at(flat: Tensor) -> Heads | None:
    """[tokens, heads, head_dim] as the kernels take it, or None where the heads of a token are no runs of elements."""
    tokens, heads, cols = flat.shape
    token_stride, head_stride, step = flat.stride()
    if heads == 1:
        head_stride = cols
    length = (heads - 1) * head_stride + cols  # of a token
    if tokens == 1:
        token_stride = length
    if (cols > 1 and step != 1) or head_stride < cols or token_stride < length:
        return None
    return Heads(flat, tokens, heads, cols, (token_stride, head_stride))


def heads_of(name: str, tensor: Tensor) -> Heads:
    """[..., heads, head_dim], of a copy without gaps where the tokens are not evenly spaced."""
    if tensor.dim() < 3 or 0 in tensor.shape[-2:]:
        raise ValueError(
            f"{name} has the shape {tuple(tensor.shape)}; it must be [..., heads, head_dim], neither of them 0"
        )
    flat = tensor.flatten(0, -3)  # a view where the leading axes step over each other evenly
    at = heads_at(flat) or heads_at(flat.contiguous())
    assert at is not None
    return at


def lies_as_heads(tensor: Tensor) -> bool:
    """Whether its rows are no evenly spaced runs of elements, but those of the heads of evenly spaced tokens."""
    if tensor.is_contiguous() or tensor.dim() < 3 or tensor.numel() == 0 or tensor.stride(-1) != 1:
        return False
    *leading, heads, _ = tensor.shape
    steps = [(size, stride) for size, stride in zip(leading, tensor.stride()) if size > 1]
    if heads == 1 or not steps or steps[-1][1] == heads * tensor.stride(-2):
        return False  # rows at one stride
    even = all(outer == size * inner for (_, outer), (size, inner) in zip(steps, steps[1:]))
    return even and heads_at(tensor.flatten(0, -3)) is not None


def check_heads(name: str, tensor: Tensor, q: Tensor) -> None:
    """Like q, but for the number of heads."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} is a {type(tensor).__name__}; it must be a torch.Tensor")
    if tensor.dtype != q.dtype:
        raise TypeError(f"{name} is of {tensor.dtype}; it must be of {q.dtype}, as q is")
    if tensor.device != q.device:
        raise ValueError(f"{name} is on {tensor.device}, but q on {q.device}")
    if tensor.dim() != q.dim() or tensor.shape[:-2] != q.shape[:-2] or tensor.shape[-1] != q.shape[-1]:
        raise ValueError(
            f"{name} has the shape {tuple(tensor.shape)}; but for its heads it must be {tuple(q.shape)}, as that of q"
        )


def gammas_of_heads(
    q_gamma: Tensor | None, k_gamma: Tensor | None, size: int, q: Tensor
) -> tuple[Tensor | None, Tensor | None, torch.dtype]:
    kind = None
    if q_gamma is not None:
        q_gamma = check_vector("q_gamma", q_gamma, size, q)
        kind = q_gamma.dtype
    if k_gamma is not None:
        k_gamma = check_vector("k_gamma", k_gamma, size, q, kind)
        kind = k_gamma.dtype
    return q_gamma, k_gamma, kind or q.dtype


def heads_forward(
    q: Tensor, k: Tensor | None, q_gamma: Tensor | None, k_gamma: Tensor | None, eps: float, offset: float,
    round_before_gamma: bool, inplace: bool, q_rstd: int, k_rstd: int,
) -> tuple[Tensor, Tensor | None]:
    """The norms of q and k, in one launch. `q_rstd` and `k_rstd` are addresses of [tokens, heads] floats; 0: not
    wanted."""
    check_tensor("q", q)
    at = heads_of("q", q)
    k_at = NO_HEADS
    if k is not None:
        check_heads("k", k, q)
        k_at = heads_of("k", k)
    q_gamma, k_gamma, kind = gammas_of_heads(q_gamma, k_gamma, at.head_dim, q)
    if inplace:
        for name, tensor, heads in (("q", q, at), ("k", k, k_at)):
            if tensor is not None and tensor.numel() > 0 and heads.tensor.data_ptr() != tensor.data_ptr():
                raise ValueError(f"{name} cannot be written in place: its heads are not evenly spaced")
        q_out, k_out, strides = q, k, (*at.strides, *k_at.strides)
    else:
        q_out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        k_out = None if k is None else torch.empty(k.shape, dtype=k.dtype, device=k.device)
        strides = (at.heads * at.head_dim, at.head_dim, k_at.heads * k_at.head_dim, k_at.head_dim)
    launch(
        q, _library.qk_norm,
        (at.tensor.data_ptr(), k_at.tensor.data_ptr() if k_at.heads else 0, pointer(q_gamma), pointer(k_gamma),
         q_out.data_ptr(), pointer(k_out), q_rstd, k_rstd),
        at.tokens, at.heads, k_at.heads, at.head_dim, (*at.strides, *k_at.strides, *strides), eps, offset,
        round_before_gamma, DTYPES[q.dtype], DTYPES[kind],
    )
    for tensor in (q, k) if inplace else ():
        if tensor is not None and not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)
    return q_out, k_out


def heads_backward(
    dq_out: Tensor, dk_out: Tensor | None, q: Tensor, k: Tensor | None, q_gamma: Tensor | None,
    k_gamma: Tensor | None, q_rstd: int, k_rstd: int, offset: float, wanted: tuple[bool, bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """dq, dk, dq_gamma and dk_gamma as far as they are `wanted`."""
    check_tensor("q", q)
    check_like("dq_out", dq_out, q, "q")
    at, dq_at, k_at, dk_at = heads_of("q", q), heads_of("dq_out", dq_out), NO_HEADS, NO_HEADS
    if k is not None:
        check_heads("k", k, q)
        check_like("dk_out", dk_out, k, "k")  # type: ignore[arg-type]
        k_at, dk_at = heads_of("k", k), heads_of("dk_out", dk_out)  # type: ignore[arg-type]
    q_gamma, k_gamma, kind = gammas_of_heads(q_gamma, k_gamma, at.head_dim, q)
    new = [
        torch.empty(shape, dtype=dtype, device=q.device) if want and shape is not None else None
        for want, shape, dtype in zip(
            wanted, (q.shape, None if k is None else k.shape, (at.head_dim,), None if k is None else (at.head_dim,)),
            (q.dtype, q.dtype, kind, kind),
        )
    ]
    room_bytes = _library.qk_norm_workspace_bytes(at.head_dim, DTYPES[q.dtype], DTYPES[kind])
    room = torch.empty(room_bytes, dtype=torch.uint8, device=q.device)
    launch(
        q, _library.qk_norm_backward,
        (dq_at.tensor.data_ptr(), dk_at.tensor.data_ptr() if k_at.heads else 0, at.tensor.data_ptr(),
         k_at.tensor.data_ptr() if k_at.heads else 0, pointer(q_gamma), pointer(k_gamma), q_rstd, k_rstd,
         *[pointer(tensor) for tensor in new]),
        room.data_ptr(), room_bytes, at.tokens, at.heads, k_at.heads, at.head_dim,
        (*dq_at.strides, *dk_at.strides, *at.strides, *k_at.strides, at.heads * at.head_dim, at.head_dim,
         k_at.heads * k_at.head_dim, k_at.head_dim),
        offset, DTYPES[q.dtype], DTYPES[kind],
    )
    return new[0], new[1], new[2], new[3]


# --- BatchNorm --------------------------------------------------------------------------------------------------------
class Channels(NamedTuple):
    tensor: Tensor
    last: bool  # whether a channel's values are `channels` apart
    samples: int
    channels: int
    pixels: int


def channels_of(name: str, tensor: Tensor) -> Channels:
    """[N, C, ...] without gaps, its channels second or (as PyTorch's channels_last) last in memory; else of a copy."""
    if tensor.dim() < 2:
        raise ValueError(f"{name} has the shape {tuple(tensor.shape)}; it must be [N, C] or [N, C, ...]")
    samples, channels = tensor.shape[:2]
    if channels == 0:
        raise ValueError(f"{name} has the shape {tuple(tensor.shape)}; it must have at least one channel")
    pixels = tensor[0, 0].numel() if samples else tensor.new_empty(tensor.shape[2:], device="meta").numel()
    if tensor.is_contiguous():
        return Channels(tensor, False, samples, channels, pixels)
    if tensor.movedim(1, -1).is_contiguous():
        return Channels(tensor, True, samples, channels, pixels)
    return Channels(tensor.contiguous(), False, samples, channels, pixels)


def laid_out_as(x: Channels, tensor: Tensor) -> Tensor:
    """`tensor`, or a copy of it with its channels where x has them."""
    if not x.last:
        return tensor.contiguous()
    moved = tensor.movedim(1, -1)
    return tensor if moved.is_contiguous() else moved.contiguous().movedim(-1, 1)


def check_running(running_mean: Tensor | None, running_var: Tensor | None, channels: int, x: Tensor) -> None:
    if (running_mean is None) != (running_var is None):
        missing = "running_mean" if running_mean is None else "running_var"
        raise ValueError(f"{missing} is None; running_mean and running_var must both be given, or neither")
    for name, vector in (("running_mean", running_mean), ("running_var", running_var)):
        if vector is not None and not check_vector(name, vector, channels, x, torch.float32) is vector:
            raise ValueError(f"{name} is not contiguous; it must be, since it is updated in place")


def batch_norm_train(
    x: Tensor, gamma: Tensor | None, beta: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    momentum: float, eps: float, save_mean: int, save_invstd: int,
) -> Tensor:
    """y; the running statistics are updated. `save_mean` and `save_invstd` are addresses of [channels] floats."""
    check_tensor("x", x)
    at = channels_of("x", x)
    if at.samples * at.pixels == 1:
        raise ValueError(f"x has the shape {tuple(x.shape)}; training takes more than one value per channel")
    gamma, beta, parameter_type = check_parameters(gamma, beta, at.channels, x)
    check_running(running_mean, running_var, at.channels, x)
    y = torch.empty_like(at.tensor)
    room_bytes = _library.batch_norm_workspace_bytes(
        False, at.samples, at.channels, at.pixels, not at.last, DTYPES[x.dtype], parameter_type
    )
    room = torch.empty(room_bytes, dtype=torch.uint8, device=x.device)
    launch(
        x, _library.batch_norm_train, at.tensor.data_ptr(), pointer(gamma), pointer(beta), y.data_ptr(),
        pointer(running_mean), pointer(running_var), save_mean, save_invstd, room.data_ptr(), room_bytes, at.samples,
        at.channels, at.pixels, not at.last, momentum, eps, DTYPES[x.dtype], parameter_type,
    )
    return y


def batch_norm_inference(
    x: Tensor, gamma: Tensor | None, beta: Tensor | None, running_mean: Tensor, running_var: Tensor, eps: float
) -> Tensor:
    check_tensor("x", x)
    at = channels_of("x", x)
    gamma, beta, parameter_type = check_parameters(gamma, beta, at.channels, x)
    mean = check_vector("running_mean", running_mean, at.channels, x, torch.float32)
    var = check_vector("running_var", running_var, at.channels, x, torch.float32)
    y = torch.empty_like(at.tensor)
    launch(
        x, _library.batch_norm_inference, at.tensor.data_ptr(), pointer(gamma), pointer(beta), mean.data_ptr(),
        var.data_ptr(), y.data_ptr(), at.samples, at.channels, at.pixels, not at.last, eps, DTYPES[x.dtype],
        parameter_type,
    )
    return y


def batch_norm_backward(
    dy: Tensor, x: Tensor, gamma: Tensor | None, save_mean: int, save_invstd: int, wanted: tuple[bool, bool, bool],
    parameter_type: torch.dtype | None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    check_tensor("x", x)
    check_like("dy", dy, x)
    at = channels_of("x", x)
    dy = laid_out_as(at, dy)
    if gamma is not None:
        gamma = check_vector("gamma", gamma, at.channels, x)
    kind = gamma.dtype if gamma is not None else parameter_type or x.dtype
    dx = torch.empty_like(at.tensor) if wanted[0] else None
    dgamma = torch.empty(at.channels, dtype=kind, device=x.device) if wanted[1] else None
    dbeta = torch.empty(at.channels, dtype=kind, device=x.device) if wanted[2] else None
    room_bytes = _library.batch_norm_workspace_bytes(
        True, at.samples, at.channels, at.pixels, not at.last, DTYPES[x.dtype], DTYPES[kind]
    )
    room = torch.empty(room_bytes, dtype=torch.uint8, device=x.device)
    launch(
        x, _library.batch_norm_backward, dy.data_ptr(), at.tensor.data_ptr(), pointer(gamma), save_mean, save_invstd,
        pointer(dx), pointer(dgamma), pointer(dbeta), room.data_ptr(), room_bytes, at.samples, at.channels, at.pixels,
        not at.last, DTYPES[x.dtype], DTYPES[kind],
    )
    return dx, dgamma, dbeta
