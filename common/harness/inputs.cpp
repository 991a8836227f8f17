// Compiled with -ffp-contract=off: a fused multiply-add would give other bits on machines that have one.
#include "common/harness/inputs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace worklog {
namespace {

// The finalizer of SplitMix64: every bit of the result depends on every bit of the argument.   [Steele et al. 2014]
constexpr uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

constexpr uint64_t golden_ratio = 0x9e3779b97f4a7c15u;

// Where the sequence of one row starts; element col of the row is mix(key + (col + 1) * golden_ratio).
uint64_t row_key(uint64_t seed, std::string_view tensor, int64_t row) {
  uint64_t name = 0xcbf29ce484222325u;  // FNV-1a
  for (const char letter : tensor) name = (name ^ static_cast<unsigned char>(letter)) * 0x100000001b3u;
  return mix(mix(seed * golden_ratio + name) + static_cast<uint64_t>(row) * golden_ratio);
}

uint64_t element_bits(uint64_t key, int64_t col) {
  return mix(key + (static_cast<uint64_t>(col) + 1) * golden_ratio);
}

// [0, 1), 24 bits.
float unit_of(uint64_t bits) {
  return static_cast<float>(bits >> 40) * 0x1p-24f;
}

// ((first r + second) r + ...) r + last. Not a loop over an array, which would be all that the compiler unrolls of a
// loop over elements.
template <class... Terms>
double polynomial(double r, double first, Terms... others) {
  double value = first;
  ((value = value * r + others), ...);
  return value;
}

// The natural logarithm of a normal positive number, to about 1e-16: log(m 2^e) = 2 atanh((m - 1) / (m + 1)) + e log 2.
// std::log may differ in its last bit from one C library to the next.
double portable_log(double value) {
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  const double mantissa = std::bit_cast<double>((bits & 0x000fffffffffffffu) | 0x3ff0000000000000u);
  const bool halved = mantissa > 1.4142135623730951;
  const double m = halved ? mantissa / 2 : mantissa;
  const int exponent = static_cast<int>(bits >> 52) - 1023 + halved;
  const double s = (m - 1) / (m + 1);
  const double square = s * s;
  const double series = polynomial(square, 1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7,
                                   1.0 / 5, 1.0 / 3, 1.0);
  return 2 * s * series + exponent * 0.69314718055994531;
}

// The parts of normal_from. Each is free of branches, so that a loop over it takes several elements at once.
double share_below(uint32_t bits) {
  return (bits + 0.5) * 0x1p-32;
}

bool is_central(double p) {
  return std::fabs(p - 0.5) <= 0.425;
}

double central_normal(double p) {
  const double q = p - 0.5;
  const double r = 0.180625 - q * q;
  const double numerator = polynomial(r, 2.5090809287301226727e+3, 3.3430575583588128105e+4, 6.7265770927008700853e+4,
                                      4.5921953931549871457e+4, 1.3731693765509461125e+4, 1.9715909503065514427e+3,
                                      1.3314166789178437745e+2, 3.3871328727963666080e+0);
  const double denominator = polynomial(r, 5.2264952788528545610e+3, 2.8729085735721942674e+4, 3.9307895800092710610e+4,
                                        2.1213794301586595867e+4, 5.3941960214247511077e+3, 6.8718700749205790830e+2,
                                        4.2313330701600911252e+1, 1.0);
  return q * numerator / denominator;
}

double tail_normal(double p) {
  // p is at least 2^-33, so r stays below 5 and the algorithm's third branch is never reached.
  const double r = std::sqrt(-portable_log(std::min(p, 1 - p))) - 1.6;
  const double numerator = polynomial(r, 7.74545014278341407640e-4, 2.27238449892691845833e-2,
                                      2.41780725177450611770e-1, 1.27045825245236838258e+0, 3.64784832476320460504e+0,
                                      5.76949722146069140550e+0, 4.63033784615654529590e+0, 1.42343711074968357734e+0);
  const double denominator = polynomial(r, 1.05075007164441684324e-9, 5.47593808499534494600e-4,
                                        1.51986665636164571966e-2, 1.48103976427480074590e-1, 6.89767334985100004550e-1,
                                        1.67638483018380384940e+0, 2.05319162663775882187e+0, 1.0);
  const double tail = numerator / denominator;
  return p < 0.5 ? -tail : tail;
}

// normal_from the high bits of the elements [0, count) of a row. All are taken as central at first, in blocks that stay
// in the L1 cache; then those in the tails, about one in seven, are computed again, gathered.
void fill_normal(uint64_t key, int64_t count, float* values) {
  constexpr int64_t block = 512;
  double p[block], tail[block];
  int64_t tail_col[block];
  for (int64_t first = 0; first < count; first += block) {
    const int64_t here = std::min(block, count - first);
    for (int64_t i = 0; i < here; ++i) p[i] = share_below(static_cast<uint32_t>(element_bits(key, first + i) >> 32));
    for (int64_t i = 0; i < here; ++i) values[first + i] = static_cast<float>(central_normal(p[i]));
    int64_t tails = 0;
    for (int64_t i = 0; i < here; ++i) {
      tail[tails] = p[i];
      tail_col[tails] = first + i;
      tails += !is_central(p[i]);
    }
    for (int64_t k = 0; k < tails; ++k) tail[k] = tail_normal(tail[k]);
    for (int64_t k = 0; k < tails; ++k) values[tail_col[k]] = static_cast<float>(tail[k]);
  }
}

// What a kind of input means in one type.
struct Shape {
  float center = 0;
  float deviation = 1;
};

Shape shape_of(Input input, Dtype dtype) {
  if (input == Input::large_mean) {
    const float spacing = static_cast<float>(ulp_at(dtype, 1e4));
    return {1e4f, std::max(1.0f, spacing)};
  }
  if (input == Input::tiny_variance) {
    return {dtype == Dtype::fp32 ? 1.0f : dtype == Dtype::fp16 ? 1.0f / 16 : 1.0f / 128, 1e-4f};
  }
  return {};
}

// x, residual, dy and dh.
void generate_matrix_row(const InputStream& stream, Input input, uint64_t key, int64_t row, int64_t count,
                         float* values) {
  const auto fill = [&](auto value_at) {
    for (int64_t col = 0; col < count; ++col) values[col] = value_at(col);
  };
  switch (input) {
    case Input::uniform:
      return fill([&](int64_t col) { return 2 * unit_of(element_bits(key, col)) - 1; });
    case Input::arange: {
      const int64_t period = stream.dtype == Dtype::fp32   ? std::numeric_limits<int64_t>::max()
                             : stream.dtype == Dtype::fp16 ? 2048
                                                           : 256;
      return fill([&](int64_t col) { return static_cast<float>((row * stream.cols + col) % period + 1); });
    }
    case Input::constant:
      // 0.7 has no short binary form, so that a sum of many does not come out exact by luck.
      return fill([](int64_t) { return 0.7f; });
    case Input::outlier_channels:
      fill_normal(key, count, values);
      return fill([&](int64_t col) { return values[col] * (is_outlier_channel(stream.seed, col) ? 100.0f : 1.0f); });
    case Input::huge: {
      const float top = static_cast<float>(largest_of(stream.dtype)) * (stream.dtype == Dtype::fp16 ? 1.0f : 0.25f);
      return fill([&](int64_t col) {
        const uint64_t bits = element_bits(key, col);
        return (bits & 1 ? top : -top) * (1 - 0.5f * unit_of(bits));
      });
    }
    case Input::nan_row:
      fill_normal(key, count, values);
      if (row == stream.rows / 2 && stream.cols / 2 < count) {
        values[stream.cols / 2] = std::numeric_limits<float>::quiet_NaN();
      }
      return;
    case Input::normal:
    case Input::large_mean:
    case Input::tiny_variance: {
      const Shape shape = shape_of(input, stream.dtype);
      fill_normal(key, count, values);
      return fill([&](int64_t col) { return shape.center + shape.deviation * values[col]; });
    }
  }
}

// The mean and the deviation that running statistics of such inputs would have in column col.
Shape expected_statistics(const InputStream& stream, int64_t col) {
  switch (stream.input) {
    case Input::uniform:
      return {0, 0.577f};
    case Input::arange: {
      const double last = stream.dtype == Dtype::fp32   ? static_cast<double>(stream.rows) * stream.cols
                          : stream.dtype == Dtype::fp16 ? 2048
                                                        : 256;
      return {static_cast<float>(last / 2), static_cast<float>(last / 3.4641)};
    }
    case Input::constant:
      return {0.7f, 1e-2f};
    case Input::outlier_channels:
      return {0, is_outlier_channel(stream.seed, col) ? 100.0f : 1.0f};
    case Input::huge:
      // The variance of fp32 and bf16 values near the top does not fit fp32; the largest that does is used.
      return {0, stream.dtype == Dtype::fp16 ? 5e4f : 1e19f};
    default:
      return shape_of(stream.input, stream.dtype);
  }
}

}  // namespace

uint64_t hash_element(uint64_t seed, std::string_view tensor, int64_t row, int64_t col) {
  return element_bits(row_key(seed, tensor, row), col);
}

double normal_from(uint32_t bits) {
  const double p = share_below(bits);
  return is_central(p) ? central_normal(p) : tail_normal(p);
}

bool is_outlier_channel(uint64_t seed, int64_t col) {
  constexpr int64_t one_in = 128;
  if (col < one_in) return col == 0;
  const uint64_t pick = hash_element(seed, "outlier_channels", 0, col / one_in) % one_in;
  return static_cast<uint64_t>(col % one_in) == pick;
}

void generate_row(const InputStream& stream, int64_t row, int64_t count, float* values) {
  const uint64_t key = row_key(stream.seed, stream.tensor, row);
  if (stream.tensor.ends_with("gamma")) {
    fill_normal(key, count, values);
    for (int64_t col = 0; col < count; ++col) values[col] = 1 + 0.1f * values[col];
  } else if (stream.tensor == "beta") {
    fill_normal(key, count, values);
    for (int64_t col = 0; col < count; ++col) values[col] = 0.1f * values[col];
  } else if (stream.tensor == "scale") {  // of y in eight bits: e4m3 reaches 9 with it, int8 2.5
    std::fill(values, values + count, 0.02f);
  } else if (stream.tensor == "running_mean") {
    fill_normal(key, count, values);
    for (int64_t col = 0; col < count; ++col) {
      const Shape expected = expected_statistics(stream, col);
      values[col] = expected.center + 0.1f * expected.deviation * values[col];
    }
  } else if (stream.tensor == "running_var") {
    for (int64_t col = 0; col < count; ++col) {
      const float deviation = expected_statistics(stream, col).deviation;
      values[col] = deviation * deviation * (0.5f + unit_of(element_bits(key, col)));
    }
  } else {
    Input input = stream.input;
    // What is added to x must neither overflow the sum nor hide what the kind is about; gradients are normal, as they
    // are whatever x is.
    if (stream.tensor == "residual") {
      if (input == Input::arange || input == Input::large_mean || input == Input::huge || input == Input::nan_row) {
        input = Input::normal;
      }
    } else if (stream.tensor != "x" && input != Input::uniform && input != Input::outlier_channels) {
      input = Input::normal;
    }
    generate_matrix_row(stream, input, key, row, count, values);
    if (stream.tensor == "residual" && input == Input::tiny_variance) {
      // Around zero, so that the sum's mean is that of x and its variance as tiny.
      const float center = shape_of(input, stream.dtype).center;
      for (int64_t col = 0; col < count; ++col) values[col] -= center;
    }
  }
}

}  // namespace worklog
