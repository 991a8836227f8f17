// Bug hunt 17: a modernized reduction.
#include "common/harness/program.h"
#include "kernels.cuh"

int main(int argc, char** argv) {
  using namespace worklog;
  Program program("bugs.17", "a modernized reduction");
  program.add("layer_norm", "a warp to a row", bug_hunt::layer_norm);
  return program.run(argc, argv);
}
