// The shape of a tensor, and how many neighbouring elements are of one channel. It is what the host must know of an
// operation to divide its work.
#pragma once

#include <cstdint>

#include "common/device/arguments.h"

namespace worklog::batchnorm {

// What a tensor is to be cut into.
struct Shape {
  int64_t samples, channels, pixels;
  ChannelLayout layout;
};

template <class Batch>
Shape shape_of(const Batch& p) {
  return {p.samples, p.channels, p.pixels, p.layout};
}

inline int run_of(const Shape& s) {
  return s.layout == ChannelLayout::channels_first ? static_cast<int>(s.pixels) : 1;
}

}  // namespace worklog::batchnorm
