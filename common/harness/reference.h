// What must come out of an operation, in double precision, computed from the inputs as they are stored.
//
// The definitions are PyTorch's: the variance of a norm is biased and eps is inside the root; BatchNorm's running
// variance is unbiased. In the add operations h is fp32(x) + fp32(residual), rounded to T, and the norm takes that h.
// The mean and rstd that a backward pass reads are taken as they are given.
//
// Every expected value comes with a `slack`: what fp32 arithmetic cannot help losing, by u = 2^-24 of what it handles.
// A comparison adds it to the tolerance. With c(n) = sum_roundings(n), the factor for a sum of n terms:
//
//   mean            d = c(cols) u mean|x|: the sum's rounding; a mean held in fp32 has no more digits than that
//   rstd            e rstd, e = (c / 2 + 2) u + (d rstd)^2 / 2: half the relative error of the squares' sum, and what a
//                   mean that is off by d adds to the squares
//   y               |gamma| (d rstd + e |xhat|) + 2 u (|gamma xhat| + |beta|): the two above, and the last steps'
//                   rounding. RMSNorm has no mean, so d = 0
//   dx              rstd u (4 |wdy| + (c + 4) (mean|wdy| + |xhat| mean|wdy xhat|)) + 2 u |dh|
//   dgamma, dbeta   (c(rows) + 4) u sum|terms|
//   running_mean    momentum d + 2 u (|old| + momentum |mean|)
//   running_var     momentum (2 e var + d^2) n / (n - 1) + 2 u old
//   scales          the largest slack of y over 448 or 127, and 2 u scale
//   y / scale       slack of y / scale + |y / scale| (relative slack of scale + 3 u): before it is rounded to eight
//   bits y (inference)   4 u |gamma| (|x| + |running_mean|) invstd + 2 u |beta|: y may be computed as x a + b
//
// BatchNorm's are the same with a channel's values in place of a row's.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "common/harness/problem.h"

namespace worklog {

// The rounding errors that a sum of n fp32 terms is granted, in units of 2^-24 times the sum of their magnitudes.
// any_order: 4 + sqrt(n), what n roundings add up to when they are independent [Higham, Mary 2019]. A running sum of
// equal terms does worse, since its roundings are not: that is an error, not slack. pairwise: 4 + log2(n).
double sum_roundings(int64_t n, Summation summation);

// How many rows of a matrix one task of a parallel loop takes: some thousand elements, and at most 2^16 tasks.
int64_t rows_per_task(int64_t rows, int64_t cols);

// How the rows of a matrix lie in memory. For BatchNorm a row is one pixel of one sample and a column a channel,
// whatever the layout.
class MatrixView {
 public:
  MatrixView(const ProblemOptions& options, const HostTensor& tensor, const std::byte* data);
  const std::byte* element(int64_t row, int64_t col) const;
  int64_t col_stride() const { return col_stride_; }  // elements
  void load(int64_t row, int64_t first_col, int64_t count, double* values) const;

 private:
  const std::byte* data_;
  Dtype dtype_;
  int64_t row_stride_, col_stride_;  // elements
  int64_t pixels_, sample_stride_;   // with channels first: row / pixels_ samples and row % pixels_ pixels in
  int64_t heads_, head_stride_;      // of heads: row / heads_ tokens and row % heads_ heads in
};

// Values that an output must have, and their slack.
struct Expected {
  std::vector<double> want, slack;
};

// The moments of the values that are normalized together: a row, or a channel of BatchNorm.
struct Moments {
  double mean = 0;      // 0 for RMSNorm, which subtracts none
  double variance = 0;  // around that mean; biased
  double rstd = 0;
  double mean_abs = 0;
};

class Reference {
 public:
  // The tensors, in the order of tensors_of(options.operation), must outlive the reference and stay where they are.
  Reference(const ProblemOptions& options, const std::vector<HostTensor>& tensors);

  // The logical matrix: samples * pixels by channels for BatchNorm; the heads' rows of q, and then those of k.
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

  // Room for one row; a thread keeps one.
  struct Row {
    // By tensor: cols values of a matrix output, the row's scales, one value of a per-row output; none of what has no
    // such row. y in eight bits is y / scale here, not yet rounded.
    std::vector<Expected> outputs;
    std::vector<double> scale_of;   // of y in eight bits: by column, what y is divided by
    std::vector<double> x, dy, dh;  // what the norm takes (x, or h), and the gradients, as far as there are any
    Moments moments;                // of a row operation's row: as computed in the forward, as given in the backward
  };
  void expect_row(int64_t row, Summation summation, Row& out) const;

  // A [cols] output. The sums over all rows are computed at the first call, on all cores, and kept.
  Expected expect_columns(size_t tensor, Summation summation) const;

  // The root mean square of a [rows] or [cols] output, over its finite values.
  double rms_of(size_t tensor) const;

  // For the search for a cause: a tensor's index (-1 where it is absent), gamma and beta with ones and zeros where they
  // are absent, a channel's moments (BatchNorm) and sums over all rows (backward), and what the norm takes in a row
  // with its moments (row operations).
  int index_of(std::string_view name) const;
  const std::vector<double>& gamma() const { return parts_.front().gamma; }
  const std::vector<double>& beta() const { return parts_.front().beta; }
  const Moments& channel_moments(int64_t col) const;
  double sum_dy(int64_t col) const;
  double sum_dy_xhat(int64_t col) const;
  void load_normalized_row(int64_t row, Row& out) const;
  const ProblemOptions& options() const { return options_; }
  const HostTensor& tensor(size_t index) const { return *tensors_[index]; }

 private:
  struct Columns;  // what the [cols] outputs and BatchNorm's rows are made of
  // Where the tensors that a row needs are, -1 for those that are absent: rows can be many and short.
  struct Indices {
    int x, residual, dy, dh, h, y, dx, mean, rstd, scale, scales;
  };
  // Rows that are normalized with the same gamma: all that there are, or those of q, or those of k.
  struct Part {
    Indices at;
    int64_t first_row, rows;
    std::vector<double> gamma, beta;
    mutable std::shared_ptr<const Columns> columns;  // made when they are first asked for
  };

  const HostTensor* find(std::string_view name) const;
  void load_row(int tensor, int64_t row, std::vector<double>& values) const;
  double given_statistic(int tensor, int64_t row, double absent) const;
  Part part_named(std::string_view letter, int64_t first_row, int64_t rows) const;
  const Part& part_of(int64_t row) const {
    return parts_.size() > 1 && row >= parts_[1].first_row ? parts_[1] : parts_[0];
  }
  const Part& part_with(std::string_view tensor) const;
  std::vector<double> load_vector(std::string_view name, double absent, double offset = 0) const;
  const Columns& columns(const Part& part) const;
  void compute_columns(const Part& part, Columns& out) const;
  void expect_forward(int64_t row, Summation summation, Row& out) const;
  void quantize(Row& out) const;
  void expect_backward(int64_t row, Summation summation, Row& out) const;
  void expect_batchnorm(int64_t row, Summation summation, Row& out) const;

  ProblemOptions options_;
  std::vector<const HostTensor*> tensors_;
  int64_t rows_ = 0, cols_ = 0;
  std::vector<Part> parts_;
  mutable std::array<std::once_flag, 2> columns_once_;  // by part
  mutable std::mutex rms_mutex_;
  mutable std::vector<double> rms_;  // by tensor; negative where not yet computed
};

// Writes what a backward pass reads of the forward pass: mean and rstd of every row (or save_mean and save_invstd of
// every channel) of x, computed in double and rounded to fp32. x must hold its values; eps is the problem's.
void fill_saved_statistics(const ProblemOptions& options, std::vector<HostTensor>& tensors);

}  // namespace worklog
