// A block from its start to its end: what its threads see of it, its shared memory, and its errors when it is done.
#include "block.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "asan.h"
#include "turns.h"

constinit thread_local uint3 threadIdx{};
constinit thread_local uint3 blockIdx{};
constinit thread_local dim3 blockDim{};
constinit thread_local dim3 gridDim{};

// The dynamic shared memory of the block that this OS thread runs, as common/device/launch.cuh declares it, and what
// must stay untouched behind it.
constexpr size_t shared_redzone_bytes = 1024;
alignas(128) thread_local unsigned char worklog_dynamic_shared[simt::detail::max_shared_bytes + shared_redzone_bytes];

namespace simt::detail {

constinit thread_local BlockRunner* BlockRunner::running_ = nullptr;

namespace {

constexpr unsigned char poison = 0xff;  // four of them are a NaN, as are two in either 16-bit type

}  // namespace

void called_on_host(const char* name) {
  report(fmt::format("simt: {} was called outside of a kernel", name));
  std::abort();
}

std::string to_text(const uint3& index) {
  return fmt::format("({}, {}, {})", index.x, index.y, index.z);
}

void BlockRunner::reset() {
  const dim3& shape = launch_->block;
  if (shape.x != shape_.x || shape.y != shape_.y || shape.z != shape_.z) {
    shape_ = shape;
    for (unsigned thread = 0; thread < launch_->threads_per_block(); ++thread) {
      indices_[thread] = {thread % shape.x, thread / shape.x % shape.y, thread / shape.x / shape.y};
    }
  }
  threads_ = alive_ = launch_->threads_per_block();
  current_ = 0;
  turns_in_warp_ = 0;
  turns_without_change = 0;
  barrier_ = {};
  ready_warps_ = 0;
  copies_.clear();
  for (unsigned warp = 0; warp * warp_size < threads_; ++warp) {
    Warp& w = warps_[warp];
    const unsigned lanes = std::min(warp_size, threads_ - warp * warp_size);
    w.alive = w.unstarted = lanes == warp_size ? ~0u : bit(lanes) - 1;
    w.ready = 0;
    w.at_barrier = w.at_collective = w.at_converge = 0;
    for (const int group : {0, 1}) w.at_group[group] = w.arrived_at_group[group] = 0;
    make_ready(warp, w.alive);
  }
}

void BlockRunner::run(Launch& launch, const uint3& block, Cluster* cluster, unsigned rank,
                      BlocksBarrier* grid_barrier) {
  launch_ = &launch;
  cluster_ = cluster;
  rank_ = rank;
  block_ = block;
  solo_.reset(1);
  groups_[0] = {cluster != nullptr ? &cluster->barrier : &solo_, 0, false, 0};
  order_ = launch.options.order;
  groups_[1] = {grid_barrier, 0, false, 0};
  random_state_ =
      launch.options.seed * 0x9e3779b97f4a7c15u + (uint64_t{block.z} << 42 ^ uint64_t{block.y} << 21 ^ block.x);
  running_ = this;
  reset();

  blockIdx = block;
  blockDim = launch.block;
  gridDim = launch.grid;
  unsigned char* const shared_end = worklog_dynamic_shared + launch.shared_bytes;
#ifdef SIMT_ASAN
  __asan_unpoison_memory_region(worklog_dynamic_shared, sizeof(worklog_dynamic_shared));
#endif
  std::memset(worklog_dynamic_shared, poison, launch.shared_bytes);
  if (poisoned_after_ != launch.shared_bytes) {
    std::memset(shared_end, poison, shared_redzone_bytes);
    poisoned_after_ = launch.shared_bytes;
  }
#ifdef SIMT_ASAN
  __asan_poison_memory_region(shared_end, sizeof(worklog_dynamic_shared) - launch.shared_bytes);
#endif

  abandoned_ = faulted_ = false;
  error_ = {};
  observer_.begin_block(launch, block, cluster, rank, stacks_.memory(), Stacks::bytes(), current_);
  in_engine_ = 1;
  in_block_ = 1;
  resume(pick(Turn::start_over));
  in_block_ = 0;
  observer_.end_block();

#ifdef SIMT_ASAN
  __asan_unpoison_memory_region(worklog_dynamic_shared, sizeof(worklog_dynamic_shared));
#endif
  if (abandoned_) {
    if (faulted_) describe_fault();
    if (error_.lists_waiting) add_waiting(error_);
    if (error_.code != cudaSuccess) launch_->fail(error_.code, prefix(error_.thread, error_.at) + error_.what);
    fibers_.clear();
    free_fibers_.clear();
    stacks_.forget_abandoned();
  } else {
    for (size_t i = 0; i < shared_redzone_bytes; ++i) {
      if (shared_end[i] == poison) continue;
      poisoned_after_ = ~size_t{0};
      launch_->fail(cudaErrorIllegalAddress,
                    fmt::format("simt: kernel {}, block {}: a thread wrote {} bytes past the end of the {} bytes of "
                                "dynamic shared memory that the launch asked for",
                                function_name(launch_->call.kernel), to_text(block_), i, launch_->shared_bytes));
      break;
    }
  }
  // A block of a cluster that reads this one's shared memory from now on reads poison.
  if (cluster != nullptr) std::memset(worklog_dynamic_shared, poison, launch.shared_bytes);
  for (const GroupState& group : groups_) {
    if (group.barrier != nullptr) group.barrier->leave();
  }
}

}  // namespace simt::detail
