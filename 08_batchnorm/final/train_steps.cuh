// What training's forward pass adds up for a channel, shares with other blocks, and writes. The kernel that calls these
// steps, in normalize.cuh, knows only their names; backward_steps.cuh has the same names.
#pragma once

#include <limits>

#include "04_vectorized/vectors.cuh"
#include "08_batchnorm/final/merge.cuh"
#include "common/device/arguments.h"

namespace worklog::batchnorm {

using vectorized::to_float;

inline constexpr float infinity = std::numeric_limits<float>::infinity();

// Asks for what is needed later. `from` may be null.
template <class V>
__device__ inline void prefetch([[maybe_unused]] const V* from, [[maybe_unused]] int i) {
#if defined(__CUDA_ARCH__)
  if (from) asm volatile("prefetch.global.L2 [%0];" ::"l"(from + i));
#endif
}

// [snippet: train_steps]
// The steps of training's forward pass. Statistics are those of x * scale. scale is 1, but for channels whose squares
// overflow: there it is a small power of two, by which nothing is rounded.
template <class T_, class G>
struct TrainSteps {
  using T = T_;
  BatchNormTrain<T, G> p;
  static constexpr int inputs = 1;
  __device__ const T* input(int) const { return p.x; }
  __host__ __device__ T* output() const { return p.y; }

  // What is given of a channel: asked for early, for it is needed where everyone waits.
  struct Given {
    G gamma, beta;
  };
  __device__ Given given(int channel) const {
    prefetch(p.running_mean, channel);
    prefetch(p.running_var, channel);
    return {p.gamma ? p.gamma[channel] : static_cast<G>(1.0f), p.beta ? p.beta[channel] : static_cast<G>(0.0f)};
  }

  // One thread's sums for one channel, of differences from a pivot: the mean of the first values that it meets. A pivot
  // z standard deviations from the mean makes the sum of squares 1 + z^2 times as large as it need be, and its
  // roundings. Of 50000 channels one has a first value with z = 4.2; the mean of four has 2.1.
  static constexpr bool has_pivots = true;
  struct Sums {
    float pivot;
    RunningSum sum, squares;

    __device__ void fold() {
      sum.fold();
      squares.fold();
    }
  };
  __device__ Sums start(int, float pivot) const { return {pivot, {}, {}}; }
  __device__ void add(Sums& sums, float x, float, float scale) const {
    const float d = fmaf(x, scale, -sums.pivot);
    sums.sum.lately += d;
    sums.squares.lately = fmaf(d, d, sums.squares.lately);
  }
  // Adds two values, or one unless `both`: they are added to each other before they are added to the sum.
  __device__ void add(Sums& sums, const float (&x)[2], const float (&)[2], bool both, float scale) const {
    const float one = fmaf(x[0], scale, -sums.pivot);
    const float other = both ? fmaf(x[1], scale, -sums.pivot) : 0.0f;
    sums.sum.lately += one + other;
    sums.squares.lately += fmaf(other, other, one * one);
  }

  using Partial = SplitMoments;  // of a thread
  __device__ Partial partial(const Sums& sums, int count, int, float) const {
    if (count == 0) return {};
    const float n = static_cast<float>(count);
    const float sum = sums.sum.all();
    const float rest = sum * (1.0f / n);  // one division for all of a vector's elements
    const float m2 = sums.squares.all() - sum * rest;
    return {n, sums.pivot, rest, m2 < 0.0f ? 0.0f : m2};
  }
  __device__ Partial partial_of_element(int64_t i, int, float scale) const {
    return {1.0f, to_float(p.x[i]) * scale, 0.0f, 0.0f};
  }
  // Something near the moments of all parts, of which the first is not empty: the mean of four, for that of one may be
  // far from the mean of all. Of blocks some may have scaled their values down, and some not.
  template <class GetPart>
  __device__ SplitMoments near_all(int parts, GetPart part) const {
    constexpr int asked = is_exact<T> ? 4 : 1;
    const SplitMoments first = part(0);
    float means[asked] = {1.0f / asked * (first.pivot + first.rest)};
#pragma unroll
    for (int i = 1; i < asked; ++i) {
      const SplitMoments one = part(parts * i / asked);
      means[i] = one.count * first.count > 0.0f ? 1.0f / asked * (one.pivot + one.rest) : means[0];
    }
    return {first.count, welford::sum_of_pairs(means), 0.0f, first.m2};
  }
  template <class GetPart>
  __device__ Partial merged(const Team& team, int parts, GetPart part) const {
    return merge<4>(team, parts, near_all(parts, part), part);
  }
  // The first `count` of one thread's own elements.
  template <int size>
  __device__ Partial merged(const Partial (&own)[size], int count) const {
    if (count == 0) return {};
    Partial all = own[0];
#pragma unroll
    for (int k = 1; k < size; ++k) {
      if (k >= count) break;
      const float off = (own[k].pivot - all.pivot) + (own[k].rest - all.rest);
      const float share = 1.0f / static_cast<float>(k + 1);  // all have as many values
      all.m2 += own[k].m2 + off * off * (own[k].count * (1.0f - share));
      all.rest += off * share;
      all.count += own[k].count;
    }
    return all;
  }
  __device__ bool overflowed(const Partial& partial) const {
    return !isfinite(partial.m2);
  }

  // Of a block, for the others: its moments; those of x * small_scale have their count negative.
  using Shared = SplitMoments;
  __device__ Shared share(const Partial& all, float scale) const {
    return {scale == 1.0f ? all.count : -all.count, all.pivot, all.rest, all.m2};
  }
  // Of x, where its squares have not overflowed.
  __device__ SplitMoments unscaled(const Shared& s) const {
    return {fabsf(s.count), s.pivot, s.rest, s.count < 0.0f ? infinity : s.m2};
  }
  __device__ SplitMoments scaled(const Shared& s) const {
    const float by = s.count < 0.0f ? 1.0f : small_scale;
    return {fabsf(s.count), s.pivot * by, s.rest * by, s.m2 * by * by};
  }

  // Those of several blocks, or of several GPUs, together. `near` is one of them that is not empty, or near_all().
  template <class GetShared>
  __device__ Shared combined(const Team& team, int parts, const Shared& near, GetShared shared) const {
    const auto part = [&](int i) { return unscaled(shared(i)); };
    const SplitMoments all =
        parts <= team.size ? merge<1>(team, parts, unscaled(near), part) : merge<8>(team, parts, unscaled(near), part);
    if (!__any_sync(all_lanes, overflowed(all))) return share(all, 1.0f);  // a warp's lanes shuffle together
    const SplitMoments small = merge<1>(team, parts, scaled(near), [&](int i) { return scaled(shared(i)); });
    return overflowed(all) ? share(small, small_scale) : share(all, 1.0f);
  }
  __device__ bool is_empty(const Shared& shared) const {
    return shared.count == 0.0f;
  }

  // What the second pass needs to know of a channel.
  struct alignas(16) Channel {
    float center, factor, offset, scale;
  };
  __device__ Channel finish(const Shared& all, const Given& given) const {
    const float scale = all.count < 0.0f ? small_scale : 1.0f;
    const float factor = invstd_of(all) * to_float(given.gamma);
    const float center = is_exact<T> ? all.pivot + all.rest : all.pivot;
    const float rest = is_exact<T> ? (all.pivot - center) + all.rest : all.rest;  // of the mean
    return {center, factor, fmaf(-rest, factor, to_float(given.beta)), scale};
  }
  // What the batches before have left.
  struct Past {
    float mean, variance;
  };
  __device__ Past past(int channel) const {
    return {p.running_mean ? p.running_mean[channel] : 0.0f, p.running_var ? p.running_var[channel] : 0.0f};
  }
  // And what is kept of the channel, as in write_statistics() of kernels.cuh.
  __device__ void write(const Shared& all, int channel, const Past& past) const {
    constexpr float up = 1.0f / small_scale;
    const bool scaled = all.count < 0.0f;
    const float by = scaled ? up : 1.0f;
    const float mean = (all.pivot + all.rest) * by;
    const float variance = all.m2 * by * by / (fabsf(all.count) - 1.0f);
    p.save_mean[channel] = mean;
    p.save_invstd[channel] = invstd_of(all) * (scaled ? small_scale : 1.0f);
    if (p.running_mean) p.running_mean[channel] = past.mean + p.momentum * (mean - past.mean);
    if (p.running_var) p.running_var[channel] = past.variance + p.momentum * (variance - past.variance);
  }
  // Of x * scale. Scaled down, eps counts only where the variance is nothing.
  __device__ float invstd_of(const Shared& all) const {
    const float variance = all.m2 / fabsf(all.count);
    if (all.count > 0.0f) return rsqrtf(variance + p.eps);
    return variance == 0.0f ? rsqrtf(p.eps) * (1.0f / small_scale) : rsqrtf(variance);
  }
  __device__ float result(float x, float, const Channel& c) const {
    return fmaf(fmaf(x, c.scale, -c.center), c.factor, c.offset);
  }
};
// [/snippet]

}  // namespace worklog::batchnorm
