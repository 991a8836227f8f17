// The shared memory of the other blocks of a cluster: the thread-local storage of the OS threads that run them.
#include <fmt/format.h>
#include <link.h>

#include "block.h"

extern "C" void* __tls_get_addr(void* index);  // of the C library

namespace simt::detail {

// Where this OS thread has the thread-local storage of each module, in the same order on every thread.
void BlockRunner::collect_tls_blocks() {
  tls_blocks_.clear();
  dl_iterate_phdr(
      [](dl_phdr_info* module, size_t, void* self) {
        for (int i = 0; i < module->dlpi_phnum; ++i) {
          const auto& header = module->dlpi_phdr[i];
          if (header.p_type != PT_TLS || module->dlpi_tls_modid == 0) continue;
          const char* begin = static_cast<const char*>(module->dlpi_tls_data);
          if (begin == nullptr) {  // a module that was loaded later, and not touched by this thread yet
            struct {
              unsigned long module, offset;
            } index{module->dlpi_tls_modid, 0};
            begin = static_cast<const char*>(__tls_get_addr(&index));
          }
          static_cast<BlockRunner*>(self)->tls_blocks_.push_back({begin, header.p_memsz});
        }
        return 0;
      },
      this);
}

void* BlockRunner::map_to_rank(const void* shared, unsigned rank, const char* name, Site site) {
  const unsigned blocks = cluster_ == nullptr ? 1 : static_cast<unsigned>(cluster_->blocks.size());
  if (rank >= blocks) {
    record(cudaErrorLaunchFailure, current_, fmt::format("{} of rank {} in a cluster of {} blocks", name, rank, blocks),
           {site.file, site.line});
    abandon();
  }
  if (rank == rank_ || cluster_ == nullptr) return const_cast<void*>(shared);
  const char* const address = static_cast<const char*>(shared);
  for (size_t i = 0; i < tls_blocks_.size(); ++i) {
    const TlsBlock& own = tls_blocks_[i];
    if (address < own.begin || address >= own.begin + own.bytes) continue;
    const char* const other = cluster_->blocks[rank]->tls_blocks_[i].begin;
    return const_cast<char*>(other + (address - own.begin));
  }
  record(cudaErrorLaunchFailure, current_, fmt::format("{} of an address that is not in shared memory", name),
         {site.file, site.line});
  abandon();
}

int BlockRunner::rank_of(const void* shared) const {
  if (cluster_ == nullptr) return 0;
  const char* const address = static_cast<const char*>(shared);
  for (size_t rank = 0; rank < cluster_->blocks.size(); ++rank) {
    for (const TlsBlock& block : cluster_->blocks[rank]->tls_blocks_) {
      if (address >= block.begin && address < block.begin + block.bytes) return static_cast<int>(rank);
    }
  }
  return -1;
}

// As the headers call them (simt/engine.h).

ClusterShape cluster_shape() {
  const BlockRunner& runner = runner_for("a cluster's operation");
  return {runner.launch().cluster_blocks(), runner.rank()};
}

bool launched_cooperatively() {
  return runner_for("a grid's operation").launch().cooperative;
}

void* map_to_rank(const void* shared, unsigned rank, const char* name, Site site) {
  return runner_for(name).map_to_rank(shared, rank, name, site);
}

int rank_of_shared(const void* shared) {
  return runner_for("a cluster's operation").rank_of(shared);
}

}  // namespace simt::detail
