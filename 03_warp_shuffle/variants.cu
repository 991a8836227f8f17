// The variants of stage 03: what its program, the library and the pages know of it.
#include "common/harness/program.h"
#include "kernels.cuh"

namespace worklog::warp_shuffle {

Program program() {
  Program program("03_warp_shuffle", "sums that stay in registers");
  program.add("block_per_row", "warp sums, then one hop through shared memory", block_per_row<float>)
      .fails_on(Input::huge, {.cols = 2});
  program.add("warp_per_row", "a warp to a row: no shared memory, no barrier", warp_per_row<float>)
      .fails_on(Input::huge, {.cols = 2});
  return program;
}

}  // namespace worklog::warp_shuffle
