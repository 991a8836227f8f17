// Exercise 07.2: make dgamma reproducible.
#include "common/harness/program.h"
#include "kernels.cuh"

int main(int argc, char** argv) {
  using namespace worklog;
  Program program("07.2", "make dgamma reproducible");
  program.add("separate", "dgamma and dbeta alone, 32 columns to a block",
              [](const LayerNormBackward<float>& p, cudaStream_t stream) {
                const auto blocks = static_cast<unsigned>((p.cols + warp_shuffle::lanes - 1) / warp_shuffle::lanes);
                const dim3 threads(warp_shuffle::lanes, warp_shuffle::lanes);
                launch(backward::columns_only<float, float>, {.grid = blocks, .block = threads, .stream = stream}, p);
              });
  return program.run(argc, argv);
}
