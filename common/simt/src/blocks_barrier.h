// A barrier over the blocks of a cluster or of a whole grid, each on its own OS thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace simt::detail {

struct Launch;

// Each block arrives once, when its threads have.
class BlocksBarrier {
 public:
  void reset(unsigned blocks);
  uint64_t arrive();  // returns the phase to wait for
  void leave();       // a block whose threads have all returned no longer counts
  // Waits on the OS thread; false: the launch is to stop.
  bool wait(uint64_t phase, const Launch& launch);

 private:
  void complete_if_all_arrived();

  std::mutex mutex_;
  std::condition_variable passed_;
  unsigned blocks_ = 0;
  unsigned arrived_ = 0;
  uint64_t phase_ = 0;
};

}  // namespace simt::detail
