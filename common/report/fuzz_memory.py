"""Where the tensors of a random call lie: in the memory of the CPU layer, by numpy, or in a GPU's, by PyTorch. Both
have the same few functions, and arrays of doubles that are computed with in the same words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Array = Any  # of numpy or of PyTorch

BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "byte": 1}
MOST_KEPT = 4 << 30  # bytes that PyTorch may hold and not use
LARGEST = {"fp32": float.fromhex("0x1.fffffep127"), "fp16": 65504.0, "bf16": float.fromhex("0x1.fep127")}
ALIGNED = 256  # bytes


class OnCpuLayer:
    """numpy's memory: that of the CPU layer is the process's own."""

    threads = 1

    def __init__(self) -> None:
        import ml_dtypes
        import numpy

        self.xp = numpy
        self.types = {"fp32": numpy.float32, "fp16": numpy.float16, "bf16": ml_dtypes.bfloat16, "byte": numpy.uint8}

    def bytes(self, count: int, seed: int) -> Array:
        """So many random bytes, from a multiple of 256 on."""
        raw = self.xp.random.default_rng(seed).integers(0, 256, count + ALIGNED, dtype=self.xp.uint8)
        skip = -raw.ctypes.data % ALIGNED
        return raw[skip:skip + count]

    def address(self, array: Array) -> int:
        return int(array.ctypes.data)

    def typed(self, array: Array, dtype: str) -> Array:
        return array.view(self.types[dtype])

    def strided(self, array: Array, shape: Sequence[int], strides: Sequence[int]) -> Array:
        steps = tuple(stride * array.itemsize for stride in strides)
        return self.xp.lib.stride_tricks.as_strided(array, tuple(shape), steps)

    def normal(self, shape: Sequence[int], seed: int) -> Array:
        return self.xp.random.default_rng(seed).standard_normal(tuple(shape))

    def counted(self, count: int) -> Array:
        return self.xp.arange(count, dtype=self.xp.float64)

    def double(self, array: Array) -> Array:
        return array.astype(self.xp.float64)

    def cast(self, array: Array, dtype: str) -> Array:
        with self.xp.errstate(over="ignore"):
            return array.astype(self.types[dtype])

    def copy(self, array: Array) -> Array:
        return array.copy()

    def bits(self, array: Array) -> Array:
        return array.view(self.xp.uint8)

    def integers(self, values: Sequence[int]) -> Array:
        return self.xp.array(values)

    def repeated(self, array: Array, count: int) -> Array:
        return self.xp.resize(array, count)

    def stacked(self, arrays: Sequence[Array]) -> Array:
        return self.xp.concatenate(arrays)

    def same_bytes(self, one: Array, other: Array) -> bool:
        return bool((one == other).all())

    def run(self, call: Callable[[int], None], graph: bool) -> None:
        del graph
        call(0)

    def give_back(self) -> None:
        pass

    def quiet(self) -> Any:
        return self.xp.errstate(all="ignore")


class OnGpu:
    """PyTorch's memory on the current GPU. Each thread that runs calls has a stream of its own."""

    threads = 8

    def __init__(self) -> None:
        import threading

        import torch

        self.xp = torch
        self.types = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "byte": torch.uint8}
        self.streams = threading.local()
        self.capturing = threading.Lock()

    def _generator(self, seed: int) -> Any:
        return self.xp.Generator("cuda").manual_seed(seed)

    def bytes(self, count: int, seed: int) -> Array:
        return self.xp.randint(0, 256, (count,), dtype=self.xp.uint8, device="cuda", generator=self._generator(seed))

    def address(self, array: Array) -> int:
        return int(array.data_ptr())

    def typed(self, array: Array, dtype: str) -> Array:
        return array.view(self.types[dtype])

    def strided(self, array: Array, shape: Sequence[int], strides: Sequence[int]) -> Array:
        return array.as_strided(tuple(shape), tuple(strides))

    def normal(self, shape: Sequence[int], seed: int) -> Array:
        return self.xp.randn(tuple(shape), dtype=self.xp.float64, device="cuda", generator=self._generator(seed))

    def counted(self, count: int) -> Array:
        return self.xp.arange(count, dtype=self.xp.float64, device="cuda")

    def double(self, array: Array) -> Array:
        return array.double()

    def cast(self, array: Array, dtype: str) -> Array:
        return array.to(self.types[dtype])

    def copy(self, array: Array) -> Array:
        return array.clone()

    def bits(self, array: Array) -> Array:
        return array.view(self.xp.uint8)

    def integers(self, values: Sequence[int]) -> Array:
        return self.xp.tensor(values, device="cuda")

    def repeated(self, array: Array, count: int) -> Array:
        return array.repeat(-(-count // len(array)))[:count]

    def stacked(self, arrays: Sequence[Array]) -> Array:
        return self.xp.cat(list(arrays))

    def same_bytes(self, one: Array, other: Array) -> bool:
        return bool(self.xp.equal(one, other))

    def give_back(self) -> None:
        """What PyTorch keeps for later, where it is much: each stream keeps its own, and other programs run, too."""
        if self.xp.cuda.memory_reserved() > MOST_KEPT:
            with self.capturing:  # nothing may be freed meanwhile
                self.xp.cuda.empty_cache()

    def run(self, call: Callable[[int], None], graph: bool) -> None:
        """In the current stream; `graph`: captured into a graph, and that replayed."""
        stream = self.xp.cuda.current_stream()
        if not graph:
            call(stream.cuda_stream)
        else:
            captured = self.xp.cuda.CUDAGraph()
            with self.capturing:
                captured.capture_begin(capture_error_mode="thread_local")
                try:
                    call(stream.cuda_stream)
                finally:
                    captured.capture_end()
            captured.replay()
        stream.synchronize()

    def quiet(self) -> Any:
        """The calling thread's stream, for all that PyTorch does."""
        if not hasattr(self.streams, "own"):
            self.streams.own = self.xp.cuda.Stream()
        return self.xp.cuda.stream(self.streams.own)


class Buffer:
    """A tensor of random bytes with a guard zone at both ends. Its last axis has no gaps, the others have `strides`. It
    begins `offset` elements past a multiple of 256 bytes. All that is not an element must stay as it was."""

    GUARD = 512  # bytes

    def __init__(
        self, memory: Any, dtype: str, shape: Sequence[int], strides: Sequence[int], offset: int, seed: int
    ) -> None:
        self.memory, self.dtype = memory, dtype
        self.shape, self.strides = tuple(shape), (*strides, 1)
        size = BYTES[dtype]
        is_empty = 0 in self.shape
        inner = 0
        if not is_empty:
            inner = (1 + sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))) * size
        begin = self.GUARD + offset * size
        self.all = memory.bytes((begin + inner + self.GUARD + 15) // 16 * 16, seed)
        self.address = memory.address(self.all) + begin
        elements = memory.typed(self.all[begin:begin + inner], dtype)
        self.elements = elements.reshape(self.shape) if is_empty else self.within(elements)
        self.begin, self.inner = begin, inner
        self.before = memory.copy(self.all)

    def within(self, elements: Array) -> Array:
        """The tensor, of all that lies between its first element and its last one."""
        return self.memory.strided(elements, self.shape, self.strides)

    @property
    def stride(self) -> int:
        return self.strides[0]

    @property
    def rows(self) -> Array:
        """[rows, cols]; a copy where that is not how it lies."""
        return self.elements.reshape(-1, self.shape[-1]) if len(self.shape) > 2 else self.elements

    def fill(self, values: Array) -> None:
        if self.inner:
            self.elements[:] = self.memory.cast(values, self.dtype).reshape(self.shape)
        self.before = self.memory.copy(self.all)

    def values(self) -> Array:
        return self.memory.double(self.rows)

    def was_left_alone(self, is_written: bool) -> bool:
        """Whether nothing was written but elements, and these only where they may be."""
        now = self.memory.copy(self.all)
        if is_written and self.inner:
            between = slice(self.begin, self.begin + self.inner)
            # as integers of the same size: a NaN is copied as it is
            self.within(self.memory.typed(now[between], self.dtype))[:] = self.within(
                self.memory.typed(self.before[between], self.dtype))
        return bool(self.memory.same_bytes(now, self.before))
