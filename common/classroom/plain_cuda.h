// What stands for CUDA's own syntax where plain CUDA is compiled on the CPU layer. plain_cuda.py writes
//
//   kernel<<<grid, block, bytes, stream>>>(arguments)   as   worklog::plain::of_kernel(kernel).with(...)(arguments)
//   extern __shared__ float s[];                        as   float (&s)[] = worklog::plain::DynamicShared();
//
// It includes what nvcc includes by itself.
#pragma once

#include <cuda_runtime.h>

#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <tuple>
#include <utility>

// As it was before CUDA 12, and still is for C++.
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, cudaGraphNode_t*, char*,
                                        size_t) {
  return cudaGraphInstantiate(executable, graph, 0ull);
}

extern __thread unsigned char worklog_dynamic_shared[];  // of the CPU layer

namespace worklog::plain {

// The block's dynamic shared memory, as an array of any type and unknown bound.
struct DynamicShared {
  template <class Array>
  operator Array&() const {
    return reinterpret_cast<Array&>(worklog_dynamic_shared);
  }
};

// Errors stay for cudaGetLastError(), as <<<>>> leaves them.
template <class... Parameters>
struct Kernel {
  struct Configured {
    void (*kernel)(Parameters...);
    cudaLaunchConfig_t config;
    void operator()(Parameters... arguments) const { cudaLaunchKernelEx(&config, kernel, arguments...); }
  };
  Configured with(dim3 grid, dim3 block, size_t bytes = 0, cudaStream_t stream = nullptr) const {
    return {kernel, {grid, block, bytes, stream, nullptr, 0}};
  }
  void (*kernel)(Parameters...);
};
template <class... Parameters>
Kernel<Parameters...> of_kernel(void (*function)(Parameters...)) {
  return {function};
}

// A kernel whose template arguments follow from what it is called with, so that it has no address: `call` calls it.
// Name is a type of the kernel's name, for messages.
template <class Name>
void by_name() {}
template <class Name, class Call>
struct DeducedKernel {
  template <class... Arguments>
  struct Bound {
    Call call;
    std::tuple<Arguments...> arguments;

    static void invoke(const void* self) {
      const auto& bound = *static_cast<const Bound*>(self);
      std::apply(bound.call, bound.arguments);
    }
    simt::detail::Call as_call() const {
      simt::detail::Call made{reinterpret_cast<const void*>(&by_name<Name>), invoke, this, {}, {}};
      made.keep = [this] {
        auto copy = std::make_shared<const Bound>(*this);
        simt::detail::Call kept = copy->as_call();
        kept.keep = {};
        kept.owned = copy;
        return kept;
      };
      return made;
    }
  };
  struct Configured {
    Call call;
    cudaLaunchConfig_t config;
    template <class... Arguments>
    void operator()(Arguments... arguments) const {
      const Bound<Arguments...> bound{call, {arguments...}};
      simt::detail::launch(config, bound.as_call());
    }
  };
  Configured with(dim3 grid, dim3 block, size_t bytes = 0, cudaStream_t stream = nullptr) const {
    return {call, {grid, block, bytes, stream, nullptr, 0}};
  }
  Call call;
};
template <class Name, class Call>
DeducedKernel<Name, Call> deduced(Call call) {
  return {call};
}

}  // namespace worklog::plain
