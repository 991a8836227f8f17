// Streams, which carry out each call at once, and what is put into them: copies, events, captured graphs.
#include <chrono>
#include <utility>
#include <vector>

#include "runtime.h"

using namespace simt::detail;

struct CUgraph_st {
  std::vector<Work> work;
};
struct CUgraphExec_st {
  std::vector<Work> work;
};
struct CUstream_st {
  CUgraph_st* capture = nullptr;  // what the stream is captured into, if it is
};
struct CUevent_st {
  std::chrono::steady_clock::time_point at;
  bool recorded = false;
  bool timed = true;
};

namespace simt::detail {

CUgraph_st* capture_of(cudaStream_t stream) {
  const bool named = stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
  return named ? nullptr : stream->capture;
}

cudaError_t carry_out(cudaStream_t stream, Work work) {
  if (sticky_error != cudaSuccess) return sticky_error;
  CUgraph_st* const graph = capture_of(stream);
  if (graph == nullptr) return work();
  graph->work.push_back(std::move(work));
  return cudaSuccess;
}

}  // namespace simt::detail

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  return carry_out(stream, [=] { return copy_rows(to, to_pitch, from, from_pitch, width, height, kind); });
}
cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                         cudaMemcpyKind kind) {
  return cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, nullptr);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, stream);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}
cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream) {
  return carry_out(stream, [=] { return fill(to, byte, bytes); });
}
cudaError_t cudaMemset(void* to, int byte, size_t bytes) {
  return cudaMemsetAsync(to, byte, bytes, nullptr);
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return carry_out(stream, [=] {
    function(data);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data, unsigned) {
  return carry_out(stream, [=] {
    callback(stream, sticky_error, data);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = new CUstream_st();
  return sticky_error;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return cudaStreamCreate(stream);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return sticky_error;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return cudaStreamCreate(stream);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (stream == nullptr) return remember_error(cudaErrorInvalidResourceHandle);
  delete stream->capture;
  delete stream;
  return sticky_error;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (capture_of(stream) != nullptr) return remember_error(cudaErrorStreamCaptureUnsupported);
  return sticky_error;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return cudaStreamSynchronize(stream);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  return sticky_error;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new CUevent_st();
  return sticky_error;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new CUevent_st();
  (*event)->timed = (flags & cudaEventDisableTiming) == 0;
  return sticky_error;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return sticky_error;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (event == nullptr) return remember_error(cudaErrorInvalidResourceHandle);
  return carry_out(stream, [event] {
    event->at = std::chrono::steady_clock::now();
    event->recorded = true;
    return cudaSuccess;
  });
}
cudaError_t cudaEventSynchronize(cudaEvent_t) {
  return sticky_error;
}
cudaError_t cudaEventQuery(cudaEvent_t) {
  return sticky_error;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t stop) {
  if (!start->recorded || !stop->recorded || !start->timed || !stop->timed) {
    return remember_error(cudaErrorInvalidResourceHandle);
  }
  *milliseconds = std::chrono::duration<float, std::milli>(stop->at - start->at).count();
  return sticky_error;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream == nullptr || stream == cudaStreamLegacy) return remember_error(cudaErrorStreamCaptureUnsupported);
  if (capture_of(stream) != nullptr) return remember_error(cudaErrorIllegalState);
  stream->capture = new CUgraph_st();
  return sticky_error;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (capture_of(stream) == nullptr) return remember_error(cudaErrorIllegalState);
  *graph = std::exchange(stream->capture, nullptr);
  return sticky_error;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = capture_of(stream) != nullptr ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return sticky_error;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  if (nodes != nullptr) return remember_error(cudaErrorNotSupported);
  *count = graph->work.size();
  return sticky_error;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = new CUgraphExec_st{graph->work};
  return sticky_error;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
  return sticky_error;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  for (const Work& work : executable->work) {
    const cudaError_t error = carry_out(stream, work);
    if (error != cudaSuccess) return error;
  }
  return sticky_error;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return sticky_error;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return sticky_error;
}
