// Which kernel takes a row of whole vectors: it depends on the row's length, the types, the number of tensors that are
// read and the number of rows. Each bound was found by measuring.
#pragma once

#include <cstdint>

#include "03_warp_shuffle/kernels.cuh"
#include "04_vectorized/kernels.cuh"
#include "05_welford/final/launch_one_row.cuh"
#include "05_welford/final/one_row.cuh"
#include "05_welford/final/persistent_clusters.cuh"
#include "05_welford/final/rows.cuh"
#include "05_welford/final/split_moments.cuh"
#include "common/device/cluster.cuh"
#include "common/device/launch.cuh"

namespace worklog::welford {

using vectorized::vector_size;
using warp_shuffle::lanes;

// [snippet: whole_vectors]
// Which kernel takes which length, in vectors, was found by measuring: wide loads in flight against the registers that
// they take. True where one of them does.
//
// Rows of whole vectors, of steps that read one tensor.
template <bool given, class Steps>
bool normalize_vectors_of_one(const Steps& steps, int64_t length, cudaStream_t stream) {
  constexpr Fit full = Fit::full;
  constexpr Fit some = Fit::vectors;
  constexpr Amount many = Amount::many;
  constexpr bool wide_elements = sizeof(typename Steps::Element) == 4;
  constexpr bool wide_parameters = sizeof(typename Steps::Parameter) > sizeof(typename Steps::Element);
  if (length <= 4 * 4) return launch_lanes<given, 4, 4>(steps, stream), true;
  if (length <= 4 * 8) return launch_lanes<given, 4, 8>(steps, stream), true;
  if (length <= 4 * 16) return launch_lanes<given, 4, 16>(steps, stream), true;
  if (length <= 4 * 32) return launch_lanes<given, 4, 32>(steps, stream), true;
  if (length <= 5 * 32) return launch_lanes<given, 5, 32>(steps, stream), true;
  if (!wide_elements && length <= 7 * 32) return launch_lanes<some, given, 7, 32>(steps, stream), true;
  if (wide_elements && length <= 2 * 256) {
    if (length % (2 * lanes) == 0) return launch_block<full, given, many, 2, 256, 6>(steps, stream), true;
    return launch_block<some, given, many, 2, 256, 6>(steps, stream), true;
  }
  if (length <= 4 * 512) {
    constexpr bool narrow = !wide_elements && !wide_parameters;
    // Without a mean to subtract, twice the threads with half the vectors have enough registers.
    if constexpr (narrow && Steps::about == About::zero) {
      if (length % (2 * lanes) == 0 && length >= 2 * 256 && length <= 2 * 512) {
        return launch_block<full, given, many, 2, 512, 4>(steps, stream), true;
      }
    }
    // Of whole blocks of 16 bits three fit at once, if they ask for their vectors; of smaller ones, if their registers
    // are bounded.
    const bool three_fit = length == 4 * 512 && narrow;
    if constexpr (narrow && Steps::about == About::mean) {
      if (length % (4 * lanes) == 0 && length <= 4 * 384) {
        return launch_block<full, given, many, 4, 384, 3>(steps, stream), true;
      }
    }
    if (length % (4 * lanes) == 0 && !three_fit) {
      return launch_block<full, given, many, 4, 512, 2>(steps, stream), true;
    }
    return launch_block < some, given, many, 4, 512, wide_parameters ? 2 : 3 > (steps, stream), true;
  }
  if constexpr (wide_elements) {
    if (length == 8 * 512) return launch_block<full, given, many, 8, 512, 2>(steps, stream), true;
  }
  if (length <= 8 * 512) {
    return launch_block<some, given, many, 8, 512, 2>(steps, stream), true;
  }
  if constexpr (given) {
    if (launch_staying_clusters < some, ClusterBarrier, wide_parameters ? 4 : 8, 256, 3, 2 > (steps, stream))
      return true;
    if constexpr (wide_elements) {  // rows twice as long: of such blocks a multiprocessor has room for one
      if (length > 56 * 1024 && launch_staying_clusters<some, ClusterBarrier, 8, 512, 3, 1>(steps, stream)) return true;
    }
  }
  // 16-bit elements are left to be asked for: else the compiler keeps them as floats, for which there is no room.
  constexpr Fit filled = wide_elements ? full : some;
  if (length <= 8 * 1024 && launch_clusters<filled, true, given, many, 8, 1024, 1>(steps, stream)) return true;
  if (length <= 64 * 256 && launch_clusters<filled, true, given, many, 8, 256, 4>(steps, stream)) return true;
  if (length <= 64 * 512 && launch_clusters<filled, true, given, many, 8, 512, 2>(steps, stream)) return true;
  if (length <= 7 * 1024) return launch_clusters<some, false, given, many, 7, 1024, 1>(steps, stream);
  if (length <= 56 * 256) return launch_clusters<some, false, given, many, 7, 256, 4>(steps, stream);
  if (length <= 56 * 512) return launch_clusters<some, false, given, many, 7, 512, 2>(steps, stream);
  if constexpr (wide_elements) {
    if (length > 56 * 1024) return launch_clusters<some, false, given, many, 8, 1024, 1>(steps, stream);
  }
  return launch_clusters<some, false, given, many, 7, 1024, 1>(steps, stream);
}

// Of steps that read two tensors: twice the loads to a vector.
template <bool given, class Steps>
bool normalize_vectors_of_two(const Steps& steps, int64_t length, cudaStream_t stream) {
  constexpr Fit full = Fit::full;
  constexpr Fit some = Fit::vectors;
  constexpr Amount many = Amount::many;
  if (length <= 2 * 8) return launch_lanes<given, 2, 8>(steps, stream), true;
  if (length <= 2 * 16) return launch_lanes<given, 2, 16>(steps, stream), true;
  if (length <= 2 * 32) return launch_lanes<given, 2, 32>(steps, stream), true;
  if (length <= 4 * 256) return launch_block<some, given, many, 4, 256, 4>(steps, stream), true;
  if (length <= 4 * 512) {
    if (length % (4 * lanes) == 0) return launch_block<full, given, many, 4, 512, 2>(steps, stream), true;
    return launch_block<some, given, many, 4, 512, 2>(steps, stream), true;
  }
  if constexpr (given) {
    if (length > 4 * 1024) {
      if (launch_staying_clusters<some, ClusterBarrier, 4, 256, 3, 2>(steps, stream)) return true;
      if (launch_staying_clusters<some, ClusterBarrier, 4, 512, 3, 1>(steps, stream)) return true;
    }
    if constexpr (sizeof(typename Steps::Element) == 4) {
      if (length > 56 * 1024 && launch_staying_clusters<some, ClusterBarrier, 8, 512, 2, 1>(steps, stream)) return true;
    }
  }
  // 16-bit elements would be kept as floats where nothing is asked, and there is no room for them.
  if constexpr (sizeof(typename Steps::Element) == 4) {
    if (length == 8 * 512) return launch_block<full, given, many, 8, 512, 2>(steps, stream), true;
    if (length > 4 * 1024) {
      if (length <= 64 * 256 && launch_clusters<full, true, given, many, 8, 256, 4>(steps, stream)) return true;
      if (length <= 64 * 512 && launch_clusters<full, true, given, many, 8, 512, 2>(steps, stream)) return true;
    }
  }
  if (length <= 4 * 1024) return launch_block<some, given, many, 4, 1024, 1>(steps, stream), true;
  if (length <= 32 * 512) return launch_clusters<some, false, given, many, 4, 512, 2>(steps, stream);
  if constexpr (sizeof(typename Steps::Element) == 4) {
    if (length > 32 * 1024) {
      if (launch_clusters<full, true, given, many, 8, 1024, 1>(steps, stream)) return true;
      return launch_clusters<some, false, given, many, 8, 1024, 1>(steps, stream);
    }
  }
  return launch_clusters<some, false, given, many, 4, 1024, 1>(steps, stream);
}

// Few rows are all under way at the same time, and none hides behind another's work: each thread has few vectors, and
// gamma and beta are on their way with them. So many vectors that a multiprocessor reads are few, measured from a
// graph:
inline constexpr int64_t few_vectors = 4096;
// A row that a warp can hold needs no barrier there, but it gives each thread four vectors. Measured with one tensor to
// read: from so many on it is faster by warps, and from so many on not even gamma and beta need to be early.
inline constexpr int64_t fewest_by_warps = 1024;
inline constexpr int64_t most_by_warps = 2048;

// And so few that the blocks of two kernels find places beside each other, where a row's thread has two of them. Of
// more, the next kernel's take what this one's need.
inline constexpr int64_t fewest_vectors = 512;

template <bool given, Amount amount, int threads, class Steps>
void launch_few(const Steps& steps, int64_t length, cudaStream_t stream) {
  if (length % (2 * lanes) == 0) return launch_block<Fit::full, given, amount, 2, threads, 1>(steps, stream);
  launch_block<Fit::vectors, given, amount, 2, threads, 1>(steps, stream);
}

template <bool given, int threads, class Steps>
void launch_few(const Steps& steps, int64_t length, cudaStream_t stream) {
  if (steps.p.rows * length <= fewest_vectors * device_attribute(cudaDevAttrMultiProcessorCount)) {
    return launch_few<given, Amount::fewest_blocks, threads>(steps, length, stream);
  }
  launch_few<given, Amount::few_blocks, threads>(steps, length, stream);
}

template <bool given, class Steps>
bool normalize_vectors(const Steps& steps, cudaStream_t stream) {
  constexpr Amount few = Amount::few;
  constexpr int reads = Steps::reads;
  const int64_t length = steps.p.cols / vector_size<typename Steps::Element>;
  const int64_t multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
  if (length <= 2 * 1) return launch_lanes<given, 2, 1>(steps, stream), true;
  if (length <= 2 * 2) return launch_lanes<given, 2, 2>(steps, stream), true;
  if (length <= 2 * 4) return launch_lanes<given, 2, 4>(steps, stream), true;
  const int64_t read_by_each = reads * steps.p.rows * length / multiprocessors;
  if (length > 64 && length <= 128) {
    if (read_by_each < (reads == 1 ? fewest_by_warps : few_vectors)) {
      return launch_few<given, 128>(steps, length, stream), true;
    }
    if constexpr (reads == 1) {
      if (read_by_each < most_by_warps) return launch_lanes<given, 4, 32, few>(steps, stream), true;
    }
  } else if (length > 128 && length <= 2 * 512 && read_by_each < few_vectors) {
    if (length <= 2 * 128) return launch_few<given, 128>(steps, length, stream), true;
    return launch_few<given, 512>(steps, length, stream), true;
  }
  if (length > 2 * 512 && steps.p.rows * length <= 2048 * multiprocessors) {
    if (launch_clusters<Fit::vectors, false, given, few, 2, 512, 1>(steps, stream)) return true;
    // Of blocks with four vectors to a thread, a multiprocessor has room for one.
    if (steps.p.rows * length <= 1024 * multiprocessors &&
        launch_clusters<Fit::vectors, false, given, few, 4, 512, 1>(steps, stream)) {
      return true;
    }
  }
  if constexpr (Steps::reads == 1) {
    return normalize_vectors_of_one<given>(steps, length, stream);
  } else {
    return normalize_vectors_of_two<given>(steps, length, stream);
  }
}
// [/snippet]

}  // namespace worklog::welford
