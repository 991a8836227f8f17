#include "common/harness/timing.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>

#include "common/harness/launch.cuh"

namespace worklog {
namespace {

constexpr int largest_batch = 16;         // samples between two looks at the clock
constexpr int64_t flush_factor = 4;       // the flush buffer, in sizes of the L2 cache
constexpr int most_sets = 8;              // of tensors that cold samples take turns among
constexpr double graph_seconds = 400e-6;  // what a replay of a graph takes, about
constexpr int most_graph_launches = 200;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Whether more samples are wanted. Sorting them takes time itself, so it is only done as their number grows by a
// quarter.
class Stopping {
 public:
  explicit Stopping(const Sampling& sampling) : sampling_(sampling) {}

  bool enough(const std::vector<double>& samples) {
    const int count = static_cast<int>(samples.size());
    if (count == 0) return false;
    if (count >= sampling_.max_samples || seconds_since(start_) > sampling_.max_seconds) return true;
    if (count < std::max(sampling_.min_samples, next_look_)) return false;
    next_look_ = count + count / 4;
    return median_uncertainty(samples) <= sampling_.uncertainty;
  }

 private:
  const Sampling& sampling_;
  Clock::time_point start_ = Clock::now();
  int next_look_ = 0;
};

// Fills device memory with random bits, as a tensor's are: zeros cost less power to move, and so may move faster. The
// bits repeat after a length that arrays of a usual size are no multiple of apart: their exclusive or is random, too.
void fill_with_noise(std::byte* data, int64_t bytes) {
  constexpr int64_t period = (int64_t{1} << 20) - 48;
  std::mt19937_64 random(1);
  std::vector<uint64_t> noise(period / sizeof(uint64_t));
  for (uint64_t& word : noise) word = random();
  int64_t filled = std::min(period, bytes);
  check_cuda(cudaMemcpy(data, noise.data(), filled, cudaMemcpyHostToDevice), "filling the stream's arrays");
  while (filled < bytes) {  // by whole periods, as long as there is room for them
    const int64_t more = std::min(filled, bytes - filled);
    check_cuda(cudaMemcpy(data + filled, data, more, cudaMemcpyDeviceToDevice), "filling the stream's arrays");
    filled += more;
  }
  check_cuda(cudaDeviceSynchronize(), "filling the stream's arrays");
}

struct Graph {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ~Graph() {
    if (executable) cudaGraphExecDestroy(executable);
    if (graph) cudaGraphDestroy(graph);
  }
};

}  // namespace

std::string_view name_of(TimingMode mode) {
  switch (mode) {
    case TimingMode::cold:
      return "cold";
    case TimingMode::warm:
      return "warm";
    case TimingMode::graph:
      break;
  }
  return "graph";
}

Timer::Timer(int64_t l2_bytes)
    : l2_bytes_(l2_bytes),
      flush_bytes_(flush_factor * std::max(l2_bytes, int64_t{1} << 16)),
      flush_memory_(flush_bytes_ + 16) {
  check_cuda(cudaStreamCreate(&stream_), "creating a stream");
  for (int i = 0; i < largest_batch; ++i) {
    EventPair& pair = events_.emplace_back();
    check_cuda(cudaEventCreate(&pair.before), "creating an event");
    check_cuda(cudaEventCreate(&pair.after), "creating an event");
  }
  check_cuda(cudaMemset(flush_memory_.data(), 0, flush_bytes_), "filling the flush buffer");
  check_cuda(cudaDeviceSynchronize(), "filling the flush buffer");
  for (int i = 0; i < 2; ++i) {  // the first one loads the kernel
    check_cuda(cudaEventRecord(events_[0].before, stream_), "recording an event");
    flush();
    check_cuda(cudaEventRecord(events_[0].after, stream_), "recording an event");
    check_cuda(cudaStreamSynchronize(stream_), "timing the flush");
    flush_seconds_ = seconds_between(events_[0]);
  }
}

Timer::~Timer() {
  for (const EventPair& pair : events_) {
    cudaEventDestroy(pair.before);
    cudaEventDestroy(pair.after);
  }
  if (stream_) cudaStreamDestroy(stream_);
}

int Timer::useful_sets(int64_t set_bytes) const {
  // From flush_bytes_ on a set displaces itself. A few sets below that are enough to come to other addresses.
  return static_cast<int>(std::clamp<int64_t>(flush_bytes_ / std::max<int64_t>(set_bytes, 1), 1, most_sets));
}

void Timer::flush() {
  StreamArrays arrays = {};
  arrays.in[0] = flush_memory_.data();
  arrays.out[0] = flush_memory_.data() + flush_bytes_;
  launch_stream(1, 0, arrays, flush_bytes_, stream_);
}

double Timer::seconds_between(const EventPair& events) const {
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, events.before, events.after), "reading the time of a sample");
  return milliseconds * 1e-3;
}

Summary Timer::time(TimingMode mode, const TimedOperation& operation, int sets, const Sampling& sampling) {
  return summarize(mode == TimingMode::graph ? time_graph(operation, sampling)
                                             : time_singly(mode == TimingMode::cold, operation, sets, sampling));
}

std::vector<double> Timer::time_singly(bool cold, const TimedOperation& operation, int sets, const Sampling& sampling) {
  operation(0, stream_);  // loads the kernels, and shows errors before anything is timed
  check_cuda(cudaStreamSynchronize(stream_), "running the operation");
  const Clock::time_point trial = Clock::now();
  operation(0, stream_);
  check_cuda(cudaStreamSynchronize(stream_), "running the operation");
  const size_t batch = std::clamp(sampling.max_seconds / 10 / seconds_since(trial), 1.0, double{largest_batch});

  std::vector<double> samples;
  double queueing_seconds = 0;  // of a batch, on the host
  int turn = 0;
  // The first batch warms up clocks and caches, and tells how long the queueing takes.
  Stopping stopping(sampling);
  for (bool counts = false; !stopping.enough(samples); counts = true) {
    // Keep the device busy until the batch is queued. Cold samples do so by themselves but for the first.
    const double ahead = cold ? queueing_seconds / static_cast<double>(batch) : queueing_seconds;
    const int lead = std::clamp(static_cast<int>(std::ceil(1.5 * ahead / flush_seconds_)), 1, 64);
    for (int i = 0; i < lead; ++i) flush();
    const Clock::time_point start = Clock::now();
    if (!cold) operation(0, stream_);  // what the lead displaced comes back
    for (size_t i = 0; i < batch; ++i) {
      if (cold) flush();
      check_cuda(cudaEventRecord(events_[i].before, stream_), "recording an event");
      operation(cold ? turn++ % sets : 0, stream_);
      check_cuda(cudaEventRecord(events_[i].after, stream_), "recording an event");
    }
    queueing_seconds = seconds_since(start);
    check_cuda(cudaStreamSynchronize(stream_), "running the operation");
    for (size_t i = 0; counts && i < batch; ++i) samples.push_back(seconds_between(events_[i]));
  }
  return samples;
}

std::vector<double> Timer::time_graph(const TimedOperation& operation, const Sampling& sampling) {
  const Summary single =
      summarize(time_singly(false, operation, 1, {.max_seconds = 0.02, .min_samples = largest_batch}));
  const int launches =
      static_cast<int>(std::clamp(graph_seconds / std::max(single.median, 1e-9), 1.0, double{most_graph_launches}));

  Graph graph;
  check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capturing a graph");
  try {
    for (int i = 0; i < launches; ++i) operation(0, stream_);
  } catch (...) {
    cudaStreamEndCapture(stream_, &graph.graph);
    cudaGetLastError();
    throw;
  }
  check_cuda(cudaStreamEndCapture(stream_, &graph.graph), "capturing a graph");
  check_cuda(cudaGraphInstantiate(&graph.executable, graph.graph, 0), "making a graph");
  check_cuda(cudaGraphUpload(graph.executable, stream_), "uploading a graph");
  check_cuda(cudaGraphLaunch(graph.executable, stream_), "replaying a graph");
  check_cuda(cudaStreamSynchronize(stream_), "replaying a graph");

  std::vector<double> samples;
  for (Stopping stopping(sampling); !stopping.enough(samples);) {
    const EventPair& events = events_[0];
    flush();  // the device is busy while the rest is queued
    check_cuda(cudaGraphLaunch(graph.executable, stream_), "replaying a graph");  // what the flush displaced comes back
    check_cuda(cudaEventRecord(events.before, stream_), "recording an event");
    check_cuda(cudaGraphLaunch(graph.executable, stream_), "replaying a graph");
    check_cuda(cudaEventRecord(events.after, stream_), "recording an event");
    check_cuda(cudaStreamSynchronize(stream_), "replaying a graph");
    samples.push_back(seconds_between(events) / launches);
  }
  return samples;
}

Baseline::Baseline(int reads, int writes, int64_t bytes, int sets)
    : reads_(std::clamp(reads, 1, max_stream_reads)),
      writes_(std::clamp(writes, 0, max_stream_writes)),
      sets_(sets),
      array_bytes_((bytes + 16 * (reads_ + writes_) - 1) / (16 * (reads_ + writes_)) * 16),
      memory_(sets * (reads_ + writes_) * array_bytes_ + 16) {
  fill_with_noise(memory_.data(), sets_ * (reads_ + writes_) * array_bytes_);
  ways_.push_back(
      {"kernel",
       [this](int set, cudaStream_t stream) { launch_stream(reads_, writes_, arrays(set), array_bytes_, stream); },
       {}});
  if (reads_ == 1 && writes_ == 1) {
    ways_.push_back({"cudaMemcpyAsync",
                     [this](int set, cudaStream_t stream) {
                       const StreamArrays a = arrays(set);
                       check_cuda(cudaMemcpyAsync(a.out[0], a.in[0], array_bytes_, cudaMemcpyDeviceToDevice, stream),
                                  "copying on the device");
                     },
                     {}});
  }
}

std::string Baseline::name() const {
  return fmt::format("{}r{}w", reads_, writes_);
}

StreamArrays Baseline::arrays(int set) const {
  std::byte* next = memory_.data() + set * (reads_ + writes_) * array_bytes_;
  StreamArrays arrays = {};
  for (int k = 0; k < reads_; ++k, next += array_bytes_) arrays.in[k] = next;
  arrays.out[0] = memory_.data() + sets_ * (reads_ + writes_) * array_bytes_;
  for (int k = 0; k < writes_; ++k, next += array_bytes_) arrays.out[k] = next;
  return arrays;
}

void Baseline::measure(Timer& timer, TimingMode mode, const Sampling& sampling) {
  for (Way& way : ways_) way.measurements.push_back(timer.time(mode, way.operation, sets_, sampling));
}

Baseline::Result Baseline::result() const {
  Result best;
  for (const Way& way : ways_) {
    if (way.measurements.empty()) continue;
    double median = 0;
    double spread = 0;
    for (const Summary& m : way.measurements) {
      median += m.median / static_cast<double>(way.measurements.size());
      spread = std::max(spread, m.spread());
    }
    if (best.way.empty() || median < best.median_seconds) {
      best = {median, spread, way.name, way.measurements.back().median / way.measurements.front().median - 1};
    }
  }
  return best;
}

}  // namespace worklog
