// The variants of stage 06: what its program, the library and the pages know of it.
#include "05_welford/final/layer_norm.cuh"
#include "common/harness/program.h"
#include "final/fused.cuh"
#include "kernels.cuh"

namespace worklog::fused_residual {
namespace {

template <class T, class G>
void unfused_layer_norm(const AddLayerNormForward<T, G>& p, cudaStream_t stream) {
  add<T>({p.x, p.residual, p.h, p.rows, p.cols, p.x_stride, p.residual_stride, p.h_stride}, stream);
  welford::layer_norm(norm_of_sum(p), stream);
}

template <class T, class G>
void unfused_rms_norm(const AddRmsNormForward<T, G>& p, cudaStream_t stream) {
  add<T>({p.x, p.residual, p.h, p.rows, p.cols, p.x_stride, p.residual_stride, p.h_stride}, stream);
  rms_norm(norm_of_sum(p), stream);
}

}  // namespace

Program program() {
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
  program.add("held", "stage 05's kernel of that name, with the sum in its load step", welford::held<float, float>,
              welford::held<half, half>, welford::held<half, float>, welford::held<bf16, bf16>,
              welford::held<bf16, float>, held_rms_norm<float, float>, held_rms_norm<half, half>,
              held_rms_norm<half, float>, held_rms_norm<bf16, bf16>, held_rms_norm<bf16, float>,
              held_add_layer_norm<float, float>, held_add_layer_norm<half, half>, held_add_layer_norm<half, float>,
              held_add_layer_norm<bf16, bf16>, held_add_layer_norm<bf16, float>, held_add_rms_norm<float, float>,
              held_add_rms_norm<half, half>, held_add_rms_norm<half, float>, held_add_rms_norm<bf16, bf16>,
              held_add_rms_norm<bf16, float>);
  program.add("fused", "the sum in the norm's load step", add_layer_norm<float, float>, add_layer_norm<half, half>,
              add_layer_norm<half, float>, add_layer_norm<bf16, bf16>, add_layer_norm<bf16, float>,
              add_rms_norm<float, float>, add_rms_norm<half, half>, add_rms_norm<half, float>, add_rms_norm<bf16, bf16>,
              add_rms_norm<bf16, float>);
  program
      .add("fused_inplace", "the same, h instead of the residual", add_layer_norm<float, float>,
           add_layer_norm<half, half>, add_layer_norm<half, float>, add_layer_norm<bf16, bf16>,
           add_layer_norm<bf16, float>, add_rms_norm<float, float>, add_rms_norm<half, half>, add_rms_norm<half, float>,
           add_rms_norm<bf16, bf16>, add_rms_norm<bf16, float>)
      .overwrites("residual", "h");
  program.add(
      "zero_centered", "weights about zero: 1 + gamma, as Gemma has them", zero_centered_layer_norm<float, float>,
      zero_centered_layer_norm<half, half>, zero_centered_layer_norm<half, float>, zero_centered_layer_norm<bf16, bf16>,
      zero_centered_layer_norm<bf16, float>, zero_centered_rms_norm<float, float>, zero_centered_rms_norm<half, half>,
      zero_centered_rms_norm<half, float>, zero_centered_rms_norm<bf16, bf16>, zero_centered_rms_norm<bf16, float>,
      add_zero_centered_layer_norm<float, float>, add_zero_centered_layer_norm<half, half>,
      add_zero_centered_layer_norm<half, float>, add_zero_centered_layer_norm<bf16, bf16>,
      add_zero_centered_layer_norm<bf16, float>, add_zero_centered_rms_norm<float, float>,
      add_zero_centered_rms_norm<half, half>, add_zero_centered_rms_norm<half, float>,
      add_zero_centered_rms_norm<bf16, bf16>, add_zero_centered_rms_norm<bf16, float>);
  return program;
}

}  // namespace worklog::fused_residual
