// The variants of stage 07: what its program, the library and the pages know of it.
#include "common/harness/program.h"
#include "final/backward.cuh"
#include "grouped.cuh"
#include "heads.cuh"
#include "kernels.cuh"
#include "staying.cuh"

namespace worklog::backward {

// Compiled in grouped.cu, a unit for each pair of types.
extern template void grouped(const LayerNormBackward<float, float>&, cudaStream_t);
extern template void grouped(const LayerNormBackward<__half, __half>&, cudaStream_t);
extern template void grouped(const LayerNormBackward<__nv_bfloat16, __nv_bfloat16>&, cudaStream_t);
extern template void grouped_fp32(const LayerNormBackward<__half, __half>&, cudaStream_t);
extern template void grouped_fp32(const LayerNormBackward<__half, float>&, cudaStream_t);
extern template void grouped_fp32(const LayerNormBackward<__nv_bfloat16, __nv_bfloat16>&, cudaStream_t);
extern template void grouped_fp32(const LayerNormBackward<__nv_bfloat16, float>&, cudaStream_t);

Program program() {
  using half = __half;
  using bf16 = __nv_bfloat16;

  Program program("07_backward", "the backward pass: sums along the rows and along the columns of the same data");
  program.add("separate", "a kernel for dx, another that reads all again for dgamma and dbeta", separate<float, float>,
              separate<half, half>, separate<half, float>, separate<bf16, bf16>, separate<bf16, float>);
  program.add("atomics", "one kernel, which adds every element to dgamma and dbeta", atomics<float, float>,
              atomics<half, half>, atomics<half, float>, atomics<bf16, bf16>, atomics<bf16, float>);
  const char* const limit = "cols at most 16380 in fp32, 32760 in 16 bits";
  const auto fits = [](const ProblemOptions& o) {
    return o.cols <= (o.dtype == Dtype::fp32 ? vectorized::longest_row<float, 8> : vectorized::longest_row<half, 8>);
  };
  // With weights in fp32, in which its sums would be, it is grouped_fp32.
  Variant& in_their_type =
      program
          .add("grouped", "partial sums in the weights' type, behind locks, as Triton's tutorial has it",
               grouped<float, float>, grouped<half, half>, grouped<bf16, bf16>)
          .limited_to(limit, fits);
  // Every addition rounds a sum to 16 bits, and the terms of some columns nearly cancel: a few of a hundred columns.
  for (const Input input : {Input::normal, Input::uniform, Input::arange, Input::large_mean, Input::tiny_variance,
                            Input::outlier_channels, Input::huge}) {
    in_their_type.fails_on(input, {.rows = 512, .cols = 512, .dtypes = {Dtype::fp16, Dtype::bf16}, .least_rows = 2});
  }
  // Here dgamma is 0 or NaN, and dbeta is right until two rows, of which each has 16 bits, are of the same group. There
  // are 62 groups or more.
  for (const Input input : {Input::constant, Input::nan_row}) {
    in_their_type.fails_on(input, {.rows = 512, .cols = 512, .dtypes = {Dtype::fp16, Dtype::bf16}, .least_rows = 63});
  }
  program
      .add("grouped_fp32", "the same with partial sums in fp32", grouped_fp32<half, half>, grouped_fp32<half, float>,
           grouped_fp32<bf16, bf16>, grouped_fp32<bf16, float>)
      .limited_to(limit, fits);
  program.add("staying", "blocks that stay: each thread keeps its columns, and every row is read once",
              staying<float, float>, staying<half, half>, staying<half, float>, staying<bf16, bf16>,
              staying<bf16, float>, staying_rms_norm<float, float>, staying_rms_norm<half, half>,
              staying_rms_norm<half, float>, staying_rms_norm<bf16, bf16>, staying_rms_norm<bf16, float>);
  program.add("persistent", "the final kernel: sums in registers, rows on their way through a ring",
              layer_norm_backward<float, float>, layer_norm_backward<half, half>, layer_norm_backward<half, float>,
              layer_norm_backward<bf16, bf16>, layer_norm_backward<bf16, float>, rms_norm_backward<float, float>,
              rms_norm_backward<half, half>, rms_norm_backward<half, float>, rms_norm_backward<bf16, bf16>,
              rms_norm_backward<bf16, float>);
  program.add("zero_centered", "weights about zero: 1 + gamma, as Gemma has them",
              zero_centered_layer_norm_backward<float, float>, zero_centered_layer_norm_backward<half, half>,
              zero_centered_layer_norm_backward<half, float>, zero_centered_layer_norm_backward<bf16, bf16>,
              zero_centered_layer_norm_backward<bf16, float>, zero_centered_rms_norm_backward<float, float>,
              zero_centered_rms_norm_backward<half, half>, zero_centered_rms_norm_backward<half, float>,
              zero_centered_rms_norm_backward<bf16, bf16>, zero_centered_rms_norm_backward<bf16, float>);
  program.add("warp_per_head", "heads of q and k where they lie: a kernel for dq and dk, another for the columns",
              warp_per_head<float, float>, warp_per_head<half, half>, warp_per_head<half, float>,
              warp_per_head<bf16, bf16>, warp_per_head<bf16, float>);
  program.add("heads", "heads of q and k where they lie, a few lanes to each, read once",
              qk_norm_backward<float, float>, qk_norm_backward<half, half>, qk_norm_backward<half, float>,
              qk_norm_backward<bf16, bf16>, qk_norm_backward<bf16, float>);
  return program;
}

}  // namespace worklog::backward
