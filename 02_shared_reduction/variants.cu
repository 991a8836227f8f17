// The variants of stage 02: what its program, the library and the pages know of it.
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
  return program;
}

}  // namespace worklog::shared_reduction
