// Bug hunt 5: a slice of something large.
#include "common/classroom/far_apart.h"
#include "common/harness/program.h"
#include "kernels.cuh"

int main(int argc, char** argv) {
  using namespace worklog;
  Program program("bugs.5", "a slice of something large");
  program.add("layer_norm", "rows of x that lie 2^30 + 64 elements apart",
              [](const LayerNormForward<float>& p, cudaStream_t stream) {
                const FarApart x(p.x, p.rows, p.cols, p.x_stride, (int64_t{1} << 30) + 64, stream);
                LayerNormForward<float> far = p;
                far.x = x.first();
                far.x_stride = x.stride();
                bug_hunt::layer_norm(far, stream);
                check_cuda(cudaStreamSynchronize(stream), "normalizing rows that lie far apart");
              });
  return program.run(argc, argv);
}
