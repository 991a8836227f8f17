// The variants of stage 08: what its program, the library and the pages know of it.
#include "article.cuh"
#include "common/harness/program.h"
#include "final/batch_norm.cuh"
#include "kernels.cuh"
#include "one_launch.cuh"

namespace worklog::batchnorm {

Program program() {
  using half = __half;
  using bf16 = __nv_bfloat16;

  const auto rows_of_channels = [](const ProblemOptions& o) {
    return o.pixels == 1 || o.layout == ChannelLayout::channels_last;
  };
  constexpr int64_t any = std::numeric_limits<int64_t>::max();
  constexpr int64_t few = 7;        // rows: values of a channel may lie close together by chance
  constexpr int64_t many = 200000;  // rows: one running sum of so many values rounds away what is allowed
  const char* const channels_last = "images with their channels last";

  Program program("08_batchnorm", "BatchNorm: statistics over the columns");
  program.add("channel_per_thread", "the formula, a thread to a channel", channel_per_thread)
      .limited_to(channels_last, rows_of_channels)
      .may_fail_on(Input::arange)
      .may_fail_on(Input::large_mean)
      .may_fail_on(Input::tiny_variance)
      .may_fail_on(Input::constant)  // one running sum of equal values: every addition rounds the same way
      // as many additions one after the other
      .fails_on(Input::normal, {.rows = 1000000, .least_rows = many})
      .fails_on(Input::uniform, {.rows = 1000000, .least_rows = many})
      .fails_on(Input::outlier_channels, {.rows = 1000000, .least_rows = many})
      .fails_on(Input::nan_row, {.rows = 1000000, .cols = 2, .least_rows = many})
      .fails_on(Input::huge, {});
  program
      .add("samples_atomics", "the article's first thought: a thread to a sample, atomic additions to global sums",
           samples_atomics)
      .limited_to(channels_last, rows_of_channels)
      .fails_on(Input::large_mean, {.rows = 16})
      .fails_on(Input::tiny_variance, {.rows = 16})
      .fails_on(Input::huge, {})
      .may_fail_on(Input::arange)  // one running sum, whose order differs from run to run
      .may_fail_on(Input::constant)
      .may_fail_on(Input::normal, {}, any, few)
      .may_fail_on(Input::uniform, {}, any, few)
      .may_fail_on(Input::outlier_channels, {}, any, few)
      .fails_on(Input::normal, {.rows = any, .least_rows = many})  // may: here, too, the order counts
      .fails_on(Input::uniform, {.rows = any, .least_rows = many})
      .fails_on(Input::outlier_channels, {.rows = any, .least_rows = many})
      .fails_on(Input::nan_row, {.rows = 2});
  program.add("block_per_channel", "its second: a block to a channel, whose reads are uncoalesced", block_per_channel)
      .limited_to(channels_last, rows_of_channels)
      .fails_on(Input::large_mean, {.rows = 16})
      .fails_on(Input::tiny_variance, {.rows = 16})
      .fails_on(Input::huge, {})
      .may_fail_on(Input::constant)
      .may_fail_on(Input::normal, {}, any, few)
      .may_fail_on(Input::uniform, {}, any, few)
      .may_fail_on(Input::outlier_channels, {}, any, few)
      .fails_on(Input::nan_row, {.rows = 2});
  program.add("tile_2d", "the article's kernel: 32 channels to a block, sums and sums of squares", tile_2d)
      .limited_to(channels_last, rows_of_channels)
      .fails_on(Input::large_mean, {.rows = 16})
      .fails_on(Input::tiny_variance, {.rows = 16})
      .fails_on(Input::huge, {})
      .may_fail_on(Input::constant)
      .may_fail_on(Input::normal, {}, any, few)
      .may_fail_on(Input::uniform, {}, any, few)
      .may_fail_on(Input::outlier_channels, {}, any, few)
      .fails_on(Input::nan_row, {.rows = 2});  // fmaxf(NaN, 0) is 0
  program.add("split_rows", "a tile's rows over many blocks, their moments merged by Chan's formula", split_rows)
      .limited_to(channels_last, rows_of_channels)
      .limited_to("channels at most 699050",  // of so many, the workspace holds the moments
                  [](const ProblemOptions& o) {
                    return o.cols * int64_t{sizeof(Moments)} <= batchnorm_workspace * int64_t{sizeof(float)};
                  })
      .may_fail_on(Input::large_mean)  // each step rounds a mean of 1e4 to 5e-4
      .may_fail_on(Input::tiny_variance)
      .may_fail_on(Input::normal, {}, any, few)
      .may_fail_on(Input::uniform, {}, any, few)
      .may_fail_on(Input::outlier_channels, {}, any, few)
      .fails_on(Input::huge, {});
  program.add("one_launch", "two loops by vectors, and between them all blocks wait for each other",
              one_launch<float, float>, one_launch<half, half>, one_launch<half, float>, one_launch<bf16, bf16>,
              one_launch<bf16, float>);
  program.add("batch_norm", "the final kernel: one launch, forwards through a ring and back", batch_norm<float, float>,
              batch_norm<half, half>, batch_norm<half, float>, batch_norm<bf16, bf16>, batch_norm<bf16, float>,
              batch_norm_inference<float, float>, batch_norm_inference<half, half>, batch_norm_inference<half, float>,
              batch_norm_inference<bf16, bf16>, batch_norm_inference<bf16, float>, batch_norm_backward<float, float>,
              batch_norm_backward<half, half>, batch_norm_backward<half, float>, batch_norm_backward<bf16, bf16>,
              batch_norm_backward<bf16, float>);
  return program;
}

}  // namespace worklog::batchnorm
