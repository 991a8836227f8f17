// Exercise 01.1: the formula.
#include "common/harness/program.h"
#include "kernels.cuh"

int main(int argc, char** argv) {
  using namespace worklog;
  Program program("01.1", "the formula");
  program.add("thread_per_row", "256 rows to a block", naive::thread_per_row);
  return program.run(argc, argv);
}
