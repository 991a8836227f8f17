#include "blocks_barrier.h"

#include <chrono>

#include "launch.h"

namespace simt::detail {

void BlocksBarrier::reset(unsigned blocks) {
  blocks_ = blocks;
  arrived_ = 0;
}

void BlocksBarrier::complete_if_all_arrived() {
  if (arrived_ == 0 || arrived_ < blocks_) return;
  arrived_ = 0;
  ++phase_;
  passed_.notify_all();
}

uint64_t BlocksBarrier::arrive() {
  std::lock_guard lock(mutex_);
  const uint64_t phase = phase_;
  ++arrived_;
  complete_if_all_arrived();
  return phase;
}

void BlocksBarrier::leave() {
  std::lock_guard lock(mutex_);
  --blocks_;
  complete_if_all_arrived();
}

bool BlocksBarrier::wait(uint64_t phase, const Launch& launch) {
  std::unique_lock lock(mutex_);
  while (phase_ == phase) {
    if (launch.stop.load(std::memory_order_relaxed) != Stop::none) return false;
    passed_.wait_for(lock, std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace simt::detail
