// The operations of norm_worklog.h: for each struct, what its tensors are, what its values may be, and the struct
// of arguments.h that the kernels take. One overload for each struct; operations.cpp has those that are no templates.
#pragma once

#include <array>
#include <cstdint>

#include "common/device/arguments.h"
#include "common/harness/problem.h"
#include "common/library/norm_worklog.h"
#include "common/library/tensors.h"

namespace worklog::library {

template <class Args>
constexpr nw_operation operation_of = -1;
template <>
inline constexpr nw_operation operation_of<nw_layernorm_forward_args> = NW_LAYERNORM_FORWARD;
template <>
inline constexpr nw_operation operation_of<nw_rmsnorm_forward_args> = NW_RMSNORM_FORWARD;
template <>
inline constexpr nw_operation operation_of<nw_add_layernorm_forward_args> = NW_ADD_LAYERNORM_FORWARD;
template <>
inline constexpr nw_operation operation_of<nw_add_rmsnorm_forward_args> = NW_ADD_RMSNORM_FORWARD;
template <>
inline constexpr nw_operation operation_of<nw_layernorm_backward_args> = NW_LAYERNORM_BACKWARD;
template <>
inline constexpr nw_operation operation_of<nw_rmsnorm_backward_args> = NW_RMSNORM_BACKWARD;
template <>
inline constexpr nw_operation operation_of<nw_batchnorm_train_args> = NW_BATCHNORM_TRAIN;
template <>
inline constexpr nw_operation operation_of<nw_batchnorm_inference_args> = NW_BATCHNORM_INFERENCE;
template <>
inline constexpr nw_operation operation_of<nw_batchnorm_backward_args> = NW_BATCHNORM_BACKWARD;
template <>
inline constexpr nw_operation operation_of<nw_qk_norm_args> = NW_QK_NORM;
template <>
inline constexpr nw_operation operation_of<nw_qk_norm_backward_args> = NW_QK_NORM_BACKWARD;
template <>
inline constexpr nw_operation operation_of<nw_quantized_norm_args> = NW_QUANTIZED_NORM;

// Calls function(args) with `args` as a pointer to the operation's struct. The operation is one of nw_operation.
template <class Function>
void with_struct_of(nw_operation operation, const void* args, Function&& function) {
  switch (operation) {
    case NW_LAYERNORM_FORWARD:
      return function(static_cast<const nw_layernorm_forward_args*>(args));
    case NW_RMSNORM_FORWARD:
      return function(static_cast<const nw_rmsnorm_forward_args*>(args));
    case NW_ADD_LAYERNORM_FORWARD:
      return function(static_cast<const nw_add_layernorm_forward_args*>(args));
    case NW_ADD_RMSNORM_FORWARD:
      return function(static_cast<const nw_add_rmsnorm_forward_args*>(args));
    case NW_LAYERNORM_BACKWARD:
      return function(static_cast<const nw_layernorm_backward_args*>(args));
    case NW_RMSNORM_BACKWARD:
      return function(static_cast<const nw_rmsnorm_backward_args*>(args));
    case NW_BATCHNORM_TRAIN:
      return function(static_cast<const nw_batchnorm_train_args*>(args));
    case NW_BATCHNORM_INFERENCE:
      return function(static_cast<const nw_batchnorm_inference_args*>(args));
    case NW_QUANTIZED_NORM:
      return function(static_cast<const nw_quantized_norm_args*>(args));
    case NW_BATCHNORM_BACKWARD:
      return function(static_cast<const nw_batchnorm_backward_args*>(args));
    case NW_QK_NORM:
      return function(static_cast<const nw_qk_norm_args*>(args));
    default:
      return function(static_cast<const nw_qk_norm_backward_args*>(args));
  }
}

// The structs of norms whose weights may lie about zero.
template <class Args>
concept WithGammaOffset = requires(const Args& a) {
  a.gamma;
  a.gamma_offset;
};

// What the call adds to gamma: nothing where there is none.
template <class Args>
float gamma_offset_of(const Args& a) {
  if constexpr (WithGammaOffset<Args>) return a.gamma ? a.gamma_offset : 0.0f;
  return 0.0f;
}

// BatchNorm's structs have channels, those of heads tokens, the others rows.
template <class Args>
concept OverChannels = requires(const Args& a) {
  a.channels;
};
template <class Args>
concept OverHeads = requires(const Args& a) {
  a.head_dim;
};
// The structs of operations that work in memory of the caller's.
template <class Args>
concept WithWorkspace = requires(const Args& a) {
  a.workspace;
};

// Throws Refusal where a size or a constant is out of range.
void check_values(const nw_layernorm_forward_args& a);
void check_values(const nw_rmsnorm_forward_args& a);
void check_values(const nw_add_layernorm_forward_args& a);
void check_values(const nw_add_rmsnorm_forward_args& a);
void check_values(const nw_layernorm_backward_args& a);
void check_values(const nw_rmsnorm_backward_args& a);
void check_values(const nw_batchnorm_train_args& a);
void check_values(const nw_batchnorm_inference_args& a);
void check_values(const nw_batchnorm_backward_args& a);
void check_values(const nw_qk_norm_args& a);
void check_values(const nw_qk_norm_backward_args& a);
void check_values(const nw_quantized_norm_args& a);

// The tensors of a call with values that are in range, in the order of the struct. What may lie in another's place is
// so for the final kernels.
std::array<Tensor, 6> tensors_of(const nw_layernorm_forward_args& a);
std::array<Tensor, 4> tensors_of(const nw_rmsnorm_forward_args& a);
std::array<Tensor, 8> tensors_of(const nw_add_layernorm_forward_args& a);
std::array<Tensor, 6> tensors_of(const nw_add_rmsnorm_forward_args& a);
std::array<Tensor, 10> tensors_of(const nw_layernorm_backward_args& a);
std::array<Tensor, 8> tensors_of(const nw_rmsnorm_backward_args& a);
std::array<Tensor, 9> tensors_of(const nw_batchnorm_train_args& a);
std::array<Tensor, 6> tensors_of(const nw_batchnorm_inference_args& a);
std::array<Tensor, 9> tensors_of(const nw_batchnorm_backward_args& a);
std::array<Tensor, 8> tensors_of(const nw_qk_norm_args& a);
std::array<Tensor, 13> tensors_of(const nw_qk_norm_backward_args& a);
std::array<Tensor, 8> tensors_of(const nw_quantized_norm_args& a);

// Bytes.
template <class Args>
int64_t workspace_of(const Args& a) {
  constexpr auto bytes_of_float = static_cast<int64_t>(sizeof(float));
  if constexpr (!WithWorkspace<Args>) {
    return 0;
  } else if constexpr (OverChannels<Args>) {
    return batchnorm_workspace * bytes_of_float;
  } else if constexpr (OverHeads<Args>) {
    return backward_workspace(a.head_dim) * bytes_of_float;
  } else {
    return backward_workspace(a.cols) * bytes_of_float;
  }
}

// Whether the tensors have no elements.
template <class Args>
bool is_empty(const Args& a) {
  if constexpr (OverChannels<Args>) {
    return a.samples == 0;
  } else if constexpr (OverHeads<Args>) {
    return a.tokens == 0;
  } else {
    return a.rows == 0;
  }
}

// The call as a stage's variants are asked whether they can do it.
template <class Args>
ProblemOptions options_of(Operation operation, const Args& a) {
  ProblemOptions options = {
      .operation = operation, .dtype = static_cast<Dtype>(a.dtype), .param_dtype = static_cast<Dtype>(a.param_dtype)};
  if constexpr (OverChannels<Args>) {
    options.rows = a.samples;
    options.cols = a.channels;
    options.pixels = a.pixels;
    options.layout = static_cast<ChannelLayout>(a.layout);
  } else if constexpr (OverHeads<Args>) {
    options.rows = a.tokens;
    options.cols = a.head_dim;
    options.q_heads = a.q_heads;
    options.k_heads = a.k_heads;
  } else {
    options.rows = a.rows;
    options.cols = a.cols;
    options.gamma_offset = gamma_offset_of(a);
  }
  return options;
}

}  // namespace worklog::library
