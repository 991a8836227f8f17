// The variants of stage 03: what its program, the library and the pages know of it.
#include "article.cuh"
#include "common/harness/program.h"
#include "kernels.cuh"

namespace worklog::warp_shuffle {

Program program() {
  Program program("03_warp_shuffle", "sums that stay in registers");
  program.add("block_per_row", "warp sums, then one hop through shared memory", block_per_row<float>)
      .fails_on(Input::huge, {.cols = 2});
  program.add("warp_per_row", "a warp to a row: no shared memory, no barrier", warp_per_row<float>)
      .fails_on(Input::huge, {.cols = 2});
  program.add("article_first_warp", "the worklog's: one pass, the first warp adds the warps' sums", article_first_warp)
      .fails_on(Input::arange, {.rows = 1000, .cols = 1000})
      .fails_on(Input::large_mean, {.cols = 128})
      .fails_on(Input::tiny_variance, {.cols = 128})
      .may_fail_on(Input::constant)
      .may_fail_on(Input::normal, {}, 3)  // a few values that lie close together
      .may_fail_on(Input::uniform, {}, 3)
      .may_fail_on(Input::outlier_channels, {}, 3)
      .may_fail_on(Input::nan_row, {}, 3)
      .fails_on(Input::huge, {.cols = 2});
  program.add("article_warp_down", "a warp to a row; lane 0 has the sum, and hands it out", article_warp_down)
      .fails_on(Input::huge, {.cols = 2});
  return program;
}

}  // namespace worklog::warp_shuffle
