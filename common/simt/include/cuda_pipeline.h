// Asynchronous copies from global to shared memory.
//
// A copy is carried out when the thread waits for it, so that a kernel that forgets to wait reads what was there
// before.
#pragma once

#include <cstddef>

#include "simt/collectives.h"
#include "simt/engine.h"

// Copies 4, 8 or 16 bytes, of which the last `zero_bytes` are not read but zeros; both ends aligned to `bytes`.
inline void __pipeline_memcpy_async(void* to, const void* from, size_t bytes, size_t zero_bytes = 0,
                                    SIMT_SITE_PARAMETERS) {
#ifndef __SANITIZE_THREAD__  // a counting build checks the addresses by itself, and counts every access that it sees
  // An address that may not be touched shows here, at the line that is to blame.
  static_cast<void>(*static_cast<const volatile char*>(to));
  if (zero_bytes < bytes) static_cast<void>(*static_cast<const volatile char*>(from));
#endif
  simt::detail::copy_later(to, from, bytes, zero_bytes, {file, line});
}
// Makes one batch of this thread's copies since the last batch.
inline void __pipeline_commit() {
  simt::detail::commit_copies();
}
// Waits until all but the last `batches` batches of this thread have arrived.
inline void __pipeline_wait_prior(size_t batches) {
  simt::detail::wait_for_copies(batches);
}
