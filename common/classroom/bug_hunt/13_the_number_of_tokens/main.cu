// Bug hunt 13: the number of tokens.
#include "common/harness/program.h"
#include "kernels.cuh"

int main(int argc, char** argv) {
  using namespace worklog;
  Program program("bugs.13", "the number of tokens");
  program.add("backward", "dgamma and dbeta, 32 columns to a block", bug_hunt::backward);
  return program.run(argc, argv);
}
