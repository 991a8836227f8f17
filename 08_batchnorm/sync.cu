// Synchronized BatchNorm: a process to each GPU, NCCL between them. Each step is checked against one GPU that holds the
// whole batch, every rank's statistics are compared with every other's bit for bit, and the cost is measured.
#include <cuda_runtime.h>
#include <nccl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "08_batchnorm/final/batch_norm.cuh"
#include "08_batchnorm/sync.cuh"
#include "common/harness/device_buffer.h"

namespace {

using namespace worklog;
using namespace worklog::batchnorm;

void check_nccl(ncclResult_t result, const char* doing) {
  if (result != ncclSuccess) throw std::runtime_error(std::string(doing) + ": " + ncclGetErrorString(result));
}

// What the processes agree on before NCCL connects them.
struct Meeting {
  ncclUniqueId id;
  volatile int gpus;
  volatile bool is_set;
};

template <class T>
class Device {
 public:
  explicit Device(int64_t count) : count_(count), memory_(std::max<int64_t>(count, 1) * sizeof(T)) {}
  explicit Device(const std::vector<T>& values) : Device(static_cast<int64_t>(values.size())) {
    check_cuda(cudaMemcpy(get(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "copying");
  }
  T* get() const { return reinterpret_cast<T*>(memory_.data()); }
  std::vector<T> host() const {
    std::vector<T> values(count_, static_cast<T>(0.0f));
    check_cuda(cudaMemcpy(values.data(), get(), count_ * sizeof(T), cudaMemcpyDeviceToHost), "copying");
    return values;
  }

 private:
  int64_t count_;
  DeviceMemory memory_;
};

float as_float(float value) {
  return value;
}
float as_float(__nv_bfloat16 value) {
  return __bfloat162float(value);
}

template <class T>
std::vector<T> normal(int64_t count, float mean, uint32_t seed) {
  std::mt19937 bits(seed);
  std::normal_distribution<float> values(mean, 1.0f);
  std::vector<T> result(count, static_cast<T>(0.0f));
  for (T& value : result) value = static_cast<T>(values(bits));
  return result;
}

// The largest difference, relative to the value, or to the root mean square where that is more.
template <class T>
double difference(const T* got, const T* want, int64_t count) {
  double squares = 0;
  for (int64_t i = 0; i < count; ++i) squares += as_float(want[i]) * as_float(want[i]);
  const double rms = count == 0 ? 0 : std::sqrt(squares / count);
  double largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double off = std::fabs(as_float(got[i]) - as_float(want[i]));
    const double relative = off == 0 ? 0 : off / std::max<double>(std::fabs(as_float(want[i])), rms);
    if (!(relative <= largest)) largest = relative;  // a NaN stays
  }
  return largest;
}

// The tensors of one training step on one GPU.
template <class T>
struct Step {
  int64_t rows, channels;
  Device<T> x, dy, y, dx;
  Device<float> gamma, beta, running_mean, running_var, save_mean, save_invstd, dgamma, dbeta, workspace;

  Step(const T* all_x, const T* all_dy, int64_t first, int64_t count, int64_t channels)
      : rows(count),
        channels(channels),
        x(std::vector<T>(all_x + first * channels, all_x + (first + count) * channels)),
        dy(std::vector<T>(all_dy + first * channels, all_dy + (first + count) * channels)),
        y(count * channels),
        dx(count * channels),
        gamma(normal<float>(channels, 1.0f, 3)),
        beta(normal<float>(channels, 0.0f, 4)),
        running_mean(std::vector<float>(channels, 0.0f)),
        running_var(std::vector<float>(channels, 1.0f)),
        save_mean(channels),
        save_invstd(channels),
        dgamma(channels),
        dbeta(channels),
        workspace(batchnorm_workspace) {}

  BatchNormTrain<T, float> forward() const {
    return {x.get(),
            gamma.get(),
            beta.get(),
            y.get(),
            running_mean.get(),
            running_var.get(),
            save_mean.get(),
            save_invstd.get(),
            workspace.get(),
            rows,
            channels,
            1,
            ChannelLayout::channels_last,
            0.1f,
            1e-5f};
  }
  BatchNormBackward<T, float> backward() const {
    return {dy.get(),
            x.get(),
            gamma.get(),
            save_mean.get(),
            save_invstd.get(),
            dx.get(),
            dgamma.get(),
            dbeta.get(),
            workspace.get(),
            rows,
            channels,
            1,
            ChannelLayout::channels_last};
  }
  std::vector<float> statistics() const {
    std::vector<float> all;
    for (const auto* part : {&running_mean, &running_var, &save_mean, &save_invstd, &dgamma, &dbeta}) {
      const std::vector<float> values = part->host();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
};

// [snippet: sync_step]
// Synchronized BatchNorm of one rank.
template <class T>
class Synchronized {
 public:
  using Forward = TrainSteps<T, float>;
  using Backward = BackwardSteps<T, float>;

  Synchronized(ncclComm_t comm, int rank, int ranks, int64_t channels)
      : comm_(comm),
        rank_(rank),
        ranks_(ranks),
        moments_(ranks * channels),
        sums_(ranks * channels),
        to_y_(channels),
        to_dx_(channels) {}

  void forward(const BatchNormTrain<T, float>& p, cudaStream_t stream) {
    const Forward steps = {p};
    typename Forward::Shared* const mine = moments_.get() + rank_ * p.channels;
    find(steps, is_aligned({p.x, p.y}), mine, stream);
    gather(mine, moments_.get(), p.channels * sizeof(*mine), stream);
    merge_found(steps, moments_.get(), ranks_, to_y_.get(), stream);
    apply_found(steps, is_aligned({p.x, p.y}), to_y_.get(), stream);
  }

  // `count` is the number of values of a channel in the batches of all ranks.
  void backward(const BatchNormBackward<T, float>& p, float count, cudaStream_t stream) {
    const Backward steps = {p, count};
    typename Backward::Shared* const mine = sums_.get() + rank_ * p.channels;
    find(steps, is_aligned({p.dy, p.x, p.dx}), mine, stream);
    gather(mine, sums_.get(), p.channels * sizeof(*mine), stream);
    merge_found(steps, sums_.get(), ranks_, to_dx_.get(), stream);
    apply_found(steps, is_aligned({p.dy, p.x, p.dx}), to_dx_.get(), stream);
  }

 private:
  void gather(const void* mine, void* all, size_t bytes, cudaStream_t stream) {
    check_nccl(ncclAllGather(mine, all, bytes, ncclChar, comm_, stream), "gathering");
  }

  ncclComm_t comm_;
  int rank_, ranks_;
  Device<typename Forward::Shared> moments_;
  Device<typename Backward::Shared> sums_;
  Device<typename Forward::Channel> to_y_;
  Device<typename Backward::Channel> to_dx_;
};
// [/snippet]

// The median of some calls of f, in microseconds, after a few that are not counted.
template <class Function>
double microseconds(cudaStream_t stream, Function f) {
  cudaEvent_t begin, end;
  check_cuda(cudaEventCreate(&begin), "creating an event");
  check_cuda(cudaEventCreate(&end), "creating an event");
  std::vector<float> times;
  for (int i = 0; i < 40; ++i) {
    check_cuda(cudaEventRecord(begin, stream), "recording an event");
    f();
    check_cuda(cudaEventRecord(end, stream), "recording an event");
    check_cuda(cudaEventSynchronize(end), "waiting for an event");
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, begin, end), "asking for a time");
    if (i >= 10) times.push_back(1000 * milliseconds);
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

struct Rank {
  int rank, ranks;
  ncclComm_t comm;
  cudaStream_t stream;
};

// One case on all ranks; rank r has rows[r] rows. Returns whether this rank's results are right.
template <class T>
bool check_case(const Rank& r, const char* name, const std::vector<int64_t>& rows, int64_t channels, float mean) {
  int64_t all_rows = 0;
  int64_t first = 0;
  for (int i = 0; i < r.ranks; ++i) {
    if (i < r.rank) first += rows[i];
    all_rows += rows[i];
  }
  const std::vector<T> x = normal<T>(all_rows * channels, mean, 1);
  const std::vector<T> dy = normal<T>(all_rows * channels, 0.0f, 2);
  const Step<T> mine(x.data(), dy.data(), first, rows[r.rank], channels);
  const Step<T> whole(x.data(), dy.data(), 0, all_rows, channels);
  Synchronized<T> synchronized(r.comm, r.rank, r.ranks, channels);
  synchronized.forward(mine.forward(), r.stream);
  synchronized.backward(mine.backward(), static_cast<float>(all_rows), r.stream);
  batch_norm(whole.forward(), r.stream);
  batch_norm_backward(whole.backward(), r.stream);
  check_cuda(cudaStreamSynchronize(r.stream), "running the kernels");

  const double bound = sizeof(T) == 4 ? 2e-5 : 1e-2;  // last places: a few of fp32, one or two of bf16
  const std::vector<T> y = whole.y.host();
  const std::vector<T> dx = whole.dx.host();
  const int64_t count = rows[r.rank] * channels;
  const double off_y = difference(mine.y.host().data(), y.data() + first * channels, count);
  const double off_dx = difference(mine.dx.host().data(), dx.data() + first * channels, count);
  const std::vector<float> statistics = mine.statistics();
  const std::vector<float> wanted = whole.statistics();
  double off_statistics = 0;
  for (size_t part = 0; part < 6; ++part) {
    const double off = difference(&statistics[part * channels], &wanted[part * channels], channels);
    if (!(off <= off_statistics)) off_statistics = off;
  }

  const Device<float> sent(statistics);
  const Device<float> gathered(static_cast<int64_t>(statistics.size()) * r.ranks);
  check_nccl(ncclAllGather(sent.get(), gathered.get(), statistics.size(), ncclFloat, r.comm, r.stream), "gathering");
  check_cuda(cudaStreamSynchronize(r.stream), "gathering");
  const std::vector<float> all = gathered.host();
  bool same = true;
  for (int i = 0; i < r.ranks; ++i) {
    same &= std::memcmp(&all[i * statistics.size()], statistics.data(), statistics.size() * sizeof(float)) == 0;
  }
  const bool right = same && off_y <= bound && off_dx <= bound && off_statistics <= 1e-4;
  std::printf("rank %d: %-12s %lld of %lld rows x %lld: y %.1e, dx %.1e, statistics %.1e, %s: %s\n", r.rank, name,
              static_cast<long long>(rows[r.rank]), static_cast<long long>(all_rows), static_cast<long long>(channels),
              off_y, off_dx, off_statistics, same ? "same bits on every rank" : "OTHER BITS THAN ANOTHER RANK",
              right ? "passed" : "FAILED");
  return right;
}

template <class T>
void time_case(const Rank& r, const char* type, int64_t rows, int64_t channels) {
  const std::vector<T> x = normal<T>(rows * channels, 0.0f, r.rank + 1);
  const Step<T> step(x.data(), x.data(), 0, rows, channels);
  Synchronized<T> synchronized(r.comm, r.rank, r.ranks, channels);
  const float count = static_cast<float>(rows * r.ranks);
  const double forward = microseconds(r.stream, [&] { batch_norm(step.forward(), r.stream); });
  const double sync_forward = microseconds(r.stream, [&] { synchronized.forward(step.forward(), r.stream); });
  const double backward = microseconds(r.stream, [&] { batch_norm_backward(step.backward(), r.stream); });
  const double sync_backward = microseconds(r.stream, [&] { synchronized.backward(step.backward(), count, r.stream); });
  if (r.rank != 0) return;
  std::printf(
      "{\"dtype\": \"%s\", \"ranks\": %d, \"rows\": %lld, \"cols\": %lld, \"forward_us\": %.2f, "
      "\"sync_forward_us\": %.2f, \"backward_us\": %.2f, \"sync_backward_us\": %.2f}\n",
      type, r.ranks, static_cast<long long>(rows), static_cast<long long>(channels), forward, sync_forward, backward,
      sync_backward);
}

int run_rank(int rank, int ranks, Meeting& meeting) {
  int gpus = 0;
  check_cuda(cudaGetDeviceCount(&gpus), "counting the GPUs");
  if (gpus < ranks) {
    if (rank == 0) std::fprintf(stderr, "%d GPUs are needed, and there are %d\n", ranks, gpus);
    return 2;
  }
  check_cuda(cudaSetDevice(rank), "choosing a GPU");
  if (rank == 0) {
    ncclUniqueId id;
    check_nccl(ncclGetUniqueId(&id), "making NCCL's id");
    meeting.id = id;
    __sync_synchronize();
    meeting.is_set = true;
  }
  while (!meeting.is_set) usleep(1000);
  __sync_synchronize();
  Rank r = {rank, ranks, nullptr, nullptr};
  check_nccl(ncclCommInitRank(&r.comm, ranks, meeting.id, rank), "connecting");
  check_cuda(cudaStreamCreate(&r.stream), "creating a stream");

  const auto split = [&](int64_t rows) { return std::vector<int64_t>(ranks, rows); };
  std::vector<int64_t> uneven(ranks, 1000);
  uneven[0] = 3001;
  std::vector<int64_t> empty(ranks, 777);
  empty[0] = 0;
  std::vector<int64_t> only_one(ranks, 0);
  only_one[ranks - 1] = 500;
  bool right = true;
  right &= check_case<float>(r, "even", split(4096), 1024, 0.0f);
  right &= check_case<float>(r, "uneven", uneven, 64, 0.0f);
  right &= check_case<float>(r, "empty rank", empty, 50, 0.0f);
  right &= check_case<float>(r, "one has all", only_one, 256, 0.0f);
  right &= check_case<float>(r, "large mean", uneven, 256, 1e4f);
  right &= check_case<float>(r, "one value", split(1), 33, 0.0f);
  right &= check_case<__nv_bfloat16>(r, "even", split(4096), 1024, 0.0f);
  right &= check_case<__nv_bfloat16>(r, "uneven", uneven, 50, 0.0f);
  right &= check_case<__nv_bfloat16>(r, "empty rank", empty, 256, 0.0f);
  for (const auto& [rows, channels] : {std::pair<int64_t, int64_t>{4096, 1024}, {65536, 256}, {16384, 1024}}) {
    time_case<float>(r, "fp32", rows, channels);
    time_case<__nv_bfloat16>(r, "bf16", rows, channels);
  }
  check_nccl(ncclCommDestroy(r.comm), "disconnecting");
  return right ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  if (ranks < 1 || ranks > 64 || argc > 2) {
    std::fprintf(stderr, "usage: %s [RANKS], a process and a GPU to each; 2 unless told\n", argv[0]);
    return 2;
  }
  // No CUDA call before the processes part: a context does not survive that.
  void* const shared = mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 2;
  Meeting& meeting = *new (shared) Meeting{};
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      int code = 2;
      try {
        code = run_rank(rank, ranks, meeting);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      }
      fflush(stdout);
      _exit(code);
    }
    children.push_back(child);
  }
  int worst = 0;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    worst = std::max(worst, WIFEXITED(status) ? WEXITSTATUS(status) : 2);
  }
  return worst;
}
