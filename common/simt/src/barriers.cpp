// What the threads of a block wait for together: __syncthreads() and its kin, and the barriers of a cluster and a grid,
// at which the block then waits for the other blocks.
#include <fmt/format.h>

#include <cstring>

#include "turns.h"

namespace simt::detail {

int BlockRunner::barrier(BarrierKind kind, int predicate, const char* name, Site site) {
  in_engine_ = 1;
  if (barrier_.arrived == 0) {
    barrier_.kind = kind;
    barrier_.name = name;
    barrier_.site = site;
    barrier_.count = 0;
  } else if (barrier_.kind != kind || barrier_.site.line != site.line ||
             (barrier_.site.file != site.file && std::strcmp(barrier_.site.file, site.file) != 0)) [[unlikely]] {
    refuse_barrier(name, site);
  }
  warps_[current_ / warp_size].at_barrier |= bit(current_ % warp_size);
  ++barrier_.arrived;
  barrier_.count += predicate != 0;
  turns_without_change = 0;
  const bool last = barrier_.arrived == alive_;
  if (last) release_barrier();
  suspend(last ? Turn::start_over : Turn::stay);
  in_engine_ = 0;
  return barrier_.result;
}

void BlockRunner::refuse_barrier(const char* name, Site site) {
  record(cudaErrorLaunchFailure, current_,
         fmt::format("{} meets another barrier: {} of the block's threads wait at {}, {}:{}", name, barrier_.arrived,
                     barrier_.name, barrier_.site.file, barrier_.site.line),
         {site.file, site.line});
  abandon();
}

void BlockRunner::release_barrier() {
  switch (barrier_.kind) {
    case BarrierKind::sync:
      break;
    case BarrierKind::count:
      barrier_.result = barrier_.count;
      break;
    case BarrierKind::all:
      barrier_.result = barrier_.count == static_cast<int>(barrier_.arrived);
      break;
    case BarrierKind::any:
      barrier_.result = barrier_.count != 0;
      break;
  }
  observer_.barrier_passed(barrier_.site);
  barrier_.arrived = 0;
  for (unsigned warp = 0; warp * warp_size < threads_; ++warp) {
    make_ready(warp, warps_[warp].at_barrier);
    warps_[warp].at_barrier = 0;
  }
}

void BlockRunner::group_arrive(Group group, const char* name, Site site) {
  in_engine_ = 1;
  const auto g = static_cast<size_t>(group);
  Warp& warp = warps_[current_ / warp_size];
  const unsigned lane = bit(current_ % warp_size);
  if (groups_[g].barrier == nullptr) {
    record(cudaErrorLaunchFailure, current_, fmt::format("{} in a kernel that was not launched cooperatively", name),
           {site.file, site.line});
    abandon();
  }
  if (warp.arrived_at_group[g] & lane) {
    record(cudaErrorLaunchFailure, current_, fmt::format("{} by a thread that has arrived already", name),
           {site.file, site.line});
    abandon();
  }
  warp.arrived_at_group[g] |= lane;
  ++groups_[g].arrived;
  turns_without_change = 0;
  post_if_all_arrived(group);
  in_engine_ = 0;
}

void BlockRunner::group_wait(Group group, const char* name, Site site) {
  in_engine_ = 1;
  const auto g = static_cast<size_t>(group);
  Warp& warp = warps_[current_ / warp_size];
  const unsigned lane = bit(current_ % warp_size);
  if (warp.arrived_at_group[g] & lane) {  // else the barrier has been passed since this thread arrived
    wait_at(warp.lanes[current_ % warp_size], name, site);
    warp.at_group[g] |= lane;
    groups_[g].site = site;
    suspend(Turn::stay);
  }
  in_engine_ = 0;
}

void BlockRunner::post_if_all_arrived(Group group) {
  GroupState& state = groups_[static_cast<size_t>(group)];
  if (state.posted || state.arrived == 0 || state.arrived < alive_) return;
  state.posted = true;
  observer_.group_posted([&] {
    unsigned waiting = 0;
    for (unsigned warp = 0; warp * warp_size < threads_; ++warp) {
      waiting += static_cast<unsigned>(std::popcount(warps_[warp].at_group[static_cast<size_t>(group)]));
    }
    return waiting + 1 >= alive_;
  });
  state.phase = state.barrier->arrive();
}

void BlockRunner::release_group(Group group) {
  const auto g = static_cast<size_t>(group);
  observer_.group_passed(group, groups_[g].site);
  groups_[g].posted = false;
  groups_[g].arrived = 0;
  for (unsigned warp = 0; warp * warp_size < threads_; ++warp) {
    make_ready(warp, warps_[warp].at_group[g]);
    warps_[warp].at_group[g] = warps_[warp].arrived_at_group[g] = 0;
  }
}

// As the headers call them (simt/engine.h).

int block_barrier(BarrierKind kind, int predicate, const char* name, Site site) {
  return runner_for(name).barrier(kind, predicate, name, site);
}

void group_arrive(Group group, const char* name, Site site) {
  runner_for(name).group_arrive(group, name, site);
}

void group_wait(Group group, const char* name, Site site) {
  runner_for(name).group_wait(group, name, site);
}

}  // namespace simt::detail
