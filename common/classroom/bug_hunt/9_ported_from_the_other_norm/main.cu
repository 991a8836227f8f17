// Bug hunt 9: ported from the other norm.
#include "common/harness/program.h"
#include "kernels.cuh"

int main(int argc, char** argv) {
  using namespace worklog;
  Program program("bugs.9", "ported from the other norm");
  program.add("layer_norm", "a block to a row", bug_hunt::layer_norm);
  return program.run(argc, argv);
}
