#include "common/harness/device.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <cstdio>

#include "common/device/launch.cuh"

namespace worklog {
namespace {

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  if (cudaDeviceGetAttribute(&value, which, device) != cudaSuccess) cudaGetLastError();
  return value;
}

// Words of a device's name that do not tell two GPUs apart.
bool is_no_model(std::string_view word) {
  for (const std::string_view none :
       {"nvidia", "geforce", "quadro", "tesla", "laptop", "gpu", "pcie", "nvl", "with", "max", "q", "design"}) {
    if (word == none) return true;
  }
  return word.ends_with("gb") || word.starts_with("hbm") || word.starts_with("sxm");
}

}  // namespace

Device current_device() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) throw NoDevice(fmt::format("no CUDA device: {}", cudaGetErrorString(error)));
  if (count == 0) throw NoDevice("no CUDA device: the driver reports none");

  int id = 0;
  check_cuda(cudaGetDevice(&id), "asking for the current device");
  cudaDeviceProp properties;
  check_cuda(cudaGetDeviceProperties(&properties, id), "asking for the device's properties");
  Device device;
  device.name = properties.name;
  device.short_name = on_cpu_layer() ? "cpu" : short_name_of(properties.name);
  device.major = properties.major;
  device.minor = properties.minor;
  device.multiprocessors = properties.multiProcessorCount;
  device.l2_bytes = properties.l2CacheSize;
  device.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  device.clock_khz = attribute(cudaDevAttrClockRate, id);
  device.memory_clock_khz = attribute(cudaDevAttrMemoryClockRate, id);
  check_cuda(cudaDriverGetVersion(&device.driver), "asking for the driver's version");
  check_cuda(cudaRuntimeGetVersion(&device.cuda_runtime), "asking for the runtime's version");
  return device;
}

std::string short_name_of(std::string_view name) {
  std::string result;
  std::string word;
  const auto end_word = [&] {
    if (!is_no_model(word)) result += word;
    word.clear();
  };
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c))) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else {
      end_word();
    }
  }
  end_word();
  return result;
}

std::optional<std::string> ask_nvidia_smi(const std::string& fields) {
  if (on_cpu_layer()) return std::nullopt;
  // nvidia-smi may count devices in another order than CUDA; the bus tells them apart.
  int id = 0;
  cudaDeviceProp properties;
  if (cudaGetDevice(&id) != cudaSuccess || cudaGetDeviceProperties(&properties, id) != cudaSuccess) {
    cudaGetLastError();
    return std::nullopt;
  }
  const std::string command =
      fmt::format("nvidia-smi --id={:08x}:{:02x}:{:02x}.0 --query-gpu={} --format=csv,noheader 2>/dev/null",
                  properties.pciDomainID, properties.pciBusID, properties.pciDeviceID, fields);
  FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) return std::nullopt;
  std::array<char, 512> line{};
  const bool answered = std::fgets(line.data(), line.size(), pipe) != nullptr;
  if (pclose(pipe) != 0 || !answered) return std::nullopt;
  std::string answer = line.data();
  while (!answer.empty() && std::isspace(static_cast<unsigned char>(answer.back()))) answer.pop_back();
  return answer;
}

}  // namespace worklog
