// The words that mark CUDA functions and variables, for an ordinary C++ compiler.
#pragma once

// A visibility that nothing else in a program has: by that the engine knows kernels from other functions among the
// program's symbols. A static function has no visibility; such a kernel is known when it is launched first, and is no
// reason to warn.
#define __global__ __attribute__((visibility("protected")))
#pragma GCC diagnostic ignored "-Wattributes"
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
