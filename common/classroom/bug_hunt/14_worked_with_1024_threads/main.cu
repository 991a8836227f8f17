// Bug hunt 14: it worked with 1024 threads.
#include "common/harness/program.h"
#include "kernels.cuh"

int main(int argc, char** argv) {
  using namespace worklog;
  Program program("bugs.14", "it worked with 1024 threads");
  program.add("layer_norm", "a block to a row", bug_hunt::layer_norm);
  return program.run(argc, argv);
}
