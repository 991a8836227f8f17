// Exercise 07.1: the gradient of x.
#include "common/harness/program.h"
#include "kernels.cuh"

int main(int argc, char** argv) {
  using namespace worklog;
  Program program("07.1", "the gradient of x");
  program.add("separate", "dx alone, a block to a row", [](const LayerNormBackward<float>& p, cudaStream_t stream) {
    if (p.rows == 0) return;
    launch(backward::dx_only<float, float>,
           {.grid = static_cast<unsigned>(p.rows), .block = backward::threads_of_row, .stream = stream}, p);
  });
  return program.run(argc, argv);
}
