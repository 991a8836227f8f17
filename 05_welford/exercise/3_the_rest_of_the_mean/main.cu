// Exercise 05.3: the rest of the mean.
#include "common/harness/program.h"
#include "kernels.cuh"

int main(int argc, char** argv) {
  using namespace worklog;
  Program program("05.3", "the rest of the mean");
  program.add("held", "the row in registers, its mean in two floats", welford::held<float, float>)
      .compared_with({.max_ulp = 16});  // a tolerance for sums of any kernel would let a rounded mean pass
  return program.run(argc, argv);
}
