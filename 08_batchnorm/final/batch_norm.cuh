// BatchNorm for every shape: training, its backward pass, and inference. A program that needs the final kernel includes
// this header and no other of the folder.
#pragma once

#include "08_batchnorm/final/backward_steps.cuh"
#include "08_batchnorm/final/inference.cuh"
#include "08_batchnorm/final/launch.cuh"
#include "08_batchnorm/final/train_steps.cuh"
#include "08_batchnorm/final/vector.cuh"
#include "08_batchnorm/kernels.cuh"
#include "common/device/arguments.h"

namespace worklog::batchnorm {

template <class T, class G>
void batch_norm(const BatchNormTrain<T, G>& p, cudaStream_t stream) {
  check_batch(p);
  if (p.samples == 0) return;
  normalize(TrainSteps<T, G>{p}, is_aligned({p.x, p.y}), stream);
}

template <class T, class G>
void batch_norm_backward(const BatchNormBackward<T, G>& p, cudaStream_t stream) {
  if (p.samples == 0) return;
  normalize(BackwardSteps<T, G>{p, static_cast<float>(p.samples * p.pixels)}, is_aligned({p.dy, p.x, p.dx}), stream);
}

}  // namespace worklog::batchnorm
