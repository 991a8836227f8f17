// Exercise 03.1: the sum of a warp.
#include "common/harness/program.h"
#include "kernels.cuh"

int main(int argc, char** argv) {
  using namespace worklog;
  Program program("03.1", "the sum of a warp");
  program.add("warp_per_row", "a warp to a row", warp_shuffle::warp_per_row<float>);
  return program.run(argc, argv);
}
