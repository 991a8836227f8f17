// The operations of the family, each described once: its name, what it normalizes, its tensors, what it works in.
// operation.cpp has the table. arguments.h has the formulas, in the order of whose structs the tensors are.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace worklog {

enum class Operation {
  layernorm_forward,
  rmsnorm_forward,
  add_layernorm_forward,
  add_rmsnorm_forward,
  layernorm_backward,
  rmsnorm_backward,
  add_layernorm_backward,
  batchnorm_train,
  batchnorm_inference,
  batchnorm_backward,
  qk_norm,
  qk_norm_backward,
  layernorm_quantized,
  rmsnorm_quantized,
  add_layernorm_quantized,
  add_rmsnorm_quantized,
};
inline constexpr std::array all_operations = {
    Operation::layernorm_forward,
    Operation::rmsnorm_forward,
    Operation::add_layernorm_forward,
    Operation::add_rmsnorm_forward,
    Operation::layernorm_backward,
    Operation::rmsnorm_backward,
    Operation::add_layernorm_backward,
    Operation::batchnorm_train,
    Operation::batchnorm_inference,
    Operation::batchnorm_backward,
    Operation::qk_norm,
    Operation::qk_norm_backward,
    Operation::layernorm_quantized,
    Operation::rmsnorm_quantized,
    Operation::add_layernorm_quantized,
    Operation::add_rmsnorm_quantized,
};

// The largest sizes that are taken. BatchNorm's samples and its pixels are rows, its channels columns.
inline constexpr int64_t max_rows = int64_t{1} << 31;
inline constexpr int64_t max_cols = int64_t{1} << 20;
inline constexpr int64_t max_heads = int64_t{1} << 16;  // of q, and of k

// [rows, cols], [rows], [cols], [rows, scales_of_row], [1]
enum class Extent { matrix, per_row, per_col, scales, single };
enum class Role { input, output, updated };                    // updated: read and written (running statistics)
enum class Precision { element, parameter, statistic, byte };  // T, G, fp32, or ProblemOptions::format

struct TensorSpec {
  std::string_view name;  // the name of the pointer in arguments.h
  Extent extent;
  Role role;
  Precision precision;
  bool optional;
};

enum class Norm { layer, rms, batch };
enum class Pass { forward, backward };

struct OperationSpec {
  Operation operation;
  std::string_view name;  // as spelled above
  Norm norm;
  Pass pass;
  int64_t (*workspace)(int64_t rows, int64_t cols);  // floats that it is given to work in
  std::span<const TensorSpec> tensors;               // in the order of its struct in arguments.h
};
const OperationSpec& spec_of(Operation operation);

inline std::string_view name_of(Operation operation) {
  return spec_of(operation).name;
}
// dh belongs to add_layernorm_backward alone: layernorm_backward and rmsnorm_backward are called with a null dh.
inline std::span<const TensorSpec> tensors_of(Operation operation) {
  return spec_of(operation).tensors;
}
// Statistics of each channel, over all rows; the others have those of each row.
inline bool is_batchnorm(Operation operation) {
  return spec_of(operation).norm == Norm::batch;
}
// On the heads of q and k, each of whose rows is normalized by itself: rows of a problem are tokens, cols head_dim.
inline bool is_of_heads(Operation operation) {
  return operation == Operation::qk_norm || operation == Operation::qk_norm_backward;
}
// Whether a tensor of those operations is one of k's.
inline bool is_of_k(std::string_view tensor) {
  return tensor.starts_with("k") || tensor.starts_with("dk");
}
inline bool subtracts_mean(Operation operation) {
  return spec_of(operation).norm != Norm::rms;
}
// y in eight bits, with scales.
inline bool is_quantized(Operation operation) {
  return operation >= Operation::layernorm_quantized && operation <= Operation::add_rmsnorm_quantized;
}
inline bool is_backward(Operation operation) {
  return spec_of(operation).pass == Pass::backward;
}

}  // namespace worklog
