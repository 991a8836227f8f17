// Exercise 08.1: what a batch leaves behind.
#include "common/harness/program.h"
#include "kernels.cuh"

int main(int argc, char** argv) {
  using namespace worklog;
  Program program("08.1", "what a batch leaves behind");
  program.add("channel_per_thread", "the formula, a thread to a channel", batchnorm::channel_per_thread);
  return program.run(argc, argv);
}
