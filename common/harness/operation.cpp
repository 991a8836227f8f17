#include "common/harness/operation.h"

#include "common/device/arguments.h"

namespace worklog {
namespace {

using enum Extent;
using enum Precision;
using enum Pass;

constexpr TensorSpec input(std::string_view name, Extent extent, Precision precision) {
  return {name, extent, Role::input, precision, false};
}
constexpr TensorSpec output(std::string_view name, Extent extent, Precision precision) {
  return {name, extent, Role::output, precision, false};
}
constexpr TensorSpec updated(std::string_view name, Extent extent, Precision precision) {
  return {name, extent, Role::updated, precision, false};
}
constexpr TensorSpec optional(TensorSpec spec) {
  spec.optional = true;
  return spec;
}

constexpr TensorSpec x = input("x", matrix, element);
constexpr TensorSpec residual = input("residual", matrix, element);
constexpr TensorSpec dy = input("dy", matrix, element);
constexpr TensorSpec dh = input("dh", matrix, element);
constexpr TensorSpec gamma = optional(input("gamma", per_col, parameter));
constexpr TensorSpec beta = optional(input("beta", per_col, parameter));
constexpr TensorSpec y = output("y", matrix, element);
constexpr TensorSpec h = output("h", matrix, element);
constexpr TensorSpec mean = optional(output("mean", per_row, statistic));
constexpr TensorSpec rstd = optional(output("rstd", per_row, statistic));
constexpr TensorSpec given_mean = input("mean", per_row, statistic);
constexpr TensorSpec given_rstd = input("rstd", per_row, statistic);
constexpr TensorSpec dx = optional(output("dx", matrix, element));
constexpr TensorSpec dgamma = optional(output("dgamma", per_col, parameter));
constexpr TensorSpec dbeta = optional(output("dbeta", per_col, parameter));
constexpr TensorSpec running_mean = optional(updated("running_mean", per_col, statistic));
constexpr TensorSpec running_var = optional(updated("running_var", per_col, statistic));
constexpr TensorSpec given_running_mean = input("running_mean", per_col, statistic);
constexpr TensorSpec given_running_var = input("running_var", per_col, statistic);
constexpr TensorSpec save_mean = output("save_mean", per_col, statistic);
constexpr TensorSpec save_invstd = output("save_invstd", per_col, statistic);
constexpr TensorSpec given_save_mean = input("save_mean", per_col, statistic);
constexpr TensorSpec given_save_invstd = input("save_invstd", per_col, statistic);

constexpr TensorSpec bytes = output("y", matrix, byte);
constexpr TensorSpec scale = input("scale", single, statistic);
constexpr TensorSpec scales_of_y = output("scales", scales, statistic);

constexpr TensorSpec layernorm[] = {x, gamma, beta, y, mean, rstd};
constexpr TensorSpec rmsnorm[] = {x, gamma, y, rstd};
constexpr TensorSpec add_layernorm[] = {x, residual, gamma, beta, h, y, mean, rstd};
constexpr TensorSpec add_rmsnorm[] = {x, residual, gamma, h, y, rstd};
constexpr TensorSpec layernorm_gradients[] = {dy, x, gamma, given_mean, given_rstd, dx, dgamma, dbeta};
constexpr TensorSpec rmsnorm_gradients[] = {dy, x, gamma, given_rstd, dx, dgamma};
constexpr TensorSpec add_layernorm_gradients[] = {dy, x, dh, gamma, given_mean, given_rstd, dx, dgamma, dbeta};
constexpr TensorSpec training[] = {x, gamma, beta, y, running_mean, running_var, save_mean, save_invstd};
constexpr TensorSpec inference[] = {x, gamma, beta, given_running_mean, given_running_var, y};
constexpr TensorSpec batchnorm_gradients[] = {dy, x, gamma, given_save_mean, given_save_invstd, dx, dgamma, dbeta};

constexpr TensorSpec of_heads[] = {input("q", matrix, element),
                                   input("k", matrix, element),
                                   optional(input("q_gamma", per_col, parameter)),
                                   optional(input("k_gamma", per_col, parameter)),
                                   output("q_out", matrix, element),
                                   output("k_out", matrix, element),
                                   optional(output("q_rstd", per_row, statistic)),
                                   optional(output("k_rstd", per_row, statistic))};
constexpr TensorSpec gradients_of_heads[] = {input("dq_out", matrix, element),
                                             input("dk_out", matrix, element),
                                             input("q", matrix, element),
                                             input("k", matrix, element),
                                             optional(input("q_gamma", per_col, parameter)),
                                             optional(input("k_gamma", per_col, parameter)),
                                             input("q_rstd", per_row, statistic),
                                             input("k_rstd", per_row, statistic),
                                             optional(output("dq", matrix, element)),
                                             optional(output("dk", matrix, element)),
                                             optional(output("dq_gamma", per_col, parameter)),
                                             optional(output("dk_gamma", per_col, parameter))};

// With Scaling::tensor there is a scale, else there are scales: shape_tensors leaves out the other.
constexpr TensorSpec quantized_layernorm[] = {x, gamma, beta, bytes, scale, scales_of_y};
constexpr TensorSpec quantized_rmsnorm[] = {x, gamma, bytes, scale, scales_of_y};
constexpr TensorSpec quantized_add_layernorm[] = {x, residual, gamma, beta, h, bytes, scale, scales_of_y};
constexpr TensorSpec quantized_add_rmsnorm[] = {x, residual, gamma, h, bytes, scale, scales_of_y};

constexpr int64_t none(int64_t, int64_t) {
  return 0;
}
constexpr int64_t of_backward(int64_t, int64_t cols) {
  return backward_workspace(cols);
}
constexpr int64_t of_batchnorm(int64_t, int64_t) {
  return batchnorm_workspace;
}
// y before it is quantized, for those that go through it.
constexpr int64_t of_quantized(int64_t rows, int64_t cols) {
  return rows * cols;
}

constexpr OperationSpec specs[] = {
    {Operation::layernorm_forward, "layernorm_forward", Norm::layer, forward, none, layernorm},
    {Operation::rmsnorm_forward, "rmsnorm_forward", Norm::rms, forward, none, rmsnorm},
    {Operation::add_layernorm_forward, "add_layernorm_forward", Norm::layer, forward, none, add_layernorm},
    {Operation::add_rmsnorm_forward, "add_rmsnorm_forward", Norm::rms, forward, none, add_rmsnorm},
    {Operation::layernorm_backward, "layernorm_backward", Norm::layer, backward, of_backward, layernorm_gradients},
    {Operation::rmsnorm_backward, "rmsnorm_backward", Norm::rms, backward, of_backward, rmsnorm_gradients},
    {Operation::add_layernorm_backward, "add_layernorm_backward", Norm::layer, backward, of_backward,
     add_layernorm_gradients},
    {Operation::batchnorm_train, "batchnorm_train", Norm::batch, forward, of_batchnorm, training},
    {Operation::batchnorm_inference, "batchnorm_inference", Norm::batch, forward, none, inference},
    {Operation::batchnorm_backward, "batchnorm_backward", Norm::batch, backward, of_batchnorm, batchnorm_gradients},
    {Operation::qk_norm, "qk_norm", Norm::rms, forward, none, of_heads},
    {Operation::qk_norm_backward, "qk_norm_backward", Norm::rms, backward, of_backward, gradients_of_heads},
    {Operation::layernorm_quantized, "layernorm_quantized", Norm::layer, forward, of_quantized, quantized_layernorm},
    {Operation::rmsnorm_quantized, "rmsnorm_quantized", Norm::rms, forward, of_quantized, quantized_rmsnorm},
    {Operation::add_layernorm_quantized, "add_layernorm_quantized", Norm::layer, forward, of_quantized,
     quantized_add_layernorm},
    {Operation::add_rmsnorm_quantized, "add_rmsnorm_quantized", Norm::rms, forward, of_quantized,
     quantized_add_rmsnorm},
};

constexpr bool in_order() {
  for (size_t i = 0; i < std::size(specs); ++i) {
    if (specs[i].operation != all_operations[i] || static_cast<size_t>(all_operations[i]) != i) return false;
  }
  return std::size(specs) == all_operations.size();
}
static_assert(in_order(), "the table has a line for each operation, in the order of the enumeration");

}  // namespace

const OperationSpec& spec_of(Operation operation) {
  return specs[static_cast<size_t>(operation)];
}

}  // namespace worklog
