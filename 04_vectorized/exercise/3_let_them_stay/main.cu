// Exercise 04.3: let gamma and beta stay.
#include "common/harness/program.h"
#include "kernels.cuh"

int main(int argc, char** argv) {
  using namespace worklog;
  Program program("04.3", "let gamma and beta stay");
  program.add("persistent", "gamma and beta kept in registers, too", vectorized::persistent<float, float>)
      .limited_to("cols at most 8188 in fp32",
                  [](const ProblemOptions& o) { return o.cols <= vectorized::longest_row<float, 4>; });
  return program.run(argc, argv);
}
