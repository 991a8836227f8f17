// What a launch needs: a kernel's attributes, how many blocks fit, whether CUDA would take it; then it is run.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "block.h"
#include "runtime.h"

using namespace simt;
using namespace simt::detail;

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (kernel == nullptr) return remember_error(cudaErrorInvalidDeviceFunction);
  std::lock_guard lock(state().mutex);
  switch (attribute) {
    case cudaFuncAttributeMaxDynamicSharedMemorySize:
      if (value < 0 || static_cast<size_t>(value) > max_shared_bytes) return remember_error(cudaErrorInvalidValue);
      state().dynamic_shared_allowed[kernel] = value;
      return sticky_error;
    case cudaFuncAttributePreferredSharedMemoryCarveout:
      return value < -1 || value > 100 ? remember_error(cudaErrorInvalidValue) : sticky_error.load();
    case cudaFuncAttributeNonPortableClusterSizeAllowed:
      value ? static_cast<void>(state().large_clusters_allowed.insert(kernel))
            : static_cast<void>(state().large_clusters_allowed.erase(kernel));
      return sticky_error;
  }
  return remember_error(cudaErrorInvalidValue);
}

namespace {

size_t dynamic_shared_allowed(const void* kernel) {
  std::lock_guard lock(state().mutex);
  const auto found = state().dynamic_shared_allowed.find(kernel);
  return found == state().dynamic_shared_allowed.end() ? shared_by_default : static_cast<size_t>(found->second);
}

KernelResources resources_of(const void* kernel) {
  const auto& known = state().resources;
  if (known.empty()) return {};
  const auto found = known.find(symbol_of(kernel));
  return found == known.end() ? KernelResources{} : found->second;
}

// Blocks of `threads` threads that a multiprocessor holds, by CUDA's rules of occupancy: as many as its threads, its
// shared memory and, where they are known, its registers allow.
int blocks_at_once(const void* kernel, int threads, size_t dynamic_shared_bytes) {
  const KernelResources resources = resources_of(kernel);
  const auto up_to = [](auto number, auto multiple) { return (number + multiple - 1) / multiple * multiple; };
  const int warps = std::max(1, up_to(threads, 32) / 32);
  const int by_threads = threads_per_multiprocessor / (32 * warps);
  const size_t shared_bytes =
      up_to(dynamic_shared_bytes + resources.static_shared_bytes + shared_reserved_per_block, shared_granularity);
  const auto by_shared = static_cast<int>(shared_per_multiprocessor / shared_bytes);
  int fewest = std::min({by_threads, by_shared, blocks_per_multiprocessor});
  if (resources.registers > 0) {
    const int of_warp = up_to(resources.registers * 32, registers_granularity);
    const int warps_of_part = registers_per_multiprocessor / parts_of_multiprocessor / of_warp;
    fewest = std::min(fewest, warps_of_part * parts_of_multiprocessor / warps);
  }
  const unsigned most = options().blocks_per_multiprocessor;
  return most == 0 ? fewest : std::min(fewest, static_cast<int>(most));
}

const cudaLaunchAttribute* find_attribute(const cudaLaunchConfig_t& config, cudaLaunchAttributeID id) {
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    if (config.attrs[i].id == id) return &config.attrs[i];
  }
  return nullptr;
}

cudaError_t refuse_launch(cudaError_t error, const void* kernel, const std::string& why) {
  report(fmt::format("simt: kernel {}: the launch is refused: {}", function_name(kernel), why));
  return remember_error(error);
}

cudaError_t run_request(const LaunchRequest& request) {
  if (sticky_error != cudaSuccess) return sticky_error;
  Launch launch(request);
  launch.options = options();
  launch.team_size = launch.cooperative ? static_cast<unsigned>(launch.blocks()) : launch.cluster_blocks();
  launch.teams = launch.blocks() / launch.team_size;
  observe_launch(launch);
  run_on_pool(launch);
  observe_launch_end(launch);
  if (launch.error() == cudaSuccess) {
    const std::string overrun = find_overrun();
    if (!overrun.empty()) {
      launch.fail(cudaErrorIllegalAddress,
                  fmt::format("simt: kernel {}: {}", function_name(launch.call.kernel), overrun));
    }
  }
  if (launch.error() != cudaSuccess) sticky_error = launch.error();
  return launch.error();
}

}  // namespace

cudaError_t cudaFuncGetName(const char** name, const void* kernel) {
  if (kernel == nullptr) return remember_error(cudaErrorInvalidDeviceFunction);
  static std::mutex mutex;
  static std::map<const void*, std::string> names;
  const std::lock_guard lock(mutex);
  const auto [entry, is_new] = names.try_emplace(kernel);
  if (is_new) entry->second = symbol_of(kernel);
  *name = entry->second.c_str();
  return sticky_error;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  if (kernel == nullptr) return remember_error(cudaErrorInvalidDeviceFunction);
  *attributes = {};
  attributes->maxThreadsPerBlock = max_threads;
  attributes->ptxVersion = attributes->binaryVersion = 90;
  attributes->maxDynamicSharedSizeBytes = static_cast<int>(dynamic_shared_allowed(kernel));
  return sticky_error;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel, int block_size,
                                                          size_t dynamic_shared_bytes) {
  if (block_size <= 0 || block_size > static_cast<int>(max_threads)) return remember_error(cudaErrorInvalidValue);
  *blocks = blocks_at_once(kernel, block_size, dynamic_shared_bytes);
  return sticky_error;
}
cudaError_t cudaOccupancyMaxPotentialClusterSize(int* size, const void* kernel, const cudaLaunchConfig_t*) {
  std::lock_guard lock(state().mutex);
  *size = static_cast<int>(state().large_clusters_allowed.contains(kernel) ? largest_cluster : portable_cluster);
  return sticky_error;
}
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* kernel, const cudaLaunchConfig_t* config) {
  const dim3& block = config->blockDim;
  const int threads = static_cast<int>(block.x * block.y * block.z);
  const int blocks = blocks_at_once(kernel, threads, config->dynamicSmemBytes);  // of a multiprocessor
  int size = 1;
  if (const auto* const attribute = find_attribute(*config, cudaLaunchAttributeClusterDimension)) {
    const auto& extent = attribute->val.clusterDim;
    size = static_cast<int>(extent.x * extent.y * extent.z);
  }
  const auto told = state().clusters.find({size, blocks});
  *clusters = told != state().clusters.end() ? told->second : multiprocessors() * blocks / size;
  return sticky_error;
}

cudaError_t simt::detail::launch(const cudaLaunchConfig_t& config, Call call) {
  if (sticky_error != cudaSuccess) return sticky_error;
  if (call.kernel == nullptr) return remember_error(cudaErrorInvalidDeviceFunction);
  if (BlockRunner* const runner = BlockRunner::current(); runner != nullptr && runner->in_kernel()) {
    return refuse_launch(cudaErrorNotSupported, call.kernel, "a kernel cannot launch another here");
  }
  const auto& [grid, block, shared_bytes, stream, attributes, count] = config;
  const auto refused = [&](cudaError_t error, const std::string& why) {
    return refuse_launch(error, call.kernel, why);
  };
  const auto text = [](const dim3& d) { return to_text({d.x, d.y, d.z}); };

  if (grid.x == 0 || grid.y == 0 || grid.z == 0) {
    return refused(cudaErrorInvalidConfiguration, fmt::format("a grid of {} blocks is empty", text(grid)));
  }
  if (grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535) {
    return refused(cudaErrorInvalidConfiguration,
                   fmt::format("a grid of {} blocks; the most is (2147483647, 65535, 65535)", text(grid)));
  }
  if (block.x == 0 || block.y == 0 || block.z == 0) {
    return refused(cudaErrorInvalidConfiguration, fmt::format("a block of {} threads is empty", text(block)));
  }
  if (block.x > max_threads || block.y > max_threads || block.z > 64 || block.x * block.y * block.z > max_threads) {
    return refused(cudaErrorInvalidConfiguration,
                   fmt::format("a block of {} threads; the most is 1024 in all, 64 along z", text(block)));
  }
  const size_t allowed = dynamic_shared_allowed(call.kernel);
  if (shared_bytes > allowed) {
    return refused(cudaErrorInvalidValue,
                   fmt::format("{} bytes of dynamic shared memory; this kernel may have {}, and up to {} after "
                               "cudaFuncSetAttribute",
                               shared_bytes, allowed, max_shared_bytes));
  }

  LaunchRequest request;
  request.grid = grid;
  request.block = block;
  request.shared_bytes = shared_bytes;
  if (const auto* const attribute = find_attribute(config, cudaLaunchAttributeClusterDimension)) {
    const auto& cluster = attribute->val.clusterDim;
    const unsigned blocks = cluster.x * cluster.y * cluster.z;
    int most = 0;
    cudaOccupancyMaxPotentialClusterSize(&most, call.kernel, &config);
    if (blocks == 0 || blocks > static_cast<unsigned>(most) || grid.x % cluster.x != 0 || grid.y % cluster.y != 0 ||
        grid.z % cluster.z != 0) {
      return refused(cudaErrorInvalidClusterSize,
                     fmt::format("a cluster of ({}, {}, {}) blocks; it must divide the grid {} and have at most {}",
                                 cluster.x, cluster.y, cluster.z, text(grid), most));
    }
    request.cluster = dim3(cluster.x, cluster.y, cluster.z);
  }
  if (const auto* const attribute = find_attribute(config, cudaLaunchAttributeCooperative)) {
    request.cooperative = attribute->val.cooperative != 0;
    const auto most =
        static_cast<uint64_t>(multiprocessors()) *
        static_cast<uint64_t>(blocks_at_once(call.kernel, static_cast<int>(request.threads_per_block()), shared_bytes));
    const uint64_t blocks = request.blocks();
    if (request.cooperative && blocks > most) {
      return refused(cudaErrorCooperativeLaunchTooLarge,
                     fmt::format("a cooperative launch of {} blocks; {} can run at the same time", blocks, most));
    }
  }

  if (capture_of(stream) != nullptr) {
    request.call = call.keep();
    return carry_out(stream, [request] { return run_request(request); });
  }
  request.call = std::move(call);
  return run_request(request);
}
