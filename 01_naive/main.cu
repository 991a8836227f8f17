// Stage 01: one thread per row.
#include "common/harness/program.h"
#include "kernels.cuh"

int main(int argc, char** argv) {
  worklog::Program program("01_naive", "one thread per row");
  program.add("thread_per_row", "each thread walks its row three times: mean, variance, normalize",
              worklog::naive::thread_per_row);
  return program.run(argc, argv);
}
