// Which form of the kernel of normalize.cuh is launched, and with how many blocks. Threads and ring are larger on GPUs
// with the shared memory of Hopper. There a form for tensors that fit in the rings is tried first; the form that goes
// there and back takes the rest.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "08_batchnorm/final/normalize.cuh"
#include "08_batchnorm/final/ring.cuh"
#include "08_batchnorm/final/shape.cuh"
#include "08_batchnorm/final/tiling.cuh"
#include "08_batchnorm/final/vector.cuh"
#include "common/device/launch.cuh"

namespace worklog::batchnorm {

// [snippet: launch]
// Threads of a block; batches of a thread's ring, and vectors of a batch; and vectors that a thread reads ahead. The
// large one takes up to 224 of the 227 KiB of shared memory that a block may have on Hopper; the small one needs at
// most 49 KiB.
template <int threads_, int batches_, int batch_, int ahead_>
struct Config {
  static constexpr int threads = threads_;
  static constexpr int batches = batches_;
  static constexpr int batch = batch_;
  static constexpr int ahead = ahead_;
  static constexpr bool ring_holds_all = false;
};
// Where no thread has more vectors than the ring has room for, nothing is asked for twice: a shorter program. Most of
// it runs once, in all warps alike: so it has half as many, and each thread has twice the room.
template <class C>
struct Once : Config<C::threads / 2, C::batches, 2 * C::batch, C::ahead> {
  static constexpr bool ring_holds_all = true;
};
using LargeConfig = Config<512, 10, 2, 8>;
using SmallConfig = Config<256, 4, 1, 2>;

// Launches one program. Returns false where the tensor cannot be cut for it, or where its rings are to hold all and do
// not.
template <int size, bool images, class Config, class Steps>
bool launch_program(const Steps& steps, cudaStream_t stream) {
  using Ring = Ring<typename Steps::T, size, Steps::inputs, Config>;
  constexpr size_t exchanged = std::max(size * sizeof(typename Steps::Partial) * (Config::threads + 1),
                                        sizeof(typename Steps::Channel) * Config::threads);
  constexpr size_t bytes = Config::threads * Ring::bytes_of_thread + exchanged;
  const auto kernel = normalize_channels<Steps, size, images, Config>;
  const int64_t blocks = blocks_at_once(kernel, Config::threads, bytes);
  constexpr int64_t room = batchnorm_workspace / int64_t{sizeof(typename Steps::Shared) / sizeof(float)};
  const Shape shape = shape_of(steps.p);
  const int64_t bytes_of_tensor = shape.samples * shape.channels * shape.pixels * int64_t{sizeof(typename Steps::T)};
  const bool in_cache = (Steps::inputs + 1) * bytes_of_tensor <= device_attribute(cudaDevAttrL2CacheSize);
  Tiling tiling = tiling_of(shape, size, blocks, Config::threads, room, in_cache);
  if (tiling.tiles == 0) return false;
  if (Ring::holds_all && std::max(tiling.each, tiling.each_of_longer) >= Ring::held) return false;
  tiling.eviction = eviction_of(bytes_of_tensor * Steps::inputs, caches_to_hit);
  // Nothing need make room where the rings hold all: what is in the cache may stay, for whoever reads it next.
  const bool makes_room = tiling.eviction == Eviction::normal && !(Ring::holds_all && in_cache);
  tiling.eviction_at_last = makes_room ? Eviction::first : tiling.eviction;
  const int64_t side_by_side = Ring::holds_all ? tiling.tiles : std::min<int64_t>(tiling.tiles, blocks);
  const bool waits = tiling.splits > 1;
  launch(kernel,
         {.grid = dim3(static_cast<unsigned>(side_by_side), static_cast<unsigned>(tiling.splits)),
          .block = Config::threads,
          .shared_bytes = bytes,
          .cooperative = waits,
          .overlap = Ring::holds_all && !waits,
          .stream = stream},
         steps, tiling);
  return true;
}

template <int size, bool images, class Config, class Steps>
bool launch_tiles(const Steps& steps, cudaStream_t stream) {
  if constexpr (std::is_same_v<Config, LargeConfig>) {
    if (launch_program<size, images, Once<Config>>(steps, stream)) return true;
  }
  return launch_program<size, images, Config>(steps, stream);
}

template <bool images, class Config, class Steps>
void normalize_as(const Steps& steps, bool aligned, cudaStream_t stream) {
  if (aligned && launch_tiles<vector_size<typename Steps::T>, images, Config>(steps, stream)) return;
  launch_tiles<1, images, Config>(steps, stream);
}

template <class Config, class Steps>
void normalize_with(const Steps& steps, bool aligned, cudaStream_t stream) {
  if (run_of(shape_of(steps.p)) > 1) {
    normalize_as<true, Config>(steps, aligned, stream);
  } else {
    normalize_as<false, Config>(steps, aligned, stream);
  }
}

template <class Steps>
void normalize(const Steps& steps, bool aligned, cudaStream_t stream) {
  if (device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) >= 227 * 1024) {
    normalize_with<LargeConfig>(steps, aligned, stream);
  } else {
    normalize_with<SmallConfig>(steps, aligned, stream);
  }
}
// [/snippet]

}  // namespace worklog::batchnorm
