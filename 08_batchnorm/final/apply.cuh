// One trip through memory, as a copy makes it, where the statistics of each channel are known. Inference needs no more,
// and BatchNorm over several GPUs ends with it (sync.cuh). A thread's vectors are whole lines apart: they have the same
// channels, and it looks them up once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "08_batchnorm/final/divisor.cuh"
#include "08_batchnorm/final/shape.cuh"
#include "08_batchnorm/final/vector.cuh"
#include "common/device/launch.cuh"

namespace worklog::batchnorm {

// [snippet: flat]
// How the channels of a vector's elements stand to each other: they follow each other and may be read as vectors, or
// they are two at most, that of the first and that of the last element, or neither.
enum class Neighbors { in_a_row, two, any };

// A tensor as vectors one after the other. A thread's vectors are `apart` vectors from each other, a whole number of
// lines, so that they have the same channels.
struct Flat {
  int64_t vectors;
  int over;         // elements after the last whole vector
  Divisor line;     // vectors after which the channels repeat
  Divisor apart;    // whole lines
  int64_t threads;  // whole stretches
  Divisor channels;
  Divisor run;    // neighbouring elements of one channel
  bool is_short;  // threads, and the elements of a line, can be counted in 31 bits
  Neighbors neighbors;
  Eviction eviction;  // of what is read, in the L2 cache
};

// The channels of the elements of vector `vector`. Index is what counts a line's elements.
template <class Index, int size>
__device__ inline void channels_of(const Flat& flat, Index vector, int (&found)[size]) {
  const Index element = flat.line.remainder(vector) * size;
  if (flat.neighbors == Neighbors::in_a_row) {
#pragma unroll
    for (int k = 0; k < size; ++k) found[k] = static_cast<int>(element) + k;
    return;
  }
  const Index runs = flat.run.quotient(element);
  int channel = static_cast<int>(flat.channels.remainder(runs));
  // Elements before the next channel.
  int left = static_cast<int>(static_cast<Index>(flat.run.by) - (element - runs * static_cast<Index>(flat.run.by)));
#pragma unroll
  for (int k = 0; k < size; ++k) {
    found[k] = channel;
    if (--left > 0) continue;
    left = static_cast<int>(flat.run.by);
    if (++channel == static_cast<int>(flat.channels.by)) channel = 0;
  }
}
// [/snippet]

// [snippet: apply]
// One trip through memory, as a copy makes it: a thread asks for all that it will write, and only then for what it
// needs to know of its channels.
inline constexpr int threads_of_apply = 128;

template <class Steps, int size, int vectors>
__global__ void __launch_bounds__(threads_of_apply) apply_channels(Steps steps, Flat flat) {
  using T = typename Steps::T;
  using Bits = Vector<T, size>;
  const int64_t thread = int64_t{blockIdx.x} * threads_of_apply + threadIdx.x;
  const uint32_t short_thread = static_cast<uint32_t>(thread);
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (thread < flat.threads) {
    const int64_t group = flat.is_short ? flat.apart.quotient(short_thread) : flat.apart.quotient(thread);
    const int64_t place = thread + group * (vectors - 1) * flat.apart.by;  // of the first vector
    const uint64_t advice = advice_of(flat.eviction);
    Bits held[vectors][Steps::inputs];
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      const int64_t vector = place + i * flat.apart.by;
      if (vector >= flat.vectors) continue;
#pragma unroll
      for (int input = 0; input < Steps::inputs; ++input) {
        held[i][input] = read_vector<Bits>(steps.input(input) + vector * size, advice);
      }
    }
    int channels[size];
    if (flat.is_short) {
      channels_of(flat, short_thread, channels);
    } else {
      channels_of(flat, thread, channels);
    }
    typename Steps::Channel known[size];
    steps.read_channels(channels, flat.neighbors, known);
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      const int64_t vector = place + i * flat.apart.by;
      if (vector >= flat.vectors) continue;
      float first[size], second[size], results[size];
      unpack(held[i][0], first);
      unpack(held[i][Steps::inputs - 1], second);
#pragma unroll
      for (int k = 0; k < size; ++k) results[k] = steps.result(first[k], second[k], known[k]);
      *reinterpret_cast<Bits*>(steps.output() + vector * size) = pack<T>(results);
    }
  }
  if (thread < flat.over) {
    const int64_t place = flat.vectors * size + thread;
    const int channel[1] = {static_cast<int>(flat.channels.remainder(flat.run.quotient(place)))};
    typename Steps::Channel known[1];
    steps.read_channels(channel, Neighbors::any, known);
    const float result =
        steps.result(to_float(steps.input(0)[place]), to_float(steps.input(Steps::inputs - 1)[place]), known[0]);
    steps.output()[place] = static_cast<T>(result);
  }
}
// [/snippet]

// [snippet: launch_apply]
// A thread's vectors are as far apart as the tensor allows; or, if `near` is not 0, whole lines of at least `near`
// vectors apart.
template <int size, int vectors, class Steps>
void launch_apply(const Steps& steps, Flat flat, int64_t near, cudaStream_t stream) {
  const int64_t line = flat.line.by;
  const int64_t lines = std::max<int64_t>(1, (flat.vectors + line - 1) / line);
  const int64_t lines_apart = near > 0 ? (near + line - 1) / line : (lines + vectors - 1) / vectors;
  flat.apart = Divisor(lines_apart * line);
  flat.threads = (lines + lines_apart * vectors - 1) / (lines_apart * vectors) * flat.apart.by;
  flat.is_short = flat.threads < Divisor::end && line * size < Divisor::end;
  const int64_t blocks = std::max<int64_t>(1, (flat.threads + threads_of_apply - 1) / threads_of_apply);
  launch(apply_channels<Steps, size, vectors>,
         {.grid = static_cast<unsigned>(blocks), .block = threads_of_apply, .overlap = true, .stream = stream}, steps,
         flat);
}

template <int size, class Steps>
void apply_vectors(const Steps& steps, bool in_a_row, cudaStream_t stream) {
  const Shape shape = shape_of(steps.p);
  const int64_t elements = shape.samples * shape.channels * shape.pixels;
  Flat flat = {};
  const int64_t run = run_of(shape);
  flat.channels = Divisor(shape.channels);
  flat.run = Divisor(run);
  flat.vectors = elements / size;
  flat.over = static_cast<int>(elements % size);
  const int64_t repeats = shape.channels * run;
  flat.line = Divisor(repeats / std::gcd<int64_t>(repeats, size));
  flat.neighbors = run > 1 && run >= size - 1                           ? Neighbors::two
                   : in_a_row && run == 1 && shape.channels % size == 0 ? Neighbors::in_a_row
                                                                        : Neighbors::any;
  flat.eviction = eviction_of(elements * int64_t{sizeof(typename Steps::T)} * Steps::inputs, caches_to_hit);

  // As measured. The more vectors a thread has, the more share what it finds out of its channels; and the more of them
  // wait for each other. Far apart, a thread's vectors do best where the threads that the GPU has room for hold the
  // tensor at once; near each other, where it is larger.
  constexpr int64_t near = 4 * threads_of_apply;
  const int64_t room = int64_t{device_attribute(cudaDevAttrMultiProcessorCount)} *
                       device_attribute(cudaDevAttrMaxThreadsPerMultiProcessor);
  if (flat.vectors <= room / 16) return launch_apply<size, 1>(steps, flat, 0, stream);
  if (flat.vectors <= room / 4) return launch_apply<size, 2>(steps, flat, 0, stream);
  if constexpr (size == 1) {
    launch_apply<size, 8>(steps, flat, 0, stream);
  } else if constexpr (size == 4) {
    if (flat.vectors <= 8 * room) return launch_apply<size, 8>(steps, flat, 0, stream);
    launch_apply<size, 2>(steps, flat, near, stream);
  } else {
    launch_apply<size, 4>(steps, flat, flat.vectors <= 4 * room ? 0 : near, stream);
  }
}

// `aligned` are the tensors; `in_a_row`, what is known of the channels.
template <class Steps>
void apply(const Steps& steps, bool aligned, bool in_a_row, cudaStream_t stream) {
  if (aligned) {
    apply_vectors<vector_size<typename Steps::T>>(steps, in_a_row, stream);
  } else {
    apply_vectors<1>(steps, in_a_row, stream);
  }
}
// [/snippet]

}  // namespace worklog::batchnorm
