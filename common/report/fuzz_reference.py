"""What a call should have written, in doubles, and how far PyTorch is off on the same values.

The unit of an error is the last place of the larger of the value and an eighth of the root mean square of the values
that it stands among (its row's; for BatchNorm, its channel's), so that values near zero do not rule. For a sum over
rows that is the root of the sum of its terms' squares."""

from __future__ import annotations

from typing import Any

from fuzz_memory import LARGEST, Array

DIGITS = {"fp32": 24, "fp16": 11, "bf16": 8, "e4m3": 4}  # significant bits, the hidden one included
SMALLEST = {"fp32": -126, "fp16": -14, "bf16": -126, "e4m3": -6}  # exponent of the smallest normal number


def root_mean_square(memory: Any, values: Array) -> Array:
    """Of each row."""
    return memory.xp.sqrt((values * values).sum(1) / max(1, values.shape[1]))[:, None]


def unit_at(memory: Any, magnitude: Array, dtype: str) -> Array:
    """The last place of a type at a magnitude."""
    _, exponent = memory.xp.frexp(magnitude)
    exponent = memory.double(exponent) - 1.0
    smallest = exponent * 0.0 + SMALLEST[dtype]
    exponent = memory.xp.where((exponent > smallest) & (magnitude > 0), exponent, smallest)
    return 2.0 ** (exponent - (DIGITS[dtype] - 1))


def error_of(memory: Any, got: Array, want: Array, scale: Array, dtype: str) -> float:
    """The largest, in last places; infinite where one is a NaN, or infinite, and the other is not."""
    xp = memory.xp
    if want.shape[0] == 0 or want.shape[1] == 0:
        return 0.0
    too_large = xp.abs(want) >= LARGEST[dtype] * (1 - 2.0 ** -DIGITS[dtype])
    alike = (got == want) | (xp.isnan(got) & xp.isnan(want))
    alike = alike | (too_large & (xp.abs(got) >= LARGEST[dtype] * 0.99) & ((got > 0) == (want > 0)))
    magnitude = xp.maximum(xp.abs(want), scale / 8 + 0 * want)
    magnitude = xp.where(xp.isfinite(magnitude), magnitude, xp.abs(want) * 0 + 1)
    error = xp.abs(got - want) / unit_at(memory, magnitude, dtype)
    error = xp.where(alike, error * 0, error)
    error = xp.where(alike, xp.isnan(error) * 0.0, error)
    worst = float(error.max())
    return worst if worst == worst else float("inf")


class Norm:
    """A norm over rows of doubles. `about`: whether a mean is taken away."""

    def __init__(self, memory: Any, x: Array, eps: float, centered: bool) -> None:
        self.memory = memory
        xp, cols = memory.xp, x.shape[1]
        self.mean = x.sum(1)[:, None] / cols if centered else x[:, :1] * 0
        deviation = x - self.mean
        self.mean = self.mean + deviation.sum(1)[:, None] / cols if centered else self.mean
        deviation = x - self.mean
        self.variance = (deviation * deviation).sum(1)[:, None] / cols
        self.rstd = 1 / xp.sqrt(self.variance + eps)
        self.xhat = deviation * self.rstd


def scaled(memory: Any, xhat: Array, gamma: Array | None, beta: Array | None, rounded_to: str | None) -> Array:
    """y of the normalized values. gamma and beta are rows of one."""
    if rounded_to:
        xhat = memory.double(memory.cast(xhat, rounded_to))
    y = xhat if gamma is None else xhat * gamma
    return y if beta is None else y + beta


class Gradients:
    """dx, dgamma and dbeta of rows of doubles, with the statistics that the call was given."""

    def __init__(
        self, memory: Any, dy: Array, x: Array, dh: Array | None, gamma: Array | None, mean: Array | None, rstd: Array
    ) -> None:
        xp, cols = memory.xp, x.shape[1]
        xhat = (x if mean is None else x - mean) * rstd
        wdy = dy if gamma is None else dy * gamma
        dx = wdy - xhat * ((wdy * xhat).sum(1)[:, None] / cols)
        if mean is not None:
            dx = dx - wdy.sum(1)[:, None] / cols
        self.dx = dx * rstd if dh is None else dx * rstd + dh
        # What is subtracted may cancel: the terms are what rounding goes by.
        self.scale = xp.maximum(root_mean_square(memory, self.dx), root_mean_square(memory, wdy * rstd))
        terms = dy * xhat
        self.dgamma, self.dbeta = terms.sum(0)[None, :], dy.sum(0)[None, :]
        self.dgamma_scale = xp.sqrt((terms * terms).sum(0))[None, :]
        self.dbeta_scale = xp.sqrt((dy * dy).sum(0))[None, :]


def of_pytorch(operation: str, tensors: dict[str, Any], eps: float) -> dict[str, Any]:
    """What PyTorch writes on the same values, by the names of our outputs; those that it has. Rows for BatchNorm are
    channels, and all tensors are PyTorch's own, in their types."""
    import torch
    from torch.nn import functional

    x, gamma, beta, dy = (tensors.get(name) for name in ("x", "gamma", "beta", "dy"))
    if operation.endswith("backward") and gamma is not None and "rmsnorm" not in operation:
        beta = torch.zeros_like(gamma)  # for its gradient
    if operation.startswith("batchnorm"):
        inputs = [t.detach().requires_grad_() if t is not None else None for t in (x.T.contiguous(), gamma, beta)]
        with torch.enable_grad():
            if operation == "batchnorm_inference":
                y = functional.batch_norm(
                    inputs[0], tensors["running_mean"], tensors["running_var"], inputs[1], inputs[2], False, 0.0, eps)
            else:
                y, mean, invstd = torch.native_batch_norm(
                    inputs[0], inputs[1], inputs[2], None, None, True, 0.0, eps)
        found = {"y": y.detach().T}
        if operation == "batchnorm_train":
            found |= {"save_mean": mean.detach(), "save_invstd": invstd.detach()}
    else:
        inputs = [t.detach().requires_grad_() if t is not None else None for t in (x.contiguous(), gamma, beta)]
        shape = [x.shape[1]]
        with torch.enable_grad():
            if "layernorm" in operation:
                y, mean, rstd = torch.native_layer_norm(inputs[0], shape, inputs[1], inputs[2], eps)
                found = {"y": y.detach(), "mean": mean.detach(), "rstd": rstd.detach()}
            else:
                y = functional.rms_norm(inputs[0], shape, inputs[1], eps)
                found = {"y": y.detach()}
    if not operation.endswith("backward"):
        return found
    wanted = [t for t in inputs if t is not None]
    upstream = dy.T.contiguous() if operation.startswith("batchnorm") else dy.contiguous()
    grads = iter(torch.autograd.grad(y, wanted, upstream))
    names = [name for name, t in zip(("dx", "dgamma", "dbeta"), inputs, strict=True) if t is not None]
    found = dict(zip(names, grads, strict=True))
    if "dh" in tensors:
        found["dx"] = found["dx"] + tensors["dh"]
    if operation.startswith("batchnorm"):
        found["dx"] = found["dx"].T
    return found
