#include "common/harness/baseline.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "common/device/launch.cuh"

namespace worklog {
namespace {

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

}  // namespace

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
