// Stage 01: one thread per row.
#include "common/harness/program.h"
#include "kernels.cuh"

int main(int argc, char** argv) {
  using namespace worklog;
  Program program("01_naive", "one thread per row");
  const auto add = [&](const char* name, const char* note,
                       void (*function)(const LayerNormForward<float>&, cudaStream_t)) {
    // One running sum per row: its rounding error grows with the row and with the mean.
    program.add(name, note, function)
        .fails_on(Input::arange, {.rows = 1000, .cols = 1000})
        .fails_on(Input::constant, {.cols = 768})
        .fails_on(Input::large_mean, {.cols = 65536})
        .fails_on(Input::huge, {.cols = 2});
  };
  add("one_big_block", "1024 rows to a block, as the article launches it", naive::one_big_block);
  add("thread_per_row", "256 rows to a block", naive::thread_per_row);
  add("small_blocks", "32 rows to a block: the rows reach 8 times as many multiprocessors", naive::small_blocks);
  return program.run(argc, argv);
}
