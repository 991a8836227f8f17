#include "common/harness/problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <new>
#include <stdexcept>

#include "common/harness/compare.h"
#include "common/harness/inputs.h"
#include "common/harness/parallel.h"
#include "common/harness/reference.h"

namespace worklog {
namespace {

int64_t stored_rows(const ProblemOptions& options) {
  if (!is_batchnorm(options.operation)) return options.rows;
  const bool runs = options.layout == ChannelLayout::channels_first && options.pixels > 1;
  return options.rows * (runs ? options.cols : options.pixels);
}

int64_t stored_cols(const ProblemOptions& options) {
  const bool runs = options.layout == ChannelLayout::channels_first && options.pixels > 1;
  return is_batchnorm(options.operation) && runs ? options.pixels : options.cols;
}

// The rows of a problem: of q and of k together.
int64_t rows_of(const ProblemOptions& options) {
  return is_of_heads(options.operation) ? options.rows * (options.q_heads + options.k_heads) : options.rows;
}

// How a message names the shape's arguments.
std::string shape_of(const ProblemOptions& options) {
  std::string text = fmt::format("rows x cols = {} x {}", options.rows, options.cols);
  if (options.pixels > 1) text += fmt::format(" with {} pixels", options.pixels);
  if (is_of_heads(options.operation)) text += fmt::format(" with {} + {} heads", options.q_heads, options.k_heads);
  return text;
}

void check_range(std::string_view name, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most) {
    throw std::invalid_argument(fmt::format("{} must be from {} to {}; it is {}", name, least, most, value));
  }
}

void check_absent(const ProblemOptions& options) {
  for (const std::string& name : options.absent) {
    std::string allowed;
    bool found = false;
    for (const TensorSpec& spec : tensors_of(options.operation)) {
      if (!spec.optional) continue;
      found = found || spec.name == name;
      allowed += fmt::format("{}{}", allowed.empty() ? "" : ", ", spec.name);
    }
    if (!found) {
      throw std::invalid_argument(fmt::format("'{}' is no optional tensor of {}; these are: {}", name,
                                              name_of(options.operation), allowed.empty() ? "none" : allowed));
    }
  }
}

// The number after `key` in a file of "key number ..." lines; 0 where there is none.
int64_t number_after(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string name, rest; file >> name; std::getline(file, rest)) {
    int64_t number = 0;
    if (name == key && file >> number) return number;
  }
  return 0;
}

Dtype dtype_of_spec(const ProblemOptions& options, Precision precision) {
  switch (precision) {
    case Precision::element:
      return options.dtype;
    case Precision::parameter:
      return options.param_dtype;
    case Precision::byte:
      return options.format == ByteFormat::e4m3 ? Dtype::e4m3 : Dtype::int8;
    case Precision::statistic:
      break;
  }
  return Dtype::fp32;
}

// A tensor of q's or k's heads: one row to each head of each token.
void shape_heads(const ProblemOptions& options, HostTensor& tensor) {
  const bool is_k = is_of_k(tensor.spec.name);
  const int64_t heads = is_k ? options.k_heads : options.q_heads;
  tensor.present = tensor.present && heads > 0;
  if (tensor.spec.extent == Extent::per_col) return;
  tensor.rows = options.rows * heads;
  tensor.first_row = is_k ? options.rows * options.q_heads : 0;
  if (tensor.spec.extent != Extent::matrix) return;
  tensor.heads = std::max<int64_t>(heads, 1);
  tensor.head_stride = tensor.stride;
  const bool is_packed = options.packed_results && tensor.spec.role == Role::output;
  const int64_t of_projection = options.q_heads + 2 * (options.k_heads > 0 ? options.k_heads : options.q_heads);
  tensor.stride *= is_packed ? tensor.heads : of_projection;
}

// There may be gaps between its rows.
bool has_stride(const TensorSpec& spec) {
  return spec.extent == Extent::matrix || spec.extent == Extent::scales;
}

HostTensor shape_tensor(const ProblemOptions& options, const TensorSpec& spec) {
  HostTensor tensor;
  tensor.spec = spec;
  tensor.dtype = dtype_of_spec(options, spec.precision);
  const bool of_rows = spec.extent == Extent::per_row || spec.extent == Extent::scales;
  tensor.rows = spec.extent == Extent::matrix ? stored_rows(options) : of_rows ? options.rows : 1;
  tensor.cols = spec.extent == Extent::matrix    ? stored_cols(options)
                : spec.extent == Extent::per_col ? options.cols
                : spec.extent == Extent::scales  ? scales_of_row(options.scaling, options.cols)
                                                 : 1;
  tensor.stride = tensor.cols + (has_stride(spec) ? options.row_padding : 0);
  tensor.present = std::find(options.absent.begin(), options.absent.end(), spec.name) == options.absent.end();
  if (is_of_heads(options.operation)) shape_heads(options, tensor);
  // The scale that is given, or the scales that are made.
  if (spec.extent == Extent::single) tensor.present = options.scaling == Scaling::tensor;
  if (spec.extent == Extent::scales) tensor.present = options.scaling != Scaling::tensor;
  return tensor;
}

// Refuses what this machine cannot hold.
void check_memory(const ProblemOptions& options) {
  const double needed = memory_needed(options);
  const double available = available_memory();
  if (needed > available) {
    constexpr double gib = 1024.0 * 1024 * 1024;
    throw std::invalid_argument(fmt::format("{} in {} needs {:.1f} GiB of memory, this machine has {:.1f} GiB free",
                                            shape_of(options), name_of(options.dtype), needed / gib, available / gib));
  }
}

// Fills [first, first + count) elements with the poison pattern.
void poison(HostTensor& tensor, int64_t first, int64_t count) {
  const uint32_t pattern = poison_pattern(tensor.dtype);
  const int64_t size = static_cast<int64_t>(size_of(tensor.dtype));
  std::byte* data = tensor.bytes.data() + first * size;
  for (int64_t i = 0; i < count; ++i) store_bits(tensor.dtype, pattern, data + i * size);
}

void poison_rows(HostTensor& tensor, int64_t first_col) {
  if (tensor.heads > 1) return poison(tensor, 0, tensor.count());  // the rows, where they hold values, are filled next
  parallel_for(tensor.rows, rows_per_task(tensor.rows, tensor.stride), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t last = row == tensor.rows - 1 ? tensor.cols : tensor.stride;  // no padding after the last row
      poison(tensor, row * tensor.stride + first_col, last - first_col);
    }
  });
}

// Elements of the tensor without padding.
int64_t elements_of(const HostTensor& tensor) {
  return tensor.rows * tensor.cols;
}

// The name by which a tensor's values are made: q and k are x, of different rows.
std::string_view stream_of(const ProblemOptions& options, std::string_view tensor) {
  if (!is_of_heads(options.operation)) return tensor;
  if (tensor.ends_with("gamma")) return is_of_k(tensor) ? "k_gamma" : "gamma";
  return tensor.starts_with("d") ? "dy" : "x";
}

void fill_input(const ProblemOptions& options, HostTensor& tensor) {
  const bool vector = tensor.spec.extent != Extent::matrix;
  const bool batchnorm = is_batchnorm(options.operation);
  const int64_t rows = batchnorm ? options.rows * options.pixels : tensor.rows;
  const int64_t all_rows = batchnorm ? rows : rows_of(options);
  const InputStream stream{
      stream_of(options, tensor.spec.name), options.input, options.dtype, options.seed, all_rows, options.cols};
  if (vector) {
    std::vector<float> values(tensor.cols);
    generate_row(stream, 0, tensor.cols, values.data());
    store_elements(tensor.dtype, values.data(), tensor.cols, 1, tensor.bytes.data());
    return;
  }
  if (tensor.stride > tensor.cols) poison_rows(tensor, tensor.cols);
  const MatrixView view(options, tensor, tensor.bytes.data());
  parallel_for(rows, rows_per_task(rows, options.cols), [&](int64_t begin, int64_t end) {
    std::vector<float> values(options.cols);
    for (int64_t row = begin; row < end; ++row) {
      generate_row(stream, tensor.first_row + row, options.cols, values.data());
      store_elements(tensor.dtype, values.data(), options.cols, view.col_stride(),
                     const_cast<std::byte*>(view.element(row, 0)));
    }
  });
}

// The statistics that a backward pass is given: filled from x once x is there.
bool is_saved_statistic(const TensorSpec& spec) {
  return spec.role == Role::input && spec.precision == Precision::statistic && !spec.name.starts_with("running_") &&
         spec.extent != Extent::single;
}

}  // namespace

std::string_view name_of(Input input) {
  switch (input) {
    case Input::normal:
      return "normal";
    case Input::uniform:
      return "uniform";
    case Input::arange:
      return "arange";
    case Input::large_mean:
      return "large_mean";
    case Input::constant:
      return "constant";
    case Input::tiny_variance:
      return "tiny_variance";
    case Input::outlier_channels:
      return "outlier_channels";
    case Input::huge:
      return "huge";
    case Input::nan_row:
      break;
  }
  return "nan_row";
}

std::string_view name_of(ByteFormat format) {
  return format == ByteFormat::e4m3 ? "e4m3" : "int8";
}
std::string_view name_of(Scaling scaling) {
  return scaling == Scaling::row ? "row" : scaling == Scaling::block ? "block" : "tensor";
}

std::string operation_name(const ProblemOptions& options) {
  std::string name(name_of(options.operation));
  if (!is_quantized(options.operation)) return name;
  name.resize(name.rfind('_') + 1);
  return name + fmt::format("{}_{}", name_of(options.format), name_of(options.scaling));
}

std::vector<Input> all_inputs() {
  return {Input::normal,        Input::uniform,          Input::arange, Input::large_mean, Input::constant,
          Input::tiny_variance, Input::outlier_channels, Input::huge,   Input::nan_row};
}

int64_t HostTensor::count() const {
  return rows == 0 ? 0 : start_of(rows - 1) + cols;
}

std::vector<HostTensor> shape_tensors(const ProblemOptions& options) {
  std::vector<HostTensor> tensors;
  int64_t before = 0;
  for (const TensorSpec& spec : tensors_of(options.operation)) {
    HostTensor& tensor = tensors.emplace_back(shape_tensor(options, spec));
    tensor.more = options.uneven_by * (options.uneven == "all" ? before : options.uneven == spec.name ? 1 : 0);
    // The matrices of BatchNorm have no gaps.
    if (has_stride(spec) && !is_batchnorm(options.operation)) tensor.stride += tensor.more;
    if (tensor.head_stride > 0) tensor.head_stride += tensor.more, tensor.stride += (tensor.heads - 1) * tensor.more;
    ++before;
  }
  return tensors;
}

std::string place_of(const HostTensor& tensor, int64_t at) {
  const int64_t row = at / tensor.stride, col = at % tensor.stride;
  if (tensor.heads == 1) return fmt::format("row {}, column {}", row, col);
  return fmt::format("token {}, head {}, column {}", row, col / tensor.head_stride, col % tensor.head_stride);
}

uint32_t poison_pattern(Dtype dtype) {
  switch (dtype) {
    case Dtype::fp16:
      return 0x7d5a;
    case Dtype::bf16:
      return 0x7fa5;
    case Dtype::e4m3:  // a NaN, and not the one that a conversion yields
      return 0xff;
    case Dtype::int8:
      return 0x80;
    case Dtype::fp32:
      break;
  }
  return 0x7fa5a5a5;
}

double memory_needed(const ProblemOptions& options) {
  double needed = 0;  // a product of three arguments may not fit 64 bits
  for (const HostTensor& tensor : shape_tensors(options)) {
    if (!tensor.present) continue;
    const double bytes = static_cast<double>(tensor.rows) / tensor.heads * tensor.stride * size_of(tensor.dtype);
    needed += tensor.spec.role == Role::input ? bytes : 2 * bytes;
  }
  return needed;
}

// What Linux says is available, and what is left of the control group, whose file cache is given up on demand.
double available_memory() {
  double available = std::numeric_limits<double>::infinity();
  if (const int64_t kib = number_after("/proc/meminfo", "MemAvailable:"); kib > 0) available = 1024.0 * kib;
  int64_t limit = 0;
  int64_t used = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit && std::ifstream("/sys/fs/cgroup/memory.current") >> used) {
    used -= number_after("/sys/fs/cgroup/memory.stat", "file");
    available = std::min(available, static_cast<double>(limit - used));
  }
  return available;
}

void check_arguments(const ProblemOptions& options) {
  check_range("rows", options.rows, 0, max_rows);
  check_range("cols", options.cols, 1, max_cols);
  check_range("pixels", options.pixels, 1, max_rows);
  check_range("row_padding", options.row_padding, 0, max_cols);
  if (!std::isfinite(options.eps) || options.eps < 0) {
    throw std::invalid_argument(fmt::format("eps must be a finite number, 0 or more; it is {}", options.eps));
  }
  if (!(options.momentum >= 0 && options.momentum <= 1)) {
    throw std::invalid_argument(fmt::format("momentum must be from 0 to 1; it is {}", options.momentum));
  }
  if (options.gamma_offset != 0.0f && (options.gamma_offset != 1.0f || is_batchnorm(options.operation))) {
    throw std::invalid_argument(
        fmt::format("gamma_offset must be 0 or, of a norm over rows, 1; it is {}", options.gamma_offset));
  }
  check_absent(options);
  if (is_of_heads(options.operation)) {
    check_range("q_heads", options.q_heads, 1, max_heads);
    check_range("k_heads", options.k_heads, 0, max_heads);
  }
  if (!is_batchnorm(options.operation)) {
    if (options.pixels != 1) {
      throw std::invalid_argument(
          fmt::format("pixels must be 1 for {}; it is {}", name_of(options.operation), options.pixels));
    }
    return;
  }
  if (options.row_padding != 0) {
    throw std::invalid_argument(
        fmt::format("row_padding must be 0 for {}; it is {}", name_of(options.operation), options.row_padding));
  }
  if (options.operation == Operation::batchnorm_train && options.rows * options.pixels == 1) {
    throw std::invalid_argument(
        "rows must be 0 or at least 2 for batchnorm_train with one pixel: one value per channel has no variance");
  }
}

void check_options(const ProblemOptions& options) {
  check_arguments(options);
  check_memory(options);
}

Problem::Problem(const ProblemOptions& options) : options_(options) {
  check_arguments(options);
  tensors_ = shape_tensors(options);
  check_memory(options);
  try {
    for (HostTensor& tensor : tensors_) {
      if (!tensor.present) continue;
      tensor.bytes.resize(tensor.count() * size_of(tensor.dtype));
      if (tensor.spec.role == Role::output) {
        poison_rows(tensor, 0);
      } else if (is_saved_statistic(tensor.spec)) {
        std::fill(tensor.bytes.begin(), tensor.bytes.end(), std::byte{0});  // and so they stay where there are no rows
      } else if (tensor.rows > 0) {
        fill_input(options, tensor);
      }
    }
    fill_saved_statistics(options, tensors_);
    reference_ = std::make_unique<Reference>(options_, tensors_);
  } catch (const std::bad_alloc&) {
    throw std::invalid_argument(
        fmt::format("{} in {} does not fit the memory of this machine", shape_of(options), name_of(options.dtype)));
  }
}

Problem::~Problem() = default;
Problem::Problem(Problem&&) noexcept = default;

int64_t Problem::bytes_read() const {
  int64_t bytes = 0;
  for (const HostTensor& tensor : tensors_) {
    if (tensor.present && tensor.spec.role != Role::output) bytes += elements_of(tensor) * size_of(tensor.dtype);
  }
  return bytes;
}

int64_t Problem::bytes_written() const {
  int64_t bytes = 0;
  for (const HostTensor& tensor : tensors_) {
    if (tensor.present && tensor.spec.role != Role::input) bytes += elements_of(tensor) * size_of(tensor.dtype);
  }
  return bytes;
}

Comparison Problem::compare(const std::vector<HostTensor>& results, const ComparisonOptions& options) const {
  return compare_results(*reference_, tensors_, results, options);
}

}  // namespace worklog
