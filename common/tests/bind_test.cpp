// Every field of every struct of arguments.h gets the tensor, stride or number of its name.
#include "common/harness/bind.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "common/harness/program.h"

namespace worklog {
namespace {

// An address for each tensor that the operation has, and a stride of its own; nothing is ever read there.
DeviceArguments arguments_for(Operation operation) {
  DeviceArguments arguments;
  ProblemOptions& options = arguments.options;
  options.operation = operation;
  options.dtype = Dtype::fp16;
  options.param_dtype = Dtype::bf16;
  options.rows = 11;
  options.cols = 12;
  options.pixels = 13;
  options.layout = ChannelLayout::channels_first;
  options.eps = 0.5f;
  options.momentum = 0.25f;
  for (const TensorSpec& spec : tensors_of(operation)) {
    const Dtype dtype = spec.precision == Precision::element     ? options.dtype
                        : spec.precision == Precision::parameter ? options.param_dtype
                        : spec.precision == Precision::byte      ? Dtype::e4m3
                                                                 : Dtype::fp32;
    const size_t number = arguments.tensors.size() + 1;
    arguments.tensors.push_back(
        {spec.name, dtype, reinterpret_cast<void*>(number * 4096), static_cast<int64_t>(100 + number)});
  }
  return arguments;
}

// Whether the field holds the address of the tensor of that name.
template <class T>
testing::AssertionResult holds(const T* field, const DeviceArguments& arguments, std::string_view name) {
  for (const DeviceTensor& tensor : arguments.tensors) {
    if (tensor.name == name && tensor.data == field) return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << "the field " << name << " holds another tensor";
}

using T = __half;
using G = __nv_bfloat16;

template <class Bound>
void expect_matrix_numbers(const Bound& bound) {
  EXPECT_EQ(bound.rows, 11);
  EXPECT_EQ(bound.cols, 12);
}

template <class Bound>
void expect_batchnorm_numbers(const Bound& bound) {
  EXPECT_EQ(bound.samples, 11);
  EXPECT_EQ(bound.channels, 12);
  EXPECT_EQ(bound.pixels, 13);
  EXPECT_EQ(bound.layout, ChannelLayout::channels_first);
}

TEST(Bind, LayerNormForward) {
  const DeviceArguments a = arguments_for(Operation::layernorm_forward);
  const auto p = Binding<LayerNormForward<T, G>>::bind(a);
  expect_matrix_numbers(p);
  EXPECT_EQ(p.eps, 0.5f);
  EXPECT_TRUE(holds(p.x, a, "x") && holds(p.gamma, a, "gamma") && holds(p.beta, a, "beta"));
  EXPECT_TRUE(holds(p.y, a, "y") && holds(p.mean, a, "mean") && holds(p.rstd, a, "rstd"));
  EXPECT_EQ(p.x_stride, a.stride("x"));
  EXPECT_EQ(p.y_stride, a.stride("y"));
}

TEST(Bind, RmsNormForward) {
  const DeviceArguments a = arguments_for(Operation::rmsnorm_forward);
  const auto p = Binding<RmsNormForward<T, G>>::bind(a);
  expect_matrix_numbers(p);
  EXPECT_EQ(p.eps, 0.5f);
  EXPECT_TRUE(holds(p.x, a, "x") && holds(p.gamma, a, "gamma") && holds(p.y, a, "y") && holds(p.rstd, a, "rstd"));
  EXPECT_EQ(p.x_stride, a.stride("x"));
  EXPECT_EQ(p.y_stride, a.stride("y"));
}

TEST(Bind, AddLayerNormForward) {
  const DeviceArguments a = arguments_for(Operation::add_layernorm_forward);
  const auto p = Binding<AddLayerNormForward<T, G>>::bind(a);
  expect_matrix_numbers(p);
  EXPECT_EQ(p.eps, 0.5f);
  EXPECT_TRUE(holds(p.x, a, "x") && holds(p.residual, a, "residual") && holds(p.gamma, a, "gamma"));
  EXPECT_TRUE(holds(p.beta, a, "beta") && holds(p.h, a, "h") && holds(p.y, a, "y"));
  EXPECT_TRUE(holds(p.mean, a, "mean") && holds(p.rstd, a, "rstd"));
  EXPECT_EQ(p.x_stride, a.stride("x"));
  EXPECT_EQ(p.residual_stride, a.stride("residual"));
  EXPECT_EQ(p.h_stride, a.stride("h"));
  EXPECT_EQ(p.y_stride, a.stride("y"));
}

TEST(Bind, AddRmsNormForward) {
  const DeviceArguments a = arguments_for(Operation::add_rmsnorm_forward);
  const auto p = Binding<AddRmsNormForward<T, G>>::bind(a);
  expect_matrix_numbers(p);
  EXPECT_EQ(p.eps, 0.5f);
  EXPECT_TRUE(holds(p.x, a, "x") && holds(p.residual, a, "residual") && holds(p.gamma, a, "gamma"));
  EXPECT_TRUE(holds(p.h, a, "h") && holds(p.y, a, "y") && holds(p.rstd, a, "rstd"));
  EXPECT_EQ(p.x_stride, a.stride("x"));
  EXPECT_EQ(p.residual_stride, a.stride("residual"));
  EXPECT_EQ(p.h_stride, a.stride("h"));
  EXPECT_EQ(p.y_stride, a.stride("y"));
}

TEST(Bind, LayerNormBackward) {
  for (const Operation operation : {Operation::layernorm_backward, Operation::add_layernorm_backward}) {
    const DeviceArguments a = arguments_for(operation);
    const auto p = Binding<LayerNormBackward<T, G>>::bind(a);
    expect_matrix_numbers(p);
    EXPECT_TRUE(holds(p.dy, a, "dy") && holds(p.x, a, "x") && holds(p.gamma, a, "gamma"));
    EXPECT_TRUE(holds(p.mean, a, "mean") && holds(p.rstd, a, "rstd"));
    EXPECT_TRUE(holds(p.dx, a, "dx") && holds(p.dgamma, a, "dgamma") && holds(p.dbeta, a, "dbeta"));
    EXPECT_EQ(p.dy_stride, a.stride("dy"));
    EXPECT_EQ(p.x_stride, a.stride("x"));
    EXPECT_EQ(p.dx_stride, a.stride("dx"));
    if (operation == Operation::layernorm_backward) {
      EXPECT_EQ(p.dh, nullptr);
    } else {
      EXPECT_TRUE(holds(p.dh, a, "dh"));
      EXPECT_EQ(p.dh_stride, a.stride("dh"));
    }
  }
}

TEST(Bind, RmsNormBackward) {
  const DeviceArguments a = arguments_for(Operation::rmsnorm_backward);
  const auto p = Binding<RmsNormBackward<T, G>>::bind(a);
  expect_matrix_numbers(p);
  EXPECT_TRUE(holds(p.dy, a, "dy") && holds(p.x, a, "x") && holds(p.gamma, a, "gamma") && holds(p.rstd, a, "rstd"));
  EXPECT_TRUE(holds(p.dx, a, "dx") && holds(p.dgamma, a, "dgamma"));
  EXPECT_EQ(p.dh, nullptr);
  EXPECT_EQ(p.dy_stride, a.stride("dy"));
  EXPECT_EQ(p.x_stride, a.stride("x"));
  EXPECT_EQ(p.dx_stride, a.stride("dx"));
}

TEST(Bind, BatchNormTrain) {
  const DeviceArguments a = arguments_for(Operation::batchnorm_train);
  const auto p = Binding<BatchNormTrain<T, G>>::bind(a);
  expect_batchnorm_numbers(p);
  EXPECT_EQ(p.eps, 0.5f);
  EXPECT_EQ(p.momentum, 0.25f);
  EXPECT_TRUE(holds(p.x, a, "x") && holds(p.gamma, a, "gamma") && holds(p.beta, a, "beta") && holds(p.y, a, "y"));
  EXPECT_TRUE(holds(p.running_mean, a, "running_mean") && holds(p.running_var, a, "running_var"));
  EXPECT_TRUE(holds(p.save_mean, a, "save_mean") && holds(p.save_invstd, a, "save_invstd"));
}

TEST(Bind, BatchNormInference) {
  const DeviceArguments a = arguments_for(Operation::batchnorm_inference);
  const auto p = Binding<BatchNormInference<T, G>>::bind(a);
  expect_batchnorm_numbers(p);
  EXPECT_EQ(p.eps, 0.5f);
  EXPECT_TRUE(holds(p.x, a, "x") && holds(p.gamma, a, "gamma") && holds(p.beta, a, "beta") && holds(p.y, a, "y"));
  EXPECT_TRUE(holds(p.running_mean, a, "running_mean") && holds(p.running_var, a, "running_var"));
}

TEST(Bind, BatchNormBackward) {
  const DeviceArguments a = arguments_for(Operation::batchnorm_backward);
  const auto p = Binding<BatchNormBackward<T, G>>::bind(a);
  expect_batchnorm_numbers(p);
  EXPECT_TRUE(holds(p.dy, a, "dy") && holds(p.x, a, "x") && holds(p.gamma, a, "gamma"));
  EXPECT_TRUE(holds(p.save_mean, a, "save_mean") && holds(p.save_invstd, a, "save_invstd"));
  EXPECT_TRUE(holds(p.dx, a, "dx") && holds(p.dgamma, a, "dgamma") && holds(p.dbeta, a, "dbeta"));
}

TEST(Bind, QuantizedNorm) {
  for (const Operation operation : {Operation::layernorm_quantized, Operation::rmsnorm_quantized,
                                    Operation::add_layernorm_quantized, Operation::add_rmsnorm_quantized}) {
    DeviceArguments a = arguments_for(operation);
    a.options.format = ByteFormat::int8;
    a.options.scaling = Scaling::block;
    a.tensors.push_back({"workspace", Dtype::fp32, reinterpret_cast<void*>(0x77000), 0});
    const auto p = Binding<QuantizedNorm<T, G>>::bind(a);
    const bool centered =
        operation == Operation::layernorm_quantized || operation == Operation::add_layernorm_quantized;
    const bool adds = operation >= Operation::add_layernorm_quantized;
    expect_matrix_numbers(p);
    EXPECT_EQ(p.eps, 0.5f);
    EXPECT_EQ(p.format, ByteFormat::int8);
    EXPECT_EQ(p.scaling, Scaling::block);
    EXPECT_EQ(p.subtracts_mean, centered);
    EXPECT_TRUE(holds(p.x, a, "x") && holds(p.gamma, a, "gamma") && holds(p.y, a, "y"));
    EXPECT_TRUE(holds(p.scale, a, "scale") && holds(p.scales, a, "scales"));
    EXPECT_EQ(p.unrounded, reinterpret_cast<T*>(0x77000));
    EXPECT_EQ(p.x_stride, a.stride("x"));
    EXPECT_EQ(p.y_stride, a.stride("y"));
    EXPECT_EQ(p.scales_stride, a.stride("scales"));
    EXPECT_EQ(p.beta != nullptr, centered);
    EXPECT_EQ(p.residual != nullptr, adds);
    EXPECT_EQ(p.h != nullptr, adds);
    if (adds) {
      EXPECT_TRUE(holds(p.residual, a, "residual") && holds(p.h, a, "h"));
      EXPECT_EQ(p.residual_stride, a.stride("residual"));
      EXPECT_EQ(p.h_stride, a.stride("h"));
    }
  }
}

TEST(Bind, AnotherTypeIsRefused) {
  const DeviceArguments a = arguments_for(Operation::rmsnorm_forward);
  EXPECT_THROW((Binding<RmsNormForward<float, G>>::bind(a)), std::logic_error);
  EXPECT_THROW((Binding<RmsNormForward<T, float>>::bind(a)), std::logic_error);
}

void forward(const LayerNormForward<T, G>&, cudaStream_t) {}

// What a program is told by a function's form alone.
TEST(Bind, AFunctionSaysWhatItDoes) {
  Program program("00_test", "a test");
  const Variant& variant =
      program.add("both", "forward and backward", forward, [](const LayerNormBackward<float>&, cudaStream_t) {});
  ASSERT_EQ(variant.implementations().size(), 3u);
  EXPECT_EQ(variant.implementations()[0].operation, Operation::layernorm_forward);
  EXPECT_EQ(variant.implementations()[0].dtype, Dtype::fp16);
  EXPECT_EQ(variant.implementations()[0].param_dtype, Dtype::bf16);
  EXPECT_EQ(variant.implementations()[1].operation, Operation::layernorm_backward);
  EXPECT_EQ(variant.implementations()[2].operation, Operation::add_layernorm_backward);
  EXPECT_EQ(variant.implementations()[2].param_dtype, Dtype::fp32);
}

}  // namespace
}  // namespace worklog
