// The stages' variants as the library has them, found by name or as an operation's final kernel.
#pragma once

#include <cuda_runtime.h>

#include <deque>
#include <vector>

#include "common/harness/program.h"
#include "common/library/norm_worklog.h"

// One function of a variant. The C interface knows its name alone.
struct nw_kernel {
  const worklog::Program* program;
  const worklog::Variant* variant;
  const worklog::Variant::Implementation* implementation;
  nw_operation operation;
  bool is_final;
  // Fills the struct of arguments.h from the operation's struct of norm_worklog.h, and calls the function with it.
  void (*launch)(const nw_kernel& kernel, const void* args, void* workspace, cudaStream_t stream);
};

namespace worklog::library {

inline constexpr int operations = NW_QUANTIZED_NORM + 1;
inline constexpr int dtypes = NW_BF16 + 1;

class Kernels {
 public:
  // Made when this is first called.
  static const Kernels& all();

  const std::deque<nw_kernel>& list() const { return list_; }
  // The types are as check_types wants them.
  const nw_kernel& final_kernel(nw_operation operation, nw_dtype dtype, nw_dtype param_dtype,
                                bool zero_centered = false) const {
    return *final_[zero_centered][operation][dtype][param_dtype == NW_FP32];
  }

 private:
  Kernels();

  std::vector<Program> programs_;
  std::deque<nw_kernel> list_;
  // [1][][][]: weights about zero, of norms over rows alone; [][][][1]: parameters in fp32
  const nw_kernel* final_[2][operations][dtypes][2] = {};
};

// The function that nw_kernel::launch is, for an operation and its types.
using Launcher = decltype(nw_kernel::launch);
Launcher launcher_for(nw_operation operation, Dtype dtype, Dtype param_dtype);

}  // namespace worklog::library
