"""What `./worklog compare` times: this project's kernels through the Python package, and other libraries' norms.

Each contender is one function, from the problem's tensors to y, or to y and h = x + residual. The forward pass is timed
without gradients. The backward pass is torch.autograd.grad of what it returned, for all contenders alike, so that each
is timed with the gradient that its users get. A library that cannot be imported is left out, with the reason in the
results.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

EPS, MOMENTUM = 1e-5, 0.1
OURS, COPY = "ours", "copy"
FRESH_CALLS = 4  # of a contender that writes over its inputs: they begin with the inputs as they were, to be checked


class Unavailable(Exception):
    """Why a contender takes no part, in a few words."""


@dataclass
class Problem:
    """The tensors of one cell. `gradients` are those of y and h."""

    operation: str
    x: Tensor
    residual: Tensor | None
    gamma: Tensor
    beta: Tensor | None
    running_mean: Tensor | None
    running_var: Tensor | None
    gradients: tuple[Tensor, ...]
    calls: int = field(default=0, compare=False)  # of a contender that writes over its inputs

    @property
    def cols(self) -> int:
        return self.x.shape[1]

    @cached_property
    def parameters_in_fp32(self) -> tuple[Tensor, ...]:
        """gamma and beta, for kernels that take no others."""
        return tuple(t.detach().float() for t in (self.gamma, self.beta) if t is not None)

    @cached_property
    def inverse_deviation(self) -> Tensor:
        """Of the running variance, for inference that takes it so."""
        assert self.running_var is not None
        return (self.running_var + EPS).rsqrt()

    @cached_property
    def overwritten(self) -> tuple[Tensor, Tensor]:
        """x and the residual, for a contender that leaves its results there."""
        assert self.residual is not None
        return self.x.detach().clone(), self.residual.detach().clone()

    def to_overwrite(self) -> tuple[Tensor, Tensor]:
        """These, with the values of the problem in the first calls; later ones work on what the last call left, which
        takes as long."""
        x, residual = self.overwritten
        if self.calls < FRESH_CALLS:
            x.copy_(self.x)
            residual.copy_(self.residual)
        self.calls += 1
        return x, residual

    def inputs(self) -> list[Tensor]:
        """What has a gradient."""
        return [t for t in (self.x, self.residual, self.gamma, self.beta) if t is not None]

    def with_own_statistics(self) -> Problem:
        """The same tensors but for the running statistics, which a forward pass writes: a graph that saved them cannot
        be differentiated again once another contender has written them."""
        if self.running_mean is None or self.running_var is None:
            return self
        return replace(self, running_mean=self.running_mean.clone(), running_var=self.running_var.clone())


Call = Callable[[], Any]
Norm = Callable[[Problem], "Tensor | tuple[Tensor, ...]"]


def forward_of(operation: str) -> str:
    return operation.replace("_backward", "_forward").replace("batchnorm_forward", "batchnorm_train")


def make_problem(
    operation: str, dtype: torch.dtype, rows: int, cols: int, device: str, pixels: int = 1, first: bool = False,
    seed: int = 0,
) -> Problem:
    """Normally distributed values; gamma about one. BatchNorm's gamma and beta are float32, as models have them; its
    images are `rows` samples of so many pixels, their channels first or last in memory."""
    generator = torch.Generator(device=device).manual_seed(rows * 31 + cols + 7919 * seed)

    def normal(*shape: int, as_type: torch.dtype = dtype) -> Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(as_type)

    def matrix() -> Tensor:
        if pixels == 1:
            return normal(rows, cols)
        height = max(side for side in range(1, math.isqrt(pixels) + 1) if pixels % side == 0)
        layout = torch.contiguous_format if first else torch.channels_last
        return normal(rows, cols, height, pixels // height).contiguous(memory_format=layout)

    batch = operation.startswith("batchnorm")
    backward = operation.endswith("backward")
    fused = operation.startswith("add")
    kind = torch.float32 if batch else dtype
    problem = Problem(
        operation, matrix(), matrix() if fused else None, 1 + 0.1 * normal(cols, as_type=kind),
        None if "rmsnorm" in operation else 0.1 * normal(cols, as_type=kind),
        torch.zeros(cols, device=device) if batch else None, torch.ones(cols, device=device) if batch else None,
        tuple(matrix() for _ in range(1 + fused)) if backward else ())
    if backward:
        for tensor in problem.inputs():
            tensor.requires_grad_()
    return problem


# --- The contenders ---------------------------------------------------------------------------------------------------
def ours(problem: Problem) -> Any:
    import normworklog as nw

    p = problem
    match forward_of(p.operation):
        case "layernorm_forward":
            return nw.layer_norm(p.x, p.gamma, p.beta, EPS)
        case "rmsnorm_forward":
            return nw.rms_norm(p.x, p.gamma, EPS)
        case "add_layernorm_forward":
            return nw.add_layer_norm(p.x, p.residual, p.gamma, p.beta, EPS)
        case "add_rmsnorm_forward":
            return nw.add_rms_norm(p.x, p.residual, p.gamma, EPS)
        case "batchnorm_train":
            return nw.batch_norm(p.x, p.running_mean, p.running_var, p.gamma, p.beta, True, MOMENTUM, EPS)
        case _:
            return nw.batch_norm(p.x, p.running_mean, p.running_var, p.gamma, p.beta, False, MOMENTUM, EPS)


def pytorch(problem: Problem) -> Any:
    p = problem
    forward = forward_of(p.operation)
    if forward.startswith("batchnorm"):
        training = forward == "batchnorm_train"
        return F.batch_norm(p.x, p.running_mean, p.running_var, p.gamma, p.beta, training, MOMENTUM, EPS)
    h = p.x if p.residual is None else p.x + p.residual
    is_rms = "rmsnorm" in forward
    y = F.rms_norm(h, (p.cols,), p.gamma, EPS) if is_rms else F.layer_norm(h, (p.cols,), p.gamma, p.beta, EPS)
    return y if p.residual is None else (y, h)


FIELDS = ("x", "residual", "gamma", "beta", "running_mean", "running_var")


def compiled(problem: Problem, mode: str | None) -> Call:
    """PyTorch's own through Inductor, specialized to the shape. Compilation is at the first call."""
    made = _compiled(problem.operation, mode, problem.x.shape, problem.x.stride(), problem.x.dtype, problem.x.device)
    tensors = [getattr(problem, field) for field in FIELDS]
    return lambda: made(*tensors)


@functools.lru_cache(maxsize=2)
def _compiled(operation: str, mode: str | None, *_of_the_shape: Any) -> Callable[..., Any]:
    """Made anew for each cell; once for all sets of its tensors."""

    def function(*tensors: Tensor | None) -> Any:
        return pytorch(Problem(operation, *tensors, ()))  # type: ignore[arg-type]

    torch._dynamo.reset()
    torch._functorch.config.donated_buffer = False  # the gradient is taken again and again from one forward pass
    return torch.compile(function, dynamic=False, fullgraph=True, mode=mode)


def triton_tutorial(problem: Problem) -> Any:
    if forward_of(problem.operation) != "layernorm_forward":
        raise Unavailable("the tutorial has LayerNorm only")
    tutorial = _imported("triton_tutorial")
    try:
        return tutorial.layer_norm(problem.x, problem.gamma, problem.beta, EPS)
    except tutorial.TooLong as error:
        raise Unavailable(str(error)) from None


def liger(problem: Problem) -> Any:
    p = problem
    match forward_of(p.operation):
        case "layernorm_forward":
            return _imported("liger_kernel.ops.layer_norm").LigerLayerNormFunction.apply(p.x, p.gamma, p.beta, EPS)
        case "rmsnorm_forward":
            norm = _imported("liger_kernel.ops.rms_norm").LigerRMSNormFunction
            return norm.apply(p.x, p.gamma, EPS, 0.0, "llama", False)
        case "add_rmsnorm_forward":
            norm = _imported("liger_kernel.ops.fused_add_rms_norm").LigerFusedAddRMSNormFunction
            return norm.apply(p.x, p.residual, p.gamma, EPS, 0.0, "llama", False)
    raise Unavailable("it has no such function")


def liger_cute(problem: Problem) -> Any:
    """Liger's other implementation, which LIGER_KERNEL_IMPL=cutedsl chooses: its kernels by their own names, since it
    would fall back to Triton where they do not take a shape."""
    p = problem
    name = forward_of(p.operation).removesuffix("_forward")
    if name == "rmsnorm":
        norm = _imported("liger_kernel.ops.cutedsl.ops.rms_norm").LigerRMSNormFunction
        return norm.apply(p.x, p.gamma, EPS, 0.0, "llama", False)
    if name not in ("layernorm", "add_rmsnorm"):
        raise Unavailable("it has no such function")
    module = _imported(f"liger_kernel.ops.backends._cutedsl.{'layer' if name == 'layernorm' else 'fused_add_rms'}_norm")
    most = module._BWD_MAX_TILE_CUTEDSL
    if p.cols * p.x.element_size() % 16 or p.cols > most:
        raise Unavailable(f"it takes whole vectors of 16 bytes, at most {most} columns, and else falls back to Triton")
    if name == "layernorm":
        return module._LigerLayerNormCuTeDSLFunction.apply(p.x, p.gamma, p.beta, EPS)
    return module._LigerFusedAddRMSNormCuTeDSLFunction.apply(p.x, p.residual, p.gamma, EPS, 0.0, "llama", False)


def flash_attention(problem: Problem) -> Any:
    p = problem
    if p.operation.startswith("batchnorm"):
        raise Unavailable("it has no such function")
    return _flash_attention_norm()(
        p.x, p.gamma, p.beta, residual=p.residual, eps=EPS, prenorm=p.residual is not None,
        is_rms_norm="rmsnorm" in p.operation,
    )


@functools.cache
def _flash_attention_norm() -> Callable[..., Any]:
    module = _imported("flash_attn.ops.triton.layer_norm")
    for kernel in (module._layer_norm_fwd_1pass_kernel, module._layer_norm_bwd_kernel):
        kernel.early_config_prune = _with_warps_enough
    return module.layer_norm_fn


def _with_warps_enough(configs: list[Any], arguments: dict[str, Any], **_: Any) -> list[Any]:
    """flash-attention's autotuner tries every number of warps for every row. More than 64 elements to a thread, of
    several tensors in float32, fit into no registers: such kernels take the compiler minutes, and spill. The backward
    kernel holds twice as many tensors."""
    most = 32 if "DY" in arguments else 64
    return [config for config in configs if arguments["N"] <= most * 32 * config.num_warps] or configs[-1:]


def quack(problem: Problem) -> Any:
    p = problem
    match forward_of(p.operation):
        case "rmsnorm_forward":
            return _imported("quack").rmsnorm(p.x, p.gamma, eps=EPS)
        case "add_rmsnorm_forward":
            return _imported("quack").rmsnorm(p.x, p.gamma, residual=p.residual, eps=EPS, prenorm=True)
        case "layernorm_forward" if not p.gradients:
            return _imported("quack.rmsnorm").layernorm_fwd(p.x, *p.parameters_in_fp32, eps=EPS)
        case "layernorm_forward":
            norm = _imported("quack_norms").LayerNorm
            return norm.apply(p.x, p.gamma, p.beta, p.parameters_in_fp32, EPS)
    raise Unavailable("it has no such function")


def quack_tuned(problem: Problem) -> Any:
    p = problem
    if p.operation.startswith("batchnorm"):
        raise Unavailable("it has no such function")
    norms = _imported("quack_norms")
    if p.gradients:
        return norms.TunedNorm.apply(p.x, p.residual, p.gamma, p.beta, EPS)
    y, h, *_ = norms.tuned_forward(p.x, p.residual, p.gamma, p.beta, EPS, False)
    return y if h is None else (y, h)


def cudnn(problem: Problem) -> Any:
    p = problem
    norms = _imported("cudnn_norms")
    match forward_of(p.operation):
        case "layernorm_forward" | "rmsnorm_forward":
            return (norms.RowNorm.apply if p.gradients else norms.row_norm)(p.x, p.gamma, p.beta, EPS)
        case "add_layernorm_forward" | "add_rmsnorm_forward" if not p.gradients:
            return norms.add_row_norm(p.x, p.residual, p.gamma, p.beta, EPS)
        case "batchnorm_train":
            running = (p.running_mean, p.running_var)
            return norms.BatchNorm.apply(p.x, running, p.gamma, p.beta, MOMENTUM, EPS)
        case "batchnorm_inference":
            return norms.batch_norm_inference(p.x, p.running_mean, p.inverse_deviation, p.gamma, p.beta)
    raise Unavailable("it has no such function")


def flashinfer(problem: Problem) -> Any:
    """For inference. The sum and its norm are written over x and the residual."""
    p = problem
    if p.gradients:
        raise Unavailable("it has no such function")
    match p.operation:
        case "layernorm_forward":
            return _imported("flashinfer.norm").layernorm(p.x, *p.parameters_in_fp32, EPS)
        case "rmsnorm_forward":
            return _imported("flashinfer.norm").rmsnorm(p.x, p.gamma, EPS)
        case "add_rmsnorm_forward":
            norm = _imported("flashinfer.norm").fused_add_rmsnorm
            x, residual = p.to_overwrite()
            norm(x, residual, p.gamma, EPS)
            return x, residual
    raise Unavailable("it has no such function")


def transformer_engine(problem: Problem) -> Any:
    p = problem
    module = _imported("transformer_engine.pytorch")
    match forward_of(p.operation):
        case "layernorm_forward":
            norm = _made(module.LayerNorm, p.cols, p.x.device, p.x.dtype)
        case "rmsnorm_forward":
            norm = _made(module.RMSNorm, p.cols, p.x.device, p.x.dtype)
        case _:
            raise Unavailable("it has no such function")
    return _with_parameters(norm, p)


@functools.lru_cache(maxsize=1)
def _made(kind: Callable[..., Any], cols: int, device: torch.device, dtype: torch.dtype) -> Any:
    """The module, made at a cell's first call and not in those that are timed."""
    return kind(cols, eps=EPS, device=device, dtype=dtype)


def apex(problem: Problem) -> Any:
    p = problem
    match forward_of(p.operation):
        case "layernorm_forward":
            norm = _imported("apex.normalization.fused_layer_norm").fused_layer_norm_affine
            return norm(p.x, p.gamma, p.beta, (p.cols,), EPS)
        case "rmsnorm_forward":
            return _imported("apex.normalization.fused_layer_norm").fused_rms_norm_affine(p.x, p.gamma, (p.cols,), EPS)
    raise Unavailable("it has no such function")


def _with_parameters(norm: Any, problem: Problem) -> Tensor:
    """The module on the problem's own gamma and beta, so that their gradients can be asked for."""
    given = {"weight": problem.gamma} | ({} if problem.beta is None else {"bias": problem.beta})
    return torch.func.functional_call(norm, given, (problem.x,))


@functools.cache
def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:  # a library of another version fails in its own way
        first_line = str(error).splitlines()[0] if str(error) else ""
        raise Unavailable(f"{name} cannot be imported: {type(error).__name__}: {first_line}") from None


# In a run whose results are published.
EXPECTED = (
    "liger_kernel.ops.layer_norm", "flash_attn.ops.triton.layer_norm", "quack", "cudnn", "flashinfer.norm",
    "liger_kernel.ops.cutedsl.ops.rms_norm",
)


def missing() -> list[str]:
    """What is wrong with each of the expected libraries that cannot be imported."""
    reasons = []
    for name in EXPECTED:
        try:
            _imported(name)
        except Unavailable as error:
            reasons.append(str(error))
    return reasons


CONTENDERS: dict[str, Norm] = {
    OURS: ours,
    "torch": pytorch,
    "triton tutorial": triton_tutorial,
    "liger": liger,
    "liger cute": liger_cute,
    "flash-attn triton": flash_attention,
    "quack": quack,
    "quack tuned": quack_tuned,
    "cudnn": cudnn,
    "flashinfer": flashinfer,
    "transformer-engine": transformer_engine,
    "apex": apex,
}
# Through Inductor, with its mode. CUDA graphs are left to us, for all contenders alike.
COMPILED: dict[str, str | None] = {"torch.compile": None, "torch.compile max-autotune": "max-autotune-no-cudagraphs"}
NAMES = ("ours", "torch", *COMPILED, *list(CONTENDERS)[2:])
# What these compile stays on disk, and a later process finds it.
KEPT_ON_DISK = (*COMPILED, "triton tutorial", "liger", "flash-attn triton", "quack", "quack tuned")
TUNED = ("torch.compile max-autotune", "quack tuned")  # whose first call of a shape takes up to minutes


def prepare(name: str, problem: Problem) -> tuple[Call, Call]:
    """(what is timed, which returns its outputs; a whole step as a user's program makes it: forward, and backward where
    the operation is one). Raises Unavailable, or whatever the library raises."""
    step = compiled(problem, COMPILED[name]) if name in COMPILED else lambda: CONTENDERS[name](problem)
    if not problem.gradients:
        def forward() -> Any:
            with torch.no_grad():
                return step()

        return forward, forward
    inputs, gradients = problem.inputs(), list(problem.gradients)
    outputs = _tuple(step())

    def backward() -> Any:
        return torch.autograd.grad(outputs, inputs, gradients, retain_graph=True)

    def both() -> Any:
        return torch.autograd.grad(_tuple(step()), inputs, gradients)

    return backward, both


def _tuple(outputs: Any) -> tuple[Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)
