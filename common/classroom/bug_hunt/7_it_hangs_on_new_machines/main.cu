// Bug hunt 7: only the warps that have something.
#include "common/harness/program.h"
#include "kernels.cuh"

int main(int argc, char** argv) {
  using namespace worklog;
  Program program("bugs.7", "only the warps that have something");
  program.add("layer_norm", "a block to a row", bug_hunt::layer_norm);
  return program.run(argc, argv);
}
