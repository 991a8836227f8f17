// Asynchronous copies: kept with the thread that asks for them, and carried out when it waits for them.
#include <fmt/format.h>

#include <cstring>

#include "block.h"

namespace simt::detail {

void BlockRunner::copy_later(void* to, const void* from, size_t bytes, size_t zero_bytes, Site site,
                             [[maybe_unused]] const void* code) {
  in_engine_ = 1;
  const bool right_size = (bytes == 4 || bytes == 8 || bytes == 16) && zero_bytes <= bytes;
  if (!right_size || (reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % bytes != 0) {
    record(cudaErrorMisalignedAddress, current_,
           fmt::format("__pipeline_memcpy_async() of {} bytes, {} of them zeros, from {} to {}: it copies 4, 8 or 16 "
                       "bytes between addresses that are a multiple of that",
                       bytes, zero_bytes, from, to),
           {site.file, site.line});
    abandon();
  }
  observer_.copy_issued(to, from, bytes, zero_bytes, code);
  if (copies_.empty()) copies_.resize(max_threads);
  copies_[current_].waiting.push_back({to, from, bytes, zero_bytes});
  in_engine_ = 0;
}

void BlockRunner::commit_copies() {
  in_engine_ = 1;
  if (copies_.empty()) copies_.resize(max_threads);
  Copies& copies = copies_[current_];
  copies.batch_sizes.push_back(copies.waiting.size() - copies.committed);
  copies.committed = copies.waiting.size();
  in_engine_ = 0;
}

void BlockRunner::wait_for_copies(size_t batches_left) {
  in_engine_ = 1;
  if (!copies_.empty() && copies_[current_].batch_sizes.size() > batches_left) {
    Copies& copies = copies_[current_];
    const auto last_batch = copies.batch_sizes.end() - static_cast<std::ptrdiff_t>(batches_left);
    size_t due = 0;
    for (auto batch = copies.batch_sizes.begin(); batch != last_batch; ++batch) due += *batch;
    for (size_t i = 0; i < due; ++i) {
      const Copy& copy = copies.waiting[i];
      const size_t read = copy.bytes - copy.zero_bytes;
      if (read > 0) std::memcpy(copy.to, copy.from, read);
      std::memset(static_cast<char*>(copy.to) + read, 0, copy.zero_bytes);
      observer_.copy_arrived(copy.to, copy.bytes);
    }
    copies.waiting.erase(copies.waiting.begin(), copies.waiting.begin() + static_cast<std::ptrdiff_t>(due));
    copies.batch_sizes.erase(copies.batch_sizes.begin(), last_batch);
    copies.committed -= due;
  }
  in_engine_ = 0;
}

// As the headers call them (simt/engine.h).

void copy_later(void* to, const void* from, size_t bytes, size_t zero_bytes, Site site) {
  runner_for("__pipeline_memcpy_async()").copy_later(to, from, bytes, zero_bytes, site, __builtin_return_address(0));
}

void commit_copies() {
  runner_for("__pipeline_commit()").commit_copies();
}

void wait_for_copies(size_t batches_left) {
  runner_for("__pipeline_wait_prior()").wait_for_copies(batches_left);
}

}  // namespace simt::detail
