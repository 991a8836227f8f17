// Narrow rows without gaps between them: a tile of them is one stretch of memory, which moves in whole vectors. Here
// are the tile, and the share of a row that a lane takes from it. The kernel is in tiles.cuh; stage 07 has the same
// tiles.
#pragma once

#include <cstdint>

#include "04_vectorized/vectors.cuh"

namespace worklog::welford {

// [snippet: packed_tile]
// Some rows of a tensor whose rows follow each other without gaps. However odd a row is, the tile starts on a 16-byte
// boundary, if the tensor does and all tiles before it have rows of whole vectors together. Only the last tile may end
// amid a vector.
template <class T>
struct PackedTile {
  int64_t first_row;
  int rows;
  int elements;  // rows * cols

  // Calls vector(i) for the 16-byte vectors of this thread of the block, and element(i) for each element that is left
  // and fills none: i is the first element, counted from the tile's first. Bytes of shared memory belong to the same
  // thread in every tile, so that it needs no barrier to read what it has copied itself, or to copy to where it has
  // read.
  template <class Vector, class Element>
  __device__ void for_each(Vector vector, Element element) const {
    constexpr int size = vectorized::vector_size<T>;
    const int step = static_cast<int>(blockDim.x) * size;
    int i = static_cast<int>(threadIdx.x) * size;
    for (; i + size <= elements; i += step) vector(i);
    for (; i < elements; ++i) element(i);
  }

  // Starts to copy the tile from memory to `cells`, in shared memory: copy(to, from) starts with a vector. It is here
  // after __pipeline_commit() and __pipeline_wait_prior(), for other threads after a barrier too.
  template <class Copy>
  __device__ void copy_in(T* cells, const T* from, Copy copy) const {
    for_each([&](int i) { copy(reinterpret_cast<uint4*>(cells + i), from + i); }, [&](int i) { cells[i] = from[i]; });
  }

  // After a barrier: other threads have written what this one stores.
  __device__ void copy_out(T* to, const T* cells) const {
    for_each([&](int i) { *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(cells + i); },
             [&](int i) { to[i] = cells[i]; });
  }
};

// Tile number `index` of tiles of `height` rows: so many that they are whole vectors together. Past the last tile it
// has no rows.
template <class T>
__device__ inline PackedTile<T> tile_of(int64_t index, int height, int64_t rows, int cols) {
  const int64_t first_row = index * height;
  const int64_t left = rows > first_row ? rows - first_row : 0;
  const int here = left < height ? static_cast<int>(left) : height;
  return {first_row, here, here * cols};
}
// [/snippet]

// [snippet: units_of_lane]
// A team of `width` lanes takes a row of a tile in shared memory, each lane up to 16 elements. They go by units: two
// neighbouring elements where x, gamma and beta are of 16 bits and a row has an even number of them, else one element.
// Consecutive lanes take consecutive units, so that their banks differ.
inline constexpr int elements_of_lane = 16;
inline constexpr int threads_of_tile = 128;

// A tile has so many rows that each team takes some, and that they are whole vectors together: 8 to 16 KiB where the
// lanes have more than half of the elements that they can have.
template <class T, int width>
inline constexpr int rows_of_tile = 8 / int{sizeof(T)} * (threads_of_tile / width);

template <class T, int each>
struct alignas(each * sizeof(T)) Unit {
  T at[each];
};

template <class T, int each>
__device__ inline void store_unit(T* to, const float (&v)[each]) {
  if constexpr (each == 2) {
    const auto pair = vectorized::round_pair(v[0], v[1], T());
    *reinterpret_cast<Unit<T, 2>*>(to) = *reinterpret_cast<const Unit<T, 2>*>(&pair);
  } else {
    *to = static_cast<T>(v[0]);
  }
}

// Which units of a row a lane has. With half as many lanes a row would not fit: so all lanes have the first half of
// their units.
template <int each, int width>
struct UnitPlace {
  static constexpr int units = elements_of_lane / each;
  static constexpr int certain = width > 1 ? units / 2 : 0;
  int lane;  // of the team
  int cols;  // of the row; 0 where the team has none

  __device__ bool has_row() const { return cols > 0; }
  __device__ int column(int k) const { return (k * width + lane) * each; }
  __device__ bool has(int k) const { return k < certain ? has_row() : column(k) < cols; }
};

// A lane's share of a row, as floats.
template <int each, int width>
struct LaneShare {
  using Place = UnitPlace<each, width>;
  float at[Place::units][each];

  // Of a row in shared memory.
  template <class T>
  __device__ void load(const T* row, const Place& place) {
#pragma unroll
    for (int k = 0; k < Place::units; ++k) {
      if (!place.has(k)) continue;
      const auto unit = *reinterpret_cast<const Unit<T, each>*>(row + place.column(k));
#pragma unroll
      for (int j = 0; j < each; ++j) at[k][j] = vectorized::to_float(unit.at[j]);
    }
  }

  // Of gamma or beta, which start anywhere; `absent` stands for every element where there is none.
  template <class G>
  __device__ void load_parameter(const G* parameter, const Place& place, float absent) {
#pragma unroll
    for (int k = 0; k < Place::units; ++k) {
#pragma unroll
      for (int j = 0; j < each; ++j) {
        at[k][j] = absent;
        if (parameter && place.has(k)) at[k][j] = vectorized::to_float(parameter[place.column(k) + j]);
      }
    }
  }

  // Calls f(values) for the elements of each unit.
  template <class Function>
  __device__ void for_each(const Place& place, Function f) const {
#pragma unroll
    for (int k = 0; k < Place::units; ++k) {
      if (place.has(k)) f(at[k]);
    }
  }

  // Calls f(x, column) for each element that a lane can have, also where it has none: all lanes come to it together.
  template <class Function>
  __device__ void for_each_place(const Place& place, Function f) const {
#pragma unroll
    for (int k = 0; k < Place::units; ++k) {
#pragma unroll
      for (int j = 0; j < each; ++j) f(at[k][j], place.column(k) + j);
    }
  }
};
// [/snippet]

}  // namespace worklog::welford
