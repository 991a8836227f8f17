// Threads that wait or spin: whom to let go when nobody is ready, and turns for the others.
#include "turns.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

namespace simt::detail {

constinit thread_local unsigned turns_without_change = 0;

void BlockRunner::make_ready(unsigned warp, unsigned lanes) {
  warps_[warp].ready |= lanes;
  if (lanes != 0) ready_warps_ |= bit(warp);
}

void BlockRunner::wait_at(Lane& lane, const char* name, Site site) {
  lane.name = name;
  lane.file = site.file;
  lane.line = site.line;
}

uint64_t BlockRunner::random() {  // splitmix64 [Steele, Lea, Flood 2014]
  uint64_t z = random_state_ += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

// nobody: the block is done.
unsigned BlockRunner::release_someone(Turn turn) {
  for (;;) {
    const unsigned next = pick(turn);
    if (next != nobody || alive_ == 0) return next;
    if (release_converged()) continue;
    bool released = false;
    for (const Group group : {Group::cluster, Group::grid}) {
      GroupState& state = groups_[static_cast<size_t>(group)];
      if (!state.posted) continue;
      waits.store(waits.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
      waits_for_blocks.store(true, std::memory_order_relaxed);
      const bool passed = state.barrier->wait(state.phase, *launch_);
      waits_for_blocks.store(false, std::memory_order_relaxed);
      if (!passed) {
        if (launch_->stop.load(std::memory_order_relaxed) == Stop::spin_limit) {
          record_waiting("a wait for other blocks that does not end");
          abandon();
        }
        check_stop();
      }
      release_group(group);
      released = true;
      break;
    }
    if (!released) {
      record_waiting("deadlock: no thread of the block can go on");
      abandon();
    }
  }
}

void BlockRunner::spin(const volatile void* address, Site site) {
  Lane& lane = warps_[current_ / warp_size].lanes[current_ % warp_size];
  if (lane.spins_on == address) {
    yield(site);
  } else {
    lane.spins_on = address;
  }
}

void BlockRunner::yield(Site site) {
  in_engine_ = 1;
  const unsigned turns = ++turns_without_change;
  const bool all_had_turns = turns > 2 * alive_;
  only_spins.store(all_had_turns, std::memory_order_relaxed);
  if (all_had_turns) {
    spins.store(spins.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    if (launch_->stop.load(std::memory_order_relaxed) == Stop::spin_limit) {
      record(cudaErrorLaunchTimeout, current_,
             fmt::format("a wait that does not end: for {} ms every thread has waited, or has tried atomic operations "
                         "that changed nothing",
                         launch_->options.spin_limit.count()),
             {site.file, site.line});
      abandon();
    }
    if (turns % alive_ == 0) {
      turns > 64 * alive_ ? static_cast<void>(usleep(50)) : static_cast<void>(sched_yield());  // the other blocks
    }
    release_converged();
  }
  make_ready(current_ / warp_size, bit(current_ % warp_size));
  suspend(Turn::move_on);
  in_engine_ = 0;
}

// The watchdog has found the same thread running for some time. Where it waits for another in a loop of plain loads,
// only this lets the other run.
void BlockRunner::preempt(uintptr_t instruction) {
  // Not in the C library, which may hold a lock.
  if (instruction < launch_->code_begin || instruction >= launch_->code_end || observer_.is_busy()) return;
  const Stop stop = launch_->stop.load(std::memory_order_relaxed);
  if (stop != Stop::none && stop != Stop::spin_limit) abandon_after({0, 0, 0, instruction});
  if (ready_warps_ == 0) return;
  in_engine_ = 1;
  turns_without_change = 0;
  make_ready(current_ / warp_size, bit(current_ % warp_size));
  suspend(Turn::move_on);
  in_engine_ = 0;
}

// As the headers call them (simt/engine.h).

void atomic_changed_nothing(const volatile void* address, Site site) {
  BlockRunner* const runner = BlockRunner::current();
  if (runner == nullptr || !runner->in_kernel()) return;
  runner->spin(address, site);
}

void yield(Site site) {
  runner_for("__nanosleep()").yield(site);
}

}  // namespace simt::detail
