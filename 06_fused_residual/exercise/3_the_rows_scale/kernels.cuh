// Exercise: the largest |y| of a row, and the scale that is made of it. Look for [task], of which there are two.
#pragma once

#include "04_vectorized/kernels.cuh"
#include "05_welford/held.cuh"
#include "06_fused_residual/add.cuh"
#include "06_fused_residual/eight_bits.cuh"

namespace worklog::fused_residual {

using vectorized::Parameter;
using warp_shuffle::all_lanes;
using warp_shuffle::blocks_for;
using warp_shuffle::lanes;

inline constexpr int most_threads_of_quantized = 352;  // of a block: where two fit, each has 88 registers

// Magnitudes are compared by their bits. As whole numbers these have the same order, with NaN above all others: so the
// largest of values with a NaN among them is a NaN. fmaxf would have lost it.
template <class T>
__device__ inline unsigned largest_magnitude(const Floats<T>& y) {
  unsigned largest = 0;
#pragma unroll
  for (int k = 0; k < vector_size<T>; ++k) largest = max(largest, __float_as_uint(y.at[k]) & 0x7fffffffu);
  return largest;
}

template <int width = lanes>
__device__ inline unsigned warp_max(unsigned value) {
  for (int distance = width / 2; distance > 0; distance /= 2) {
    value = max(value, __shfl_xor_sync(all_lanes, value, distance));
  }
  return value;
}

__device__ inline unsigned block_max(unsigned value, unsigned* scratch) {
  // [task: block_max] `value` is the thread's own. Return the largest of all threads of the block, in every thread.
  // scratch holds a number for each warp; blockDim.x is a multiple of 32, and there is warp_max.
  (void)scratch;
  // [/task]
  return value;
}

__device__ inline float scale_for(unsigned magnitude, ByteFormat format) {
  const float scale = __uint_as_float(magnitude) * (format == ByteFormat::e4m3 ? 1 / 448.0f : 1 / 127.0f);
  return scale < 0x1p-126f ? 0x1p-126f : scale;  // a comparison with NaN is false, so a NaN stays
}

// A thread's columns: `first`, and then every `step`. The first few vectors are in registers, the others in memory.
struct VectorsOfRow {
  int first, step, cols;
};

// Stores the scale of the 128 columns that `col` is among, and returns what to multiply them by.
template <class T, class G>
__device__ inline float store_scale_of_block(const QuantizedNorm<T, G>& p, int64_t row, const VectorsOfRow& walk,
                                             int col, unsigned largest) {
  const float scale = scale_for(largest, p.format);
  const bool is_first = col < walk.cols && col % columns_of_block == 0;
  if (is_first) p.scales[row * p.scales_stride + col / columns_of_block] = scale;
  return __fdividef(1.0f, scale);  // in a few instructions: there is one for each vector
}

// Scales and stores a row of y. The thread holds its first vectors, and beyond(col) computes the others again. Past the
// row's end there are zeros. All lanes of a warp must reach the same vectors together: the maximum takes shuffles.
template <class T, class G, bool whole, int vectors, class Beyond>
__device__ void quantize_row(const QuantizedNorm<T, G>& p, int64_t row, const VectorsOfRow& walk,
                             const Floats<T> (&held)[vectors], unsigned* scratch, Beyond beyond) {
  constexpr int size = vector_size<T>;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const auto for_each_vector = [&](auto use) {
#pragma unroll
    for (int i = 0; i < vectors; ++i) use(walk.first + i * walk.step, held[i]);
    for (int col = walk.first + vectors * walk.step; col - lane * size < walk.cols; col += walk.step) {
      use(col, beyond(col));
    }
  };
  float scale = 1.0f;
  if (p.scaling == Scaling::tensor) scale = *p.scale;
  if (p.scaling == Scaling::row) {
    // [task: scale_of_row] The scale that belongs to the row: scale_for() of its largest |y|, in every thread. It is
    // written once, to p.scales[row * p.scales_stride]. What is given here is made of the thread's first vector alone.
    scale = scale_for(block_max(largest_magnitude<T>(held[0]), scratch), p.format);
    if (threadIdx.x == 0) p.scales[row * p.scales_stride] = scale;
    // [/task]
  }
  float factor = 1.0f / scale;
  for_each_vector([&](int col, const Floats<T>& y) {
    if (p.scaling == Scaling::block) {
      // 128 columns are 16 lanes' vectors of 16 bits, or all 32 lanes' floats.
      const unsigned of_block = warp_max<columns_of_block / size>(largest_magnitude<T>(y));
      factor = store_scale_of_block(p, row, walk, col, of_block);
    }
    if (col < walk.cols) store_bytes<whole, T>(p.y + row * p.y_stride, col, walk.cols, y, factor, p.format);
  });
}

// The row that is normalized. With a residual that is h, which is stored here: after the loads of all vectors, since
// the compiler may not move a load in front of a store that might change what it reads.
template <class T, class G, bool whole, int vectors>
__device__ void load_sum_of_row(const QuantizedNorm<T, G>& p, int64_t row, const VectorsOfRow& walk,
                                Floats<T> (&held)[vectors]) {
  const auto load = [&](const T* from, int col) {
    return col < walk.cols ? vectorized::load<whole>(from, col, walk.cols) : uint4{};
  };
  uint4 bits[vectors];
#pragma unroll
  for (int i = 0; i < vectors; ++i) bits[i] = load(p.x + row * p.x_stride, walk.first + i * walk.step);
  if (p.residual) {
    const T* const residual = p.residual + row * p.residual_stride;
    T* const h = p.h + row * p.h_stride;
    uint4 added[vectors];
#pragma unroll
    for (int i = 0; i < vectors; ++i) added[i] = load(residual, walk.first + i * walk.step);
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      const int col = walk.first + i * walk.step;
      bits[i] = add_vectors<T>(bits[i], added[i]);
      if (col < walk.cols) vectorized::store<whole>(h, col, walk.cols, bits[i]);
    }
    for (int col = walk.first + vectors * walk.step; col < walk.cols; col += walk.step) {
      const uint4 sum = add_vectors<T>(load(p.x + row * p.x_stride, col), load(residual, col));
      vectorized::store<whole>(h, col, walk.cols, sum);
    }
  }
#pragma unroll
  for (int i = 0; i < vectors; ++i) held[i] = vectorized::unpack<T>(bits[i]);
}

// xhat = ((x - pivot) - rest) * rstd, or x * rstd where there is no mean.
struct RowStatistics {
  float pivot, rest, rstd;
};

// As `held` has them (05_welford/held.cuh), where they are explained. scale_down(factor) multiplies all x by it, from
// then on.
template <bool about_mean, bool whole, class T, class ForEachVector, class ScaleDown>
__device__ RowStatistics row_statistics(float eps, int cols, float2* scratch, ForEachVector for_each_vector,
                                        ScaleDown scale_down) {
  const auto n = static_cast<float>(cols);
  const float share = 1.0f / n;
  float pivot = 0.0f, rest = 0.0f, variance, scale = 1.0f;
  while (true) {
    float2 sums = {0.0f, 0.0f};
    if constexpr (about_mean) {
      for_each_vector([&](int, const Floats<T>& x) {
        for (int k = 0; k < vector_size<T>; ++k) sums.x += x.at[k];
      });
      pivot = welford::block_sum(sums.x, reinterpret_cast<float*>(scratch)) * share;
      sums.x = 0.0f;
      for_each_vector([&](int col, const Floats<T>& x) {
        for (int k = 0; k < vector_size<T>; ++k) {
          if (!whole && col + k >= cols) continue;
          const float difference = x.at[k] - pivot;
          sums.x += difference;
          sums.y += difference * difference;
        }
      });
      sums = welford::block_sums(sums, scratch);
      rest = welford::quotient_of(sums.x, n, share);  // exact of equal values: nothing is left of them, however large
    } else {
      for_each_vector([&](int, const Floats<T>& x) {
        for (int k = 0; k < vector_size<T>; ++k) sums.y += x.at[k] * x.at[k];
      });
      sums.y = welford::block_sum(sums.y, reinterpret_cast<float*>(scratch));
    }
    variance = sums.y * share - rest * rest;
    if (isfinite(variance) || scale < 1.0f) break;
    scale = 0x1p-80f;  // squares or sums overflow: once more, so small that they cannot
    scale_down(scale);
  }
  if (variance < 0.0f) variance = 0.0f;
  const float rstd = rsqrtf(variance + eps * scale);
  return {pivot, rest, rstd};
}

template <bool about_mean, bool whole, class T, class G>
__device__ Floats<T> normalized_vector(const QuantizedNorm<T, G>& p, const RowStatistics& row, int col,
                                       const Floats<T>& x) {
  const int cols = static_cast<int>(p.cols);
  if (col >= cols) return {};
  Parameter<T, G> gamma, beta = {};
  gamma.template load<whole>(p.gamma, col, cols, 1.0f);
  if (about_mean) beta.template load<whole>(p.beta, col, cols, 0.0f);
  const Floats<T> scales = gamma.unpack(), shifts = beta.unpack();
  Floats<T> y;
#pragma unroll
  for (int k = 0; k < vector_size<T>; ++k) {
    if constexpr (about_mean) {
      y.at[k] = ((x.at[k] - row.pivot) - row.rest) * row.rstd * scales.at[k] + shifts.at[k];
    } else {
      y.at[k] = x.at[k] * row.rstd * scales.at[k];
    }
    if (!whole && col + k >= cols) y.at[k] = 0.0f;  // nothing that could be a maximum
  }
  return y;
}

// The row is held in registers, first as x, then as y. What they do not hold is read again.
template <class T, class G, int vectors, bool whole, bool about_mean>
__device__ void normalize_row_quantized(const QuantizedNorm<T, G>& p, int64_t row, float2* scratch) {
  const int step = static_cast<int>(blockDim.x) * vector_size<T>;
  const VectorsOfRow walk = {static_cast<int>(threadIdx.x) * vector_size<T>, step, static_cast<int>(p.cols)};
  const int beyond = walk.first + vectors * step;
  Floats<T> held[vectors];
  load_sum_of_row<T, G, whole>(p, row, walk, held);
  const T* const x = p.residual ? p.h + row * p.h_stride : p.x + row * p.x_stride;
  float scale = 1.0f;
  const auto scaled = [&](Floats<T> values) {
    for (int k = 0; k < vector_size<T>; ++k) values.at[k] *= scale;
    return values;
  };
  const auto scale_down = [&](float factor) {
    scale = factor;
    for (int i = 0; i < vectors; ++i) held[i] = scaled(held[i]);
  };
  const auto read_again = [&](int col) {
    return scaled(vectorized::unpack<T>(col < walk.cols ? vectorized::load<whole>(x, col, walk.cols) : uint4{}));
  };
  const auto for_each_vector = [&](auto use) {
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      if (walk.first + i * step < walk.cols) use(walk.first + i * step, held[i]);
    }
    for (int col = beyond; col < walk.cols; col += step) use(col, read_again(col));
  };
  const RowStatistics of_row =
      row_statistics<about_mean, whole, T>(p.eps, walk.cols, scratch, for_each_vector, scale_down);
  const auto normalized = [&](int col, const Floats<T>& values) {
    return normalized_vector<about_mean, whole>(p, of_row, col, values);
  };
#pragma unroll
  for (int i = 0; i < vectors; ++i) held[i] = normalized(walk.first + i * step, held[i]);
  quantize_row<T, G, whole>(p, row, walk, held, reinterpret_cast<unsigned*>(scratch),
                            [&](int col) { return normalized(col, read_again(col)); });
}

// A block to a row.
template <class T, class G, int vectors, bool whole, bool about_mean>
__global__ void __launch_bounds__(most_threads_of_quantized, vectors > 4 ? 1 : 2)
    normalize_quantized(QuantizedNorm<T, G> p) {
  __shared__ float2 scratch[lanes];
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    normalize_row_quantized<T, G, vectors, whole, about_mean>(p, row, scratch);
  }
}

// Threads for a row of which each holds `vectors` vectors: whole warps.
template <class T, class G>
unsigned threads_of_quantized(const QuantizedNorm<T, G>& p, int vectors) {
  const int64_t all = (p.cols + vector_size<T> - 1) / vector_size<T>;
  const int64_t threads = ((all + vectors - 1) / vectors + lanes - 1) / lanes * lanes;
  return static_cast<unsigned>(threads < most_threads_of_quantized ? threads : most_threads_of_quantized);
}

}  // namespace worklog::fused_residual
