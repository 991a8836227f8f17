// Bug hunt 11: training is fine, validation is not.
#include "common/harness/program.h"
#include "kernels.cuh"

int main(int argc, char** argv) {
  using namespace worklog;
  Program program("bugs.11", "training is fine, validation is not");
  program.add("batch_norm", "a thread to a channel", bug_hunt::batch_norm);
  return program.run(argc, argv);
}
