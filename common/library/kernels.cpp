#include "common/library/kernels.h"

#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "common/library/stages.h"

namespace worklog {
namespace library {
namespace {

// None for what is not an operation of its own: the backward pass of add + norm is the norm's, with a dh.
std::optional<nw_operation> operation_of(Operation operation) {
  switch (operation) {
    case Operation::layernorm_forward:
      return NW_LAYERNORM_FORWARD;
    case Operation::rmsnorm_forward:
      return NW_RMSNORM_FORWARD;
    case Operation::add_layernorm_forward:
      return NW_ADD_LAYERNORM_FORWARD;
    case Operation::add_rmsnorm_forward:
      return NW_ADD_RMSNORM_FORWARD;
    case Operation::layernorm_backward:
      return NW_LAYERNORM_BACKWARD;
    case Operation::rmsnorm_backward:
      return NW_RMSNORM_BACKWARD;
    case Operation::batchnorm_train:
      return NW_BATCHNORM_TRAIN;
    case Operation::batchnorm_inference:
      return NW_BATCHNORM_INFERENCE;
    case Operation::batchnorm_backward:
      return NW_BATCHNORM_BACKWARD;
    case Operation::add_layernorm_backward:
      break;
  }
  return std::nullopt;
}

struct Name {
  std::string_view stage, variant;
};

// The variant that the ladder ends with, for each operation.
Name final_name(nw_operation operation) {
  switch (operation) {
    case NW_LAYERNORM_FORWARD:
      return {"05_welford", "layer_norm"};
    case NW_RMSNORM_FORWARD:
      return {"06_fused_residual", "norm"};
    case NW_ADD_LAYERNORM_FORWARD:
    case NW_ADD_RMSNORM_FORWARD:
      return {"06_fused_residual", "fused"};
    case NW_LAYERNORM_BACKWARD:
    case NW_RMSNORM_BACKWARD:
      return {"07_backward", "persistent"};
    default:
      return {"08_batchnorm", "batch_norm"};
  }
}

}  // namespace

const Kernels& Kernels::all() {
  static const Kernels& instance = *new Kernels();  // never destroyed: threads may still call when the process ends
  return instance;
}

Kernels::Kernels() {
  using Stage = Program (*)();
  constexpr Stage stages[] = {naive::program,   shared_reduction::program, warp_shuffle::program, vectorized::program,
                              welford::program, fused_residual::program,   backward::program,     batchnorm::program};
  for (const Stage program : stages) programs_.push_back(program());
  for (const Program& program : programs_) {
    for (const Variant& variant : program.variants()) {
      for (const Variant::Implementation& each : variant.implementations()) {
        const std::optional<nw_operation> operation = operation_of(each.operation);
        if (!operation) continue;
        const auto [final_stage, final_variant] = final_name(*operation);
        const bool is_final = program.stage() == final_stage && variant.name() == final_variant;
        const nw_kernel& kernel = list_.emplace_back(nw_kernel{&program, &variant, &each, *operation, is_final,
                                                               launcher_for(*operation, each.dtype, each.param_dtype)});
        if (is_final) {
          final_[*operation][static_cast<int>(each.dtype)][each.param_dtype == Dtype::fp32] = &kernel;
        }
      }
    }
  }
  for (const auto& of_operation : final_) {
    for (int dtype = 0; dtype < dtypes; ++dtype) {
      const bool complete = of_operation[dtype][1] && (of_operation[dtype][0] || dtype == NW_FP32);
      if (!complete) throw std::logic_error("the stages lack a final kernel");
    }
  }
}

}  // namespace library
}  // namespace worklog
