// Who runs next, and how a thread that waits gives way to it. These functions are inlined into every one that waits:
// switch.h says why.
#pragma once

#include <bit>

#include "asan.h"
#include "block.h"

namespace simt::detail {

[[gnu::always_inline]] inline unsigned bit(unsigned index) {
  return 1u << index;
}

// The first of a set that is not empty, counting up or down, and those of a set that come after `index`.
[[gnu::always_inline]] inline unsigned first(unsigned set, bool down) {
  return static_cast<unsigned>(down ? 31 - std::countl_zero(set) : std::countr_zero(set));
}
[[gnu::always_inline]] inline unsigned after(unsigned set, unsigned index, bool down) {
  return set & (down ? bit(index) - 1 : ~1u << index);
}

// Switches to `target`, on the stack of `target_fiber` (nobody: that of the OS thread); returns when someone switches
// back to what is saved.
void BlockRunner::switch_to(Context target, [[maybe_unused]] unsigned target_fiber, Context* save_at,
                            [[maybe_unused]] void** save_fake_stack) {
#ifdef SIMT_ASAN
  if (target_fiber == nobody) {
    __sanitizer_start_switch_fiber(save_fake_stack, scheduler_stack_, scheduler_stack_bytes_);
  } else {
    __sanitizer_start_switch_fiber(save_fake_stack, stacks_.bottom(target_fiber), stacks_.usable_bytes(target_fiber));
  }
#endif
  switch_stack(target, save_at);
#ifdef SIMT_ASAN
  __sanitizer_finish_switch_fiber(*save_fake_stack, nullptr, nullptr);
#endif
}

void BlockRunner::become(unsigned thread) {
  switches.store(switches.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  current_ = thread;
  threadIdx = indices_[thread];
}

// Takes the next thread out of the ready ones, in the order that the options ask for.
unsigned BlockRunner::pick(Turn turn) {
  if (ready_warps_ == 0) return nobody;
  const Order order = order_;
  const bool down = order == Order::reverse;
  const auto any = [this](unsigned set) {
    const int turned = static_cast<int>(random() % 32);
    return (static_cast<unsigned>(std::countr_zero(std::rotr(set, turned))) + static_cast<unsigned>(turned)) % 32;
  };

  unsigned warp = current_ / warp_size;
  unsigned lane;
  if (order == Order::shuffle) {
    const bool stays = turn == Turn::stay && warps_[warp].ready != 0 && random() % 16 != 0;
    if (!stays) warp = any(ready_warps_);
    lane = any(warps_[warp].ready);
  } else {
    constexpr unsigned most_turns_in_warp = 4096;  // so that a warp that loops cannot keep the others from their turn
    const unsigned later = after(warps_[warp].ready, current_ % warp_size, down);
    if (turn != Turn::start_over && later != 0 && ++turns_in_warp_ < most_turns_in_warp) {
      lane = first(later, down);
    } else if (turn == Turn::stay && warps_[warp].ready != 0 && turns_in_warp_ < most_turns_in_warp) {
      lane = first(warps_[warp].ready, down);
    } else {
      const unsigned later_warps = turn == Turn::start_over ? 0 : after(ready_warps_, warp, down);
      warp = first(later_warps != 0 ? later_warps : ready_warps_, down);
      lane = first(warps_[warp].ready, down);
      turns_in_warp_ = 0;
    }
  }
  warps_[warp].ready &= ~bit(lane);
  if (warps_[warp].ready == 0) ready_warps_ &= ~bit(warp);
  return warp * warp_size + lane;
}

// The running thread gives way to the next. It is in a set that says what it waits for, or ready.
void BlockRunner::suspend(Turn turn) {
  if (launch_->stop.load(std::memory_order_relaxed) != Stop::none) [[unlikely]]
    check_stop();
  const unsigned self = current_;
  unsigned next = pick(turn);
  if (next == nobody) [[unlikely]]
    next = release_someone(turn);
  if (next == self) return;
  if (warps_[next / warp_size].unstarted & bit(next % warp_size)) prepare_start(next);
  // The stack that is most likely to follow.
  const char* const following = reinterpret_cast<const char*>(contexts_[(next + 1) % max_threads]);
  __builtin_prefetch(following);
  __builtin_prefetch(following + 64);
  __builtin_prefetch(following + 128);
  become(next);
  switch_to(contexts_[next], fiber_of_[next], &contexts_[self], &fake_stacks_[self]);
}

}  // namespace simt::detail
