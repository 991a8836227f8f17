// The variants of stage 04: what its program, the library and the pages know of it.
#include "article.cuh"
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
  const auto add_one_pass = [&](const char* name, const char* note,
                                void (*function)(const LayerNormForward<float>&, cudaStream_t)) -> Variant& {
    return program.add(name, note, function)
        .fails_on(Input::arange, {.rows = 1000, .cols = 1000})
        .fails_on(Input::large_mean, {.cols = 128})
        .may_fail_on(Input::constant)
        .may_fail_on(Input::normal, {}, 3)  // a few values that lie close together
        .may_fail_on(Input::uniform, {}, 3)
        .may_fail_on(Input::outlier_channels, {}, 3)
        .may_fail_on(Input::nan_row, {}, 3)
        .fails_on(Input::huge, {.cols = 2});
  };
  add_one_pass("article_float4", "the worklog's last kernel: one pass by float4", article_float4)
      .fails_on(Input::tiny_variance, {.cols = 128});

  // The worklog's kernels have no gamma and beta, and keep no statistics. The same work, in one process:
  const char* const bare = "no gamma, beta, mean and rstd (--without gamma,beta,mean,rstd)";
  const auto is_bare = [](const ProblemOptions& o) { return o.absent.size() == 4; };
  program.add("bare_thread_per_row", "the worklog's first kernel: stage 01", naive::one_big_block)
      .limited_to(bare, is_bare)
      .may_fail_on(Input::constant)
      .fails_on(Input::arange, {.rows = 1000, .cols = 1000})
      .fails_on(Input::large_mean, {.cols = 65536})
      .fails_on(Input::outlier_channels, {.cols = 65536})
      .fails_on(Input::huge, {.cols = 2});
  add_one_pass("bare_tree", "its second: stage 02's one pass", shared_reduction::one_pass)
      .limited_to(bare, is_bare)
      .may_fail_on(Input::tiny_variance);  // there is no rstd to compare, in which it would show
  add_one_pass("bare_first_warp", "its third: stage 03's", warp_shuffle::article_first_warp)
      .limited_to(bare, is_bare)
      .may_fail_on(Input::tiny_variance);  // there is no rstd to compare, in which it would show
  add_one_pass("bare_float4", "its last: article_float4", article_float4)
      .limited_to(bare, is_bare)
      .may_fail_on(Input::tiny_variance);  // there is no rstd to compare, in which it would show
  program.add("bare_cached", "and the lesson's kernel for the same work", cached<float, float>)
      .limited_to(bare, is_bare)
      .limited_to("cols at most 16380", [](const ProblemOptions& o) { return o.cols <= longest_row<float, 8>; })
      .fails_on(Input::huge, {.cols = 2});
  return program;
}

}  // namespace worklog::vectorized
