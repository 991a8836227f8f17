// Exercise 06.3: the row's scale.
#include "common/harness/program.h"
#include "kernels.cuh"

namespace {

template <class T>
void quantized(const worklog::QuantizedNorm<T>& p, cudaStream_t stream) {
  using namespace worklog;
  if (p.rows == 0) return;
  launch(p.subtracts_mean ? fused_residual::normalize_quantized<T, T, 4, false, true>
                          : fused_residual::normalize_quantized<T, T, 4, false, false>,
         {.grid = warp_shuffle::blocks_for(p.rows, 1),
          .block = fused_residual::threads_of_quantized(p, 4),
          .stream = stream},
         p);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace worklog;
  Program program("06.3", "the row's scale");
  program.add("quantized", "y in eight bits, with its scales", quantized<float>, quantized<__nv_bfloat16>);
  return program.run(argc, argv);
}
