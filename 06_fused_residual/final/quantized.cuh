// RMSNorm to eight bits where all vectors are whole, and two to a thread hold a row: one reduction for both the
// statistics and the largest |y|, and the next row's loads ahead.
#pragma once

#include <algorithm>
#include <cstdint>

#include "05_welford/final/parameters.cuh"
#include "06_fused_residual/quantized.cuh"
#include "common/device/capabilities.cuh"

namespace worklog::fused_residual {

inline constexpr int most_threads_of_one_reduction = 1024;  // of a block: each has 64 registers
inline constexpr int vectors_of_one_reduction = 2;          // of a thread

// [snippet: block_sum_and_max]
// A sum, and the largest magnitude by its bits (quantized.cuh).
struct SumAndMax {
  float sum;
  unsigned max;
};

__device__ inline SumAndMax warp_sum_and_max(SumAndMax value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  return {warp_shuffle::warp_sum(value.sum), warp_max(value.max)};
#else
  return {warp_shuffle::warp_sum(value.sum), __reduce_max_sync(all_lanes, value.max)};  // one instruction for a maximum
#endif
}

// In every thread of the block. There is one barrier, so the next sum needs another `scratch`.
__device__ inline SumAndMax block_sum_and_max(SumAndMax value, SumAndMax* scratch) {
  const unsigned lane = threadIdx.x % lanes;
  value = warp_sum_and_max(value);
  if (lane == 0) scratch[threadIdx.x / lanes] = value;
  __syncthreads();
  return warp_sum_and_max(lane < blockDim.x / lanes ? scratch[lane] : SumAndMax{0.0f, 0u});
}
// [/snippet]

// What a thread has of a row, and of the residual where there is one. Zeros are past the row's end.
template <bool adds>
struct LoadedVectors {
  uint4 x[vectors_of_one_reduction], residual[adds ? vectors_of_one_reduction : 1];
};

template <bool adds, class T, class G>
__device__ inline LoadedVectors<adds> load_vectors(const QuantizedNorm<T, G>& p, int64_t row,
                                                   const VectorsOfRow& walk) {
  LoadedVectors<adds> loaded = {};
#pragma unroll
  for (int v = 0; v < vectors_of_one_reduction; ++v) {
    const int col = walk.first + v * walk.step;
    if (row >= p.rows || col >= walk.cols) continue;
    loaded.x[v] = vectorized::load<true>(p.x + row * p.x_stride, col, walk.cols);
    if (adds) loaded.residual[v] = vectorized::load<true>(p.residual + row * p.residual_stride, col, walk.cols);
  }
  return loaded;
}

template <class T, class G>
__device__ inline void add_residual(const QuantizedNorm<T, G>& p, int64_t row, const VectorsOfRow& walk,
                                    LoadedVectors<true>& loaded) {
#pragma unroll
  for (int v = 0; v < vectors_of_one_reduction; ++v) {
    const int col = walk.first + v * walk.step;
    loaded.x[v] = add_vectors<T>(loaded.x[v], loaded.residual[v]);
    if (col < walk.cols) vectorized::store<true>(p.h + row * p.h_stride, col, walk.cols, loaded.x[v]);
  }
}

// The thread's columns of gamma.
template <class T, class G>
struct Weights {
  welford::ParameterVector<T, G> vector[vectors_of_one_reduction];
};

template <class T, class G>
__device__ inline Weights<T, G> load_gamma(const QuantizedNorm<T, G>& p, const VectorsOfRow& walk) {
  Weights<T, G> gamma;
#pragma unroll
  for (int v = 0; v < vectors_of_one_reduction; ++v) {
    const int col = walk.first + v * walk.step;
    gamma.vector[v].template load<welford::Fit::vectors, false>(p.gamma, col < walk.cols ? col : 0, 1.0f);
  }
  return gamma;
}

// fmaxf would lose a NaN.
__device__ inline float max_or_nan(float a, float b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
#else
  return a > b || a != a ? a : b;
#endif
}

// x gamma in a thread's columns, and the largest magnitude of each vector or, where scales are of 128 columns, of
// those.
template <class T>
struct Products {
  Floats<T> vector[vectors_of_one_reduction];
  unsigned largest[vectors_of_one_reduction];
};

// Where the largest product of a row, or of its 128 columns, is smaller than this, it may have lost digits. And where
// y is so far past the format's range, a small one may.
inline constexpr float smallest_product = 0x1p-96f, most_past_the_range = 0x1p12f;

// Of the thread's columns: x gamma, the sum of squares of x, and the largest product. Where that of 128 columns is too
// small, the row's becomes infinite.
template <class T, class G>
__device__ inline SumAndMax multiply(const QuantizedNorm<T, G>& p, const VectorsOfRow& walk,
                                     const uint4 (&bits)[vectors_of_one_reduction], const Weights<T, G>& gamma,
                                     Products<T>& products) {
  SumAndMax of_thread = {0.0f, 0u};
#pragma unroll
  for (int v = 0; v < vectors_of_one_reduction; ++v) {
    const Floats<T> x = vectorized::unpack<T>(bits[v]), scales = gamma.vector[v].floats();
    Floats<T>& product = products.vector[v];
    float largest = 0.0f;
#pragma unroll
    for (int k = 0; k < vector_size<T>; ++k) {
      of_thread.sum += x.at[k] * x.at[k];
      product.at[k] = x.at[k] * scales.at[k];
      largest = max_or_nan(largest, fabsf(product.at[k]));
    }
    products.largest[v] = __float_as_uint(largest);
  }
  if (p.scaling == Scaling::block) {
#pragma unroll
    for (int v = 0; v < vectors_of_one_reduction; ++v) {
      products.largest[v] = warp_max<columns_of_block / vector_size<T>>(products.largest[v]);
      const bool is_small = products.largest[v] < __float_as_uint(smallest_product);
      if (is_small && walk.first + v * walk.step < walk.cols) of_thread.max = __float_as_uint(INFINITY);
    }
  }
#pragma unroll
  for (int v = 0; v < vectors_of_one_reduction; ++v) of_thread.max = max(of_thread.max, products.largest[v]);
  return of_thread;
}

// In a few instructions. 1 / cols, computed once, would take a register, and there is none to spare.
__device__ inline float mean(float sum, int cols) {
  return __fdividef(sum, static_cast<float>(cols));
}

// Whether nothing of a row overflowed, is no number, or lost digits. `factor` makes bytes of products: it is 0 where
// the sum of squares is infinite, and infinite or a NaN where rstd is.
template <class T, class G>
__device__ inline bool is_usual(const QuantizedNorm<T, G>& p, unsigned largest, float factor) {
  const bool has_digits = largest >= __float_as_uint(smallest_product) && largest < __float_as_uint(INFINITY);
  const bool is_past = p.scaling == Scaling::tensor && __uint_as_float(largest) * factor >= most_past_the_range;
  return has_digits && factor > 0.0f && factor < INFINITY && !is_past;
}

template <class T, class G>
__device__ inline void store_products(const QuantizedNorm<T, G>& p, int64_t row, const VectorsOfRow& walk,
                                      const Products<T>& products, float rstd, float factor) {
  float factors[vectors_of_one_reduction];
#pragma unroll
  for (float& each : factors) each = factor;
  if (p.scaling == Scaling::block) {
#pragma unroll
    for (int v = 0; v < vectors_of_one_reduction; ++v) {
      const unsigned largest = __float_as_uint(__uint_as_float(products.largest[v]) * rstd);
      factors[v] = rstd * store_scale_of_block(p, row, walk, walk.first + v * walk.step, largest);
    }
  }
#pragma unroll
  for (int v = 0; v < vectors_of_one_reduction; ++v) {
    const int col = walk.first + v * walk.step;
    if (col >= walk.cols) continue;
    store_bytes<true, T>(p.y + row * p.y_stride, col, walk.cols, products.vector[v], factors[v], p.format);
  }
}

inline constexpr int most_unusual_rows = 32;  // that a block puts aside

// [snippet: normalize_usual_rows]
// y = x rstd gamma. So the largest |y| of a row is rstd times its largest |x gamma|, and that does not have to wait for
// rstd. Takes the block's rows from `row` on, puts the unusual ones aside, and returns how many these are. The next row
// is loaded ahead; but with a residual, when h is stored anyway, that brings nothing.
template <bool adds, class T, class G>
__device__ inline int normalize_usual_rows(const QuantizedNorm<T, G>& p, const VectorsOfRow& walk, float& given,
                                           SumAndMax (&scratch)[2][lanes], int64_t& row,
                                           int64_t (&unusual)[most_unusual_rows]) {
  LoadedVectors<adds> next = load_vectors<adds>(p, row, walk);
  Weights<T, G> gamma = load_gamma(p, walk);
  if (threadIdx.x == 0) given = p.scaling == Scaling::tensor ? 1.0f / *p.scale : 1.0f;
  let_next_kernel_start();
  int turn = 0, put_aside = 0;
  for (; row < p.rows && put_aside < most_unusual_rows; row += gridDim.x) {
    LoadedVectors<adds> loaded = next;
    if (!adds) next = load_vectors<adds>(p, row + gridDim.x, walk);
    if constexpr (adds) add_residual(p, row, walk, loaded);
    for (auto& vector : gamma.vector) vector.keep_packed();
    Products<T> products;
    const SumAndMax of_row = block_sum_and_max(multiply(p, walk, loaded.x, gamma, products), scratch[turn ^= 1]);
    const float rstd = rsqrtf(mean(of_row.sum, walk.cols) + p.eps);
    const float scale = scale_for(__float_as_uint(__uint_as_float(of_row.max) * rstd), p.format);
    const float factor = p.scaling == Scaling::row ? __fdividef(rstd, scale) : rstd * given;
    if (is_usual(p, of_row.max, factor)) {  // in all threads alike
      if (p.scaling == Scaling::row && threadIdx.x == 0) p.scales[row * p.scales_stride] = scale;
      store_products(p, row, walk, products, rstd, factor);
    } else {
      if (threadIdx.x == 0) unusual[put_aside] = row;
      ++put_aside;
    }
    if (adds) next = load_vectors<adds>(p, row + gridDim.x, walk);
  }
  return put_aside;
}
// [/snippet]

// The row by the lesson's kernel, in which nothing overflows. It is h, if there is one, and that is stored already.
template <class T, class G>
__device__ void normalize_as_in_lesson(QuantizedNorm<T, G> p, int64_t row, float2* scratch) {
  if (p.residual) {
    p.x = p.h;
    p.x_stride = p.h_stride;
    p.residual = nullptr;
  }
  normalize_row_quantized<T, G, 1, true, false>(p, row, scratch);
}

// [snippet: normalize_in_one_reduction]
// Rows that are put aside are done a little later, and not where they come up: the loop over the others has no register
// to spare for code that it hardly ever runs.
template <class T, class G, bool adds>
__global__ void __launch_bounds__(most_threads_of_one_reduction) normalize_in_one_reduction(QuantizedNorm<T, G> p) {
  __shared__ SumAndMax scratch[2][lanes];
  __shared__ float2 scratch_of_lesson[lanes];
  __shared__ int64_t unusual[most_unusual_rows];
  __shared__ float given;  // what a given scale makes of y: here it takes no register
  const VectorsOfRow walk = {static_cast<int>(threadIdx.x) * vector_size<T>,
                             static_cast<int>(blockDim.x) * vector_size<T>, static_cast<int>(p.cols)};
  wait_for_previous_kernel();
  for (int64_t row = blockIdx.x; row < p.rows;) {
    const int put_aside = normalize_usual_rows<adds>(p, walk, given, scratch, row, unusual);
    if (put_aside == 0) return;
    __syncthreads();
    for (int i = 0; i < put_aside; ++i) normalize_as_in_lesson(p, unusual[i], scratch_of_lesson);
    __syncthreads();
  }
}
// [/snippet]

template <bool adds, class T, class G>
void launch_in_one_reduction(const QuantizedNorm<T, G>& p, cudaStream_t stream) {
  constexpr int columns = vectors_of_one_reduction * vector_size<T>;  // of a thread
  const int threads = static_cast<int>((p.cols + columns * lanes - 1) / (columns * lanes) * lanes);
  const auto kernel = normalize_in_one_reduction<T, G, adds>;
  const int64_t blocks = adds ? p.rows : std::min(p.rows, blocks_at_once(kernel, threads, 0));
  launch(kernel,
         {.grid = blocks_for(blocks, 1), .block = static_cast<unsigned>(threads), .overlap = true, .stream = stream},
         p);
}

template <class T, class G>
void launch_final_quantized(const QuantizedNorm<T, G>& p, cudaStream_t stream) {
  constexpr int64_t most_columns = int64_t{vectors_of_one_reduction} * vector_size<T> * most_threads_of_one_reduction;
  const bool is_held = has_whole_rows(p) && p.cols <= most_columns;
  if (p.rows == 0 || p.subtracts_mean || !is_held) return launch_quantized(p, stream);
  if (p.residual) return launch_in_one_reduction<true>(p, stream);
  launch_in_one_reduction<false>(p, stream);
}

}  // namespace worklog::fused_residual
