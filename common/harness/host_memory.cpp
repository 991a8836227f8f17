#include "common/harness/host_memory.h"

#include <sys/mman.h>

namespace worklog {

void prefer_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] size_t bytes) {
#ifdef MADV_HUGEPAGE
  madvise(data, bytes, MADV_HUGEPAGE);  // a wish: without huge pages it is slower, and right
#endif
}

}  // namespace worklog
