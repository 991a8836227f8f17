#include "common/harness/resources.h"

#include <cxxabi.h>
#include <fmt/format.h>

#include <cstdlib>
#include <memory>

namespace worklog {
std::string readable_name(const char* symbol) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> demangled(abi::__cxa_demangle(symbol, nullptr, nullptr, &status),
                                                              &std::free);
  if (status != 0) return symbol;
  std::string name = demangled.get();
  if (name.starts_with("void ")) name.erase(0, 5);
  int depth = 0;
  for (size_t i = name.size(); name.ends_with(')') && i-- > 0;) {  // the last pair of parentheses, with what is in it
    depth += name[i] == ')' ? 1 : name[i] == '(' ? -1 : 0;
    if (depth > 0) continue;
    name.erase(i);
    break;
  }
  return name;
}

KernelResources resources_of(const KernelLaunch& launch) {
  const char* symbol = nullptr;
  check_cuda(cudaFuncGetName(&symbol, launch.kernel), "asking for a kernel's name");
  cudaFuncAttributes attributes = {};
  check_cuda(cudaFuncGetAttributes(&attributes, launch.kernel), "asking for a kernel's attributes");

  KernelResources resources;
  resources.kernel = readable_name(symbol);
  resources.blocks = launch.blocks();
  resources.threads = launch.threads();
  resources.cluster = static_cast<int>(launch.shape.cluster);
  resources.registers = attributes.numRegs;
  resources.static_shared_bytes = static_cast<int64_t>(attributes.sharedSizeBytes);
  resources.dynamic_shared_bytes = static_cast<int64_t>(launch.shape.shared_bytes);
  resources.local_bytes = static_cast<int64_t>(attributes.localSizeBytes);
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resources.blocks_per_multiprocessor, launch.kernel,
                                                           resources.threads, launch.shape.shared_bytes),
             "asking how many blocks fit a multiprocessor");
  int device = 0;
  int most_threads = 0;
  check_cuda(cudaGetDevice(&device), "asking for the current device");
  check_cuda(cudaDeviceGetAttribute(&most_threads, cudaDevAttrMaxThreadsPerMultiProcessor, device),
             "asking for the threads of a multiprocessor");
  resources.occupancy = static_cast<double>(resources.blocks_per_multiprocessor) * resources.threads / most_threads;
  return resources;
}

std::string describe_launches(const std::vector<KernelLaunch>& launches) {
  std::string text;
  for (const KernelLaunch& launch : launches) {
    text += fmt::format("{}{} x {}", text.empty() ? "" : " + ", launch.blocks(), launch.threads());
  }
  return text;
}

}  // namespace worklog
