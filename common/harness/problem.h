// One problem to give a kernel: an operation at one shape and type, its inputs on the host, and what must come out.
//
// Everything here is host memory and knows nothing of devices. Tensors are held as they are stored (so that 2^32
// elements fit), and the fp64 reference is computed row by row while comparing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/device/arguments.h"
#include "common/harness/dtype.h"
#include "common/harness/host_memory.h"
#include "common/harness/operation.h"

namespace worklog {

enum class Input {
  normal,            // mean 0, deviation 1
  uniform,           // [-1, 1)
  arange,            // 1, 2, ... rows * cols, as the worklog article has it
  large_mean,        // mean 1e4, deviation 1
  constant,          // every element the same: variance zero
  tiny_variance,     // mean 1, deviation 1e-4 (fp32; a smaller mean where the type could not show the deviation)
  outlier_channels,  // a few columns 100 times the rest, as transformer activations have them
  huge,              // near the top of the type
  nan_row,           // normal, and one row that holds a NaN
};
std::string_view name_of(Input input);
std::vector<Input> all_inputs();

struct ProblemOptions {
  Operation operation = Operation::layernorm_forward;
  Dtype dtype = Dtype::fp32;
  Dtype param_dtype = Dtype::fp32;
  int64_t rows = 1024;  // BatchNorm: samples
  int64_t cols = 1024;  // BatchNorm: channels
  int64_t pixels = 1;   // BatchNorm: height * width
  int64_t q_heads = 2;  // of the operations on heads, for which rows are tokens and cols is head_dim
  int64_t k_heads = 1;
  bool packed_results = false;  // of the operations on heads: their outputs have no gaps
  ChannelLayout layout = ChannelLayout::channels_last;
  int64_t row_padding = 0;  // elements between the end of a row and the start of the next, in every matrix
  // A tensor's name: it has one element more between its rows, and starts one element further past its alignment, than
  // the others. Or "all": each tensor has one more of both than the one before it. Empty: all are alike.
  std::string uneven = {};
  int64_t uneven_by = 1;  // elements more, instead of one
  Input input = Input::normal;
  uint64_t seed = 1;
  float eps = 1e-6f;
  float momentum = 0.1f;
  double max_ulp = std::numeric_limits<double>::infinity();  // beside that of ComparisonOptions, for every variant
  bool round_before_gamma = false;       // RMSNorm: the normalized element is rounded to its type, then multiplied
  ByteFormat format = ByteFormat::e4m3;  // of y in eight bits
  Scaling scaling = Scaling::row;        // of y in eight bits
  bool batch_invariant = false;          // the final kernels of norms over rows: a row's bits whatever the batch
  float gamma_offset = 0.0f;             // norms over rows: added to gamma, where there is one; 0 or 1
  std::vector<std::string> absent = {};  // optional tensors passed as null: {"gamma", "mean"}
};

// A tensor on the host as it is stored: `count` elements of `dtype`, row i of a matrix at i * stride.
//
// A matrix of heads has a row to a head: row i is head i % heads of token i / heads, whose tokens are `stride` apart
// and whose heads `head_stride`. In q and k, and in what takes their form, there is a gap behind a token's heads, as
// long as the rest of a projection of q, k and v is; not in outputs with packed_results.
//
// The matrices of BatchNorm are stored as [samples * pixels, channels], or with ChannelLayout::channels_first and more
// than one pixel as [samples * channels, pixels].
struct HostTensor {
  TensorSpec spec;
  Dtype dtype;
  int64_t rows, cols, stride;  // per_row: rows x 1; per_col: 1 x cols; stride in elements
  bool present = true;
  HostBytes bytes;   // padding between rows holds `padding_pattern`
  int64_t more = 0;  // ProblemOptions::uneven: elements that it starts further past its alignment than it would
  int64_t heads = 1;
  int64_t head_stride = 0;
  int64_t first_row = 0;  // the tensors of k: of the rows of q and k together, which a reference counts

  // Of element `at` of a token (or row): whether it lies in none of its heads.
  bool is_padding(int64_t at) const {
    return heads == 1 ? at >= cols : at / head_stride >= heads || at % head_stride >= cols;
  }
  int64_t start_of(int64_t row) const { return row / heads * stride + row % heads * head_stride; }  // elements
  int64_t count() const;  // elements from the first to the end of the last row, padding between rows included
};

// The operation by its name, which for y in eight bits says what is in them: rmsnorm_e4m3_row.
std::string operation_name(const ProblemOptions& options);
std::string_view name_of(ByteFormat format);  // "e4m3", "int8"
std::string_view name_of(Scaling scaling);    // "row", "block", "tensor"

// The tensors of an operation as they are stored, in tensors_of order, without their values.
std::vector<HostTensor> shape_tensors(const ProblemOptions& options);

// Where element `at` of the tensor's memory is, in words: "row 3, column 17".
std::string place_of(const HostTensor& tensor, int64_t at);

// What fills padding, guards and unwritten outputs: a signaling NaN, which no arithmetic yields (it would be quieted).
// In int8, which has no NaN, the number that a scale made of the row never leads to: -128.
uint32_t poison_pattern(Dtype dtype);  // in the low bits for smaller types

// How wide the tolerance is for what fp32 arithmetic loses in sums of n terms (reference.h has the formulas).
enum class Summation {
  any_order,  // any order of summation, a single running sum included: the error grows as sqrt(n)
  pairwise,   // trees and merged partial sums: the error grows as log2(n)
};

struct ComparisonOptions {
  Summation summation = Summation::any_order;
  // A further bound on the error of each element of the matrix outputs, in the units of Comparison::max_ulp_error.
  double max_ulp = std::numeric_limits<double>::infinity();
  bool rounded_first = false;          // y in eight bits comes from y in the operation's own type
  std::vector<std::string> only = {};  // the outputs that are compared; none named: all that there are
};

// One element that is wrong. For the matrices of BatchNorm, row is sample * pixels + pixel and col the channel, in
// either layout.
struct Mismatch {
  std::string tensor;
  int64_t row, col;
  double got, want, tolerance;
  bool never_written = false;  // the element still holds the poison pattern, bit for bit
};

// The errors of one output, over finite references; an output that is not finite there has an infinite error. The ulp
// is the output type's last place at max(|want|, rms of the reference row), or of the whole vector for a vector.
struct TensorErrors {
  std::string tensor;
  int64_t compared = 0;
  int64_t differing = 0;
  double max_abs_error = 0;
  double max_ulp_error = 0;
};

// The result of one comparison, over all outputs.
struct Comparison {
  bool passed = true;
  int64_t compared = 0;         // elements
  int64_t differing = 0;        // elements outside tolerance
  int64_t differing_rows = 0;   // rows of the outputs with such elements; a vector counts as one row
  std::vector<Mismatch> first;  // the first few, in the order of tensors_of, then in row order
  double max_abs_error = 0;     // of all outputs
  // The largest TensorErrors::max_ulp_error of the matrix outputs (of all outputs where there is no matrix among them:
  // statistics and sums over rows cancel, so that their last place says little), and the output that it is in.
  double max_ulp_error = 0;
  std::string worst_tensor;
  std::vector<TensorErrors> errors;  // of each output, in the order of tensors_of
  std::vector<std::string> damage;   // sentences: writes between rows, inputs that were changed
  std::string likely_cause;          // empty where no pattern gives it away
  std::string describe() const;      // several readable lines on a failure; one on success
};

// The bytes of host memory that a problem takes, with a second copy of its outputs, which come back to be compared; and
// those that this machine can still hand out, infinity where that is not known.
double memory_needed(const ProblemOptions& options);
double available_memory();

// Throws std::invalid_argument where an argument is out of its range.
void check_arguments(const ProblemOptions& options);

// Throws what the constructor of Problem would throw, without making anything.
void check_options(const ProblemOptions& options);

class Reference;

class Problem {
 public:
  // Generates the inputs, on all cores. Throws std::invalid_argument with one sentence that names the argument and the
  // allowed range, also where the tensors cannot be had (sizes that overflow, memory that is not there).
  explicit Problem(const ProblemOptions& options);
  ~Problem();
  Problem(Problem&&) noexcept;

  const ProblemOptions& options() const { return options_; }

  // Every tensor of the operation in tensors_of order. Inputs hold their values; outputs hold the poison pattern;
  // updated tensors hold their values from before.
  const std::vector<HostTensor>& tensors() const { return tensors_; }

  // The bytes that the operation must move: each present input once, each present output once.
  int64_t bytes_read() const;
  int64_t bytes_written() const;

  // Compares what came out (in tensors() order; inputs are checked to be untouched where given, and may be left empty)
  // with the fp64 reference: |got - want| <= atol + rtol * |want| + slack, per element. With no rows there is nothing
  // to compare. Throws std::invalid_argument where the results have not the shape of tensors().
  Comparison compare(const std::vector<HostTensor>& results, const ComparisonOptions& options = {}) const;

 private:
  ProblemOptions options_;
  std::vector<HostTensor> tensors_;
  std::unique_ptr<Reference> reference_;
};

}  // namespace worklog
