// A block from its start to its end: what its threads see of it, its shared memory, and its errors when it is done.
#include "block.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "asan.h"
#include "turns.h"

constinit thread_local uint3 threadIdx{};
constinit thread_local uint3 blockIdx{};
constinit thread_local dim3 blockDim{};
constinit thread_local dim3 gridDim{};

namespace simt::detail {

constinit thread_local BlockRunner* BlockRunner::running_ = nullptr;

const char* stacks_of_this_thread() {
  const BlockRunner* const runner = BlockRunner::current();
  return runner == nullptr ? nullptr : runner->stacks().memory();
}

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
  shared_.prepare(launch);

  abandoned_ = faulted_ = false;
  error_ = {};
  observer_.begin_block(launch, block, cluster, rank, stacks_.memory(), Stacks::bytes(), current_);
  in_engine_ = 1;
  in_block_ = 1;
  resume(pick(Turn::start_over));
  in_block_ = 0;
  observer_.end_block();

  const std::string overrun = shared_.overrun_of_block(launch);
  if (abandoned_) {
    if (faulted_) describe_fault();
    if (error_.lists_waiting) add_waiting(error_);
    if (error_.code != cudaSuccess) launch_->fail(error_.code, prefix(error_.thread, error_.at) + error_.what);
    fibers_.clear();
    free_fibers_.clear();
    stacks_.forget_abandoned();
  } else if (!overrun.empty()) {
    launch_->fail(cudaErrorIllegalAddress, fmt::format("simt: kernel {}, block {}: a thread wrote {}",
                                                       function_name(launch_->call.kernel), to_text(block_), overrun));
  }
  // A block of a cluster that reads this one's shared memory from now on reads poison.
  if (cluster != nullptr) shared_.poison(launch);
  for (const GroupState& group : groups_) {
    if (group.barrier != nullptr) group.barrier->leave();
  }
}

void BlockRunner::finish_launch(Launch& launch) {
  const std::string overrun = shared_.overrun_of_launch(launch);
  if (overrun.empty()) return;
  launch.fail(cudaErrorIllegalAddress,
              fmt::format("simt: kernel {}: a thread wrote {}", function_name(launch.call.kernel), overrun));
}

}  // namespace simt::detail
