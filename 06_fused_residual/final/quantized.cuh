// RMSNorm to eight bits where two vectors to a thread hold a row: one reduction for both the statistics and the largest
// |y|, and the next row's loads ahead. A thread's two vectors are neighbours: together they become 16 bytes, one store.
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

// The columns of a thread: `first`, and those that follow it. `inside`: the row has them.
template <class T>
struct ColumnsOfThread {
  static constexpr int count = vectors_of_one_reduction * vector_size<T>;
  int first;
  bool inside;
};

// What a thread has of a row, and of the residual where there is one. Zeros are past the row's end.
template <bool adds>
struct LoadedVectors {
  uint4 x[vectors_of_one_reduction], residual[adds ? vectors_of_one_reduction : 1];
};

template <bool adds, class T, class G>
__device__ inline LoadedVectors<adds> load_vectors(const QuantizedNorm<T, G>& p, int64_t row,
                                                   ColumnsOfThread<T> columns) {
  LoadedVectors<adds> loaded = {};
  if (row >= p.rows || !columns.inside) return loaded;
  const T* const x = p.x + row * p.x_stride + columns.first;
  const T* const residual = adds ? p.residual + row * p.residual_stride + columns.first : nullptr;
#pragma unroll
  for (int v = 0; v < vectors_of_one_reduction; ++v) {
    loaded.x[v] = reinterpret_cast<const uint4*>(x)[v];
    if (adds) loaded.residual[v] = reinterpret_cast<const uint4*>(residual)[v];
  }
  return loaded;
}

template <class T, class G>
__device__ inline void add_residual(const QuantizedNorm<T, G>& p, int64_t row, ColumnsOfThread<T> columns,
                                    LoadedVectors<true>& loaded) {
  T* const h = p.h + row * p.h_stride + columns.first;
#pragma unroll
  for (int v = 0; v < vectors_of_one_reduction; ++v) {
    loaded.x[v] = add_vectors<T>(loaded.x[v], loaded.residual[v]);
    if (columns.inside) reinterpret_cast<uint4*>(h)[v] = loaded.x[v];
  }
}

// The thread's columns of gamma.
template <class T, class G>
struct Weights {
  welford::ParameterVector<T, G> vector[vectors_of_one_reduction];
};

template <class T, class G>
__device__ inline Weights<T, G> load_gamma(const QuantizedNorm<T, G>& p, ColumnsOfThread<T> columns) {
  Weights<T, G> gamma;
  const int first = columns.inside ? columns.first : 0;
#pragma unroll
  for (int v = 0; v < vectors_of_one_reduction; ++v) {
    gamma.vector[v].template load<welford::Fit::vectors, false>(p.gamma, first + v * vector_size<T>, 1.0f);
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

// x gamma in a thread's columns, and the largest magnitude among them or, where scales are of 128 columns, among those.
template <class T>
struct Products {
  Floats<T> vector[vectors_of_one_reduction];
  unsigned largest;
};

// Where the largest product of a row, or of its 128 columns, is smaller than this, it may have lost digits. And with
// one scale for all of y, its largest may be this far past the format's range: then small ones may have lost digits.
inline constexpr float smallest_product = 0x1p-96f, most_past_the_range = 0x1p12f;

// Of the thread's columns: x gamma, the sum of squares of x, and the largest product. It is infinity where that of 128
// columns is too small: the row is then an unusual one.
template <class T, class G>
__device__ inline SumAndMax multiply(const QuantizedNorm<T, G>& p, ColumnsOfThread<T> columns,
                                     const uint4 (&bits)[vectors_of_one_reduction], const Weights<T, G>& gamma,
                                     Products<T>& products) {
  float sum = 0.0f, largest = 0.0f;
#pragma unroll
  for (int v = 0; v < vectors_of_one_reduction; ++v) {
    const Floats<T> x = vectorized::unpack<T>(bits[v]), factors = gamma.vector[v].floats();
#pragma unroll
    for (int k = 0; k < vector_size<T>; ++k) {
      sum += x.at[k] * x.at[k];
      products.vector[v].at[k] = x.at[k] * factors.at[k];
      largest = max_or_nan(largest, fabsf(products.vector[v].at[k]));
    }
  }
  products.largest = __float_as_uint(largest);
  if (p.scaling != Scaling::block) return {sum, products.largest};
  products.largest = warp_max<columns_of_block / ColumnsOfThread<T>::count>(products.largest);
  const bool is_small = columns.inside && products.largest < __float_as_uint(smallest_product);
  return {sum, is_small ? __float_as_uint(INFINITY) : products.largest};
}

// Whether nothing of a row overflowed, is no number, or lost digits. `factor` makes bytes of products: it is 0 where
// the sum of squares is infinite, and infinite or a NaN where rstd is.
template <class T, class G>
__device__ inline bool is_usual(const QuantizedNorm<T, G>& p, unsigned largest, float factor) {
  const bool has_digits = largest >= __float_as_uint(smallest_product) && largest < __float_as_uint(INFINITY);
  const bool is_past = p.scaling == Scaling::tensor && __uint_as_float(largest) * factor >= most_past_the_range;
  return has_digits && factor > 0.0f && factor < INFINITY && !is_past;
}

// Stores the scale of the 128 columns that the thread's are among, and returns what makes bytes of its products.
template <class T, class G>
__device__ inline float factor_of_block(const QuantizedNorm<T, G>& p, int64_t row, ColumnsOfThread<T> columns,
                                        unsigned largest, float rstd) {
  const float scale = scale_for(__float_as_uint(__uint_as_float(largest) * rstd), p.format);
  const bool is_first = columns.inside && columns.first % columns_of_block == 0;
  if (is_first) p.scales[row * p.scales_stride + columns.first / columns_of_block] = scale;
  return __fdividef(rstd, scale);
}

// As to_int8, for what is a number: NaN does not come here. The last place of 1.5 * 2^23 is 1, so the addition rounds
// to an integer, which is in the sum's low byte. The kernel takes longer with conversions to int.
__device__ inline unsigned number_to_int8(float value) {
  return __float_as_uint(fminf(fmaxf(value, -128.0f), 127.0f) + 0x1.8p23f) & 0xffu;
}

// Four products of a thread, times `factor`, in eight bits.
template <ByteFormat format>
__device__ inline unsigned bytes_of(const float* at, float factor) {
  const float a = at[0] * factor, b = at[1] * factor, c = at[2] * factor, d = at[3] * factor;
  if (format == ByteFormat::e4m3) return to_e4m3_pair(a, b) | to_e4m3_pair(c, d) << 16;
  return number_to_int8(a) | number_to_int8(b) << 8 | number_to_int8(c) << 16 | number_to_int8(d) << 24;
}

// The thread's bytes: 16 of them, or 8 where its columns are floats.
template <ByteFormat format, class T>
__device__ inline void store_products(uint8_t* to, const Products<T>& products, float factor) {
  constexpr int words_of_vector = vector_size<T> / 4, words = vectors_of_one_reduction * words_of_vector;
  unsigned word[words];
#pragma unroll
  for (int i = 0; i < words; ++i) {
    word[i] = bytes_of<format>(products.vector[i / words_of_vector].at + i % words_of_vector * 4, factor);
  }
  if constexpr (words == 2) return store_words(to, word);
  if constexpr (words == 4) *reinterpret_cast<uint4*>(to) = {word[0], word[1], word[2], word[3]};
}

inline constexpr int most_unusual_rows = 32;  // that a block puts aside

// [snippet: normalize_usual_rows]
// y = x rstd gamma. So the largest |y| of a row is rstd times its largest |x gamma|, and that does not have to wait for
// rstd. Takes the block's rows from `row` on, puts the unusual ones aside, and returns how many these are. The next row
// is loaded ahead; but with a residual, when h is stored anyway, that brings nothing.
template <bool adds, class T, class G>
__device__ inline int normalize_usual_rows(const QuantizedNorm<T, G>& p, float inverse_cols, ColumnsOfThread<T> columns,
                                           float& given, SumAndMax (&scratch)[2][lanes], int64_t& row,
                                           int64_t (&unusual)[most_unusual_rows]) {
  LoadedVectors<adds> next = load_vectors<adds>(p, row, columns);
  Weights<T, G> gamma = load_gamma(p, columns);
  if (threadIdx.x == 0) given = p.scaling == Scaling::tensor ? 1.0f / *p.scale : 1.0f;
  let_next_kernel_start();
  int turn = 0, put_aside = 0;
  for (; row < p.rows && put_aside < most_unusual_rows; row += gridDim.x) {
    LoadedVectors<adds> loaded = next;
    if (!adds) next = load_vectors<adds>(p, row + gridDim.x, columns);
    if constexpr (adds) add_residual(p, row, columns, loaded);
    for (auto& vector : gamma.vector) vector.keep_packed();
    Products<T> products;
    const SumAndMax of_row = block_sum_and_max(multiply(p, columns, loaded.x, gamma, products), scratch[turn ^= 1]);
    const float rstd = rsqrtf(of_row.sum * inverse_cols + p.eps);
    const float scale = scale_for(__float_as_uint(__uint_as_float(of_row.max) * rstd), p.format);
    const float factor = p.scaling == Scaling::row ? __fdividef(rstd, scale) : rstd * given;
    if (is_usual(p, of_row.max, factor)) {  // in all threads alike
      if (p.scaling == Scaling::row && threadIdx.x == 0) p.scales[row * p.scales_stride] = scale;
      const bool has_block = p.scaling == Scaling::block;
      const float of_thread = has_block ? factor_of_block(p, row, columns, products.largest, rstd) : factor;
      uint8_t* const to = p.y + row * p.y_stride + columns.first;
      if (columns.inside && p.format == ByteFormat::e4m3) store_products<ByteFormat::e4m3>(to, products, of_thread);
      if (columns.inside && p.format == ByteFormat::int8) store_products<ByteFormat::int8>(to, products, of_thread);
    } else {
      if (threadIdx.x == 0) unusual[put_aside] = row;
      ++put_aside;
    }
    if (adds) next = load_vectors<adds>(p, row + gridDim.x, columns);
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
__global__ void __launch_bounds__(most_threads_of_one_reduction)
    normalize_in_one_reduction(QuantizedNorm<T, G> p, float inverse_cols) {
  __shared__ SumAndMax scratch[2][lanes];
  __shared__ float2 scratch_of_lesson[lanes];
  __shared__ int64_t unusual[most_unusual_rows];
  __shared__ float given;  // what a given scale makes of y: here it takes no register
  const int first = static_cast<int>(threadIdx.x) * ColumnsOfThread<T>::count;
  const ColumnsOfThread<T> columns = {first, first < p.cols};
  wait_for_previous_kernel();
  for (int64_t row = blockIdx.x; row < p.rows;) {
    const int put_aside = normalize_usual_rows<adds>(p, inverse_cols, columns, given, scratch, row, unusual);
    if (put_aside == 0) return;
    __syncthreads();
    for (int i = 0; i < put_aside; ++i) normalize_as_in_lesson(p, unusual[i], scratch_of_lesson);
    __syncthreads();
  }
}
// [/snippet]

template <bool adds, class T, class G>
void launch_in_one_reduction(const QuantizedNorm<T, G>& p, cudaStream_t stream) {
  constexpr int columns = ColumnsOfThread<T>::count;
  const int threads = static_cast<int>((p.cols + columns * lanes - 1) / (columns * lanes) * lanes);
  const auto kernel = normalize_in_one_reduction<T, G, adds>;
  const int64_t blocks = adds ? p.rows : std::min(p.rows, blocks_at_once(kernel, threads, 0));
  launch(kernel,
         {.grid = blocks_for(blocks, 1), .block = static_cast<unsigned>(threads), .overlap = true, .stream = stream}, p,
         1.0f / static_cast<float>(p.cols));
}

template <class T, class G>
void launch_final_quantized(const QuantizedNorm<T, G>& p, cudaStream_t stream) {
  constexpr int64_t columns = ColumnsOfThread<T>::count;
  const bool whole_threads =
      p.cols % columns == 0 && reinterpret_cast<uintptr_t>(p.y) % columns == 0 && p.y_stride % columns == 0;
  const bool is_held = has_whole_rows(p) && whole_threads && p.cols <= columns * most_threads_of_one_reduction;
  if (p.rows == 0 || p.subtracts_mean || !is_held) return launch_quantized(p, stream);
  if (p.residual) return launch_in_one_reduction<true>(p, stream);
  launch_in_one_reduction<false>(p, stream);
}

}  // namespace worklog::fused_residual
