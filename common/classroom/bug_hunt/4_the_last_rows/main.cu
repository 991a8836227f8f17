// Bug hunt 4: it crashes when the batch is odd.
#include "common/harness/program.h"
#include "kernels.cuh"

int main(int argc, char** argv) {
  using namespace worklog;
  Program program("bugs.4", "it crashes when the batch is odd");
  program.add("layer_norm", "a warp to a row, eight rows to a block", bug_hunt::layer_norm);
  return program.run(argc, argv);
}
