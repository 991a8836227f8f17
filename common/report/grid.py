"""What is measured, as far as more than one script has to know: element sizes, row lengths, shapes and models. Imports
nothing of this folder."""

from __future__ import annotations

from dataclasses import dataclass

ELEMENT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}

SMALL = ("1024x1024", "256x4096")  # shapes that every variant is counted at, by the hardware and on the CPU layer
FEW_COLS = (256, 1024, 4096, 16384)  # of the stages that teach a step
HELD_COLS = (256, 1024, 2048, 4096, 8192, 16384)  # of the kernel that stage 05's lesson ends with
ALL_COLS = (  # of finished kernels
    64, 128, 256, 512, 1024, 2048, 4095, 4096, 4097, 8192, 16384, 32768, 50257, 65536, 131072,
)
# Of the stages with finished kernels, what is timed on tensors of 512 MiB: variants, operations, types and row lengths.
# A check of such a tensor takes two seconds, so that the final kernels alone are timed at all lengths.
SWEEPS = {
    "05_welford": (
        ("layer_norm", "layernorm_forward", ("fp32", "bf16"), ALL_COLS),
        ("held", "layernorm_forward", ("fp32", "bf16"), HELD_COLS),
        ("textbook,chan", "layernorm_forward", ("bf16",), FEW_COLS),
        ("textbook,chan", "layernorm_forward", ("fp32",), FEW_COLS[:-1]),  # chan has no room for 16384 of them
    ),
    "06_fused_residual": (
        ("fused", "add_layernorm_forward,add_rmsnorm_forward", ("bf16", "fp32"), ALL_COLS),
        ("norm", "rmsnorm_forward", ("bf16",), ALL_COLS),
        ("norm", "layernorm_forward", ("bf16",), FEW_COLS),
        ("unfused,fused_inplace", "add_layernorm_forward,add_rmsnorm_forward", ("bf16",), (*FEW_COLS, 65536)),
        ("held", "add_layernorm_forward,add_rmsnorm_forward", ("bf16",), FEW_COLS),
    ),
    "07_backward": (
        ("persistent", "layernorm_backward", ("bf16", "fp32"), ALL_COLS),
        ("persistent", "rmsnorm_backward,add_layernorm_backward", ("bf16",), FEW_COLS),
        ("separate,atomics,grouped,grouped_fp32", "layernorm_backward", ("bf16",), FEW_COLS),
        ("staying", "layernorm_backward", ("fp32", "bf16"), FEW_COLS[:-1]),  # wider rows are left to separate
    ),
}


@dataclass(frozen=True)
class Model:
    name: str
    cols: int
    operation: str  # the norm that it has, after a residual


MODELS = (
    Model("GPT-2", 768, "add_layernorm_forward"),
    Model("Whisper large", 1280, "add_layernorm_forward"),
    Model("Gemma 2 9B", 3584, "add_rmsnorm_forward"),
    Model("LLaMA 7B", 4096, "add_rmsnorm_forward"),
    Model("LLaMA 13B", 5120, "add_rmsnorm_forward"),
    Model("DeepSeek-V3", 7168, "add_rmsnorm_forward"),
    Model("LLaMA 65B", 8192, "add_rmsnorm_forward"),
)


def is_of_article(variant: str) -> bool:
    """Whether a variant is an article's kernel as it stands, which has tables of its own beside the lesson's."""
    return variant.startswith(("article_", "bare_"))


def is_in_grid(variant: str, operation: str) -> bool:
    """Weights about zero, y in eight bits and heads are not: their notes have figures of their own. Bare variants have
    a run of their own."""
    apart = variant == "zero_centered" or variant.startswith("bare_")
    return not apart and not operation.endswith("_quantized") and not operation.startswith("qk_norm")
