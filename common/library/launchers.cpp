// From the structs of norm_worklog.h to those of arguments.h, whose types the compiler knows.
#include <stdexcept>
#include <type_traits>

#include "common/library/kernels.h"
#include "common/library/operations.h"

namespace worklog::library {
namespace {

template <class T>
const T* as(const void* data) {
  return static_cast<const T*>(data);
}
template <class T>
T* as(void* data) {
  return static_cast<T*>(data);
}

template <class T, class G>
LayerNormForward<T, G> fill(const nw_layernorm_forward_args& a, float*) {
  return {.x = as<T>(a.x),
          .gamma = as<G>(a.gamma),
          .beta = as<G>(a.beta),
          .y = as<T>(a.y),
          .mean = a.mean,
          .rstd = a.rstd,
          .rows = a.rows,
          .cols = a.cols,
          .x_stride = a.x_stride,
          .y_stride = a.y_stride,
          .eps = a.eps,
          .batch_invariant = a.batch_invariant != 0};
}

template <class T, class G>
RmsNormForward<T, G> fill(const nw_rmsnorm_forward_args& a, float*) {
  return {.x = as<T>(a.x),
          .gamma = as<G>(a.gamma),
          .y = as<T>(a.y),
          .rstd = a.rstd,
          .rows = a.rows,
          .cols = a.cols,
          .x_stride = a.x_stride,
          .y_stride = a.y_stride,
          .eps = a.eps,
          .round_before_gamma = a.round_before_gamma != 0,
          .batch_invariant = a.batch_invariant != 0};
}

template <class T, class G>
AddLayerNormForward<T, G> fill(const nw_add_layernorm_forward_args& a, float*) {
  return {.x = as<T>(a.x),
          .residual = as<T>(a.residual),
          .gamma = as<G>(a.gamma),
          .beta = as<G>(a.beta),
          .h = as<T>(a.h),
          .y = as<T>(a.y),
          .mean = a.mean,
          .rstd = a.rstd,
          .rows = a.rows,
          .cols = a.cols,
          .x_stride = a.x_stride,
          .residual_stride = a.residual_stride,
          .h_stride = a.h_stride,
          .y_stride = a.y_stride,
          .eps = a.eps,
          .batch_invariant = a.batch_invariant != 0};
}

template <class T, class G>
AddRmsNormForward<T, G> fill(const nw_add_rmsnorm_forward_args& a, float*) {
  return {.x = as<T>(a.x),
          .residual = as<T>(a.residual),
          .gamma = as<G>(a.gamma),
          .h = as<T>(a.h),
          .y = as<T>(a.y),
          .rstd = a.rstd,
          .rows = a.rows,
          .cols = a.cols,
          .x_stride = a.x_stride,
          .residual_stride = a.residual_stride,
          .h_stride = a.h_stride,
          .y_stride = a.y_stride,
          .eps = a.eps,
          .round_before_gamma = a.round_before_gamma != 0,
          .batch_invariant = a.batch_invariant != 0};
}

template <class T, class G>
LayerNormBackward<T, G> fill(const nw_layernorm_backward_args& a, float* workspace) {
  return {.dy = as<T>(a.dy),
          .x = as<T>(a.x),
          .dh = as<T>(a.dh),
          .gamma = as<G>(a.gamma),
          .mean = a.mean,
          .rstd = a.rstd,
          .dx = as<T>(a.dx),
          .dgamma = as<G>(a.dgamma),
          .dbeta = as<G>(a.dbeta),
          .workspace = workspace,
          .rows = a.rows,
          .cols = a.cols,
          .dy_stride = a.dy_stride,
          .x_stride = a.x_stride,
          .dh_stride = a.dh_stride,
          .dx_stride = a.dx_stride,
          .batch_invariant = a.batch_invariant != 0};
}

template <class T, class G>
RmsNormBackward<T, G> fill(const nw_rmsnorm_backward_args& a, float* workspace) {
  return {.dy = as<T>(a.dy),
          .x = as<T>(a.x),
          .dh = as<T>(a.dh),
          .gamma = as<G>(a.gamma),
          .rstd = a.rstd,
          .dx = as<T>(a.dx),
          .dgamma = as<G>(a.dgamma),
          .workspace = workspace,
          .rows = a.rows,
          .cols = a.cols,
          .dy_stride = a.dy_stride,
          .x_stride = a.x_stride,
          .dh_stride = a.dh_stride,
          .dx_stride = a.dx_stride,
          .batch_invariant = a.batch_invariant != 0};
}

template <class T, class G>
BatchNormTrain<T, G> fill(const nw_batchnorm_train_args& a, float* workspace) {
  return {.x = as<T>(a.x),
          .gamma = as<G>(a.gamma),
          .beta = as<G>(a.beta),
          .y = as<T>(a.y),
          .running_mean = a.running_mean,
          .running_var = a.running_var,
          .save_mean = a.save_mean,
          .save_invstd = a.save_invstd,
          .workspace = workspace,
          .samples = a.samples,
          .channels = a.channels,
          .pixels = a.pixels,
          .layout = static_cast<ChannelLayout>(a.layout),
          .momentum = a.momentum,
          .eps = a.eps};
}

template <class T, class G>
BatchNormInference<T, G> fill(const nw_batchnorm_inference_args& a, float*) {
  return {.x = as<T>(a.x),
          .gamma = as<G>(a.gamma),
          .beta = as<G>(a.beta),
          .running_mean = a.running_mean,
          .running_var = a.running_var,
          .y = as<T>(a.y),
          .samples = a.samples,
          .channels = a.channels,
          .pixels = a.pixels,
          .layout = static_cast<ChannelLayout>(a.layout),
          .eps = a.eps};
}

template <class T, class G>
BatchNormBackward<T, G> fill(const nw_batchnorm_backward_args& a, float* workspace) {
  return {.dy = as<T>(a.dy),
          .x = as<T>(a.x),
          .gamma = as<G>(a.gamma),
          .save_mean = a.save_mean,
          .save_invstd = a.save_invstd,
          .dx = as<T>(a.dx),
          .dgamma = as<G>(a.dgamma),
          .dbeta = as<G>(a.dbeta),
          .workspace = workspace,
          .samples = a.samples,
          .channels = a.channels,
          .pixels = a.pixels,
          .layout = static_cast<ChannelLayout>(a.layout)};
}

template <class T, class G>
QkNormForward<T, G> fill(const nw_qk_norm_args& a, float*) {
  return {.q = as<T>(a.q),
          .k = as<T>(a.k),
          .q_gamma = as<G>(a.q_gamma),
          .k_gamma = as<G>(a.k_gamma),
          .q_out = as<T>(a.q_out),
          .k_out = as<T>(a.k_out),
          .q_rstd = a.q_rstd,
          .k_rstd = a.k_rstd,
          .tokens = a.tokens,
          .q_heads = a.q_heads,
          .k_heads = a.k_heads,
          .head_dim = a.head_dim,
          .q_stride = {a.q_token_stride, a.q_head_stride},
          .k_stride = {a.k_token_stride, a.k_head_stride},
          .q_out_stride = {a.q_out_token_stride, a.q_out_head_stride},
          .k_out_stride = {a.k_out_token_stride, a.k_out_head_stride},
          .eps = a.eps,
          .gamma_offset = a.gamma_offset,
          .round_before_gamma = a.round_before_gamma != 0};
}

template <class T, class G>
QkNormBackward<T, G> fill(const nw_qk_norm_backward_args& a, float* workspace) {
  return {.dq_out = as<T>(a.dq_out),
          .dk_out = as<T>(a.dk_out),
          .q = as<T>(a.q),
          .k = as<T>(a.k),
          .q_gamma = as<G>(a.q_gamma),
          .k_gamma = as<G>(a.k_gamma),
          .q_rstd = a.q_rstd,
          .k_rstd = a.k_rstd,
          .dq = as<T>(a.dq),
          .dk = as<T>(a.dk),
          .dq_gamma = as<G>(a.dq_gamma),
          .dk_gamma = as<G>(a.dk_gamma),
          .workspace = workspace,
          .tokens = a.tokens,
          .q_heads = a.q_heads,
          .k_heads = a.k_heads,
          .head_dim = a.head_dim,
          .dq_out_stride = {a.dq_out_token_stride, a.dq_out_head_stride},
          .dk_out_stride = {a.dk_out_token_stride, a.dk_out_head_stride},
          .q_stride = {a.q_token_stride, a.q_head_stride},
          .k_stride = {a.k_token_stride, a.k_head_stride},
          .dq_stride = {a.dq_token_stride, a.dq_head_stride},
          .dk_stride = {a.dk_token_stride, a.dk_head_stride},
          .gamma_offset = a.gamma_offset};
}

template <class T, class G>
QuantizedNorm<T, G> fill(const nw_quantized_norm_args& a, float*) {
  return {.x = as<T>(a.x),
          .residual = as<T>(a.residual),
          .gamma = as<G>(a.gamma),
          .beta = as<G>(a.beta),
          .h = as<T>(a.h),
          .y = as<uint8_t>(a.y),
          .scale = a.scale,
          .scales = a.scales,
          .unrounded = nullptr,
          .rows = a.rows,
          .cols = a.cols,
          .x_stride = a.x_stride,
          .residual_stride = a.residual ? a.residual_stride : 0,  // what is not there is no reason to be slow
          .h_stride = a.residual ? a.h_stride : 0,
          .y_stride = a.y_stride,
          .scales_stride = a.scales_stride,
          .eps = a.eps,
          .subtracts_mean = a.norm == NW_LAYER_NORM,
          .format = static_cast<ByteFormat>(a.format),
          .scaling = static_cast<Scaling>(a.scaling)};
}

template <class Args, class T, class G>
void launch_as(const nw_kernel& kernel, const void* args, void* workspace, cudaStream_t stream) {
  const auto filled = fill<T, G>(*static_cast<const Args*>(args), static_cast<float*>(workspace));
  if (kernel.implementation->gamma_offset == 0.0f) return kernel.implementation->launch_with(&filled, stream);
  const ZeroCentered<std::remove_const_t<decltype(filled)>> about_zero{filled};
  kernel.implementation->launch_with(&about_zero, stream);
}

}  // namespace

Launcher launcher_for(nw_operation operation, Dtype dtype, Dtype param_dtype) {
  Launcher launcher = nullptr;
  with_struct_of(operation, nullptr, [&](auto* args) {
    using Args = std::remove_cvref_t<decltype(*args)>;
    with_type_of(dtype, [&]<class T>(std::type_identity<T>) {
      launcher = param_dtype == Dtype::fp32 ? launch_as<Args, T, float> : launch_as<Args, T, T>;
    });
  });
  return launcher;
}

}  // namespace worklog::library
