// Stage 06: residual add and norm in one trip through memory, and RMSNorm.
#include "common/harness/program.h"
#include "kernels.cuh"

int main(int argc, char** argv) {
  using namespace worklog;
  using namespace worklog::fused_residual;
  using half = __half;
  using bf16 = __nv_bfloat16;
  using welford::layer_norm;

  Program program("06_fused_residual", "residual add and norm in one trip through memory, and RMSNorm");
  program.add("norm", "no residual: stage 05's kernel about the mean and about zero", layer_norm<float, float>,
              layer_norm<half, half>, layer_norm<half, float>, layer_norm<bf16, bf16>, layer_norm<bf16, float>,
              rms_norm<float, float>, rms_norm<half, half>, rms_norm<half, float>, rms_norm<bf16, bf16>,
              rms_norm<bf16, float>);
  program.add("unfused", "a kernel for the sum, then the norm", unfused_layer_norm<float, float>,
              unfused_layer_norm<half, half>, unfused_layer_norm<half, float>, unfused_layer_norm<bf16, bf16>,
              unfused_layer_norm<bf16, float>, unfused_rms_norm<float, float>, unfused_rms_norm<half, half>,
              unfused_rms_norm<half, float>, unfused_rms_norm<bf16, bf16>, unfused_rms_norm<bf16, float>);
  program.add("fused", "the sum in the norm's load step", add_layer_norm<float, float>, add_layer_norm<half, half>,
              add_layer_norm<half, float>, add_layer_norm<bf16, bf16>, add_layer_norm<bf16, float>,
              add_rms_norm<float, float>, add_rms_norm<half, half>, add_rms_norm<half, float>, add_rms_norm<bf16, bf16>,
              add_rms_norm<bf16, float>);
  program
      .add("fused_inplace", "the same, h in the place of the residual", add_layer_norm<float, float>,
           add_layer_norm<half, half>, add_layer_norm<half, float>, add_layer_norm<bf16, bf16>,
           add_layer_norm<bf16, float>, add_rms_norm<float, float>, add_rms_norm<half, half>, add_rms_norm<half, float>,
           add_rms_norm<bf16, bf16>, add_rms_norm<bf16, float>)
      .overwrites("residual", "h");
  return program.run(argc, argv);
}
