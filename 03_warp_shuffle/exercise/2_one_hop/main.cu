// Exercise 03.2: one hop.
#include "common/harness/program.h"
#include "kernels.cuh"

int main(int argc, char** argv) {
  using namespace worklog;
  Program program("03.2", "one hop");
  program.add("block_per_row", "warp sums, then one hop through shared memory", warp_shuffle::block_per_row<float>);
  return program.run(argc, argv);
}
