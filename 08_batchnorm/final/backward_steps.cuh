// What the backward pass adds up for a channel, shares with other blocks, and writes. The sums of dy and of dy * xhat
// come first, and then dx. The steps have the names of those in train_steps.cuh, and run in the same kernel, that of
// normalize.cuh.
#pragma once

#include "04_vectorized/vectors.cuh"
#include "08_batchnorm/final/merge.cuh"
#include "common/device/arguments.h"

namespace worklog::batchnorm {

using vectorized::to_float;

// [snippet: backward_steps]
// The steps of the backward pass: the sums of dy and of dy * xhat, which are dbeta and dgamma; then dx.
template <class T_, class G>
struct BackwardSteps {
  using T = T_;
  BatchNormBackward<T, G> p;
  float count;  // values of a channel
  static constexpr int inputs = 2;
  __device__ const T* input(int i) const { return i == 0 ? p.dy : p.x; }
  __host__ __device__ T* output() const { return p.dx; }

  struct Given {
    float mean, invstd;
    G gamma;
  };
  __device__ Given given(int channel) const {
    return {p.save_mean[channel], p.save_invstd[channel], p.gamma ? p.gamma[channel] : static_cast<G>(1.0f)};
  }

  static constexpr bool has_pivots = false;
  struct Sums {
    float mean;
    RunningSum dy, dy_centered;

    __device__ void fold() {
      dy.fold();
      dy_centered.fold();
    }
  };
  __device__ Sums start(int channel, float) const { return {p.save_mean[channel], {}, {}}; }
  __device__ void add(Sums& sums, float dy, float x, float scale) const {
    sums.dy.lately += dy;
    sums.dy_centered.lately = fmaf(dy, (x - sums.mean) * scale, sums.dy_centered.lately);
  }
  __device__ void add(Sums& sums, const float (&dy)[2], const float (&x)[2], bool both, float scale) const {
    const float other = both ? dy[1] : 0.0f;
    const float other_centered = both ? (x[1] - sums.mean) * scale : 0.0f;
    sums.dy.lately += dy[0] + other;
    sums.dy_centered.lately += fmaf(other, other_centered, dy[0] * ((x[0] - sums.mean) * scale));
  }

  struct Partial {
    float dy, dy_xhat;
  };
  __device__ Partial partial(const Sums& sums, int, int channel, float scale) const {
    const float to_xhat = p.save_invstd[channel] * (scale == 1.0f ? 1.0f : 1.0f / small_scale);
    return {sums.dy.all(), sums.dy_centered.all() * to_xhat};
  }
  __device__ Partial partial_of_element(int64_t i, int channel, float) const {
    const float dy = to_float(p.dy[i]);
    return {dy, dy * ((to_float(p.x[i]) - p.save_mean[channel]) * p.save_invstd[channel])};
  }
  template <class GetPart>
  __device__ Partial near_all(int, GetPart) const {
    return {};  // sums need none
  }
  template <class GetPart>
  __device__ Partial merged(const Team& team, int parts, GetPart part) const {
    Partial all = {0.0f, 0.0f};
#pragma unroll 4
    for (int i = team.lane; i < parts; i += team.size) {
      const Partial one = part(i);
      all.dy += one.dy;
      all.dy_xhat += one.dy_xhat;
    }
    team.add_up(all.dy, all.dy_xhat);
    return all;
  }
  template <int size>
  __device__ Partial merged(const Partial (&own)[size], int count) const {
    Partial all = {0.0f, 0.0f};
#pragma unroll
    for (int k = 0; k < size; ++k) {
      if (k < count) all = {all.dy + own[k].dy, all.dy_xhat + own[k].dy_xhat};
    }
    return all;
  }
  __device__ bool overflowed(const Partial& partial) const {
    return !isfinite(partial.dy_xhat);
  }

  using Shared = Partial;
  __device__ Shared share(const Partial& all, float) const {
    return all;
  }
  template <class GetShared>
  __device__ Shared combined(const Team& team, int parts, const Shared&, GetShared shared) const {
    return merged(team, parts, shared);
  }
  __device__ bool is_empty(const Shared&) const {
    return false;
  }

  struct alignas(16) Channel {
    float mean, slope, dy_mean, factor;
  };
  __device__ Channel finish(const Shared& all, const Given& given) const {
    return {given.mean, all.dy_xhat / count * given.invstd, all.dy / count, to_float(given.gamma) * given.invstd};
  }
  struct Past {};
  __device__ Past past(int) const {
    return {};
  }
  __device__ void write(const Shared& all, int channel, const Past&) const {
    if (p.dgamma) p.dgamma[channel] = static_cast<G>(all.dy_xhat);
    if (p.dbeta) p.dbeta[channel] = static_cast<G>(all.dy);
  }
  __device__ float result(float dy, float x, const Channel& c) const {
    return c.factor * fmaf(c.mean - x, c.slope, dy - c.dy_mean);
  }
};
// [/snippet]

}  // namespace worklog::batchnorm
