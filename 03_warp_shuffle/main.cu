// Stage 03: sums that stay in registers.
#include "common/harness/program.h"
#include "kernels.cuh"

int main(int argc, char** argv) {
  using namespace worklog;
  Program program("03_warp_shuffle", "sums that stay in registers");
  program.add("block_per_row", "warp sums, then one hop through shared memory", warp_shuffle::block_per_row)
      .fails_on(Input::huge, {.cols = 2});
  program.add("warp_per_row", "a warp to a row: no shared memory, no barrier", warp_shuffle::warp_per_row)
      .fails_on(Input::huge, {.cols = 2});
  return program.run(argc, argv);
}
