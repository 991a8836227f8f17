#include "common/harness/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <stdexcept>

#include "common/harness/diagnosis.h"
#include "common/harness/parallel.h"

namespace worklog {
namespace {

constexpr size_t kept_mismatches = 6;
constexpr size_t kept_rows = 8;  // of one task, for the search for a cause
constexpr double infinity = std::numeric_limits<double>::infinity();

// Takes the elements of one output, row by row.
class Examiner {
 public:
  // Columns that hold a difference are marked in bad_cols, which other threads may mark as well.
  Examiner(Findings& findings, std::vector<uint8_t>& bad_cols, const HostTensor& tensor,
           const ComparisonOptions& options)
      : findings_(findings),
        bad_cols_(bad_cols),
        name_(tensor.spec.name),
        dtype_(tensor.dtype),
        // Scales have no tolerance but what is lost on the way to them.
        tolerance_(tensor.spec.extent == Extent::scales ? Tolerance{0, 0} : tolerance_of(tensor.dtype)),
        max_ulp_(tensor.spec.extent == Extent::matrix ? options.max_ulp : infinity) {}

  // One row (or a whole vector over columns): `got` beside what is expected. The unit of the errors is that of
  // max(|want|, rms). bits(col) gives an element's bits.
  template <class Bits>
  void examine(int64_t row, const std::vector<double>& got, const Expected& expected, double rms, const Bits& bits) {
    const int64_t count = static_cast<int64_t>(got.size());
    const double row_unit = ulp_at(dtype_, rms > 0 ? rms : 1);  // a row of zeros has no scale: that of a norm's output
    const int64_t before = findings_.differing;
    findings_.compared += count;
    if (size_of(dtype_) == 1) {
      for (int64_t col = 0; col < count; ++col) {
        examine_byte(row, col, got[col], expected.want[col], expected.slack[col], bits(col));
      }
    }
    for (int64_t first = 0; first < count && size_of(dtype_) > 1; first += block) {
      const int64_t last = std::min(count, first + block);
      if (all_within(got, expected, row_unit, first, last)) continue;
      for (int64_t col = first; col < last; ++col) {
        const double want = expected.want[col];
        const double unit = std::max(ulp_at(dtype_, std::fabs(want)), row_unit);
        examine_closely(row, col, got[col], want, allowance(want, expected.slack[col], unit), unit, bits(col));
      }
    }
    if (findings_.differing > before) {
      if (findings_.differing_rows++ == 0) findings_.first_row = row;
      findings_.last_row = row;
      if (findings_.sample_rows.size() < kept_rows) findings_.sample_rows.push_back(row);
    }
  }

 private:
  static constexpr int64_t block = 256;

  // Whether all columns in [first, last) are finite and within what is allowed; the largest errors are kept if so. Each
  // element is looked at, without a branch for it, so that the loop takes several at once. False for every NaN and
  // infinity, also in what is wanted: those take the slow way.
  bool all_within(const std::vector<double>& got, const Expected& expected, double row_unit, int64_t first,
                  int64_t last) {
    double errors[block], ulp_errors[block];
    int64_t outside = 0;
    for (int64_t col = first; col < last; ++col) {
      const double want = expected.want[col];
      const double error = std::fabs(got[col] - want);
      const double unit = std::max(ulp_at(dtype_, std::fabs(want)), row_unit);
      outside += !((error <= allowance(want, expected.slack[col], unit)) & (std::fabs(want) <= largest_));
      errors[col - first] = error;
      ulp_errors[col - first] = error / unit;
    }
    if (outside > 0) return false;
    findings_.max_abs_error = std::max(findings_.max_abs_error, largest_among(errors, last - first));
    findings_.max_ulp_error = std::max(findings_.max_ulp_error, largest_among(ulp_errors, last - first));
    return true;
  }

  // `want` is not yet rounded: what came out must be what some value within the slack is rounded to.
  void examine_byte(int64_t row, int64_t col, double got, double want, double slack, uint32_t bits) {
    const bool poison = bits == poison_pattern(dtype_);
    double unit = 1;
    if (std::isnan(want)) {
      const bool same = dtype_ == Dtype::int8 ? got == 0 : std::isnan(got);
      if (same && !poison) return;
    } else {
      const double inside = std::clamp(want, dtype_ == Dtype::int8 ? -128.0 : -largest_, largest_);
      unit = ulp_at(dtype_, std::fabs(inside));
      const double error = std::isnan(got) ? infinity : std::fabs(got - inside);
      findings_.max_abs_error = std::max(findings_.max_abs_error, error);
      findings_.max_ulp_error = std::max(findings_.max_ulp_error, error / unit);
      if (got >= round_to_byte(dtype_, want - slack) && got <= round_to_byte(dtype_, want + slack)) return;
    }
    note_difference(row, col, got, want, unit / 2 + slack, poison);
  }

  static double largest_among(const double* values, int64_t count) {
    double largest[4] = {};
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) {
      for (int lane = 0; lane < 4; ++lane) largest[lane] = std::max(largest[lane], values[i + lane]);
    }
    for (; i < count; ++i) largest[0] = std::max(largest[0], values[i]);
    return std::max(std::max(largest[0], largest[1]), std::max(largest[2], largest[3]));
  }

  double allowance(double want, double slack, double unit) const {
    return std::min(tolerance_.atol + tolerance_.rtol * std::fabs(want) + slack, max_ulp_ * unit);
  }

  void examine_closely(int64_t row, int64_t col, double got, double want, double allowed, double unit, uint32_t bits) {
    // A finite value past the type's range can only be stored as an infinity.
    if (std::isfinite(want) && overflows(dtype_, want)) want = std::copysign(infinity, want);
    const bool poison = bits == poison_pattern(dtype_);
    if (std::isfinite(want)) {
      const double error = std::isfinite(got) ? std::fabs(got - want) : infinity;
      findings_.max_abs_error = std::max(findings_.max_abs_error, error);
      findings_.max_ulp_error = std::max(findings_.max_ulp_error, error / unit);
      if (error <= allowed) return;
      if (!poison && std::isnan(got)) ++findings_.nan;
      if (std::isinf(got)) ++findings_.infinite;
    } else {
      const bool same = std::isnan(want) ? std::isnan(got) : got == want;
      if (same && !poison) return;
      if (std::isfinite(got)) ++findings_.lost_special;
    }
    note_difference(row, col, got, want, allowed, poison);
  }

  void note_difference(int64_t row, int64_t col, double got, double want, double allowed, bool poison) {
    if (poison) ++findings_.never_written;
    ++findings_.differing;
    std::atomic_ref(bad_cols_[col]).store(1, std::memory_order_relaxed);
    if (findings_.first.size() < kept_mismatches) {
      findings_.first.push_back({std::string(name_), row, col, got, want, allowed, poison});
    }
  }

  Findings& findings_;
  std::vector<uint8_t>& bad_cols_;
  std::string_view name_;
  Dtype dtype_;
  Tolerance tolerance_;
  double max_ulp_;
  double largest_ = largest_of(dtype_);
};

template <class T>
void append_up_to(std::vector<T>& to, const std::vector<T>& from, size_t most) {
  for (const T& value : from) {
    if (to.size() < most) to.push_back(value);
  }
}

// Adds the findings in later rows of the same output.
void merge(Findings& into, const Findings& later) {
  if (later.differing > 0) {
    if (into.differing == 0) into.first_row = later.first_row;
    into.last_row = later.last_row;
  }
  into.compared += later.compared;
  into.differing += later.differing;
  into.differing_rows += later.differing_rows;
  into.never_written += later.never_written;
  into.nan += later.nan;
  into.infinite += later.infinite;
  into.lost_special += later.lost_special;
  into.sample_rows.insert(into.sample_rows.end(), later.sample_rows.begin(), later.sample_rows.end());
  append_up_to(into.first, later.first, kept_mismatches);
  into.max_abs_error = std::max(into.max_abs_error, later.max_abs_error);
  into.max_ulp_error = std::max(into.max_ulp_error, later.max_ulp_error);
}

double rms_of_finite(const std::vector<double>& values) {
  double squares = 0;
  int64_t finite = 0;
  for (const double value : values) {
    const bool counts = std::fabs(value) <= std::numeric_limits<double>::max();
    squares += counts ? value * value : 0;
    finite += counts;
  }
  return finite == 0 ? 0 : std::sqrt(squares / static_cast<double>(finite));
}

Findings empty_findings(const Reference& reference, size_t tensor) {
  const Extent extent = reference.tensor(tensor).spec.extent;
  Findings findings;
  findings.tensor = tensor;
  findings.rows = extent == Extent::per_col ? 1 : reference.rows();
  findings.cols = extent == Extent::per_row  ? 1
                  : extent == Extent::scales ? reference.tensor(tensor).cols
                                             : reference.cols();
  return findings;
}

bool is_output(const HostTensor& tensor) {
  return tensor.present && tensor.spec.role != Role::input;
}

bool is_compared(const HostTensor& tensor, const ComparisonOptions& options) {
  return is_output(tensor) && (options.only.empty() || std::find(options.only.begin(), options.only.end(),
                                                                 tensor.spec.name) != options.only.end());
}

// y was rounded to the operation's type before it was quantized, and so was the largest that a scale is made of. What
// is smaller than the type's normal numbers is rounded by as much as the smallest of them.
void allow_rounding(const ProblemOptions& options, const HostTensor& tensor, const std::vector<double>& scale_of,
                    Expected& expected) {
  const bool is_byte = tensor.spec.precision == Precision::byte;
  if (tensor.spec.extent != Extent::scales && !is_byte) return;
  const double relative = std::ldexp(1.0, -digits_of(options.dtype));
  const double absolute = ulp_at(options.dtype, 0.0) / 2;
  const double largest = largest_of(options.format == ByteFormat::e4m3 ? Dtype::e4m3 : Dtype::int8);
  for (size_t i = 0; i < expected.want.size(); ++i) {
    const double magnitude = std::fabs(expected.want[i]);
    if (is_byte) {
      expected.slack[i] += 2 * relative * magnitude + absolute / scale_of[i] * (1 + magnitude / largest);
    } else {
      expected.slack[i] += relative * magnitude + absolute / largest;
    }
  }
}

// The matrix and per-row outputs, a row at a time.
void examine_rows(const Reference& reference, const std::vector<HostTensor>& results, const ComparisonOptions& options,
                  std::vector<Findings>& findings) {
  std::vector<size_t> outputs;
  std::vector<double> vector_rms;
  for (size_t i = 0; i < results.size(); ++i) {
    const HostTensor& tensor = reference.tensor(i);
    if (!is_compared(tensor, options) || tensor.spec.extent == Extent::per_col) continue;
    outputs.push_back(i);
    vector_rms.push_back(tensor.spec.extent == Extent::per_row ? reference.rms_of(i) : 0);
  }
  if (outputs.empty()) return;
  const int64_t grain = rows_per_task(reference.rows(), reference.cols());
  const int64_t tasks = (reference.rows() + grain - 1) / grain;
  std::vector<std::vector<Findings>> of_task(tasks);
  parallel_for(reference.rows(), grain, [&](int64_t begin, int64_t end) {
    thread_local Reference::Row row_reference;
    thread_local std::vector<double> got;
    std::vector<Findings>& own = of_task[begin / grain];
    std::vector<Examiner> examiners;
    std::vector<MatrixView> views;
    for (const size_t output : outputs) own.push_back(empty_findings(reference, output));
    for (size_t k = 0; k < outputs.size(); ++k) {
      examiners.emplace_back(own[k], findings[outputs[k]].bad_cols, reference.tensor(outputs[k]), options);
      views.emplace_back(reference.options(), reference.tensor(outputs[k]), results[outputs[k]].bytes.data());
    }
    for (int64_t row = begin; row < end; ++row) {
      reference.expect_row(row, options.summation, row_reference);
      for (size_t k = 0; k < outputs.size(); ++k) {
        Expected& expected = row_reference.outputs[outputs[k]];
        const HostTensor& tensor = reference.tensor(outputs[k]);
        if (expected.want.empty()) continue;  // a row of k, and a tensor of q, or the other way round
        if (options.rounded_first) allow_rounding(reference.options(), tensor, row_reference.scale_of, expected);
        got.resize(expected.want.size());
        if (tensor.spec.extent != Extent::per_row) {
          const int64_t own_row = row - tensor.first_row;
          views[k].load(own_row, 0, static_cast<int64_t>(got.size()), got.data());
          examiners[k].examine(own_row, got, expected, rms_of_finite(expected.want),
                               [&](int64_t col) { return load_bits(tensor.dtype, views[k].element(own_row, col)); });
        } else {
          const std::byte* element =
              results[outputs[k]].bytes.data() + (row - tensor.first_row) * static_cast<int64_t>(size_of(tensor.dtype));
          load_elements(tensor.dtype, element, 1, 1, got.data());
          examiners[k].examine(row - tensor.first_row, got, expected, vector_rms[k],
                               [&](int64_t) { return load_bits(tensor.dtype, element); });
        }
      }
    }
  });
  for (const std::vector<Findings>& own : of_task) {
    for (size_t k = 0; k < own.size(); ++k) merge(findings[outputs[k]], own[k]);
  }
}

void examine_vector(const Reference& reference, size_t tensor, const HostTensor& result,
                    const ComparisonOptions& options, Findings& findings) {
  const Expected expected = reference.expect_columns(tensor, options.summation);
  const Dtype dtype = reference.tensor(tensor).dtype;
  std::vector<double> got(expected.want.size());
  load_elements(dtype, result.bytes.data(), static_cast<int64_t>(got.size()), 1, got.data());
  Examiner(findings, findings.bad_cols, reference.tensor(tensor), options)
      .examine(0, got, expected, reference.rms_of(tensor), [&](int64_t col) {
        return load_bits(dtype, result.bytes.data() + col * static_cast<int64_t>(size_of(dtype)));
      });
}

void check_shapes(const std::vector<HostTensor>& tensors, const std::vector<HostTensor>& results) {
  if (results.size() != tensors.size()) {
    throw std::invalid_argument(
        fmt::format("results must hold {} tensors, as the problem does; they are {}", tensors.size(), results.size()));
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const bool may_be_left_out = tensors[i].spec.role == Role::input && results[i].bytes.empty();
    if (tensors[i].present && !may_be_left_out && results[i].bytes.size() != tensors[i].bytes.size()) {
      throw std::invalid_argument(fmt::format("result {} must have {} bytes, as the problem's has; it has {}",
                                              tensors[i].spec.name, tensors[i].bytes.size(), results[i].bytes.size()));
    }
  }
}

// A sentence where an input no longer holds its values, else nothing.
std::string input_damage(const HostTensor& tensor, const HostTensor& result) {
  if (std::memcmp(tensor.bytes.data(), result.bytes.data(), tensor.bytes.size()) == 0) return "";
  const auto [changed, other] = std::mismatch(tensor.bytes.begin(), tensor.bytes.end(), result.bytes.begin());
  const int64_t element = std::distance(tensor.bytes.begin(), changed) / static_cast<int64_t>(size_of(tensor.dtype));
  return fmt::format("the input {} was changed, first at {}", tensor.spec.name, place_of(tensor, element));
}

// A sentence where the gaps between the rows of an output were written, else nothing.
std::string padding_damage(const HostTensor& tensor, const HostTensor& result) {
  if (tensor.stride == tensor.cols || tensor.rows < 2) return "";
  const int64_t rows = tensor.rows / tensor.heads;  // tokens, where a token has several heads
  const int64_t grain = rows_per_task(rows, tensor.stride);
  std::vector<int64_t> first_of_task((rows + grain - 1) / grain, -1);
  parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
    const int64_t size = static_cast<int64_t>(size_of(tensor.dtype));
    for (int64_t row = begin; row < end && first_of_task[begin / grain] < 0; ++row) {
      for (int64_t col = 0; col < tensor.stride && row * tensor.stride + col < tensor.count(); ++col) {
        if (!tensor.is_padding(col)) continue;
        const int64_t element = row * tensor.stride + col;
        if (load_bits(tensor.dtype, result.bytes.data() + element * size) == poison_pattern(tensor.dtype)) continue;
        first_of_task[begin / grain] = element;
        break;
      }
    }
  });
  for (const int64_t element : first_of_task) {
    if (element < 0) continue;
    if (tensor.heads > 1) {
      return fmt::format("{} was written outside its heads: {}", tensor.spec.name, place_of(tensor, element));
    }
    return fmt::format("{} was written outside its row: row {}, {} past the row's end", tensor.spec.name,
                       element / tensor.stride, element % tensor.stride - tensor.cols + 1);
  }
  return "";
}

std::string number(double value) {
  return fmt::format("{:.9g}", value);
}

}  // namespace

Tolerance tolerance_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::fp16:
      return {1e-3, 1e-5};
    case Dtype::bf16:
      return {1.6e-2, 1e-5};
    case Dtype::e4m3:
    case Dtype::int8:  // Examiner::examine_byte
      return {0, 0};
    case Dtype::fp32:
      break;
  }
  return {1.3e-6, 1e-5};
}

Comparison compare_results(const Reference& reference, const std::vector<HostTensor>& tensors,
                           const std::vector<HostTensor>& results, const ComparisonOptions& options) {
  check_shapes(tensors, results);
  Comparison comparison;
  if (reference.rows() == 0) return comparison;

  std::vector<Findings> findings;
  for (size_t i = 0; i < tensors.size(); ++i) {
    findings.push_back(empty_findings(reference, i));
    if (is_compared(tensors[i], options)) findings[i].bad_cols.resize(findings[i].cols);
  }
  examine_rows(reference, results, options, findings);
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::string damage;
    if (!is_output(tensors[i])) {
      if (tensors[i].present && !results[i].bytes.empty()) damage = input_damage(tensors[i], results[i]);
    } else if (is_compared(tensors[i], options)) {
      if (tensors[i].spec.extent == Extent::per_col) {
        examine_vector(reference, i, results[i], options, findings[i]);
      }
      damage = padding_damage(tensors[i], results[i]);
    }
    if (!damage.empty()) comparison.damage.push_back(damage);
  }

  const bool any_matrix = std::any_of(tensors.begin(), tensors.end(), [&](const HostTensor& tensor) {
    return is_compared(tensor, options) && tensor.spec.extent == Extent::matrix;
  });
  for (const Findings& found : findings) {
    if (!is_compared(tensors[found.tensor], options)) continue;
    comparison.compared += found.compared;
    comparison.differing += found.differing;
    comparison.differing_rows += found.differing_rows;
    append_up_to(comparison.first, found.first, kept_mismatches);
    comparison.max_abs_error = std::max(comparison.max_abs_error, found.max_abs_error);
    const std::string name(tensors[found.tensor].spec.name);
    const bool counts = !any_matrix || tensors[found.tensor].spec.extent == Extent::matrix;
    if (counts && (comparison.worst_tensor.empty() || found.max_ulp_error > comparison.max_ulp_error)) {
      comparison.max_ulp_error = found.max_ulp_error;
      comparison.worst_tensor = name;
    }
    comparison.errors.push_back({name, found.compared, found.differing, found.max_abs_error, found.max_ulp_error});
  }
  comparison.passed = comparison.differing == 0 && comparison.damage.empty();
  if (comparison.differing > 0) comparison.likely_cause = likely_cause(reference, results, findings, options.summation);
  return comparison;
}

std::string Comparison::describe() const {
  if (passed) {
    if (compared == 0) return "nothing to compare: the tensor is empty";
    return fmt::format("{} elements right; largest error {:.3g}, {:.2f} ulp ({})", compared, max_abs_error,
                       max_ulp_error, worst_tensor);
  }
  std::string text;
  if (differing > 0) {
    text += fmt::format("{} of {} elements differ, in {} {}\n", differing, compared, differing_rows,
                        differing_rows == 1 ? "row" : "rows");
    for (const Mismatch& m : first) {
      text += fmt::format("  {} at row {}, column {}: ", m.tensor, m.row, m.col);
      text += m.never_written
                  ? fmt::format("never written, want {}\n", number(m.want))
                  : fmt::format("got {}, want {}, tolerance {:.3g}\n", number(m.got), number(m.want), m.tolerance);
    }
    if (differing > static_cast<int64_t>(first.size())) {
      text += fmt::format("  and {} more\n", differing - static_cast<int64_t>(first.size()));
    }
    text += fmt::format("  largest error {:.3g}, {:.3g} ulp ({})\n", max_abs_error, max_ulp_error, worst_tensor);
  }
  for (const std::string& sentence : damage) text += fmt::format("  {}\n", sentence);
  if (!likely_cause.empty()) text += fmt::format("  likely cause: {}\n", likely_cause);
  text.pop_back();
  return text;
}

}  // namespace worklog
