#include "common/harness/timing.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "common/device/launch.cuh"
#include "common/harness/streams.h"

namespace worklog {
namespace {

constexpr int largest_batch = 16;         // samples that are queued at once
constexpr int64_t flush_factor = 4;       // the flush buffer, in sizes of the L2 cache
constexpr int most_sets = 8;              // of tensors that cold samples take turns among
constexpr double graph_seconds = 400e-6;  // what a replay of a graph takes, about
constexpr int most_graph_launches = 200;
constexpr double host_seconds = 20e-6;  // what the host adds to a sample, about: launches, events, a wait now and then

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

EventPair::EventPair() {
  check_cuda(cudaEventCreate(&before_), "creating an event");
  check_cuda(cudaEventCreate(&after_), "creating an event");
}

EventPair::~EventPair() {
  if (before_) cudaEventDestroy(before_);
  if (after_) cudaEventDestroy(after_);
}

void EventPair::start(cudaStream_t stream) {
  check_cuda(cudaEventRecord(before_, stream), "recording an event");
}

void EventPair::stop(cudaStream_t stream) {
  check_cuda(cudaEventRecord(after_, stream), "recording an event");
}

double EventPair::seconds() const {
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, before_, after_), "reading the time of a sample");
  return milliseconds * 1e-3;
}

double time_roughly(const TimedOperation& operation, cudaStream_t stream) {
  EventPair events;
  events.start(stream);
  operation(0, stream);
  events.stop(stream);
  check_cuda(cudaStreamSynchronize(stream), "running the operation");
  return events.seconds();
}

// --- The timer -----------------------------------------------------------------------------------------------------

Timer::Timer(int64_t l2_bytes)
    : flush_bytes_(flush_factor * std::max(l2_bytes, int64_t{1} << 16)), flush_memory_(flush_bytes_ + 16) {
  check_cuda(cudaStreamCreate(&stream_), "creating a stream");
  check_cuda(cudaMemset(flush_memory_.data(), 0, flush_bytes_), "filling the flush buffer");
  check_cuda(cudaDeviceSynchronize(), "filling the flush buffer");
  for (int i = 0; i < 2; ++i) {  // the first one loads the kernel
    flush_seconds_ = time_roughly([this](int, cudaStream_t) { flush(); }, stream_);
  }
}

Timer::~Timer() {
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

double Timer::seconds_per_sample(TimingMode mode, double seconds) const {
  switch (mode) {
    case TimingMode::cold:
      return host_seconds + flush_seconds_ + seconds;
    case TimingMode::warm:
      return host_seconds + seconds;
    case TimingMode::graph:
      break;
  }
  return host_seconds + flush_seconds_ + 2 * std::max(graph_seconds, seconds);  // the first replay of two is not timed
}

Summary Timer::time(TimingMode mode, const TimedOperation& operation, int sets, const Sampling& sampling) {
  Sampler sampler(*this, mode, operation, sets, sampling.max_seconds);
  std::vector<double> samples;
  for (Stopping stopping(sampling); !stopping.enough(samples);) samples.push_back(sampler.next());
  return summarize(std::move(samples));
}

// --- Samples -------------------------------------------------------------------------------------------------------

struct Sampler::Graph {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  int launches = 0;

  ~Graph() {
    if (executable) cudaGraphExecDestroy(executable);
    if (graph) cudaGraphDestroy(graph);
  }
  void replay(cudaStream_t stream) const { check_cuda(cudaGraphLaunch(executable, stream), "replaying a graph"); }
};

Sampler::Sampler(Timer& timer, TimingMode mode, TimedOperation operation, int sets, double seconds)
    : timer_(timer), mode_(mode), operation_(std::move(operation)), sets_(mode == TimingMode::cold ? sets : 1) {
  if (mode_ == TimingMode::graph) {
    events_ = std::vector<EventPair>(1);
    capture();
    return;
  }
  const auto run = [this] {
    operation_(0, timer_.stream());
    check_cuda(cudaStreamSynchronize(timer_.stream()), "running the operation");
  };
  run();  // loads the kernels, and shows errors before anything is timed
  const Clock::time_point trial = Clock::now();
  run();
  const double most = std::clamp(seconds / 10 / seconds_since(trial), 1.0, double{largest_batch});
  events_ = std::vector<EventPair>(static_cast<size_t>(most));
  take_batch();
  batch_.clear();  // the first batch warms up clocks and caches, and tells how long the queueing takes
}

Sampler::~Sampler() = default;

double Sampler::next() {
  if (graph_) return replay();
  if (batch_.empty()) take_batch();
  const double sample = batch_.back();
  batch_.pop_back();
  return sample;
}

void Sampler::take_batch() {
  const bool cold = mode_ == TimingMode::cold;
  const cudaStream_t stream = timer_.stream();
  // Keep the device busy until the batch is queued. Cold samples do so by themselves but for the first.
  const double ahead = cold ? queueing_seconds_ / static_cast<double>(events_.size()) : queueing_seconds_;
  const int lead = std::clamp(static_cast<int>(std::ceil(1.5 * ahead / timer_.flush_seconds())), 1, 64);
  for (int i = 0; i < lead; ++i) timer_.flush();
  const Clock::time_point start = Clock::now();
  if (!cold) operation_(0, stream);  // what the lead displaced comes back
  for (EventPair& events : events_) {
    if (cold) timer_.flush();
    events.start(stream);
    operation_(turn_++ % sets_, stream);
    events.stop(stream);
  }
  queueing_seconds_ = seconds_since(start);
  check_cuda(cudaStreamSynchronize(stream), "running the operation");
  for (const EventPair& events : events_) batch_.push_back(events.seconds());
  std::reverse(batch_.begin(), batch_.end());
}

void Sampler::capture() {
  const cudaStream_t stream = timer_.stream();
  const Summary single =
      timer_.time(TimingMode::warm, operation_, 1, {.max_seconds = 0.02, .min_samples = largest_batch});
  graph_ = std::make_unique<Graph>();
  graph_->launches =
      static_cast<int>(std::clamp(graph_seconds / std::max(single.median, 1e-9), 1.0, double{most_graph_launches}));

  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capturing a graph");
  try {
    for (int i = 0; i < graph_->launches; ++i) operation_(0, stream);
  } catch (...) {
    cudaStreamEndCapture(stream, &graph_->graph);
    cudaGetLastError();
    throw;
  }
  check_cuda(cudaStreamEndCapture(stream, &graph_->graph), "capturing a graph");
  check_cuda(cudaGraphInstantiate(&graph_->executable, graph_->graph, 0), "making a graph");
  check_cuda(cudaGraphUpload(graph_->executable, stream), "uploading a graph");
  graph_->replay(stream);
  check_cuda(cudaStreamSynchronize(stream), "replaying a graph");
}

double Sampler::replay() {
  const cudaStream_t stream = timer_.stream();
  timer_.flush();          // the device is busy while the rest is queued
  graph_->replay(stream);  // what the flush displaced comes back
  events_[0].start(stream);
  graph_->replay(stream);
  events_[0].stop(stream);
  check_cuda(cudaStreamSynchronize(stream), "replaying a graph");
  return events_[0].seconds() / graph_->launches;
}

}  // namespace worklog
