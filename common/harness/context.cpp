#include "common/harness/context.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>

#include "common/harness/provenance.h"

namespace worklog {

ContextEntries context_of(const Program& program, const Device& device, const std::vector<std::string>& denied) {
  const Provenance origin = provenance();
  const auto version = [](int number) { return fmt::format("{}.{}", number / 1000, number % 1000 / 10); };
  ContextEntries entries = {
      {"stage", program.stage()},
      {"backend", on_cpu_layer() ? "cpu" : "gpu"},
      {"gpu", device.name},
      {"gpu_short", device.short_name},
      {"compute_capability", fmt::format("{}.{}", device.major, device.minor)},
      {"multiprocessors", fmt::format("{}", device.multiprocessors)},
      {"l2_bytes", fmt::format("{}", device.l2_bytes)},
      {"memory_bytes", fmt::format("{}", device.memory_bytes)},
      {"max_clock_khz", fmt::format("{}", device.clock_khz)},
      {"max_memory_clock_khz", fmt::format("{}", device.memory_clock_khz)},
      {"driver_cuda", version(device.driver)},
      {"cuda_runtime", version(device.cuda_runtime)},
      {"compiler", origin.compiler},
      {"flags", origin.flags},
      {"commit", origin.commit},
      {"dirty", origin.dirty ? "true" : "false"},
      {"source_hash", origin.source_hash},
  };
  if (!denied.empty()) entries.emplace_back("denied", fmt::format("{}", fmt::join(denied, ",")));
  if (const std::optional<std::string> driver = ask_nvidia_smi("driver_version"))
    entries.emplace_back("driver", *driver);
  return entries;
}

}  // namespace worklog
