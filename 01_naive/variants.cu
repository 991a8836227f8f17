// The variants of stage 01: what its program, the library and the pages know of it.
#include "article.cuh"
#include "common/harness/program.h"
#include "kernels.cuh"

namespace worklog::naive {

Program program() {
  Program program("01_naive", "one thread per row");
  const auto add = [&](const char* name, const char* note,
                       void (*function)(const LayerNormForward<float>&, cudaStream_t)) {
    // One running sum per row: its rounding error grows with the row and with the mean.
    program.add(name, note, function)
        .fails_on(Input::arange, {.rows = 1000, .cols = 1000})
        .fails_on(Input::constant, {.cols = 768})
        .fails_on(Input::large_mean, {.cols = 65536})
        .fails_on(Input::outlier_channels, {.cols = 65536})
        .fails_on(Input::huge, {.cols = 2});
  };
  add("one_big_block", "1024 rows to a block, as the article launches it", one_big_block);
  add("thread_per_row", "256 rows to a block", thread_per_row);
  add("small_blocks", "32 rows to a block: the rows reach 8 times as many multiprocessors", small_blocks);
  add("article_lone_thread", "the guide's: a block to a row, and one thread in it", article_lone_thread);
  return program;
}

}  // namespace worklog::naive
