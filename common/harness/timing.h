// Times an operation on the device with events: cold, warm, and from a graph.
//
//   cold   Before each sample the L2 cache is filled with other data, by a kernel that reads a buffer of several times
//          its size. It reads and does not write: dirty lines would have to go to memory while the sample runs, and
//          would be charged to it. The samples take turns among several sets of tensors where a set is small, so that
//          neither the open pages of the memory nor the address translation know it from the sample before. What the
//          operation itself leaves in the L2 cache to be written later is not in its time, and not in its stream's.
//   warm   The same tensors again and again, nothing between the samples: what fits the L2 cache is found there.
//   graph  As warm, in a CUDA graph of many launches: the time of the whole replay, divided by their number. There is
//          no event between the launches, so this is what a small operation costs in a row of small operations.
//
// Work is queued behind a kernel that keeps the device busy for longer than the queueing takes, so that the host's
// speed is not in the figures. What remains is what an event adds; the time of an empty kernel says how much that is.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "common/harness/device_buffer.h"
#include "common/harness/statistics.h"

namespace worklog {

enum class TimingMode { cold, warm, graph };
inline constexpr std::array all_timing_modes = {TimingMode::cold, TimingMode::warm, TimingMode::graph};
std::string_view name_of(TimingMode mode);

// Launches an operation once. `set` says which of several sets of tensors to take, where there are several.
using TimedOperation = std::function<void(int set, cudaStream_t stream)>;

// One run of an operation whose kernels are loaded, in seconds: what a sample will take, roughly. Throws CudaError.
double time_roughly(const TimedOperation& operation, cudaStream_t stream);

// Samples are taken until the median is known to `uncertainty` (a ratio, statistics.h) or the time is up.
struct Sampling {
  double max_seconds = 0.5;
  double uncertainty = 0.005;
  int min_samples = 50;  // as far as the time allows
  int max_samples = 20000;
};

// Two events on a stream, and the time between them.
class EventPair {
 public:
  EventPair();
  ~EventPair();
  EventPair(const EventPair&) = delete;
  EventPair& operator=(const EventPair&) = delete;

  void start(cudaStream_t stream);
  void stop(cudaStream_t stream);
  double seconds() const;  // once the stream has come to the second one

 private:
  cudaEvent_t before_ = nullptr, after_ = nullptr;
};

// What samples are taken with: a stream, and what fills the L2 cache.
class Timer {
 public:
  // `l2_bytes` is the size of the device's L2 cache.
  explicit Timer(int64_t l2_bytes);
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  cudaStream_t stream() const { return stream_; }

  // How many sets of tensors of `set_bytes` each a cold timing should take turns among.
  int useful_sets(int64_t set_bytes) const;

  // What one sample of an operation takes in all, in seconds, with what lies between it and the next one. `seconds` is
  // what the operation takes.
  double seconds_per_sample(TimingMode mode, double seconds) const;

  // The time of one operation, in seconds, from as many samples as `sampling` asks for.
  Summary time(TimingMode mode, const TimedOperation& operation, int sets, const Sampling& sampling);

  // Fills the L2 cache with other data; also what the device does while work is queued.
  void flush();
  double flush_seconds() const { return flush_seconds_; }

 private:
  cudaStream_t stream_ = nullptr;
  int64_t flush_bytes_;
  DeviceMemory flush_memory_;
  double flush_seconds_ = 0;
};

// Takes samples of one operation, one after the other.
class Sampler {
 public:
  // Runs the operation a few times, which shows its errors and what it takes. Cold samples take turns among `sets`
  // sets, the others take set 0. `seconds` is about how long samples will be taken for: none are taken in advance for
  // more than a tenth of that. The timer must outlive the sampler. Throws CudaError, among others where a graph is
  // asked for and the operation cannot be captured.
  Sampler(Timer& timer, TimingMode mode, TimedOperation operation, int sets, double seconds);
  ~Sampler();

  // The time of one run of the operation, in seconds.
  double next();

 private:
  struct Graph;

  void capture();
  void take_batch();
  double replay();

  Timer& timer_;
  TimingMode mode_;
  TimedOperation operation_;
  int sets_;
  std::vector<EventPair> events_;  // one for each sample of a batch
  std::vector<double> batch_;      // samples that were taken and not yet given out, the next one at the back
  double queueing_seconds_ = 0;    // of a batch, on the host
  int turn_ = 0;                   // of the sets
  std::unique_ptr<Graph> graph_;   // in graph mode
};

}  // namespace worklog
