// Exercise 04.1: the ends of a row.
#include "common/harness/program.h"
#include "kernels.cuh"

int main(int argc, char** argv) {
  using namespace worklog;
  Program program("04.1", "the ends of a row");
  program.add("cached", "the row kept in registers and read once", vectorized::cached<float, float>)
      .limited_to("cols at most 16380 in fp32",
                  [](const ProblemOptions& o) { return o.cols <= vectorized::longest_row<float, 8>; });
  return program.run(argc, argv);
}
