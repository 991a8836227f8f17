// Exercise 02.2: stop the bank conflicts.
#include "common/harness/program.h"
#include "kernels.cuh"

int main(int argc, char** argv) {
  using namespace worklog;
  Program program("02.2", "stop the bank conflicts");
  program.add("two_pass", "mean, then squared deviations", shared_reduction::two_pass);
  return program.run(argc, argv);
}
