// The device that kernels run on: a GPU, or the CPU layer.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace worklog {

// There is nothing to run kernels on; what() begins with "no CUDA device".
class NoDevice : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Whether kernels run on the CPU, through common/simt: then no time that it took is a GPU's.
constexpr bool on_cpu_layer() {
#ifdef WORKLOG_BACKEND_CPU
  return true;
#else
  return false;
#endif
}

struct Device {
  std::string name;        // "NVIDIA H200"
  std::string short_name;  // "h200", as in results/h200.json
  int major = 0, minor = 0;
  int multiprocessors = 0;
  int64_t l2_bytes = 0;
  int64_t memory_bytes = 0;
  int clock_khz = 0, memory_clock_khz = 0;  // the highest; 0 where not known
  int driver = 0, cuda_runtime = 0;         // CUDA versions: 1000 * major + 10 * minor
};

// The current device. Throws NoDevice.
Device current_device();

// The name in lower case without vendor, brand, memory and form factor: "NVIDIA GeForce RTX 4050 Laptop GPU" is
// "rtx4050", "NVIDIA H100 80GB HBM3" is "h100".
std::string short_name_of(std::string_view name);

// What nvidia-smi says about the current GPU ("clocks.sm,clocks.mem"), as it says it; none where it is not there.
std::optional<std::string> ask_nvidia_smi(const std::string& fields);

}  // namespace worklog
