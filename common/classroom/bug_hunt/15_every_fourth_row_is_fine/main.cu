// Bug hunt 15: every fourth row is fine.
#include "common/harness/program.h"
#include "kernels.cuh"

int main(int argc, char** argv) {
  using namespace worklog;
  Program program("bugs.15", "every fourth row is fine");
  program.add("layer_norm", "a block to a row", bug_hunt::layer_norm);
  return program.run(argc, argv);
}
