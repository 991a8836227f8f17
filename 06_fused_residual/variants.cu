// The variants of stage 06: what its program, the library and the pages know of it.
#include "05_welford/final/layer_norm.cuh"
#include "05_welford/held_units.cuh"
#include "common/harness/program.h"
#include "final/fused.cuh"
#include "heads.cuh"
#include "kernels.cuh"
#include "quantize_rows.cuh"

namespace worklog::fused_residual {

// Compiled in held.cu, a unit for each pair of types.
extern template void held_rms_norm(const RmsNormForward<float, float>&, cudaStream_t);
extern template void held_rms_norm(const RmsNormForward<__half, __half>&, cudaStream_t);
extern template void held_rms_norm(const RmsNormForward<__half, float>&, cudaStream_t);
extern template void held_rms_norm(const RmsNormForward<__nv_bfloat16, __nv_bfloat16>&, cudaStream_t);
extern template void held_rms_norm(const RmsNormForward<__nv_bfloat16, float>&, cudaStream_t);
extern template void held_add_layer_norm(const AddLayerNormForward<float, float>&, cudaStream_t);
extern template void held_add_layer_norm(const AddLayerNormForward<__half, __half>&, cudaStream_t);
extern template void held_add_layer_norm(const AddLayerNormForward<__half, float>&, cudaStream_t);
extern template void held_add_layer_norm(const AddLayerNormForward<__nv_bfloat16, __nv_bfloat16>&, cudaStream_t);
extern template void held_add_layer_norm(const AddLayerNormForward<__nv_bfloat16, float>&, cudaStream_t);
extern template void held_add_rms_norm(const AddRmsNormForward<float, float>&, cudaStream_t);
extern template void held_add_rms_norm(const AddRmsNormForward<__half, __half>&, cudaStream_t);
extern template void held_add_rms_norm(const AddRmsNormForward<__half, float>&, cudaStream_t);
extern template void held_add_rms_norm(const AddRmsNormForward<__nv_bfloat16, __nv_bfloat16>&, cudaStream_t);
extern template void held_add_rms_norm(const AddRmsNormForward<__nv_bfloat16, float>&, cudaStream_t);

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

template <class T, class G>
void copied_qk_norm(const QkNormForward<T, G>& p, cudaStream_t stream) {
  qk_norm(copy_heads_first(p, stream), stream);
}

// k as the q of a call of its own.
template <class T, class G>
void qk_norm_in_two(const QkNormForward<T, G>& p, cudaStream_t stream) {
  QkNormForward<T, G> q = p, k = p;
  q.k_heads = 0;
  k.q = p.k;
  k.q_gamma = p.k_gamma;
  k.q_out = p.k_out;
  k.q_rstd = p.k_rstd;
  k.q_heads = p.k_heads;
  k.q_stride = p.k_stride;
  k.q_out_stride = p.k_out_stride;
  k.k_heads = 0;
  qk_norm(q, stream);
  if (k.q_heads > 0) qk_norm(k, stream);
}

// The norm with y in T, in `unrounded`, and a kernel that quantizes it.
template <class T, class G>
void unfused_quantized(const QuantizedNorm<T, G>& p, cudaStream_t stream) {
  if (p.residual && p.subtracts_mean) {
    add_layer_norm(AddLayerNormForward<T, G>{p.x, p.residual, p.gamma, p.beta, p.h, p.unrounded, nullptr, nullptr,
                                             p.rows, p.cols, p.x_stride, p.residual_stride, p.h_stride, p.cols, p.eps},
                   stream);
  } else if (p.residual) {
    add_rms_norm(AddRmsNormForward<T, G>{p.x, p.residual, p.gamma, p.h, p.unrounded, nullptr, p.rows, p.cols,
                                         p.x_stride, p.residual_stride, p.h_stride, p.cols, p.eps},
                 stream);
  } else if (p.subtracts_mean) {
    welford::layer_norm(LayerNormForward<T, G>{p.x, p.gamma, p.beta, p.unrounded, nullptr, nullptr, p.rows, p.cols,
                                               p.x_stride, p.cols, p.eps},
                        stream);
  } else {
    rms_norm(RmsNormForward<T, G>{p.x, p.gamma, p.unrounded, nullptr, p.rows, p.cols, p.x_stride, p.cols, p.eps},
             stream);
  }
  quantize(p, stream);
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
  program
      .add("unfused", "a kernel for each step: the sum, the norm, eight bits", unfused_layer_norm<float, float>,
           unfused_layer_norm<half, half>, unfused_layer_norm<half, float>, unfused_layer_norm<bf16, bf16>,
           unfused_layer_norm<bf16, float>, unfused_rms_norm<float, float>, unfused_rms_norm<half, half>,
           unfused_rms_norm<half, float>, unfused_rms_norm<bf16, bf16>, unfused_rms_norm<bf16, float>,
           unfused_quantized<float, float>, unfused_quantized<half, half>, unfused_quantized<half, float>,
           unfused_quantized<bf16, bf16>, unfused_quantized<bf16, float>)
      .compared_with({.rounded_first = true});
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
  program.add("copied", "heads of q and k: copied to where there are no gaps, then normalized",
              copied_qk_norm<float, float>, copied_qk_norm<half, half>, copied_qk_norm<half, float>,
              copied_qk_norm<bf16, bf16>, copied_qk_norm<bf16, float>);
  program.add("warp_per_head", "heads of q and k where they lie, a warp to each", warp_per_head<float, float>,
              warp_per_head<half, half>, warp_per_head<half, float>, warp_per_head<bf16, bf16>,
              warp_per_head<bf16, float>);
  program.add("two_launches", "heads where they lie, a few lanes to each: q, and then k", qk_norm_in_two<float, float>,
              qk_norm_in_two<half, half>, qk_norm_in_two<half, float>, qk_norm_in_two<bf16, bf16>,
              qk_norm_in_two<bf16, float>);
  program.add("heads", "heads of q and k where they lie, a few lanes to each, in one launch", qk_norm<float, float>,
              qk_norm<half, half>, qk_norm<half, float>, qk_norm<bf16, bf16>, qk_norm<bf16, float>);
  program
      .add("heads_inplace", "the same, instead of q and k", qk_norm<float, float>, qk_norm<half, half>,
           qk_norm<half, float>, qk_norm<bf16, bf16>, qk_norm<bf16, float>)
      .overwrites("q", "q_out")
      .overwrites("k", "k_out");
  program.add("two_reductions", "y in eight bits: the statistics, then the largest |y|", two_reductions<float, float>,
              two_reductions<half, half>, two_reductions<half, float>, two_reductions<bf16, bf16>,
              two_reductions<bf16, float>);
  program.add("quantized", "y in eight bits: both in one reduction, and loads ahead", quantized<float, float>,
              quantized<half, half>, quantized<half, float>, quantized<bf16, bf16>, quantized<bf16, float>);
  return program;
}

}  // namespace worklog::fused_residual
