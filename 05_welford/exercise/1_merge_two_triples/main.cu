// Exercise 05.1: merge two Welford triples.
#include "common/harness/program.h"
#include "kernels.cuh"

int main(int argc, char** argv) {
  using namespace worklog;
  Program program("05.1", "merge two Welford triples");
  program.add("textbook", "Welford's update, then merges", welford::textbook<float, float>);
  return program.run(argc, argv);
}
