// The variants of stage 05: what its program, the library and the pages know of it.
#include "article.cuh"
#include "common/harness/program.h"
#include "final/layer_norm.cuh"
#include "held_units.cuh"
#include "kernels.cuh"

namespace worklog::welford {

Program program() {
  using half = __half;
  using bf16 = __nv_bfloat16;

  Program program("05_welford", "statistics that hold on every input, and the final forward kernel");
  program
      .add("textbook", "Welford's update, a division per element", textbook<float, float>, textbook<half, half>,
           textbook<half, float>, textbook<bf16, bf16>, textbook<bf16, float>)
      .may_fail_on(Input::large_mean, {Dtype::fp32})  // each merge rounds a mean of 1e4 to 5e-4
      .may_fail_on(Input::tiny_variance, {Dtype::fp32})
      .may_fail_on(Input::normal, {Dtype::fp32}, 2)  // two values that lie close together
      .may_fail_on(Input::uniform, {Dtype::fp32}, 2)
      .may_fail_on(Input::nan_row, {Dtype::fp32}, 2)
      .fails_on(Input::huge, {.cols = 2, .dtypes = {Dtype::fp32, Dtype::bf16}});
  program
      .add("chan", "exact moments in registers, merged by Chan's formula", chan<float, float>, chan<half, half>,
           chan<half, float>, chan<bf16, bf16>, chan<bf16, float>)
      .limited_to("cols at most 16380 in fp32, 32760 in 16 bits",
                  [](const ProblemOptions& o) {
                    return o.cols <= (o.dtype == Dtype::fp32 ? vectorized::longest_row<float, 8>
                                                             : vectorized::longest_row<half, 8>);
                  })
      .may_fail_on(Input::large_mean, {Dtype::fp32})  // each merge rounds a mean of 1e4 to 5e-4
      .may_fail_on(Input::tiny_variance, {Dtype::fp32})
      .may_fail_on(Input::normal, {Dtype::fp32}, 2)  // two values that lie close together
      .may_fail_on(Input::uniform, {Dtype::fp32}, 2)
      .may_fail_on(Input::nan_row, {Dtype::fp32}, 2)
      .fails_on(Input::huge, {.cols = 2, .dtypes = {Dtype::fp32, Dtype::bf16}});
  program.add("held", "the mean in two floats, and one kernel for every row", held<float, float>, held<half, half>,
              held<half, float>, held<bf16, bf16>, held<bf16, float>);
  program.add("layer_norm", "the final kernel: lanes, a block or a cluster to a row", layer_norm<float, float>,
              layer_norm<half, half>, layer_norm<half, float>, layer_norm<bf16, bf16>, layer_norm<bf16, float>);
  Variant& one_warp = program.add("article_one_warp", "the guide's: Welford's update by one warp", article_one_warp)
                          .may_fail_on(Input::large_mean)
                          .may_fail_on(Input::tiny_variance);
  Variant& warps_apart =
      program.add("article_warps_apart", "the same in a block of 256: each warp by itself", article_warps_apart)
          .may_fail_on(Input::constant);
  for (Variant* variant : {&one_warp, &warps_apart}) {
    for (const Input input : {Input::normal, Input::uniform, Input::arange, Input::constant, Input::outlier_channels}) {
      variant->fails_on(input, {.most_cols = 15});  // 0/0
    }
    variant->fails_on(Input::nan_row, {.rows = 2, .most_cols = 15});
    variant->fails_on(Input::huge, {.cols = 2});
  }
  for (const Input input : {Input::normal, Input::uniform, Input::arange, Input::outlier_channels, Input::large_mean,
                            Input::tiny_variance}) {
    warps_apart.fails_on(input, {.cols = 33});  // beyond the first warp
  }
  warps_apart.fails_on(Input::nan_row, {.rows = 2, .cols = 33});
  return program;
}

}  // namespace worklog::welford
