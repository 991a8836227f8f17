// Bug hunt 16: in the place of the residual.
#include "common/harness/program.h"
#include "kernels.cuh"

int main(int argc, char** argv) {
  using namespace worklog;
  Program program("bugs.16", "in the place of the residual");
  program.add("fused", "the sum in the norm's first pass", bug_hunt::add_layer_norm);
  program.add("fused_inplace", "the same, h in the place of the residual", bug_hunt::add_layer_norm)
      .overwrites("residual", "h");
  return program.run(argc, argv);
}
