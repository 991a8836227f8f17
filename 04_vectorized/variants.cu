// The variants of stage 04: what its program, the library and the pages know of it.
#include "common/harness/program.h"
#include "kernels.cuh"

namespace worklog::vectorized {

Program program() {
  using half = __half;
  using bf16 = __nv_bfloat16;

  Program program("04_vectorized", "16 bytes at a time, and the row read once");
  program
      .add("reload", "one pass for both sums, then x again, as the article has it", reload<float, float>,
           reload<half, half>, reload<half, float>, reload<bf16, bf16>, reload<bf16, float>)
      .fails_on(Input::arange, {.rows = 1000, .cols = 1000, .dtypes = {Dtype::fp32}})
      .fails_on(Input::large_mean, {.rows = 1000, .cols = 1000, .dtypes = {Dtype::fp32, Dtype::fp16}})
      .may_fail_on(Input::large_mean, {Dtype::bf16})
      .fails_on(Input::tiny_variance, {.rows = 1000, .cols = 1000})
      .may_fail_on(Input::constant)
      .may_fail_on(Input::arange, {Dtype::fp16})
      .may_fail_on(Input::normal, {}, 2)  // two values that lie close together
      .may_fail_on(Input::uniform, {}, 2)
      .may_fail_on(Input::nan_row, {}, 2)
      .fails_on(Input::huge, {.cols = 2, .dtypes = {Dtype::fp32, Dtype::bf16}});
  program
      .add("cached", "the row kept in registers and read once", cached<float, float>, cached<half, half>,
           cached<half, float>, cached<bf16, bf16>, cached<bf16, float>)
      .limited_to("cols at most 16380 in fp32, 32760 in 16 bits",
                  [](const ProblemOptions& o) {
                    return o.cols <= (o.dtype == Dtype::fp32 ? longest_row<float, 8> : longest_row<half, 8>);
                  })
      .fails_on(Input::huge, {.cols = 2, .dtypes = {Dtype::fp32, Dtype::bf16}});
  program
      .add("persistent", "gamma and beta kept in registers, too: blocks stay and walk over rows",
           persistent<float, float>, persistent<half, half>, persistent<half, float>, persistent<bf16, bf16>,
           persistent<bf16, float>)
      .limited_to("cols at most 8188 in fp32, 16376 in 16 bits",
                  [](const ProblemOptions& o) {
                    return o.cols <= (o.dtype == Dtype::fp32 ? longest_row<float, 4> : longest_row<half, 4>);
                  })
      .fails_on(Input::huge, {.cols = 2, .dtypes = {Dtype::fp32, Dtype::bf16}});
  return program;
}

}  // namespace worklog::vectorized
