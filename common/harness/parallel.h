// Loops over all cores of the host.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace worklog {

// How many threads parallel_for uses; 0 stands for one per core. Tests set it to show that results do not depend on it.
inline std::atomic<int> parallel_threads{0};

// Calls body(begin, end) for the pieces [0, grain), [grain, 2 * grain), ... of [0, count), on all cores and in no
// order. The pieces do not depend on the number of threads: a body that keeps one result per piece (begin / grain) and
// merges them in order gives the same bits on every machine. Rethrows the first exception of a body.
template <class Body>
void parallel_for(int64_t count, int64_t grain, const Body& body) {
  const int64_t pieces = (count + grain - 1) / grain;
  const int wanted = parallel_threads.load();
  const int64_t cores = wanted > 0 ? wanted : std::max(1u, std::thread::hardware_concurrency());
  std::atomic<int64_t> next{0};
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto work = [&] {
    try {
      for (int64_t piece; (piece = next.fetch_add(1)) < pieces;) {
        body(piece * grain, std::min(count, (piece + 1) * grain));
      }
    } catch (...) {
      const std::lock_guard lock(failure_mutex);
      if (!failure) failure = std::current_exception();
      next = pieces;
    }
  };
  std::vector<std::thread> helpers;
  for (int64_t i = 1; i < std::min(cores, pieces); ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace worklog
