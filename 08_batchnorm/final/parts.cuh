// Where a thread stands in a tensor that has been cut into tiles, and how it walks from one of its vectors to the next.
// Both passes walk the same places: the first one forwards, the second one back.
#pragma once

#include <cstdint>

#include "08_batchnorm/final/tiling.cuh"

namespace worklog::batchnorm {

// [snippet: parts]
// What one block has of a tensor, and where in it this thread stands.
template <int size>
struct Part {
  int first_channel, channels;
  int line, column;
  int count;      // vectors of this thread
  int of_all;     // vectors that each thread has at least, if it has any
  int64_t place;  // of its first: element
  int run;
  int rows_over;       // rows after the last line that are this block's
  int64_t first_over;  // element

  __device__ Part(const Tiling& t, int tile, int split) {
    const int thread = static_cast<int>(threadIdx.x);
    line = thread / t.columns;
    column = thread - line * t.columns;
    run = t.run;
    first_channel = tile * t.tile_channels;
    channels = min(t.tile_channels, t.channels - first_channel);
    const int64_t first_vector = int64_t{tile} * t.tile_vectors + column;
    const int64_t first_line = int64_t{split} * t.lines_at_once + line;
    place = first_line * t.line + first_vector * size;
    const bool is_there = line < t.lines_at_once && first_vector * size < t.line;
    const bool is_longer = split < t.longer;
    const int64_t among = t.step_vectors > 0 ? column : first_line;
    of_all = is_longer ? t.each_of_longer : t.each;
    count = is_there ? of_all + (among < (is_longer ? t.more_of_longer : t.more)) : 0;
    const bool is_last = split == t.splits - 1;
    rows_over = is_last ? static_cast<int>(t.rows_over) : 0;
    first_over = t.lines * t.line;
  }

  // The channels, counted from first_channel, of the elements of each of this thread's vectors.
  template <bool images>
  __device__ void find_channels(int (&found)[size]) const {
    const int element = column * size;  // of the tile's line
    int channel = images ? min(element / run, channels - 1) : element % channels;
    int left = images ? run - element % run : 1;  // elements before the next channel
#pragma unroll
    for (int k = 0; k < size; ++k) {
      found[k] = channel;
      if (--left > 0) continue;
      left = run;
      if (++channel == channels) channel = 0;
    }
  }
};

// The places of a thread's vectors, one after the other, in either direction. Where it `wraps`, a thread may have
// several on a line.
template <bool wraps>
struct Walk {
  int64_t place;  // element
  int vector;     // in the line
  int width, step_vectors;
  int64_t step, wrap;  // elements

  template <int size>
  __device__ Walk(const Tiling& t, const Part<size>& part) {
    place = part.place;
    vector = part.column;
    width = t.tile_vectors;
    step_vectors = t.step_vectors;
    const int64_t next_line = int64_t{t.splits} * t.lines_at_once * t.line;
    step = step_vectors > 0 ? step_vectors * size : next_line;
    wrap = next_line - int64_t{width} * size;
  }
  __device__ void forward() {
    place += step;
    if constexpr (wraps) {
      vector += step_vectors;
      if (vector >= width) {
        vector -= width;
        place += wrap;
      }
    }
  }
  __device__ void back() {
    place -= step;
    if constexpr (wraps) {
      vector -= step_vectors;
      if (vector < 0) {
        vector += width;
        place -= wrap;
      }
    }
  }
  __device__ void back(int times) {
    if (step_vectors == 0) {
      place -= times * step;
    } else {
#pragma unroll 1
      for (int i = 0; i < times; ++i) back();
    }
  }
};
// [/snippet]

}  // namespace worklog::batchnorm
