// Results made on the host for the tests of the harness: right ones, from the reference, and single elements of them.
#pragma once

#include <cmath>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "common/harness/problem.h"
#include "common/harness/reference.h"

namespace worklog {

inline std::byte* element_at(HostTensor& tensor, int64_t row, int64_t col) {
  return tensor.bytes.data() + (tensor.start_of(row) + col) * static_cast<int64_t>(size_of(tensor.dtype));
}

inline const std::byte* element_at(const HostTensor& tensor, int64_t row, int64_t col) {
  return tensor.bytes.data() + (tensor.start_of(row) + col) * static_cast<int64_t>(size_of(tensor.dtype));
}

inline uint32_t bits_at(const HostTensor& tensor, int64_t row, int64_t col) {
  return load_bits(tensor.dtype, element_at(tensor, row, col));
}

inline double value_at(const HostTensor& tensor, int64_t row, int64_t col) {
  double value = 0;
  load_elements(tensor.dtype, element_at(tensor, row, col), 1, 1, &value);
  return value;
}

inline void set_value(HostTensor& tensor, int64_t row, int64_t col, double value) {
  const float narrow = static_cast<float>(value);
  store_elements(tensor.dtype, &narrow, 1, 1, element_at(tensor, row, col));
}

// The bits that an element of eight bits has for a value that it can have exactly.
inline std::byte byte_of(Dtype dtype, double value) {
  for (int bits = 0; bits < 256; ++bits) {
    const auto byte = static_cast<std::byte>(bits);
    double held = 0;
    load_elements(dtype, &byte, 1, 1, &held);
    if (held == value || (std::isnan(held) && std::isnan(value))) return byte;
  }
  throw std::invalid_argument("no element of eight bits has this value");
}

// All elements in row order, without padding.
inline std::vector<double> values_of(const HostTensor& tensor) {
  std::vector<double> values(tensor.rows * tensor.cols);
  for (int64_t row = 0; row < tensor.rows; ++row) {
    load_elements(tensor.dtype, element_at(tensor, row, 0), tensor.cols, 1, values.data() + row * tensor.cols);
  }
  return values;
}

inline HostTensor& named(std::vector<HostTensor>& tensors, std::string_view name) {
  for (HostTensor& tensor : tensors) {
    if (tensor.spec.name == name) return tensor;
  }
  throw std::invalid_argument("no such tensor");
}

inline const HostTensor& named(const std::vector<HostTensor>& tensors, std::string_view name) {
  return named(const_cast<std::vector<HostTensor>&>(tensors), name);
}

// The tensors of the problem with its outputs as they must be: the reference, rounded to the type.
inline std::vector<HostTensor> right_results(const Problem& problem) {
  const ProblemOptions& options = problem.options();
  const Reference reference(options, problem.tensors());
  std::vector<HostTensor> results = problem.tensors();
  Reference::Row expected;
  for (int64_t row = 0; row < reference.rows(); ++row) {
    reference.expect_row(row, Summation::any_order, expected);
    for (size_t i = 0; i < results.size(); ++i) {
      const std::vector<float> values(expected.outputs[i].want.begin(), expected.outputs[i].want.end());
      if (values.empty()) continue;
      if (size_of(results[i].dtype) == 1) {
        for (int64_t col = 0; col < reference.cols(); ++col) {
          *element_at(results[i], row, col) =
              byte_of(results[i].dtype, round_to_byte(results[i].dtype, expected.outputs[i].want[col]));
        }
        continue;
      }
      const bool matrix = results[i].spec.extent == Extent::matrix;
      const MatrixView view(options, results[i], results[i].bytes.data());
      const int64_t own = row - results[i].first_row;
      const std::byte* first = matrix ? view.element(own, 0) : element_at(results[i], own, 0);
      const int64_t step = matrix && reference.cols() > 1
                               ? (view.element(own, 1) - first) / static_cast<int64_t>(size_of(results[i].dtype))
                               : 1;
      store_elements(results[i].dtype, values.data(), static_cast<int64_t>(values.size()), step,
                     const_cast<std::byte*>(first));
    }
  }
  for (size_t i = 0; i < results.size() && reference.rows() > 0; ++i) {
    HostTensor& result = results[i];
    if (!result.present || result.spec.role == Role::input || result.spec.extent != Extent::per_col) continue;
    const Expected columns = reference.expect_columns(i, Summation::any_order);
    const std::vector<float> values(columns.want.begin(), columns.want.end());
    store_elements(result.dtype, values.data(), result.cols, 1, result.bytes.data());
  }
  return results;
}

}  // namespace worklog
