// Who looks on while a block runs: in a counting build the recorder (counter/recorder.h), in an ordinary build nobody,
// and then every call below compiles to nothing.
#pragma once

#ifdef SIMT_COUNTING

#include "../counter/recorder.h"

namespace simt::detail {
using Observer = Recorder;
}

#else

#include <sys/mman.h>

#include <cstddef>

#include "launch.h"
#include "simt/engine.h"

namespace simt::detail {

struct Cluster;

struct Observer {
  void begin_block(const Launch&, const uint3&, Cluster*, unsigned, const void*, size_t, const unsigned&) {}
  void end_block() {}
  void barrier_passed(Site) {}
  template <class AllWait>
  void group_posted(AllWait) {}
  void group_passed(Group, Site) {}
  template <class Sources>
  void collective_passed(unsigned, unsigned, unsigned, Collective, Site, Sources) {}
  void copy_issued(const void*, const void*, size_t, size_t, const void*) {}
  void copy_arrived(const void*, size_t) {}
  static constexpr bool is_busy() { return false; }
};

inline void* reserve_addresses(size_t bytes) {
  return mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}
inline void observe_allocation(const void*, size_t) {}
inline void observe_free(const void*, size_t) {}
inline void observe_host_write(const void*, size_t) {}
inline void observe_launch(const Launch&) {}
inline void observe_launch_end(const Launch&) {}

}  // namespace simt::detail

#endif
