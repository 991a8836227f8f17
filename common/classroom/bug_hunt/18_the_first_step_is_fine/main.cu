// Bug hunt 18: the first step is fine.
#include "common/harness/program.h"
#include "kernels.cuh"

int main(int argc, char** argv) {
  using namespace worklog;
  Program program("bugs.18", "the first step is fine");
  program.add("backward", "dgamma and dbeta, added up by atomics", bug_hunt::backward);
  return program.run(argc, argv);
}
