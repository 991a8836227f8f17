// Threads from their start to their return, on fibers: one fiber runs as many of them as it can.
#include <fmt/format.h>

#include <exception>

#include "asan.h"
#include "turns.h"

namespace simt::detail {

void BlockRunner::fiber_main() {
#ifdef SIMT_ASAN
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
  BlockRunner& runner = *running_;
  runner.run_threads(runner.fiber_of_[runner.current_]);
}

unsigned BlockRunner::take_fiber() {
  if (!free_fibers_.empty()) {
    const unsigned fiber = free_fibers_.back();
    free_fibers_.pop_back();
    return fiber;
  }
  const auto fiber = static_cast<unsigned>(fibers_.size());
  fibers_.push_back({make_context<fiber_main>(stacks_.top(fiber), stacks_.usable_bytes(fiber)), nullptr});
  return fiber;
}

// Gives a thread that has not run yet a stack.
void BlockRunner::prepare_start(unsigned thread) {
  warps_[thread / warp_size].unstarted &= ~bit(thread % warp_size);
  const unsigned fiber = take_fiber();
  fiber_of_[thread] = static_cast<uint16_t>(fiber);
  contexts_[thread] = fibers_[fiber].idle;
}

// Switches from the OS thread's own stack to the first thread; returns when the block is done.
void BlockRunner::resume(unsigned thread) {
#ifdef SIMT_ASAN
  if (scheduler_stack_ == nullptr) {
    pthread_attr_t attributes;
    pthread_getattr_np(pthread_self(), &attributes);
    void* stack = nullptr;
    pthread_attr_getstack(&attributes, &stack, &scheduler_stack_bytes_);
    pthread_attr_destroy(&attributes);
    scheduler_stack_ = static_cast<char*>(stack);
  }
#endif
  prepare_start(thread);
  become(thread);
  switch_to(contexts_[thread], fiber_of_[thread], &scheduler_, &scheduler_fake_stack_);
}

// Runs threads on one fiber, one after the other: a thread that never waits costs no switch at all.
void BlockRunner::run_threads(unsigned fiber) {
  for (;;) {
    Lane& lane = warps_[current_ / warp_size].lanes[current_ % warp_size];
    lane.spins_on = nullptr;
    bool threw = false;
    try {
      in_engine_ = 0;
      launch_->call.invoke(launch_->call.arguments);
      in_engine_ = 1;
    } catch (const std::exception& exception) {
      record(cudaErrorLaunchFailure, current_, fmt::format("an exception left the kernel: {}", exception.what()), {});
      threw = true;
    } catch (...) {
      record(cudaErrorLaunchFailure, current_, "an exception left the kernel", {});
      threw = true;
    }
    if (threw) abandon();
    finish_thread();
    check_stop();

    unsigned next = pick(Turn::stay);
    if (next == nobody) next = release_someone(Turn::stay);
    if (next == nobody) {
      free_fibers_.push_back(static_cast<uint16_t>(fiber));
      switch_to(scheduler_, nobody, &fibers_[fiber].idle, &fibers_[fiber].fake_stack);
      continue;
    }
    become(next);
    Warp& warp = warps_[next / warp_size];
    if (warp.unstarted & bit(next % warp_size)) {
      warp.unstarted &= ~bit(next % warp_size);
      fiber_of_[next] = static_cast<uint16_t>(fiber);
    } else {
      free_fibers_.push_back(static_cast<uint16_t>(fiber));
      switch_to(contexts_[next], fiber_of_[next], &fibers_[fiber].idle, &fibers_[fiber].fake_stack);
    }
  }
}

void BlockRunner::finish_thread() {
  Warp& warp = warps_[current_ / warp_size];
  const unsigned lane = current_ % warp_size;
  warp.alive &= ~bit(lane);
  --alive_;
  turns_without_change = 0;
  for (unsigned rest = warp.at_collective; rest != 0; rest &= rest - 1) {
    const unsigned waiting = static_cast<unsigned>(std::countr_zero(rest));
    if (warp.lanes[waiting].mask & bit(lane)) [[unlikely]]
      refuse_return(waiting);
  }
  if (barrier_.arrived != 0 && barrier_.arrived == alive_) release_barrier();
  for (const Group group : {Group::cluster, Group::grid}) {
    const auto g = static_cast<size_t>(group);
    if (warp.arrived_at_group[g] & bit(lane)) {
      warp.arrived_at_group[g] &= ~bit(lane);
      --groups_[g].arrived;
    }
    post_if_all_arrived(group);
  }
}

}  // namespace simt::detail
