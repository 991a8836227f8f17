#include "common/library/kernels.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "common/library/stages.h"

namespace worklog {
namespace library {
namespace {

struct Final {
  Operation operation;
  nw_operation own;  // in norm_worklog.h
  std::string_view stage, variant;
  bool zero_centered = false;
};
// The variant that the ladder ends with, for each operation. The backward pass of add + norm is none of its own: it is
// the norm's, with a dh.
constexpr Final finals[] = {
    {Operation::layernorm_forward, NW_LAYERNORM_FORWARD, "05_welford", "layer_norm"},
    {Operation::rmsnorm_forward, NW_RMSNORM_FORWARD, "06_fused_residual", "norm"},
    {Operation::add_layernorm_forward, NW_ADD_LAYERNORM_FORWARD, "06_fused_residual", "fused"},
    {Operation::add_rmsnorm_forward, NW_ADD_RMSNORM_FORWARD, "06_fused_residual", "fused"},
    {Operation::layernorm_backward, NW_LAYERNORM_BACKWARD, "07_backward", "persistent"},
    {Operation::rmsnorm_backward, NW_RMSNORM_BACKWARD, "07_backward", "persistent"},
    {Operation::batchnorm_train, NW_BATCHNORM_TRAIN, "08_batchnorm", "batch_norm"},
    {Operation::batchnorm_inference, NW_BATCHNORM_INFERENCE, "08_batchnorm", "batch_norm"},
    {Operation::batchnorm_backward, NW_BATCHNORM_BACKWARD, "08_batchnorm", "batch_norm"},
    {Operation::layernorm_forward, NW_LAYERNORM_FORWARD, "06_fused_residual", "zero_centered", true},
    {Operation::rmsnorm_forward, NW_RMSNORM_FORWARD, "06_fused_residual", "zero_centered", true},
    {Operation::add_layernorm_forward, NW_ADD_LAYERNORM_FORWARD, "06_fused_residual", "zero_centered", true},
    {Operation::add_rmsnorm_forward, NW_ADD_RMSNORM_FORWARD, "06_fused_residual", "zero_centered", true},
    {Operation::layernorm_backward, NW_LAYERNORM_BACKWARD, "07_backward", "zero_centered", true},
    {Operation::rmsnorm_backward, NW_RMSNORM_BACKWARD, "07_backward", "zero_centered", true},
    {Operation::qk_norm, NW_QK_NORM, "06_fused_residual", "heads"},
    {Operation::qk_norm_backward, NW_QK_NORM_BACKWARD, "07_backward", "heads"},
    // One function does all four norms in eight bits: it is listed once, as this one.
    {Operation::rmsnorm_quantized, NW_QUANTIZED_NORM, "06_fused_residual", "quantized"},
};

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
      // The articles' kernels are there to show what they get wrong, or what they leave out. They are no use to others.
      if (variant.name().starts_with("article_") || variant.name().starts_with("bare_")) continue;
      for (const Variant::Implementation& each : variant.implementations()) {
        const bool zero_centered = each.gamma_offset != 0.0f;
        const auto last = std::find_if(std::begin(finals), std::end(finals), [&](const Final& of) {
          return of.operation == each.operation && of.zero_centered == zero_centered;
        });
        if (last == std::end(finals)) continue;
        const bool is_final = program.stage() == last->stage && variant.name() == last->variant;
        if (is_quantized(each.operation) && !is_final) continue;  // in two kernels, it needs memory between them
        const nw_kernel& kernel = list_.emplace_back(nw_kernel{&program, &variant, &each, last->own, is_final,
                                                               launcher_for(last->own, each.dtype, each.param_dtype)});
        if (!is_final) continue;
        final_[zero_centered][last->own][static_cast<int>(each.dtype)][each.param_dtype == Dtype::fp32] = &kernel;
      }
    }
  }
  for (const Final& of : finals) {
    for (int dtype = 0; dtype < dtypes; ++dtype) {
      const auto& by_parameter = final_[of.zero_centered][of.own][dtype];
      const bool complete = by_parameter[1] && (by_parameter[0] || dtype == NW_FP32);
      if (!complete) throw std::logic_error("the stages lack a final kernel");
    }
  }
}

}  // namespace library
}  // namespace worklog
