// The two passes of a thread over its part. It reads forwards through the ring and adds up; then it goes backwards and
// writes. The second pass begins with what the ring still holds, and ends with what was read ahead into registers.
#pragma once

#include <cuda_pipeline.h>

#include "05_welford/final/sums.cuh"
#include "08_batchnorm/final/parts.cuh"
#include "08_batchnorm/final/ring.cuh"
#include "08_batchnorm/final/vector.cuh"

namespace worklog::batchnorm {

// [snippet: read_forwards]
// Asks for vector `i` of a batch, and goes on to the next.
template <class Ring, class Steps, class Walk>
__device__ inline void fetch_forwards(const Ring& ring, const Steps& steps, Walk& walk, typename Ring::Bits* slot,
                                      int i, uint64_t advice) {
#pragma unroll
  for (int input = 0; input < Steps::inputs; ++input) {
    ring.fetch(ring.in_batch(slot, i, input), steps.input(input) + walk.place, advice);
  }
  walk.forward();
}

// Asks for a thread's first vectors: as many as the ring has room for.
template <class Ring, class Steps, int size, class Walk>
__device__ inline void fill_ring(const Ring& ring, const Steps& steps, const Part<size>& part, Walk& walk) {
  constexpr int batch = Ring::batch;
  typename Ring::Bits* slot = ring.first_slot();
#pragma unroll 1
  for (int asked = 0; asked < Ring::held; asked += batch, slot += Ring::apart) {
    const uint64_t advice = ring.advice_at(asked, part);
    if (asked < part.count) {
#pragma unroll
      for (int i = 0; i < batch; ++i) {
        if (asked + i < part.count) fetch_forwards(ring, steps, walk, slot, i, advice);
      }
    }
    ring.commit();  // also where there was nothing to ask for: the batches are counted
  }
}

// A thread's sums over its vectors, one for each element of a vector. The ring has been filled. Moves `walk` to the
// place after its last vector, and returns the last batch in the ring. As long as every thread has vectors to add up
// and to fetch, no vector needs a test of its own.
template <class Ring, class Steps, int size, class Walk>
__device__ inline typename Ring::Bits* read_forwards(const Ring& ring, const Steps& steps, const Part<size>& part,
                                                     Walk& walk, const int (&channels)[size], float scale,
                                                     typename Steps::Sums (&sums)[size]) {
  using Bits = typename Ring::Bits;
  constexpr int batch = Ring::batch;
  constexpr int held = Ring::held;
  const auto fetch = [&](Bits* slot, int i, uint64_t advice) { fetch_forwards(ring, steps, walk, slot, i, advice); };
  constexpr int together = is_exact<typename Steps::T> && batch > 1 ? 2 : 1;
  const auto add = [&](Bits* slot, int i, bool both) {
    float first[together][size], second[together][size];
#pragma unroll
    for (int j = 0; j < together; ++j) {
      const int there = both ? i + j : i;  // nobody has written where the other would be
      unpack(*ring.in_batch(slot, there, 0), first[j]);
      unpack(*ring.in_batch(slot, there, Steps::inputs - 1), second[j]);
    }
#pragma unroll
    for (int k = 0; k < size; ++k) {
      if constexpr (together == 1) {
        steps.add(sums[k], first[0][k], second[0][k], scale);
      } else {
        steps.add(sums[k], {first[0][k], first[1][k]}, {second[0][k], second[1][k]}, both, scale);
      }
    }
  };
  const auto fold = [&] {
#pragma unroll
    for (int k = 0; k < size; ++k) sums[k].fold();
  };

  Bits* slot = ring.first_slot();
  if (part.count > 0) {
    __pipeline_wait_prior(Ring::batches - 1 - 1 / batch);  // for two vectors: two batches, if one has a single vector
    float pivots[size] = {};
    if constexpr (Steps::has_pivots) {
      constexpr int some = is_exact<typename Steps::T> && batch > 2 ? batch : 2;
      float first[some][size];
#pragma unroll
      for (int i = 0; i < some; ++i) unpack(*(i < part.count ? ring.in_batch(slot, i, 0) : slot), first[i]);
#pragma unroll
      for (int k = 0; k < size; ++k) {
        float values[some];
#pragma unroll
        for (int i = 0; i < some; ++i) values[i] = 1.0f / some * (first[i][k] * scale);
        pivots[k] = welford::sum_of_pairs(values);
      }
    }
#pragma unroll
    for (int k = 0; k < size; ++k) sums[k] = steps.start(part.first_channel + channels[k], pivots[k]);
  }
  int done = 0;
#pragma unroll 1
  for (; !Ring::holds_all && part.count > 0 && done + 2 * held <= part.of_all; done += held) {
#pragma unroll 1
    for (int b = 0; b < Ring::batches; ++b, slot += Ring::apart) {
      const uint64_t advice = ring.advice_at(done + held + b * batch, part);
      ring.wait_for_oldest();
#pragma unroll
      for (int i = 0; i < batch; i += together) add(slot, i, together == 2);
#pragma unroll
      for (int i = 0; i < batch; ++i) fetch(slot, i, advice);
      ring.commit();
    }
    slot = ring.first_slot();
    fold();
  }
  int asked = done + held;
  Bits* last = slot;
#pragma unroll 1
  for (; done < part.count; done += batch) {
    ring.wait_for_oldest();
#pragma unroll
    for (int i = 0; i < batch; i += together) {
      if (done + i < part.count) add(slot, i, together == 2 && done + i + 1 < part.count);
    }
#pragma unroll
    for (int i = 0; i < batch; ++i, ++asked) {
      if (!Ring::holds_all && asked < part.count) fetch(slot, i, ring.advice_last);
    }
    ring.commit();
    last = slot;
    slot += Ring::apart;
    if (!Ring::holds_all && last == ring.last_slot()) {
      slot = ring.first_slot();
      fold();
    }
  }
  return last;
}
// [/snippet]

// [snippet: write_backwards]
// A thread's first vectors, in registers: asked for when the first pass has ended, they are on their way while blocks
// merge and wait for each other. The second pass ends with them.
template <class Ring, class Steps, int size, int vectors>
struct Ahead {
  typename Ring::Bits read[vectors][Steps::inputs];
  bool is_there;  // not where the ring holds all or nearly all

  template <class Walk>
  __device__ void ask(const Ring& ring, const Steps& steps, Walk walk) {
    if (!is_there) return;
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
#pragma unroll
      for (int input = 0; input < Steps::inputs; ++input) {
        read[i][input] = read_vector<typename Ring::Bits>(steps.input(input) + walk.place, ring.advice_last);
      }
      walk.forward();
    }
  }
};

template <class Steps, class Bits, int size>
__device__ inline void write_vector(const Steps& steps, int64_t place, const Bits& one, const Bits& other,
                                    const typename Steps::Channel (&channel)[size]) {
  float first[size], second[size], results[size];
  unpack(one, first);
  unpack(other, second);
#pragma unroll
  for (int k = 0; k < size; ++k) results[k] = steps.result(first[k], second[k], channel[k]);
  store_streaming(steps.output() + place, pack<typename Steps::T>(results));
}

// y, from the last vector to the first: the ring still holds the last ones. `writing` is the place after the last,
// `slot` the last batch in the ring.
template <class Ring, class Steps, int size, int vectors, class Walk>
__device__ inline void write_backwards(const Ring& ring, const Steps& steps, const Part<size>& part, Walk writing,
                                       typename Ring::Bits* slot, const typename Steps::Channel (&channel)[size],
                                       const Ahead<Ring, Steps, size, vectors>& ahead) {
  constexpr int batch = Ring::batch;
  constexpr int held = Ring::held;
  const int end = ahead.is_there ? vectors : 0;
  int left = (part.count + batch - 1) / batch * batch;  // vectors; the last batch may have fewer
  writing.back();
  Walk fetching = writing;
  if (left > held) fetching.back(part.count - (left - held));
#pragma unroll 1
  while (left > end) {
    if constexpr (!Ring::holds_all) ring.wait_for_oldest();
    const bool is_whole = left <= part.count;
#pragma unroll
    for (int i = batch - 1; i >= 0; --i) {
      if (!is_whole && left - batch + i >= part.count) continue;
      write_vector(steps, writing.place, *ring.in_batch(slot, i, 0), *ring.in_batch(slot, i, Steps::inputs - 1),
                   channel);
      writing.back();
    }
    left -= batch;
    if (!Ring::holds_all && left - held >= end) {
#pragma unroll
      for (int i = batch - 1; i >= 0; --i) {
#pragma unroll
        for (int input = 0; input < Steps::inputs; ++input) {
          ring.fetch(ring.in_batch(slot, i, input), steps.input(input) + fetching.place, ring.advice_last);
        }
        fetching.back();
      }
    }
    if constexpr (!Ring::holds_all) ring.commit();
    slot = slot == ring.first_slot() ? ring.last_slot() : slot - Ring::apart;
  }
  if (!ahead.is_there) return;
#pragma unroll
  for (int i = vectors - 1; i >= 0; --i) {
    write_vector(steps, writing.place, ahead.read[i][0], ahead.read[i][Steps::inputs - 1], channel);
    writing.back();
  }
}
// [/snippet]

}  // namespace worklog::batchnorm
