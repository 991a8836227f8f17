#include "common/harness/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/harness/parallel.h"

namespace worklog {
namespace {

constexpr double u = 0x1p-24;  // half the distance from 1 to the next fp32 number
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

bool is_row_backward(Operation operation) {
  return is_backward(operation) && !is_batchnorm(operation);
}

// The sum of term(i) for i in [0, n), in eight interleaved partial sums.
template <class Term>
double sum_of(int64_t n, const Term& term) {
  double partial[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int lane = 0; lane < 8; ++lane) partial[lane] += term(i + lane);
  }
  for (; i < n; ++i) partial[i % 8] += term(i);
  return ((partial[0] + partial[1]) + (partial[2] + partial[3])) +
         ((partial[4] + partial[5]) + (partial[6] + partial[7]));
}

Moments moments_of_row(const std::vector<double>& x, bool with_mean, double eps) {
  const int64_t n = static_cast<int64_t>(x.size());
  Moments moments;
  if (with_mean) {
    moments.mean = sum_of(n, [&](int64_t i) { return x[i]; }) / n;
    moments.mean_abs = sum_of(n, [&](int64_t i) { return std::fabs(x[i]); }) / n;
  }
  const double mean = moments.mean;
  moments.variance = sum_of(n, [&](int64_t i) { return (x[i] - mean) * (x[i] - mean); }) / n;
  moments.rstd = 1 / std::sqrt(moments.variance + eps);
  return moments;
}

// The absolute error of a computed mean, and the relative one of a computed rstd.
struct StatisticSlack {
  double mean, rstd;
};

StatisticSlack slack_of(const Moments& moments, double roundings, bool with_mean) {
  const double mean = with_mean ? roundings * u * moments.mean_abs : 0;
  const double shift = mean * moments.rstd;
  return {mean, (roundings / 2 + 2) * u + shift * shift / 2};
}

// Sums over all rows, per column: `terms` sums of each column, sum t of column j at [t * cols + j]. add_row(row,
// first_col, count, sums) adds one row's terms of columns [first_col, first_col + count) to sums[t * count + j].
// The rows are cut into pieces that depend on the shape alone, and the pieces' sums are added in their order.
template <class AddRow>
std::vector<double> sum_columns(int64_t rows, int64_t cols, int terms, const AddRow& add_row) {
  constexpr int64_t tile = 2048;                                                     // columns: stays in the L1 cache
  const int64_t pieces = std::clamp<int64_t>((int64_t{1} << 20) / cols, 1, 64);      // bounds the partial sums' memory
  const int64_t rows_of_piece = std::max<int64_t>(1, (rows + pieces - 1) / pieces);  // the last pieces may be empty
  const int64_t tiles = (cols + tile - 1) / tile;
  std::vector<std::vector<double>> partial(pieces * tiles);
  parallel_for(pieces * tiles, 1, [&](int64_t task, int64_t) {
    const int64_t first_col = task % tiles * tile;
    const int64_t count = std::min(tile, cols - first_col);
    const int64_t first_row = task / tiles * rows_of_piece;
    std::vector<double> sums(terms * count);
    for (int64_t row = first_row; row < std::min(rows, first_row + rows_of_piece); ++row) {
      add_row(row, first_col, count, sums.data());
    }
    partial[task] = std::move(sums);
  });
  std::vector<double> total(terms * cols);
  for (int64_t task = 0; task < pieces * tiles; ++task) {
    const int64_t first_col = task % tiles * tile;
    const int64_t count = std::min(tile, cols - first_col);
    for (int term = 0; term < terms; ++term) {
      for (int64_t j = 0; j < count; ++j) total[term * cols + first_col + j] += partial[task][term * count + j];
    }
  }
  return total;
}

// The moments of each channel of BatchNorm, in two passes over x.
std::vector<Moments> moments_of_channels(const MatrixView& x, int64_t rows, int64_t cols, double eps) {
  const std::vector<double> sums =
      sum_columns(rows, cols, 2, [&](int64_t row, int64_t first_col, int64_t count, double* sum) {
        thread_local std::vector<double> values;
        values.resize(count);
        x.load(row, first_col, count, values.data());
        for (int64_t j = 0; j < count; ++j) sum[j] += values[j];
        for (int64_t j = 0; j < count; ++j) sum[count + j] += std::fabs(values[j]);
      });
  const std::vector<double> squares =
      sum_columns(rows, cols, 1, [&](int64_t row, int64_t first_col, int64_t count, double* sum) {
        thread_local std::vector<double> values;
        values.resize(count);
        x.load(row, first_col, count, values.data());
        for (int64_t j = 0; j < count; ++j) {
          const double deviation = values[j] - sums[first_col + j] / rows;
          sum[j] += deviation * deviation;
        }
      });
  std::vector<Moments> moments(cols);
  for (int64_t j = 0; j < cols; ++j) {
    moments[j].mean = sums[j] / rows;
    moments[j].mean_abs = sums[cols + j] / rows;
    moments[j].variance = squares[j] / rows;
    moments[j].rstd = 1 / std::sqrt(moments[j].variance + eps);
  }
  return moments;
}

double rms_over(const std::vector<double>& values) {
  double squares = 0;
  int64_t finite = 0;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    squares += value * value;
    ++finite;
  }
  return finite == 0 ? 0 : std::sqrt(squares / finite);
}

int64_t logical_rows(const ProblemOptions& options) {
  if (is_of_heads(options.operation)) return options.rows * (options.q_heads + options.k_heads);
  return is_batchnorm(options.operation) ? options.rows * options.pixels : options.rows;
}

}  // namespace

double sum_roundings(int64_t n, Summation summation) {
  const double terms = static_cast<double>(std::max<int64_t>(1, n));
  return 4 + (summation == Summation::any_order ? std::sqrt(terms) : std::log2(terms));
}

int64_t rows_per_task(int64_t rows, int64_t cols) {
  return std::max({int64_t{1}, 8192 / cols, (rows + 65535) / 65536});
}

MatrixView::MatrixView(const ProblemOptions& options, const HostTensor& tensor, const std::byte* data)
    : data_(data),
      dtype_(tensor.dtype),
      row_stride_(tensor.stride),
      col_stride_(1),
      pixels_(1),
      sample_stride_(0),
      heads_(tensor.heads),
      head_stride_(tensor.head_stride) {
  if (is_batchnorm(options.operation) && options.layout == ChannelLayout::channels_first && options.pixels > 1) {
    row_stride_ = 1;
    col_stride_ = options.pixels;
    pixels_ = options.pixels;
    sample_stride_ = options.pixels * options.cols;
  }
}

const std::byte* MatrixView::element(int64_t row, int64_t col) const {
  const int64_t first = heads_ > 1     ? row / heads_ * row_stride_ + row % heads_ * head_stride_
                        : pixels_ == 1 ? row * row_stride_
                                       : row / pixels_ * sample_stride_ + row % pixels_;
  return data_ + (first + col * col_stride_) * static_cast<int64_t>(size_of(dtype_));
}

void MatrixView::load(int64_t row, int64_t first_col, int64_t count, double* values) const {
  load_elements(dtype_, element(row, first_col), count, col_stride_, values);
}

struct Reference::Columns {
  std::vector<Moments> moments;      // BatchNorm: of each channel; inference: the running statistics
  std::vector<double> dy, dy_abs;    // sums over rows of dy
  std::vector<double> dyx, dyx_abs;  // sums over rows of dy * xhat
};

Reference::Reference(const ProblemOptions& options, const std::vector<HostTensor>& tensors)
    : options_(options), rows_(logical_rows(options)), cols_(options.cols), rms_(tensors.size(), -1.0) {
  for (const HostTensor& tensor : tensors) tensors_.push_back(&tensor);
  if (is_of_heads(options.operation)) {
    const int64_t q_rows = options.rows * options.q_heads;
    parts_.push_back(part_named("q", 0, q_rows));
    parts_.push_back(part_named("k", q_rows, rows_ - q_rows));
  } else {
    parts_.push_back(part_named("", 0, rows_));
  }
}

// The tensors of q and of k have the part's letter in their names where other operations' have x or nothing.
Reference::Part Reference::part_named(std::string_view letter, int64_t first_row, int64_t rows) const {
  const auto named = [&](const char* form) {
    return std::string(form).replace(std::string_view(form).find('*'), 1, letter);
  };
  Part part = {.at = {}, .first_row = first_row, .rows = rows, .gamma = {}, .beta = {}, .columns = {}};
  if (letter.empty()) {
    part.at = {index_of("x"),    index_of("residual"), index_of("dy"),    index_of("dh"),
               index_of("h"),    index_of("y"),        index_of("dx"),    index_of("mean"),
               index_of("rstd"), index_of("scale"),    index_of("scales")};
    part.gamma = load_vector("gamma", 1, options_.gamma_offset);
    part.beta = load_vector("beta", 0);
  } else {
    part.at = {.x = index_of(letter),
               .residual = -1,
               .dy = index_of(named("d*_out")),
               .dh = -1,
               .h = -1,
               .y = index_of(named("*_out")),
               .dx = index_of(named("d*")),
               .mean = -1,
               .rstd = index_of(named("*_rstd")),
               .scale = -1,
               .scales = -1};
    part.gamma = load_vector(named("*_gamma"), 1, options_.gamma_offset);
    part.beta = std::vector<double>(cols_, 0.0);
  }
  return part;
}

const Reference::Part& Reference::part_with(std::string_view tensor) const {
  return parts_[parts_.size() > 1 && is_of_k(tensor) ? 1 : 0];
}

const HostTensor* Reference::find(std::string_view name) const {
  const int index = index_of(name);
  return index < 0 ? nullptr : tensors_[index];
}

int Reference::index_of(std::string_view name) const {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i]->spec.name == name && tensors_[i]->present) return static_cast<int>(i);
  }
  return -1;
}

std::vector<double> Reference::load_vector(std::string_view name, double absent, double offset) const {
  std::vector<double> values(cols_, absent);
  if (const HostTensor* tensor = find(name)) {
    load_elements(tensor->dtype, tensor->bytes.data(), cols_, 1, values.data());
    for (double& value : values) value += offset;
  }
  return values;
}

void Reference::load_row(int tensor, int64_t row, std::vector<double>& values) const {
  values.resize(tensor < 0 ? 0 : cols_);
  if (tensor < 0) return;
  const HostTensor& from = *tensors_[tensor];
  MatrixView(options_, from, from.bytes.data()).load(row - from.first_row, 0, cols_, values.data());
}

double Reference::given_statistic(int tensor, int64_t row, double absent) const {
  double value = absent;
  if (tensor < 0) return absent;
  const HostTensor& from = *tensors_[tensor];
  load_elements(Dtype::fp32, from.bytes.data() + (row - from.first_row) * 4, 1, 1, &value);
  return value;
}

const Reference::Columns& Reference::columns(const Part& part) const {
  std::call_once(columns_once_[&part - parts_.data()], [&] {
    auto columns = std::make_shared<Columns>();
    compute_columns(part, *columns);
    part.columns = std::move(columns);
  });
  return *part.columns;
}

const Moments& Reference::channel_moments(int64_t col) const {
  return columns(parts_.front()).moments[col];
}

double Reference::sum_dy(int64_t col) const {
  return columns(parts_.front()).dy[col];
}

double Reference::sum_dy_xhat(int64_t col) const {
  return columns(parts_.front()).dyx[col];
}

void Reference::compute_columns(const Part& part, Columns& out) const {
  const auto view = [&](std::string_view name) {
    const HostTensor* tensor = find(name);
    return MatrixView(options_, *tensor, tensor->bytes.data());
  };
  if (options_.operation == Operation::batchnorm_train) {
    out.moments = moments_of_channels(view("x"), rows_, cols_, options_.eps);
    return;
  }
  if (options_.operation == Operation::batchnorm_inference || options_.operation == Operation::batchnorm_backward) {
    const bool backward = options_.operation == Operation::batchnorm_backward;
    const std::vector<double> mean = load_vector(backward ? "save_mean" : "running_mean", 0);
    const std::vector<double> spread = load_vector(backward ? "save_invstd" : "running_var", 1);
    out.moments.resize(cols_);
    for (int64_t j = 0; j < cols_; ++j) {
      out.moments[j].mean = mean[j];
      out.moments[j].rstd = backward ? spread[j] : 1 / std::sqrt(spread[j] + options_.eps);
      out.moments[j].variance = backward ? 1 / (spread[j] * spread[j]) - options_.eps : spread[j];
    }
    if (!backward) return;
  }
  const bool row_statistics = !is_batchnorm(options_.operation);
  const auto view_at = [&](int index) { return MatrixView(options_, *tensors_[index], tensors_[index]->bytes.data()); };
  const MatrixView x = view_at(part.at.x);
  const MatrixView dy = view_at(part.at.dy);
  const std::vector<double> sums =
      sum_columns(part.rows, cols_, 4, [&](int64_t row, int64_t first_col, int64_t count, double* sum) {
        thread_local std::vector<double> x_row, dy_row;
        x_row.resize(count);
        dy_row.resize(count);
        x.load(row, first_col, count, x_row.data());
        dy.load(row, first_col, count, dy_row.data());
        const double row_mean = row_statistics ? given_statistic(part.at.mean, part.first_row + row, 0) : 0;
        const double row_rstd = row_statistics ? given_statistic(part.at.rstd, part.first_row + row, 1) : 1;
        for (int64_t j = 0; j < count; ++j) {
          const Moments* channel = row_statistics ? nullptr : &out.moments[first_col + j];
          const double xhat =
              row_statistics ? (x_row[j] - row_mean) * row_rstd : (x_row[j] - channel->mean) * channel->rstd;
          sum[j] += dy_row[j];
          sum[count + j] += std::fabs(dy_row[j]);
          sum[2 * count + j] += dy_row[j] * xhat;
          sum[3 * count + j] += std::fabs(dy_row[j] * xhat);
        }
      });
  const auto sum_of_term = [&](int term) {
    return std::vector<double>(sums.begin() + term * cols_, sums.begin() + (term + 1) * cols_);
  };
  out.dy = sum_of_term(0);
  out.dy_abs = sum_of_term(1);
  out.dyx = sum_of_term(2);
  out.dyx_abs = sum_of_term(3);
}

Expected Reference::expect_columns(size_t tensor, Summation summation) const {
  const std::string_view name = tensors_[tensor]->spec.name;
  const Part& part = part_with(name);
  const Columns& sums = columns(part);
  const double roundings = sum_roundings(part.rows, summation);
  Expected expected{std::vector<double>(cols_), std::vector<double>(cols_)};
  const double momentum = options_.momentum;
  const double unbiased = static_cast<double>(rows_) / static_cast<double>(rows_ - 1);
  const std::vector<double> old = load_vector(name, not_a_number);
  for (int64_t j = 0; j < cols_; ++j) {
    double& want = expected.want[j];
    double& slack = expected.slack[j];
    if (name == "dbeta") {
      want = sums.dy[j];
      slack = (roundings + 4) * u * sums.dy_abs[j];
    } else if (name.ends_with("gamma")) {
      want = sums.dyx[j];
      slack = (roundings + 4) * u * sums.dyx_abs[j];
    } else {
      const Moments& moments = sums.moments[j];
      const StatisticSlack granted = slack_of(moments, roundings, true);
      if (name == "save_mean") {
        want = moments.mean;
        slack = granted.mean;
      } else if (name == "save_invstd") {
        want = moments.rstd;
        slack = granted.rstd * moments.rstd;
      } else if (name == "running_mean") {
        want = old[j] + momentum * (moments.mean - old[j]);
        slack = momentum * granted.mean + 2 * u * (std::fabs(old[j]) + momentum * std::fabs(moments.mean));
      } else {  // running_var
        want = old[j] + momentum * (moments.variance * unbiased - old[j]);
        slack = momentum * unbiased * ((roundings + 4) * u * moments.variance + granted.mean * granted.mean) +
                2 * u * std::fabs(old[j]);
      }
    }
  }
  return expected;
}

void Reference::load_normalized_row(int64_t row, Row& out) const {
  const Indices& at = part_of(row).at;
  load_row(at.x, row, out.x);
  if (at.residual >= 0) {
    load_row(at.residual, row, out.dh);
    for (int64_t j = 0; j < cols_; ++j) out.x[j] = static_cast<float>(out.x[j]) + static_cast<float>(out.dh[j]);
    round_to(options_.dtype, cols_, out.x.data());
  }
  if (is_row_backward(options_.operation)) {
    out.moments = {};
    out.moments.mean = given_statistic(at.mean, row, 0);
    out.moments.rstd = given_statistic(at.rstd, row, 1);
    out.moments.variance = 1 / (out.moments.rstd * out.moments.rstd) - options_.eps;
  } else if (!is_batchnorm(options_.operation)) {
    out.moments = moments_of_row(out.x, subtracts_mean(options_.operation), options_.eps);
  }
}

void Reference::expect_row(int64_t row, Summation summation, Row& out) const {
  out.outputs.resize(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const HostTensor& tensor = *tensors_[i];
    const bool is_there = row >= tensor.first_row && row < tensor.first_row + tensor.rows;
    const bool expected = tensor.present && (is_there || parts_.size() == 1) && tensor.spec.role != Role::input &&
                          tensor.spec.extent != Extent::per_col;
    const int64_t count = !expected ? 0 : tensor.spec.extent == Extent::matrix ? cols_ : tensor.cols;
    out.outputs[i].want.resize(count);
    out.outputs[i].slack.resize(count);
  }
  load_normalized_row(row, out);
  if (is_batchnorm(options_.operation)) {
    expect_batchnorm(row, summation, out);
  } else if (is_row_backward(options_.operation)) {
    expect_backward(row, summation, out);
  } else {
    expect_forward(row, summation, out);
  }
}

void Reference::expect_forward(int64_t row, Summation summation, Row& out) const {
  const Part& part = part_of(row);
  const bool with_mean = subtracts_mean(options_.operation);
  const double roundings = sum_roundings(cols_, summation);
  const Moments& moments = out.moments;
  const StatisticSlack granted = slack_of(moments, roundings, with_mean);
  if (part.at.h >= 0) {
    out.outputs[part.at.h].want = out.x;
    std::fill(out.outputs[part.at.h].slack.begin(), out.outputs[part.at.h].slack.end(), 0.0);
  }
  if (part.at.mean >= 0) {
    out.outputs[part.at.mean].want[0] = moments.mean;
    out.outputs[part.at.mean].slack[0] = granted.mean;
  }
  if (part.at.rstd >= 0) {
    out.outputs[part.at.rstd].want[0] = moments.rstd;
    out.outputs[part.at.rstd].slack[0] = granted.rstd * moments.rstd;
  }
  Expected& y = out.outputs[part.at.y];
  const double mean_slack = granted.mean * moments.rstd;
  for (int64_t j = 0; j < cols_; ++j) {
    const double xhat = (out.x[j] - moments.mean) * moments.rstd;
    y.want[j] = xhat;
    y.slack[j] = mean_slack + std::fabs(xhat) * (granted.rstd + 2 * u);
  }
  if (options_.round_before_gamma && options_.dtype != Dtype::fp32) {
    round_to(options_.dtype, cols_, y.want.data());
    const double ulp_of_one = std::ldexp(1.0, 1 - digits_of(options_.dtype));
    // Close to a tie it may be rounded the other way.
    for (int64_t j = 0; j < cols_; ++j) y.slack[j] += std::fabs(y.want[j]) * ulp_of_one;
  }
  for (int64_t j = 0; j < cols_; ++j) {
    y.want[j] = y.want[j] * part.gamma[j] + part.beta[j];
    y.slack[j] = std::fabs(part.gamma[j]) * y.slack[j] + 2 * u * std::fabs(part.beta[j]);
  }
  if (is_quantized(options_.operation)) quantize(out);
}

// y becomes y / scale, of the whole row or of each block of it.
void Reference::quantize(Row& out) const {
  const double largest = largest_of(options_.format == ByteFormat::e4m3 ? Dtype::e4m3 : Dtype::int8);
  const int64_t length = options_.scaling == Scaling::block ? columns_of_block : cols_;
  const Indices& at = parts_.front().at;  // there is no k
  Expected& y = out.outputs[at.y];
  out.scale_of.resize(cols_);
  for (int64_t first = 0; first < cols_; first += length) {
    const int64_t last = std::min(cols_, first + length);
    double scale = 0, relative_slack = 0;
    if (options_.scaling == Scaling::tensor) {
      scale = given_statistic(at.scale, 0, 1);
    } else {
      double most = 0, highest = 0, lowest = 0;  // what the largest |y| is, and what it may be
      bool any_nan = false;
      for (int64_t j = first; j < last; ++j) {
        const double magnitude = std::fabs(y.want[j]);
        any_nan |= std::isnan(magnitude);
        most = std::max(most, magnitude);
        highest = std::max(highest, magnitude + y.slack[j]);
        lowest = std::max(lowest, magnitude - y.slack[j]);
      }
      scale = any_nan ? not_a_number : std::max(most / largest, 0x1p-126);
      const double slack = std::max(highest - most, most - lowest) / largest + 2 * u * scale;
      relative_slack = slack / scale;
      out.outputs[at.scales].want[first / length] = scale;
      out.outputs[at.scales].slack[first / length] = slack;
    }
    for (int64_t j = first; j < last; ++j) {
      out.scale_of[j] = scale;
      y.want[j] /= scale;
      y.slack[j] = (y.slack[j] + 0x1p-149) / scale + std::fabs(y.want[j]) * (relative_slack + 3 * u);
    }
  }
}

void Reference::expect_backward(int64_t row, Summation summation, Row& out) const {
  const Part& part = part_of(row);
  if (part.at.dx < 0) return;
  load_row(part.at.dy, row, out.dy);
  load_row(part.at.dh, row, out.dh);
  const bool with_mean = subtracts_mean(options_.operation);
  const double n = static_cast<double>(cols_);
  const double roundings = sum_roundings(cols_, summation) + 4;
  const Moments& moments = out.moments;
  const auto xhat = [&](int64_t j) { return (out.x[j] - moments.mean) * moments.rstd; };
  const auto wdy = [&](int64_t j) { return out.dy[j] * part.gamma[j]; };
  const double mean_wdy = with_mean ? sum_of(cols_, wdy) / n : 0;
  const double mean_abs = with_mean ? sum_of(cols_, [&](int64_t j) { return std::fabs(wdy(j)); }) / n : 0;
  const double mean_wdyx = sum_of(cols_, [&](int64_t j) { return wdy(j) * xhat(j); }) / n;
  const double mean_absx = sum_of(cols_, [&](int64_t j) { return std::fabs(wdy(j) * xhat(j)); }) / n;
  Expected& dx = out.outputs[part.at.dx];
  for (int64_t j = 0; j < cols_; ++j) {
    const double dh = out.dh.empty() ? 0 : out.dh[j];
    dx.want[j] = moments.rstd * (wdy(j) - xhat(j) * mean_wdyx - mean_wdy) + dh;
    dx.slack[j] = moments.rstd * u * (4 * std::fabs(wdy(j)) + roundings * (mean_abs + std::fabs(xhat(j)) * mean_absx)) +
                  2 * u * std::fabs(dh);
  }
}

void Reference::expect_batchnorm(int64_t row, Summation summation, Row& out) const {
  const Part& part = parts_.front();
  const Columns& sums = columns(part);
  const double n = static_cast<double>(rows_);
  const double roundings = sum_roundings(rows_, summation);
  if (options_.operation == Operation::batchnorm_backward) {
    if (part.at.dx < 0) return;
    load_row(part.at.dy, row, out.dy);
    Expected& dx = out.outputs[part.at.dx];
    for (int64_t j = 0; j < cols_; ++j) {
      const Moments& moments = sums.moments[j];
      const double xhat = (out.x[j] - moments.mean) * moments.rstd;
      const double scale = part.gamma[j] * moments.rstd;
      dx.want[j] = scale * (out.dy[j] - sums.dy[j] / n - xhat * sums.dyx[j] / n);
      dx.slack[j] =
          std::fabs(scale) * u *
          (4 * std::fabs(out.dy[j]) + (roundings + 4) * (sums.dy_abs[j] / n + std::fabs(xhat) * sums.dyx_abs[j] / n));
    }
    return;
  }
  const bool train = options_.operation == Operation::batchnorm_train;
  Expected& y = out.outputs[part.at.y];
  for (int64_t j = 0; j < cols_; ++j) {
    const Moments& moments = sums.moments[j];
    const double xhat = (out.x[j] - moments.mean) * moments.rstd;
    const double gamma = std::fabs(part.gamma[j]);
    y.want[j] = xhat * part.gamma[j] + part.beta[j];
    if (train) {
      const StatisticSlack granted = slack_of(moments, roundings, true);
      y.slack[j] = gamma * (granted.mean * moments.rstd + std::fabs(xhat) * (granted.rstd + 2 * u));
    } else {
      y.slack[j] = 4 * u * gamma * (std::fabs(out.x[j]) + std::fabs(moments.mean)) * moments.rstd;
    }
    y.slack[j] += 2 * u * std::fabs(part.beta[j]);
  }
}

double Reference::rms_of(size_t tensor) const {
  const std::lock_guard lock(rms_mutex_);
  double& rms = rms_[tensor];
  if (rms >= 0) return rms;
  if (tensors_[tensor]->spec.extent == Extent::per_col) {
    return rms = rms_over(expect_columns(tensor, Summation::any_order).want);
  }
  const HostTensor& of = *tensors_[tensor];
  const int64_t rows = parts_.size() == 1 ? rows_ : of.rows;
  const int64_t grain = rows_per_task(rows, cols_);
  const bool is_mean = tensors_[tensor]->spec.name == "mean";
  std::vector<double> squares((rows + grain - 1) / grain), finite(squares.size());
  parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
    thread_local Row scratch;
    for (int64_t row = begin; row < end; ++row) {
      load_normalized_row(of.first_row + row, scratch);
      const double value = is_mean ? scratch.moments.mean : scratch.moments.rstd;
      if (!std::isfinite(value)) continue;
      squares[begin / grain] += value * value;
      finite[begin / grain] += 1;
    }
  });
  double total = 0;
  double count = 0;
  for (size_t i = 0; i < squares.size(); ++i) {
    total += squares[i];
    count += finite[i];
  }
  return rms = count == 0 ? 0 : std::sqrt(total / count);
}

void fill_saved_statistics(const ProblemOptions& options, std::vector<HostTensor>& tensors) {
  const auto find = [&](std::string_view name) -> HostTensor* {
    for (HostTensor& tensor : tensors) {
      if (tensor.spec.name == name) return &tensor;
    }
    return nullptr;
  };
  const int64_t rows = logical_rows(options);
  const auto store = [](HostTensor* tensor, int64_t index, double value) {
    const float rounded = static_cast<float>(value);
    if (tensor) store_elements(Dtype::fp32, &rounded, 1, 1, tensor->bytes.data() + index * 4);
  };
  if (options.operation == Operation::batchnorm_backward) {
    if (rows == 0) return;
    const HostTensor& x = *find("x");
    const std::vector<Moments> moments =
        moments_of_channels(MatrixView(options, x, x.bytes.data()), rows, options.cols, options.eps);
    for (int64_t j = 0; j < options.cols; ++j) {
      store(find("save_mean"), j, moments[j].mean);
      store(find("save_invstd"), j, moments[j].rstd);
    }
    return;
  }
  if (!is_row_backward(options.operation)) return;
  const auto fill = [&](const HostTensor& x, HostTensor* mean, HostTensor* rstd) {
    const MatrixView view(options, x, x.bytes.data());
    parallel_for(x.rows, rows_per_task(x.rows, options.cols), [&](int64_t begin, int64_t end) {
      std::vector<double> values(options.cols);
      for (int64_t row = begin; row < end; ++row) {
        view.load(row, 0, options.cols, values.data());
        const Moments moments = moments_of_row(values, subtracts_mean(options.operation), options.eps);
        store(mean, row, moments.mean);
        store(rstd, row, moments.rstd);
      }
    });
  };
  if (!is_of_heads(options.operation)) return fill(*find("x"), find("mean"), find("rstd"));
  fill(*find("q"), nullptr, find("q_rstd"));
  if (options.k_heads > 0) fill(*find("k"), nullptr, find("k_rstd"));
}

}  // namespace worklog
