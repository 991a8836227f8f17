// Rows of any length, for all operations that have steps (steps.cuh): normalize_rows(). A row goes through three steps,
// load, statistics and store, and belongs to a team of threads that grows with it. Here the launch looks at how the
// rows lie, and asks the kernels that may take them, one kind after the other.
#pragma once

#include <cstdint>

#include "04_vectorized/vectors.cuh"
#include "05_welford/final/alignment.cuh"
#include "05_welford/final/cache_advice.cuh"
#include "05_welford/final/elements.cuh"
#include "05_welford/final/launch_rule.cuh"
#include "05_welford/final/reread.cuh"
#include "05_welford/final/steps.cuh"
#include "05_welford/final/tiles.cuh"
#include "common/device/launch.cuh"

namespace worklog::welford {

using vectorized::vector_size;

// [snippet: dispatch]
// Whether all vectors of all rows are whole, and on 16-byte boundaries.
template <class Steps>
bool are_whole_vectors(const Steps& steps) {
  using T = typename Steps::Element;
  const auto& p = steps.p;
  const Rows first = steps.tensors()[0];
  return have_same_offset<T>(steps.tensors(), p.rows) && starts_on_boundary(first.first) &&
         starts_on_boundary(p.gamma) && starts_on_boundary(steps.beta()) && p.cols % vector_size<T> == 0 &&
         (p.rows == 1 || first.stride % vector_size<T> == 0);
}

template <class Steps>
void launch_reread(const Steps& steps, cudaStream_t stream) {
  launch(normalize_reread<Steps>,
         {.grid = static_cast<unsigned>(steps.p.rows), .block = threads_of_reread, .overlap = true, .stream = stream},
         steps);
}

// As many rows as a grid can have.
template <class Steps>
void normalize_rows_of_a_grid(const Steps& steps, cudaStream_t stream) {
  const auto& p = steps.p;
  const bool same_offset = have_same_offset<typename Steps::Element>(steps.tensors(), p.rows);
  const bool whole_vectors = are_whole_vectors(steps);
  // Where a row that is no whole vectors starts decides which lane has which of its elements, in what order they are
  // added up, and so the last bits of the sum. By elements that is the same in all rows.
  const bool by_offset = !whole_vectors && !p.batch_invariant;
  if (whole_vectors && launch_by_rules<WholeVectors>(steps, stream)) return;
  if (by_offset && normalize_packed(steps, stream)) return;
  if (!whole_vectors && normalize_short_rows(steps, stream)) return;
  if (by_offset && same_offset && launch_by_rules<Straddling>(steps, stream)) return;
  if (!whole_vectors && normalize_by_elements(steps, stream)) return;
  launch_reread(steps, stream);
}

// Calls of_a_grid() with as many rows at a time as a grid can have, and with the advice for the L2 cache.
template <class Steps, class OfAGrid>
void for_each_grid(Steps steps, OfAGrid of_a_grid) {
  const int64_t rows = steps.p.rows;
  const int64_t largest_grid = int64_t{1} << 27;  // rows; a grid has at most 2^31 - 1 blocks, 8 of them to a row
  const int64_t bytes_read = rows * steps.p.cols * int64_t{sizeof(typename Steps::Element)} * Steps::reads;
  steps.eviction = eviction_of(bytes_read, 2);
  for (int64_t done = 0; done < rows; done += largest_grid) {
    steps.p.rows = rows - done < largest_grid ? rows - done : largest_grid;
    of_a_grid(steps);
    steps.skip(largest_grid);
  }
}

// Whatever the steps: rows of any length up to 2^20, any number of them, any stride and alignment. Statistics in fp32
// whatever the type; gamma and beta of x's type or wider. Asynchronous in `stream`.
template <class Steps>
void normalize_rows(const Steps& steps, cudaStream_t stream) {
  for_each_grid(steps, [&](const Steps& of_a_grid) { normalize_rows_of_a_grid(of_a_grid, stream); });
}
// [/snippet]

}  // namespace worklog::welford
