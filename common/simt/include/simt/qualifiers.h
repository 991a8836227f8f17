// The words that mark CUDA functions and variables, for an ordinary C++ compiler.
#pragma once

// The attribute puts one idle instruction at the kernel's beginning and notes its address in the program: by that the
// engine knows kernels from other functions.
#define __global__ __attribute__((patchable_function_entry(1, 0)))
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__

// Each block runs on one OS thread at a time, so the storage of that OS thread is the block's shared memory. At block
// scope thread_local implies static, which makes this cover `extern __shared__` too.
#define __shared__ thread_local

#define __launch_bounds__(...)
#define __maxnreg__(...)

// Not `alignas`, which does not go where CUDA's word goes. (`__noinline__` is left out: libstdc++ uses the word.)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __builtin_align__(bytes) __align__(bytes)
#define __forceinline__ inline __attribute__((always_inline))
