"""cuDNN's norms through its frontend's graphs (PyPI nvidia-cudnn-frontend; cuDNN itself comes with PyTorch).

A graph is built once for a shape, as NVIDIA's own benchmark builds it: the heuristics' first plan that is supported.
Each call gives it the addresses of that call's tensors. What cuDNN does not support raises its own error at the first
call.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import cudnn
import torch
from torch import Tensor

Shape = tuple[int, ...]


class Graph:
    """A built graph, what it takes by name, and the tensors that it makes: by name their shapes, types and strides."""

    def __init__(self) -> None:
        self.graph = cudnn.pygraph(
            intermediate_data_type=cudnn.data_type.FLOAT, compute_data_type=cudnn.data_type.FLOAT, handle=handle(),
        )
        self.taken: dict[str, Any] = {}
        self.made: dict[str, tuple[Any, Tensor]] = {}  # and a template on the "meta" device
        self.constants: dict[str, Tensor] = {}

    def takes(self, name: str, template: Tensor) -> Any:
        """`template`: of the shape, the strides and the type; the values are given at each call."""
        self.taken[name] = self.graph.tensor(
            dim=list(template.shape), stride=list(template.stride()), data_type=TYPES[template.dtype], name=name
        )
        return self.taken[name]

    def takes_number(self, name: str, value: float) -> Any:
        self.constants[name] = torch.full((1, 1, 1, 1), value, dtype=torch.float32, device="cpu")
        self.taken[name] = self.graph.tensor_like(self.constants[name], name=name)
        return self.taken[name]

    def makes(self, name: str, tensor: Any, template: Tensor) -> None:
        tensor.set_output(True).set_data_type(TYPES[template.dtype])
        tensor.set_dim(list(template.shape)).set_stride(list(template.stride()))
        self.made[name] = tensor, template

    def built(self) -> Graph:
        self.graph.validate()
        self.graph.build_operation_graph()
        self.graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        self.graph.check_support()
        self.graph.build_plans()
        self.room = max(1, self.graph.get_workspace_size())
        return self

    def __call__(self, given: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
        """What it makes; tensors of those names among `given` are written to instead of new ones."""
        made = {
            name: given[name] if name in given else torch.empty_strided(
                template.shape, template.stride(), dtype=template.dtype, device=device)
            for name, (_, template) in self.made.items()
        }
        pack = {tensor: given[name] if name in given else self.constants[name] for name, tensor in self.taken.items()}
        pack |= {tensor: made[name] for name, (tensor, _) in self.made.items()}
        workspace = torch.empty(self.room, dtype=torch.uint8, device=device)
        cudnn.set_stream(handle=handle(), stream=torch.cuda.current_stream().cuda_stream)
        self.graph.execute(pack, workspace, handle=handle())
        return made


TYPES = {
    torch.float32: cudnn.data_type.FLOAT, torch.float16: cudnn.data_type.HALF, torch.bfloat16: cudnn.data_type.BFLOAT16,
}


@functools.cache
def handle() -> Any:
    return cudnn.create_handle()


def like(shape: Shape, dtype: torch.dtype, stride: Shape | None = None) -> Tensor:
    """A tensor without memory."""
    return torch.empty_strided(shape, stride or strides(shape), dtype=dtype, device="meta")


def strides(shape: Shape) -> Shape:
    """Of images whose channels are last in memory, as cuDNN wants rows and vectors too."""
    samples, channels, height, width = shape
    return (channels * height * width, 1, channels * width, channels)


def vector(cols: int, dtype: torch.dtype) -> Tensor:
    return like((1, cols, 1, 1), dtype)


def as_rows(x: Tensor) -> Tensor:
    """A matrix as images of one pixel each."""
    return x.detach().view(*x.shape, 1, 1)


# --- Norms over rows --------------------------------------------------------------------------------------------------
@functools.lru_cache(maxsize=2)
def row_forward(rms: bool, rows: int, cols: int, dtype: torch.dtype, eps: float, add: bool, training: bool) -> Graph:
    made = Graph()
    matrix, scale = like((rows, cols, 1, 1), dtype), vector(cols, dtype)
    h = made.takes("x", matrix)
    if add:
        h = made.graph.add(a=h, b=made.takes("residual", matrix), name="sum")
        made.makes("h", h, matrix)
    phase = cudnn.norm_forward_phase.TRAINING if training else cudnn.norm_forward_phase.INFERENCE
    given = {"norm_forward_phase": phase, "input": h, "scale": made.takes("gamma", scale)}
    if not rms:
        given["bias"] = made.takes("beta", scale)
    epsilon = made.takes_number("epsilon", eps)
    outputs = (made.graph.rmsnorm if rms else made.graph.layernorm)(name="norm", epsilon=epsilon, **given)
    names = ("y", "inv_var") if rms else ("y", "mean", "inv_var")
    for name, output in zip(names, outputs):
        if name == "y":
            made.makes(name, output, matrix)
        elif training:
            made.makes(name, output, like((rows, 1, 1, 1), torch.float32))
    return made.built()


@functools.lru_cache(maxsize=2)
def row_backward(rms: bool, rows: int, cols: int, dtype: torch.dtype) -> Graph:
    made = Graph()
    matrix, scale, statistics = like((rows, cols, 1, 1), dtype), vector(cols, dtype), like((rows, 1, 1, 1),
                                                                                          torch.float32)
    given = {name: made.takes(taken, matrix) for name, taken in (("grad", "dy"), ("input", "x"))}
    given["scale"] = made.takes("gamma", scale)
    if rms:
        given["has_dbias"] = False
    else:
        given["mean"] = made.takes("mean", statistics)
    given["inv_variance"] = made.takes("inv_var", statistics)
    outputs = (made.graph.rmsnorm_backward if rms else made.graph.layernorm_backward)(name="norm", **given)
    for name, output, template in zip(("dx", "dgamma", "dbeta"), outputs, (matrix, scale, scale)):
        if output is not None:
            made.makes(name, output, template)
    return made.built()


def parameters(gamma: Tensor, beta: Tensor | None) -> dict[str, Tensor]:
    given = {"gamma": gamma.detach().view(1, -1, 1, 1)}
    return given if beta is None else given | {"beta": beta.detach().view(1, -1, 1, 1)}


def row_norm(x: Tensor, gamma: Tensor, beta: Tensor | None, eps: float) -> Tensor:
    """RMSNorm where beta is None; without what a gradient needs."""
    graph = row_forward(beta is None, *x.shape, x.dtype, eps, False, False)
    return graph({"x": as_rows(x)} | parameters(gamma, beta), x.device)["y"].view_as(x)


def add_row_norm(x: Tensor, residual: Tensor, gamma: Tensor, beta: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """A pointwise sum and the norm of it in one graph: cuDNN 9.14 and later fuse them."""
    graph = row_forward(beta is None, *x.shape, x.dtype, eps, True, True)
    made = graph({"x": as_rows(x), "residual": as_rows(residual)} | parameters(gamma, beta), x.device)
    return made["y"].view_as(x), made["h"].view_as(x)


class RowNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gamma: Tensor, beta: Tensor | None, eps: float) -> Tensor:
        graph = row_forward(beta is None, *x.shape, x.dtype, eps, False, True)
        made = graph({"x": as_rows(x)} | parameters(gamma, beta), x.device)
        ctx.save_for_backward(x, gamma, *([] if beta is None else [made["mean"]]), made["inv_var"])
        return made["y"].view_as(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, gamma, *mean, inv_var = ctx.saved_tensors
        given = {"dy": as_rows(dy), "x": as_rows(x), "inv_var": inv_var} | parameters(gamma, None)
        made = row_backward(not mean, *x.shape, x.dtype)(given | ({"mean": mean[0]} if mean else {}), x.device)
        dbeta = made["dbeta"].view_as(gamma) if mean else None
        return made["dx"].view_as(x), made["dgamma"].view_as(gamma), dbeta, None


# --- BatchNorm --------------------------------------------------------------------------------------------------------
def as_images(x: Tensor) -> Tensor:
    return as_rows(x) if x.dim() == 2 else x.detach()


@functools.lru_cache(maxsize=2)
def batch_forward(shape: Shape, stride: Shape, dtype: torch.dtype, eps: float, momentum: float) -> Graph:
    made = Graph()
    images, channels = like(shape, dtype, stride), vector(shape[1], torch.float32)
    outputs = made.graph.batchnorm(
        name="norm", input=made.takes("x", images), scale=made.takes("gamma", channels),
        bias=made.takes("beta", channels), in_running_mean=made.takes("running_mean", channels),
        in_running_var=made.takes("running_var", channels), epsilon=made.takes_number("epsilon", eps),
        momentum=made.takes_number("momentum", momentum),
    )
    for name, output in zip(("y", "mean", "inv_var", "next_mean", "next_var"), outputs):
        made.makes(name, output, images if name == "y" else channels)
    return made.built()


@functools.lru_cache(maxsize=2)
def batch_inference(shape: Shape, stride: Shape, dtype: torch.dtype) -> Graph:
    """Of pointwise operations, which cuDNN fuses: for a graph of batchnorm_inference alone cuDNN 9.19 has no plan on an
    H100."""
    made = Graph()
    images, channels = like(shape, dtype, stride), vector(shape[1], torch.float32)
    graph = made.graph
    centered = graph.sub(a=made.takes("x", images), b=made.takes("mean", channels), name="centered")
    normal = graph.mul(a=centered, b=made.takes("inv_var", channels), name="normal")
    scaled = graph.mul(a=normal, b=made.takes("gamma", channels), name="scaled")
    made.makes("y", graph.add(a=scaled, b=made.takes("beta", channels), name="shifted"), images)
    return made.built()


@functools.lru_cache(maxsize=2)
def batch_backward(shape: Shape, stride: Shape, dtype: torch.dtype) -> Graph:
    made = Graph()
    images, channels = like(shape, dtype, stride), vector(shape[1], torch.float32)
    outputs = made.graph.batchnorm_backward(
        name="norm", grad=made.takes("dy", images), input=made.takes("x", images), scale=made.takes("gamma", channels),
        mean=made.takes("mean", channels), inv_variance=made.takes("inv_var", channels),
    )
    for name, output in zip(("dx", "dgamma", "dbeta"), outputs):
        made.makes(name, output, images if name == "dx" else channels)
    return made.built()


class BatchNorm(torch.autograd.Function):
    """The running statistics are written where they are, as PyTorch's are."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, running: Sequence[Tensor], gamma: Tensor, beta: Tensor, momentum: float,
                eps: float) -> Tensor:
        images = as_images(x)
        mean, var = (t.view(1, -1, 1, 1) for t in running)
        given = {"x": images, "running_mean": mean, "running_var": var, "next_mean": mean, "next_var": var}
        graph = batch_forward(tuple(images.shape), images.stride(), x.dtype, eps, momentum)
        made = graph(given | parameters(gamma, beta), x.device)
        ctx.save_for_backward(x, gamma, made["mean"], made["inv_var"])
        return made["y"].view_as(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, gamma, mean, inv_var = ctx.saved_tensors
        images = as_images(x)
        given = {"dy": as_images(dy), "x": images, "mean": mean, "inv_var": inv_var} | parameters(gamma, None)
        made = batch_backward(tuple(images.shape), images.stride(), x.dtype)(given, x.device)
        return made["dx"].view_as(x), None, made["dgamma"].view_as(gamma), made["dbeta"].view_as(gamma), None, None


def inverse_deviation(running_var: Tensor, eps: float) -> Tensor:
    """What cuDNN's inference takes instead of the variance."""
    return (running_var + eps).rsqrt()


def batch_norm_inference(x: Tensor, mean: Tensor, inv_var: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    images = as_images(x)
    given = {"x": images, "mean": mean.view(1, -1, 1, 1), "inv_var": inv_var.view(1, -1, 1, 1)}
    graph = batch_inference(tuple(images.shape), images.stride(), x.dtype)
    return graph(given | parameters(gamma, beta), x.device)["y"].view_as(x)
