// Reductions over the threads of a group.
#pragma once

#include "cooperative_groups.h"

namespace cooperative_groups {

template <class T>
struct plus {
  T operator()(const T& a, const T& b) const { return a + b; }
};
template <class T>
struct less {  // the lesser of two
  T operator()(const T& a, const T& b) const { return b < a ? b : a; }
};
template <class T>
struct greater {
  T operator()(const T& a, const T& b) const { return a < b ? b : a; }
};
template <class T>
struct bit_and {
  T operator()(const T& a, const T& b) const { return a & b; }
};
template <class T>
struct bit_or {
  T operator()(const T& a, const T& b) const { return a | b; }
};
template <class T>
struct bit_xor {
  T operator()(const T& a, const T& b) const { return a ^ b; }
};

// The values of the whole group, combined; every member gets the result. The order is a butterfly's: neighbors first
// exchange with the member half the tile away.
template <unsigned Size, class Parent, class T, class Combine>
T reduce(const thread_block_tile<Size, Parent>& tile, T value, Combine combine, SIMT_SITE_PARAMETERS) {
  for (unsigned distance = Size / 2; distance > 0; distance /= 2) {
    value = combine(value, tile.shfl_xor(value, distance, file, line));
  }
  return value;
}

// Of a group of any lanes: from the first member to the last.
template <class T, class Combine>
T reduce(const coalesced_group& group, T value, Combine combine, SIMT_SITE_PARAMETERS) {
  T result = group.shfl(value, 0, file, line);
  for (unsigned rank = 1; rank < group.num_threads(); ++rank) {
    result = combine(result, group.shfl(value, rank, file, line));
  }
  return result;
}

}  // namespace cooperative_groups
