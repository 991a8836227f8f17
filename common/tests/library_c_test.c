/* The C interface from C: a program in C99 that knows of the library only its header. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/library/norm_worklog.h"

static int failures = 0;

static void expect(int holds, const char* what) {
  if (holds) return;
  printf("not so: %s (last error: %s)\n", what, nw_last_error());
  ++failures;
}

/* On the CPU build memory of the process is memory of the device. */
static void normalize_on_the_cpu(void) {
  enum { rows = 3, cols = 50 };
  float x[rows * cols], y[rows * cols], mean[rows], rstd[rows];
  nw_layernorm_forward_args args;
  int i, row;
  for (i = 0; i < rows * cols; ++i) x[i] = (float)((i * 37) % 101);
  // [snippet: call]
  memset(&args, 0, sizeof args);
  args.size = sizeof args;
  args.dtype = NW_FP32;
  args.param_dtype = NW_FP32;
  args.x = x;
  args.y = y;
  args.mean = mean;
  args.rstd = rstd;
  args.rows = rows;
  args.cols = cols;
  args.x_stride = cols;
  args.y_stride = cols;
  args.eps = 1e-5f;
  if (nw_layernorm_forward(&args, NULL) != NW_OK) fprintf(stderr, "%s\n", nw_last_error());
  // [/snippet]
  expect(strcmp(nw_last_error(), "args must not be null") == 0, "there is no error but the one before");
  for (row = 0; row < rows; ++row) {
    const float* const own = x + row * cols;
    double sum = 0, m2 = 0, reciprocal;
    for (i = 0; i < cols; ++i) sum += own[i];
    for (i = 0; i < cols; ++i) m2 += (own[i] - sum / cols) * (own[i] - sum / cols);
    reciprocal = 1 / sqrt(m2 / cols + 1e-5);
    expect(fabs(mean[row] - sum / cols) < 1e-4, "mean is right");
    expect(fabs(rstd[row] - reciprocal) < 1e-6, "rstd is right");
    for (i = 0; i < cols; ++i) {
      expect(fabs(y[row * cols + i] - (own[i] - sum / cols) * reciprocal) < 1e-5, "y is right");
    }
  }
}

int main(void) {
  const nw_kernel* kernel = NULL;
  nw_kernel_info info;
  expect(nw_abi_version() == NW_ABI_VERSION, "the library is the header's");
  expect(strcmp(nw_last_error(), "") == 0, "there is no error yet");
  expect(nw_layernorm_forward(NULL, NULL) == NW_ERROR_NULL, "a null struct is refused");
  expect(strcmp(nw_last_error(), "args must not be null") == 0, "the sentence names the argument");
  expect(nw_find_kernel("03_warp_shuffle", "warp_per_row", NW_LAYERNORM_FORWARD, NW_FP32, NW_FP32, &kernel) == NW_OK,
         "a variant is found by its name");
  info.size = sizeof info;
  if (nw_describe_kernel(kernel, &info) != NW_OK) {
    expect(0, "a variant is described");
  } else {
    expect(strcmp(info.variant, "warp_per_row") == 0 && info.is_final == 0, "a variant is what it was found as");
  }
  if (strcmp(nw_backend(), "cpu") == 0) normalize_on_the_cpu();
  printf(failures == 0 ? "all as it should be\n" : "%d failures\n", failures);
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
