// Exercise 08.3: split the rows and merge.
#include "common/harness/program.h"
#include "kernels.cuh"

int main(int argc, char** argv) {
  using namespace worklog;
  Program program("08.3", "split the rows and merge");
  program.add("split_rows", "a tile's rows over many blocks, their moments merged", batchnorm::split_rows);
  return program.run(argc, argv);
}
