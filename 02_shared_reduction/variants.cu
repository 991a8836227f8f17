// The variants of stage 02: what its program, the library and the pages know of it.
#include "article.cuh"
#include "common/harness/program.h"
#include "kernels.cuh"

namespace worklog::shared_reduction {

Program program() {
  Program program("02_shared_reduction", "one block per row, a tree in shared memory");
  program.add("interleaved", "two passes; the tree adds neighbours first: bank conflicts", interleaved)
      .fails_on(Input::huge, {.cols = 2});
  program.add("two_pass", "mean, then squared deviations; the tree adds halves", two_pass)
      .fails_on(Input::huge, {.cols = 2});
  program.add("one_pass", "sum and sum of squares together, as the articles have it", one_pass)
      .fails_on(Input::arange, {.rows = 1000, .cols = 1000})
      .fails_on(Input::large_mean, {.cols = 128})
      .fails_on(Input::tiny_variance, {.cols = 128})
      .may_fail_on(Input::constant)  // mean * mean fused with the subtraction leaves a variance where there is none
      .may_fail_on(Input::normal, {}, 2)  // two values that lie close together
      .may_fail_on(Input::uniform, {}, 2)
      .may_fail_on(Input::nan_row, {}, 2)
      .fails_on(Input::huge, {.cols = 2});
  // A sum of squares that is not divided by the number of columns is wrong from the second column on.
  Variant& slip = program.add("article_slip", "the WebGPU article's listing: the wrong term divided by N", article_slip)
                      .fails_on(Input::nan_row, {.rows = 2, .cols = 2});
  for (const Input input : {Input::normal, Input::uniform, Input::arange, Input::constant, Input::large_mean,
                            Input::tiny_variance, Input::outlier_channels, Input::huge}) {
    slip.fails_on(input, {.cols = 2});
  }
  const auto add_one_pass = [&](const char* name, const char* note,
                                void (*function)(const LayerNormForward<float>&, cudaStream_t)) {
    program.add(name, note, function)
        .fails_on(Input::arange, {.rows = 1000, .cols = 1000})
        .fails_on(Input::large_mean, {.cols = 128})
        .fails_on(Input::tiny_variance, {.cols = 128})
        .may_fail_on(Input::constant)
        .may_fail_on(Input::normal, {}, 3)  // a few values that lie close together
        .may_fail_on(Input::uniform, {}, 3)
        .may_fail_on(Input::outlier_channels, {}, 3)
        .may_fail_on(Input::nan_row, {}, 3)
        .fails_on(Input::huge, {.cols = 2});
  };
  add_one_pass("article_tree_64", "its kernel with the formula put right, 64 threads", article_tree<64, variance_of>);
  add_one_pass("article_tree_128", "the same with 128 threads, as it has them", article_tree<128, variance_of>);
  add_one_pass("article_tree_256", "the same with 256 threads", article_tree<256, variance_of>);
  add_one_pass("article_tree_512", "the same with 512 threads", article_tree<512, variance_of>);
  add_one_pass("article_tree_1024", "the same with 1024 threads", article_tree<1024, variance_of>);
  add_one_pass("article_kahan", "one pass with Kahan's sums: a cure that it names, and that does not cure",
               article_kahan);
  program.add("article_double", "one pass with sums in double: the other cure", article_double)
      .fails_on(Input::huge, {.cols = 2});
  return program;
}

}  // namespace worklog::shared_reduction
