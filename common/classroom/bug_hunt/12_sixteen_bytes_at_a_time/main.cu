// Bug hunt 12: sixteen bytes at a time.
#include "common/harness/program.h"
#include "kernels.cuh"

int main(int argc, char** argv) {
  using namespace worklog;
  Program program("bugs.12", "sixteen bytes at a time");
  program.add("layer_norm", "a block to a row", bug_hunt::layer_norm);
  return program.run(argc, argv);
}
