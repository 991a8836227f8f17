// The variants of stage 07: what its program, the library and the pages know of it.
#include "common/harness/program.h"
#include "final/backward.cuh"
#include "kernels.cuh"
#include "staying.cuh"

namespace worklog::backward {

Program program() {
  using half = __half;
  using bf16 = __nv_bfloat16;

  Program program("07_backward", "the backward pass: sums along the rows and along the columns of the same data");
  program.add("separate", "a kernel for dx, another that reads all again for dgamma and dbeta", separate<float, float>,
              separate<half, half>, separate<half, float>, separate<bf16, bf16>, separate<bf16, float>);
  program.add("atomics", "one kernel, which adds every element to dgamma and dbeta", atomics<float, float>,
              atomics<half, half>, atomics<half, float>, atomics<bf16, bf16>, atomics<bf16, float>);
  program.add("grouped", "partial sums behind locks, as Triton's article has it", grouped<float, float>,
              grouped<half, half>, grouped<half, float>, grouped<bf16, bf16>, grouped<bf16, float>);
  program.add("staying", "blocks that stay: each thread keeps its columns, and every row is read once",
              staying<float, float>, staying<half, half>, staying<half, float>, staying<bf16, bf16>,
              staying<bf16, float>, staying_rms_norm<float, float>, staying_rms_norm<half, half>,
              staying_rms_norm<half, float>, staying_rms_norm<bf16, bf16>, staying_rms_norm<bf16, float>);
  program.add("persistent", "the final kernel: sums in registers, rows on their way through a ring",
              layer_norm_backward<float, float>, layer_norm_backward<half, half>, layer_norm_backward<half, float>,
              layer_norm_backward<bf16, bf16>, layer_norm_backward<bf16, float>, rms_norm_backward<float, float>,
              rms_norm_backward<half, half>, rms_norm_backward<half, float>, rms_norm_backward<bf16, bf16>,
              rms_norm_backward<bf16, float>);
  return program;
}

}  // namespace worklog::backward
