#include "common/library/operations.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <utility>

#include "common/library/errors.h"

namespace worklog::library {

static_assert(static_cast<int>(Dtype::fp32) == NW_FP32 && static_cast<int>(Dtype::fp16) == NW_FP16 &&
              static_cast<int>(Dtype::bf16) == NW_BF16);
static_assert(static_cast<int>(ChannelLayout::channels_last) == NW_CHANNELS_LAST &&
              static_cast<int>(ChannelLayout::channels_first) == NW_CHANNELS_FIRST);
static_assert(static_cast<int>(ByteFormat::e4m3) == NW_E4M3 && static_cast<int>(ByteFormat::int8) == NW_INT8);
static_assert(static_cast<int>(Scaling::row) == NW_SCALE_OF_ROW &&
              static_cast<int>(Scaling::block) == NW_SCALE_OF_BLOCK &&
              static_cast<int>(Scaling::tensor) == NW_SCALE_GIVEN);

namespace {

// --- Values ----------------------------------------------------------------------------------------------------------

void check_size(const char* name, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most) {
    refuse(NW_ERROR_SHAPE, "{} must be from {} to {}; it is {}", name, least, most, value);
  }
}

void check_eps(float eps) {
  if (!(std::isfinite(eps) && eps >= 0)) {
    refuse(NW_ERROR_VALUE, "eps must be a finite number, 0 or more; it is {}", eps);
  }
}

void check_flag(const char* name, int64_t flag) {
  if (flag != 0 && flag != 1) refuse(NW_ERROR_VALUE, "{} must be 0 or 1; it is {}", name, flag);
}

template <class Args>
void check_rows(const Args& a) {
  check_size("rows", a.rows, 0, max_rows);
  check_size("cols", a.cols, 1, max_cols);
  if constexpr (requires { a.batch_invariant; }) check_flag("batch_invariant", a.batch_invariant);
  if constexpr (requires { a.gamma_offset; }) {
    if (a.gamma_offset != 0.0f && a.gamma_offset != 1.0f) {
      refuse(NW_ERROR_VALUE, "gamma_offset must be 0 or 1; it is {}", a.gamma_offset);
    }
  }
}

template <class Args>
void check_batch(const Args& a) {
  check_size("samples", a.samples, 0, max_rows);
  check_size("channels", a.channels, 1, max_cols);
  check_size("pixels", a.pixels, 1, max_rows);
  if (a.samples > max_rows / a.pixels) {
    refuse(NW_ERROR_SHAPE, "samples * pixels must be at most {}; they are {} and {}", max_rows, a.samples, a.pixels);
  }
  if (a.layout != NW_CHANNELS_LAST && a.layout != NW_CHANNELS_FIRST) {
    refuse(NW_ERROR_VALUE, "layout must be NW_CHANNELS_LAST (0) or NW_CHANNELS_FIRST (1); it is {}", a.layout);
  }
}

// --- Tensors ---------------------------------------------------------------------------------------------------------

int64_t bytes_of(nw_dtype dtype) {
  return static_cast<int64_t>(size_of(static_cast<Dtype>(dtype)));
}

// A vector is a single row of so many elements.
Tensor vector_of(const char* name, const void* data, int64_t count, int64_t element_bytes) {
  return {.name = name,
          .data = data,
          .rows = 1,
          .cols = count,
          .stride = count,
          .element_bytes = element_bytes,
          .optional = false,
          .written = false};
}

template <class Args>
Tensor matrix(const char* name, const void* data, int64_t stride, const Args& a) {
  return {.name = name,
          .data = data,
          .rows = a.rows,
          .cols = a.cols,
          .stride = stride,
          .element_bytes = bytes_of(a.dtype),
          .optional = false,
          .written = false};
}

template <class Args>
Tensor images(const char* name, const void* data, const Args& a) {
  return vector_of(name, data, a.samples * a.channels * a.pixels, bytes_of(a.dtype));
}

template <class Args>
Tensor parameter(const char* name, const void* data, const Args& a) {
  if constexpr (OverChannels<Args>) {
    return vector_of(name, data, a.channels, bytes_of(a.param_dtype));
  } else {
    return vector_of(name, data, a.cols, bytes_of(a.param_dtype));
  }
}

template <class Args>
Tensor statistic(const char* name, const float* data, const Args& a) {
  if constexpr (OverChannels<Args>) {
    return vector_of(name, data, a.channels, sizeof(float));
  } else {
    return vector_of(name, data, a.rows, sizeof(float));
  }
}

// The rows are along the axis whose elements lie farther apart, and each has a run of head_dim elements to every
// element of the other axis.
template <class Args>
Tensor heads(const char* name, const void* data, int64_t heads, int64_t token_stride, int64_t head_stride,
             const Args& a) {
  struct Axis {
    int64_t count, stride;
    const char* name;
  } outer = {a.tokens, token_stride, "token"}, inner = {heads, head_stride, "head"};
  if (inner.count > 1 && (outer.count == 1 || inner.stride > outer.stride)) std::swap(inner, outer);
  const int64_t most = std::numeric_limits<int64_t>::max() / 2 / bytes_of(a.dtype);  // elements
  const auto check = [&](const Axis& axis, int64_t least, const char* of_what) {
    if (heads == 0 || axis.count < 2) return;
    if (axis.stride < least) {
      refuse(NW_ERROR_STRIDE, "{}_{}_stride must be at least {}, the elements of {}; it is {}", name, axis.name, least,
             of_what, axis.stride);
    }
    if (axis.stride > (most - least) / (axis.count - 1)) {
      refuse(NW_ERROR_STRIDE, "{}_{}_stride is {}: {} of them are more than memory can hold", name, axis.name,
             axis.stride, axis.count);
    }
  };
  check(inner, a.head_dim, "a head");
  const int64_t run_stride = inner.count > 1 ? inner.stride : a.head_dim;
  const int64_t cols = (std::max<int64_t>(inner.count, 1) - 1) * run_stride + a.head_dim;
  check(outer, cols, "the row that it steps over");
  return {.name = name,
          .data = heads > 0 ? data : nullptr,
          .rows = outer.count,
          .cols = cols,
          .stride = outer.stride,
          .element_bytes = bytes_of(a.dtype),
          .optional = heads == 0,
          .written = false,
          .run = a.head_dim,
          .run_stride = run_stride};
}

template <class Args>
Tensor head_statistic(const char* name, const float* data, int64_t heads, const Args& a) {
  Tensor tensor = vector_of(name, heads > 0 ? data : nullptr, a.tokens * heads, sizeof(float));
  tensor.optional = heads == 0;
  return tensor;
}

template <class Args>
Tensor head_parameter(const char* name, const void* data, int64_t heads, const Args& a) {
  return vector_of(name, heads > 0 ? data : nullptr, a.head_dim, bytes_of(a.param_dtype));
}

Tensor optional(Tensor tensor) {
  tensor.optional = true;
  return tensor;
}

// `places`: the tensors, by their index in the struct, in whose place it may be.
Tensor output(Tensor tensor, std::initializer_list<unsigned> places = {}) {
  tensor.written = true;
  for (const unsigned place : places) tensor.replaces |= 1u << place;
  return tensor;
}

template <class Args>
Tensor workspace(const Args& a) {
  return optional(output(vector_of("workspace", a.workspace, workspace_of(a), 1)));
}

template <class Args>
void check_heads(const Args& a) {
  check_size("tokens", a.tokens, 0, max_rows);
  check_size("q_heads", a.q_heads, 1, max_heads);
  check_size("k_heads", a.k_heads, 0, max_heads);
  check_size("head_dim", a.head_dim, 1, max_cols);
  if (a.gamma_offset != 0 && a.gamma_offset != 1) {
    refuse(NW_ERROR_VALUE, "gamma_offset must be 0 or 1; it is {}", a.gamma_offset);
  }
}

}  // namespace

void check_values(const nw_layernorm_forward_args& a) {
  check_rows(a);
  check_eps(a.eps);
}
void check_values(const nw_rmsnorm_forward_args& a) {
  check_rows(a);
  check_eps(a.eps);
  check_flag("round_before_gamma", a.round_before_gamma);
}
void check_values(const nw_add_layernorm_forward_args& a) {
  check_rows(a);
  check_eps(a.eps);
}
void check_values(const nw_add_rmsnorm_forward_args& a) {
  check_rows(a);
  check_eps(a.eps);
  check_flag("round_before_gamma", a.round_before_gamma);
}
void check_values(const nw_layernorm_backward_args& a) {
  check_rows(a);
}
void check_values(const nw_rmsnorm_backward_args& a) {
  check_rows(a);
}
void check_values(const nw_batchnorm_train_args& a) {
  check_batch(a);
  check_eps(a.eps);
  if (!(a.momentum >= 0 && a.momentum <= 1)) {
    refuse(NW_ERROR_VALUE, "momentum must be from 0 to 1; it is {}", a.momentum);
  }
  if (a.samples * a.pixels == 1) {
    refuse(NW_ERROR_SHAPE, "samples * pixels must be 0 or at least 2 in training: one value has no variance");
  }
}
void check_values(const nw_batchnorm_inference_args& a) {
  check_batch(a);
  check_eps(a.eps);
}
void check_values(const nw_batchnorm_backward_args& a) {
  check_batch(a);
}

void check_values(const nw_qk_norm_args& a) {
  check_heads(a);
  check_eps(a.eps);
  check_flag("round_before_gamma", a.round_before_gamma);
}
void check_values(const nw_qk_norm_backward_args& a) {
  check_heads(a);
}

// What is there only with a residual, or only with one kind of scale.
static void check_absent(const char* name, const void* data, const char* why) {
  if (data) refuse(NW_ERROR_VALUE, "{} must be null {}", name, why);
}

void check_values(const nw_quantized_norm_args& a) {
  check_rows(a);
  check_eps(a.eps);
  if (a.norm != NW_RMS_NORM && a.norm != NW_LAYER_NORM) {
    refuse(NW_ERROR_VALUE, "norm must be NW_RMS_NORM (0) or NW_LAYER_NORM (1); it is {}", a.norm);
  }
  if (a.format != NW_E4M3 && a.format != NW_INT8) {
    refuse(NW_ERROR_VALUE, "format must be NW_E4M3 (0) or NW_INT8 (1); it is {}", a.format);
  }
  if (a.scaling < NW_SCALE_OF_ROW || a.scaling > NW_SCALE_GIVEN) {
    refuse(NW_ERROR_VALUE, "scaling must be NW_SCALE_OF_ROW (0), NW_SCALE_OF_BLOCK (1) or NW_SCALE_GIVEN (2); it is {}",
           a.scaling);
  }
  if (a.norm == NW_RMS_NORM) check_absent("beta", a.beta, "with NW_RMS_NORM, which has none");
  if (!a.residual) check_absent("h", a.h, "without a residual");
  if (a.scaling == NW_SCALE_GIVEN) {
    check_absent("scales", a.scales, "with NW_SCALE_GIVEN");
  } else {
    check_absent("scale", a.scale, "but with NW_SCALE_GIVEN");
  }
}

std::array<Tensor, 6> tensors_of(const nw_layernorm_forward_args& a) {
  return {matrix("x", a.x, a.x_stride, a),
          optional(parameter("gamma", a.gamma, a)),
          optional(parameter("beta", a.beta, a)),
          output(matrix("y", a.y, a.y_stride, a), {0}),
          optional(output(statistic("mean", a.mean, a))),
          optional(output(statistic("rstd", a.rstd, a)))};
}

std::array<Tensor, 4> tensors_of(const nw_rmsnorm_forward_args& a) {
  return {matrix("x", a.x, a.x_stride, a), optional(parameter("gamma", a.gamma, a)),
          output(matrix("y", a.y, a.y_stride, a), {0}), optional(output(statistic("rstd", a.rstd, a)))};
}

std::array<Tensor, 8> tensors_of(const nw_add_layernorm_forward_args& a) {
  return {matrix("x", a.x, a.x_stride, a),
          matrix("residual", a.residual, a.residual_stride, a),
          optional(parameter("gamma", a.gamma, a)),
          optional(parameter("beta", a.beta, a)),
          output(matrix("h", a.h, a.h_stride, a), {0, 1}),
          output(matrix("y", a.y, a.y_stride, a), {0, 1, 4}),
          optional(output(statistic("mean", a.mean, a))),
          optional(output(statistic("rstd", a.rstd, a)))};
}

std::array<Tensor, 6> tensors_of(const nw_add_rmsnorm_forward_args& a) {
  return {matrix("x", a.x, a.x_stride, a),
          matrix("residual", a.residual, a.residual_stride, a),
          optional(parameter("gamma", a.gamma, a)),
          output(matrix("h", a.h, a.h_stride, a), {0, 1}),
          output(matrix("y", a.y, a.y_stride, a), {0, 1, 3}),
          optional(output(statistic("rstd", a.rstd, a)))};
}

std::array<Tensor, 10> tensors_of(const nw_layernorm_backward_args& a) {
  return {matrix("dy", a.dy, a.dy_stride, a),
          matrix("x", a.x, a.x_stride, a),
          optional(matrix("dh", a.dh, a.dh_stride, a)),
          optional(parameter("gamma", a.gamma, a)),
          statistic("mean", a.mean, a),
          statistic("rstd", a.rstd, a),
          optional(output(matrix("dx", a.dx, a.dx_stride, a))),
          optional(output(parameter("dgamma", a.dgamma, a))),
          optional(output(parameter("dbeta", a.dbeta, a))),
          workspace(a)};
}

std::array<Tensor, 8> tensors_of(const nw_rmsnorm_backward_args& a) {
  return {matrix("dy", a.dy, a.dy_stride, a),
          matrix("x", a.x, a.x_stride, a),
          optional(matrix("dh", a.dh, a.dh_stride, a)),
          optional(parameter("gamma", a.gamma, a)),
          statistic("rstd", a.rstd, a),
          optional(output(matrix("dx", a.dx, a.dx_stride, a))),
          optional(output(parameter("dgamma", a.dgamma, a))),
          workspace(a)};
}

std::array<Tensor, 9> tensors_of(const nw_batchnorm_train_args& a) {
  return {images("x", a.x, a),
          optional(parameter("gamma", a.gamma, a)),
          optional(parameter("beta", a.beta, a)),
          output(images("y", a.y, a)),
          optional(output(statistic("running_mean", a.running_mean, a))),
          optional(output(statistic("running_var", a.running_var, a))),
          output(statistic("save_mean", a.save_mean, a)),
          output(statistic("save_invstd", a.save_invstd, a)),
          workspace(a)};
}

std::array<Tensor, 6> tensors_of(const nw_batchnorm_inference_args& a) {
  return {images("x", a.x, a),
          optional(parameter("gamma", a.gamma, a)),
          optional(parameter("beta", a.beta, a)),
          statistic("running_mean", a.running_mean, a),
          statistic("running_var", a.running_var, a),
          output(images("y", a.y, a), {0})};
}

std::array<Tensor, 9> tensors_of(const nw_batchnorm_backward_args& a) {
  return {images("dy", a.dy, a),
          images("x", a.x, a),
          optional(parameter("gamma", a.gamma, a)),
          statistic("save_mean", a.save_mean, a),
          statistic("save_invstd", a.save_invstd, a),
          optional(output(images("dx", a.dx, a))),
          optional(output(parameter("dgamma", a.dgamma, a))),
          optional(output(parameter("dbeta", a.dbeta, a))),
          workspace(a)};
}

std::array<Tensor, 8> tensors_of(const nw_qk_norm_args& a) {
  return {heads("q", a.q, a.q_heads, a.q_token_stride, a.q_head_stride, a),
          heads("k", a.k, a.k_heads, a.k_token_stride, a.k_head_stride, a),
          optional(head_parameter("q_gamma", a.q_gamma, a.q_heads, a)),
          optional(head_parameter("k_gamma", a.k_gamma, a.k_heads, a)),
          output(heads("q_out", a.q_out, a.q_heads, a.q_out_token_stride, a.q_out_head_stride, a), {0}),
          output(heads("k_out", a.k_out, a.k_heads, a.k_out_token_stride, a.k_out_head_stride, a), {1}),
          optional(output(head_statistic("q_rstd", a.q_rstd, a.q_heads, a))),
          optional(output(head_statistic("k_rstd", a.k_rstd, a.k_heads, a)))};
}

std::array<Tensor, 13> tensors_of(const nw_qk_norm_backward_args& a) {
  return {heads("dq_out", a.dq_out, a.q_heads, a.dq_out_token_stride, a.dq_out_head_stride, a),
          heads("dk_out", a.dk_out, a.k_heads, a.dk_out_token_stride, a.dk_out_head_stride, a),
          heads("q", a.q, a.q_heads, a.q_token_stride, a.q_head_stride, a),
          heads("k", a.k, a.k_heads, a.k_token_stride, a.k_head_stride, a),
          optional(head_parameter("q_gamma", a.q_gamma, a.q_heads, a)),
          optional(head_parameter("k_gamma", a.k_gamma, a.k_heads, a)),
          head_statistic("q_rstd", a.q_rstd, a.q_heads, a),
          head_statistic("k_rstd", a.k_rstd, a.k_heads, a),
          optional(output(heads("dq", a.dq, a.q_heads, a.dq_token_stride, a.dq_head_stride, a))),
          optional(output(heads("dk", a.dk, a.k_heads, a.dk_token_stride, a.dk_head_stride, a))),
          optional(output(head_parameter("dq_gamma", a.dq_gamma, a.q_heads, a))),
          optional(output(head_parameter("dk_gamma", a.dk_gamma, a.k_heads, a))),
          workspace(a)};
}

std::array<Tensor, 8> tensors_of(const nw_quantized_norm_args& a) {
  const auto with = [](bool is_needed, Tensor tensor) { return is_needed ? tensor : optional(tensor); };
  const bool is_given = a.scaling == NW_SCALE_GIVEN;
  Tensor y = matrix("y", a.y, a.y_stride, a), scales = matrix("scales", a.scales, a.scales_stride, a);
  y.element_bytes = 1;
  scales.cols = scales_of_row(static_cast<Scaling>(a.scaling), a.cols);
  scales.element_bytes = sizeof(float);
  return {matrix("x", a.x, a.x_stride, a),
          optional(matrix("residual", a.residual, a.residual_stride, a)),
          optional(parameter("gamma", a.gamma, a)),
          optional(parameter("beta", a.beta, a)),
          with(a.residual != nullptr, output(matrix("h", a.h, a.h_stride, a), {0, 1})),
          output(y),
          with(is_given, vector_of("scale", a.scale, 1, sizeof(float))),
          with(!is_given, output(scales))};
}

}  // namespace worklog::library
