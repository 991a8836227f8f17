// From the tensors of a problem on the device to the struct of arguments.h that a variant's function takes.
#pragma once

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "common/device/arguments.h"
#include "common/harness/problem.h"

namespace worklog {

struct DeviceTensor {
  std::string_view name;  // of its pointer in arguments.h
  Dtype dtype;
  void* data;      // null where the tensor is absent
  int64_t stride;  // elements from a row to the next, or of heads from a token to the next
  int64_t head_stride = 0;
};

// A pointer to a tensor, which takes on the type of the field that it is assigned to.
class TensorPointer {
 public:
  explicit TensorPointer(const DeviceTensor* tensor) : tensor_(tensor) {}

  // Throws std::logic_error where the tensor's elements are of another type.
  template <class T>
  operator T*() const {
    if (!tensor_ || !tensor_->data) return nullptr;
    if (!holds<std::remove_const_t<T>>()) {
      throw std::logic_error("tensor " + std::string(tensor_->name) + " is bound to a pointer of another type");
    }
    return static_cast<T*>(tensor_->data);
  }
  // Of memory to work in, whose elements are of no type.
  void* address() const { return tensor_ ? tensor_->data : nullptr; }

 private:
  template <class T>
  bool holds() const {
    if constexpr (std::is_same_v<T, uint8_t>) {
      return size_of(tensor_->dtype) == 1;
    } else {
      return tensor_->dtype == dtype_of<T>;
    }
  }

  const DeviceTensor* tensor_;
};

// A problem as a kernel meets it: its tensors on the device, its sizes and its constants.
struct DeviceArguments {
  ProblemOptions options;
  std::vector<DeviceTensor> tensors;

  // Null for a tensor that is absent or that the operation does not have.
  TensorPointer operator[](std::string_view name) const { return TensorPointer(find(name)); }
  int64_t stride(std::string_view name) const {
    const DeviceTensor* tensor = find(name);
    return tensor ? tensor->stride : 0;
  }
  HeadStrides head_strides(std::string_view name) const {
    const DeviceTensor* tensor = find(name);
    return tensor ? HeadStrides{tensor->stride, tensor->head_stride} : HeadStrides{};
  }

 private:
  const DeviceTensor* find(std::string_view name) const {
    for (const DeviceTensor& tensor : tensors) {
      if (tensor.name == name) return &tensor;
    }
    return nullptr;
  }
};

// For each struct of arguments.h: the operations that it serves, its types T and G, and how it is filled.
template <class Arguments>
struct Binding;

template <class T, class G>
struct Binding<LayerNormForward<T, G>> {
  using Element = T;
  using Parameter = G;
  static constexpr std::array operations = {Operation::layernorm_forward};

  static LayerNormForward<T, G> bind(const DeviceArguments& a) {
    return {.x = a["x"],
            .gamma = a["gamma"],
            .beta = a["beta"],
            .y = a["y"],
            .mean = a["mean"],
            .rstd = a["rstd"],
            .rows = a.options.rows,
            .cols = a.options.cols,
            .x_stride = a.stride("x"),
            .y_stride = a.stride("y"),
            .eps = a.options.eps,
            .batch_invariant = a.options.batch_invariant};
  }
};

template <class T, class G>
struct Binding<RmsNormForward<T, G>> {
  using Element = T;
  using Parameter = G;
  static constexpr std::array operations = {Operation::rmsnorm_forward};

  static RmsNormForward<T, G> bind(const DeviceArguments& a) {
    return {.x = a["x"],
            .gamma = a["gamma"],
            .y = a["y"],
            .rstd = a["rstd"],
            .rows = a.options.rows,
            .cols = a.options.cols,
            .x_stride = a.stride("x"),
            .y_stride = a.stride("y"),
            .eps = a.options.eps,
            .round_before_gamma = a.options.round_before_gamma,
            .batch_invariant = a.options.batch_invariant};
  }
};

template <class T, class G>
struct Binding<AddLayerNormForward<T, G>> {
  using Element = T;
  using Parameter = G;
  static constexpr std::array operations = {Operation::add_layernorm_forward};

  static AddLayerNormForward<T, G> bind(const DeviceArguments& a) {
    return {.x = a["x"],
            .residual = a["residual"],
            .gamma = a["gamma"],
            .beta = a["beta"],
            .h = a["h"],
            .y = a["y"],
            .mean = a["mean"],
            .rstd = a["rstd"],
            .rows = a.options.rows,
            .cols = a.options.cols,
            .x_stride = a.stride("x"),
            .residual_stride = a.stride("residual"),
            .h_stride = a.stride("h"),
            .y_stride = a.stride("y"),
            .eps = a.options.eps,
            .batch_invariant = a.options.batch_invariant};
  }
};

template <class T, class G>
struct Binding<AddRmsNormForward<T, G>> {
  using Element = T;
  using Parameter = G;
  static constexpr std::array operations = {Operation::add_rmsnorm_forward};

  static AddRmsNormForward<T, G> bind(const DeviceArguments& a) {
    return {.x = a["x"],
            .residual = a["residual"],
            .gamma = a["gamma"],
            .h = a["h"],
            .y = a["y"],
            .rstd = a["rstd"],
            .rows = a.options.rows,
            .cols = a.options.cols,
            .x_stride = a.stride("x"),
            .residual_stride = a.stride("residual"),
            .h_stride = a.stride("h"),
            .y_stride = a.stride("y"),
            .eps = a.options.eps,
            .round_before_gamma = a.options.round_before_gamma,
            .batch_invariant = a.options.batch_invariant};
  }
};

// With dh the struct serves the fused backward pass, and with dh null the plain one.
template <class T, class G>
struct Binding<LayerNormBackward<T, G>> {
  using Element = T;
  using Parameter = G;
  static constexpr std::array operations = {Operation::layernorm_backward, Operation::add_layernorm_backward};

  static LayerNormBackward<T, G> bind(const DeviceArguments& a) {
    return {.dy = a["dy"],
            .x = a["x"],
            .dh = a["dh"],
            .gamma = a["gamma"],
            .mean = a["mean"],
            .rstd = a["rstd"],
            .dx = a["dx"],
            .dgamma = a["dgamma"],
            .dbeta = a["dbeta"],
            .workspace = a["workspace"],
            .rows = a.options.rows,
            .cols = a.options.cols,
            .dy_stride = a.stride("dy"),
            .x_stride = a.stride("x"),
            .dh_stride = a.stride("dh"),
            .dx_stride = a.stride("dx"),
            .batch_invariant = a.options.batch_invariant};
  }
};

template <class T, class G>
struct Binding<RmsNormBackward<T, G>> {
  using Element = T;
  using Parameter = G;
  static constexpr std::array operations = {Operation::rmsnorm_backward};

  static RmsNormBackward<T, G> bind(const DeviceArguments& a) {
    return {.dy = a["dy"],
            .x = a["x"],
            .dh = a["dh"],
            .gamma = a["gamma"],
            .rstd = a["rstd"],
            .dx = a["dx"],
            .dgamma = a["dgamma"],
            .workspace = a["workspace"],
            .rows = a.options.rows,
            .cols = a.options.cols,
            .dy_stride = a.stride("dy"),
            .x_stride = a.stride("x"),
            .dh_stride = a.stride("dh"),
            .dx_stride = a.stride("dx"),
            .batch_invariant = a.options.batch_invariant};
  }
};

template <class T, class G>
struct Binding<BatchNormTrain<T, G>> {
  using Element = T;
  using Parameter = G;
  static constexpr std::array operations = {Operation::batchnorm_train};

  static BatchNormTrain<T, G> bind(const DeviceArguments& a) {
    return {.x = a["x"],
            .gamma = a["gamma"],
            .beta = a["beta"],
            .y = a["y"],
            .running_mean = a["running_mean"],
            .running_var = a["running_var"],
            .save_mean = a["save_mean"],
            .save_invstd = a["save_invstd"],
            .workspace = a["workspace"],
            .samples = a.options.rows,
            .channels = a.options.cols,
            .pixels = a.options.pixels,
            .layout = a.options.layout,
            .momentum = a.options.momentum,
            .eps = a.options.eps};
  }
};

template <class T, class G>
struct Binding<BatchNormInference<T, G>> {
  using Element = T;
  using Parameter = G;
  static constexpr std::array operations = {Operation::batchnorm_inference};

  static BatchNormInference<T, G> bind(const DeviceArguments& a) {
    return {.x = a["x"],
            .gamma = a["gamma"],
            .beta = a["beta"],
            .running_mean = a["running_mean"],
            .running_var = a["running_var"],
            .y = a["y"],
            .samples = a.options.rows,
            .channels = a.options.cols,
            .pixels = a.options.pixels,
            .layout = a.options.layout,
            .eps = a.options.eps};
  }
};

template <class T, class G>
struct Binding<BatchNormBackward<T, G>> {
  using Element = T;
  using Parameter = G;
  static constexpr std::array operations = {Operation::batchnorm_backward};

  static BatchNormBackward<T, G> bind(const DeviceArguments& a) {
    return {.dy = a["dy"],
            .x = a["x"],
            .gamma = a["gamma"],
            .save_mean = a["save_mean"],
            .save_invstd = a["save_invstd"],
            .dx = a["dx"],
            .dgamma = a["dgamma"],
            .dbeta = a["dbeta"],
            .workspace = a["workspace"],
            .samples = a.options.rows,
            .channels = a.options.cols,
            .pixels = a.options.pixels,
            .layout = a.options.layout};
  }
};

// How far from zero the weights are that a function takes: what it adds to gamma by itself.
template <class Arguments>
inline constexpr float gamma_offset_of = 0.0f;
template <class Arguments>
inline constexpr float gamma_offset_of<ZeroCentered<Arguments>> = 1.0f;

template <class Arguments>
struct Binding<ZeroCentered<Arguments>> : Binding<Arguments> {
  static ZeroCentered<Arguments> bind(const DeviceArguments& a) { return {Binding<Arguments>::bind(a)}; }
};

template <class T, class G>
struct Binding<QkNormForward<T, G>> {
  using Element = T;
  using Parameter = G;
  static constexpr std::array operations = {Operation::qk_norm};

  static QkNormForward<T, G> bind(const DeviceArguments& a) {
    return {.q = a["q"],
            .k = a["k"],
            .q_gamma = a["q_gamma"],
            .k_gamma = a["k_gamma"],
            .q_out = a["q_out"],
            .k_out = a["k_out"],
            .q_rstd = a["q_rstd"],
            .k_rstd = a["k_rstd"],
            .tokens = a.options.rows,
            .q_heads = a.options.q_heads,
            .k_heads = a.options.k_heads,
            .head_dim = a.options.cols,
            .q_stride = a.head_strides("q"),
            .k_stride = a.head_strides("k"),
            .q_out_stride = a.head_strides("q_out"),
            .k_out_stride = a.head_strides("k_out"),
            .eps = a.options.eps,
            .gamma_offset = a.options.gamma_offset,
            .round_before_gamma = a.options.round_before_gamma};
  }
};

template <class T, class G>
struct Binding<QkNormBackward<T, G>> {
  using Element = T;
  using Parameter = G;
  static constexpr std::array operations = {Operation::qk_norm_backward};

  static QkNormBackward<T, G> bind(const DeviceArguments& a) {
    return {.dq_out = a["dq_out"],
            .dk_out = a["dk_out"],
            .q = a["q"],
            .k = a["k"],
            .q_gamma = a["q_gamma"],
            .k_gamma = a["k_gamma"],
            .q_rstd = a["q_rstd"],
            .k_rstd = a["k_rstd"],
            .dq = a["dq"],
            .dk = a["dk"],
            .dq_gamma = a["dq_gamma"],
            .dk_gamma = a["dk_gamma"],
            .workspace = a["workspace"],
            .tokens = a.options.rows,
            .q_heads = a.options.q_heads,
            .k_heads = a.options.k_heads,
            .head_dim = a.options.cols,
            .dq_out_stride = a.head_strides("dq_out"),
            .dk_out_stride = a.head_strides("dk_out"),
            .q_stride = a.head_strides("q"),
            .k_stride = a.head_strides("k"),
            .dq_stride = a.head_strides("dq"),
            .dk_stride = a.head_strides("dk"),
            .gamma_offset = a.options.gamma_offset};
  }
};

// One struct for all four: what there is of a residual and of a mean is told by the operation.
template <class T, class G>
struct Binding<QuantizedNorm<T, G>> {
  using Element = T;
  using Parameter = G;
  static constexpr std::array operations = {Operation::layernorm_quantized, Operation::rmsnorm_quantized,
                                            Operation::add_layernorm_quantized, Operation::add_rmsnorm_quantized};

  static QuantizedNorm<T, G> bind(const DeviceArguments& a) {
    return {.x = a["x"],
            .residual = a["residual"],
            .gamma = a["gamma"],
            .beta = a["beta"],
            .h = a["h"],
            .y = a["y"],
            .scale = a["scale"],
            .scales = a["scales"],
            .unrounded = static_cast<T*>(a["workspace"].address()),
            .rows = a.options.rows,
            .cols = a.options.cols,
            .x_stride = a.stride("x"),
            .residual_stride = a.stride("residual"),
            .h_stride = a.stride("h"),
            .y_stride = a.stride("y"),
            .scales_stride = a.stride("scales"),
            .eps = a.options.eps,
            .subtracts_mean = subtracts_mean(a.options.operation),
            .format = a.options.format,
            .scaling = a.options.scaling};
  }
};

}  // namespace worklog
