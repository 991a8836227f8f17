// Exercise 08.2: statistics of a channel that hold.
#include "common/harness/program.h"
#include "kernels.cuh"

int main(int argc, char** argv) {
  using namespace worklog;
  Program program("08.2", "statistics of a channel that hold");
  program.add("split_rows", "a tile's rows over many blocks, their moments merged", batchnorm::split_rows);
  return program.run(argc, argv);
}
