// Exercise 01.3: spread the rows.
#include "common/harness/program.h"
#include "kernels.cuh"

int main(int argc, char** argv) {
  using namespace worklog;
  Program program("01.3", "spread the rows");
  program.add("small_blocks", "more blocks: more multiprocessors", naive::small_blocks);
  return program.run(argc, argv);
}
