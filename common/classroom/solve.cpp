// The program around a learner's solve() (judge.py): its one variant, "solve", calls it.
//
// What judge.py writes behind the learner's source says what solve() is: the operation, the types of its elements and
// its parameters, then what it takes, in its order: "layernorm_forward fp32 fp32 x gamma beta y rows cols eps". And it
// has worklog_solve(), which hands over what it is given in that order. The program that judges the results has
// neither, and is told the same by WORKLOG_SOLVE.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#ifdef WORKLOG_BACKEND_CPU
#include <simt/simt.h>
#endif

#include "common/device/capabilities.cuh"
#include "common/harness/program.h"

extern "C" __attribute__((weak)) const char worklog_solve_entry[];
extern "C" __attribute__((weak)) const unsigned worklog_multiprocessors;  // that the CPU layer is to report
// Of what solve() takes, each pointer, each size and each number, in its order.
extern "C" __attribute__((weak)) void worklog_solve(void* const* pointers, const long long* sizes, const float* numbers,
                                                    cudaStream_t stream);

#ifndef WORKLOG_BACKEND_CPU
// The waits of a source that nvcc compiles (judge_gpu.py). While it is timed they are left out: what follows in the
// same stream waits by itself, and the host's way there and back is none of a kernel's time.
static bool has_waits() {
  const char* const text = std::getenv("WORKLOG_SOLVE_TIMED");
  return text == nullptr || std::string_view(text) != "without waits";
}
extern "C" cudaError_t worklog_device_synchronize() {
  return has_waits() ? cudaDeviceSynchronize() : cudaPeekAtLastError();
}
extern "C" cudaError_t worklog_stream_synchronize(cudaStream_t stream) {
  return has_waits() ? cudaStreamSynchronize(stream) : cudaPeekAtLastError();
}
#endif

namespace worklog {
namespace {

struct Entry {
  Operation operation{};
  Dtype dtype{}, param_dtype{};
  std::vector<std::string> parameters;
};

template <class Names, class Value = typename Names::value_type>
Value named(const Names& all, const std::string& name) {
  for (const Value value : all) {
    if (name_of(value) == name) return value;
  }
  throw std::runtime_error(fmt::format("the entry names '{}', which is not known", name));
}

Entry read_entry() {
  const char* const text = worklog_solve != nullptr ? worklog_solve_entry : std::getenv("WORKLOG_SOLVE");
  if (text == nullptr) throw std::runtime_error("WORKLOG_SOLVE must say what solve() takes; judge.py sets it");
  constexpr std::array dtypes = {Dtype::fp32, Dtype::fp16, Dtype::bf16};
  std::istringstream words(text);
  std::string operation, dtype, param_dtype;
  words >> operation >> dtype >> param_dtype;
  Entry entry{named(all_operations, operation), named(dtypes, dtype), named(dtypes, param_dtype), {}};
  for (std::string word; words >> word;) entry.parameters.push_back(word);
  return entry;
}

const void* pointer_to(const DeviceArguments& arguments, const std::string& name) {
  for (const DeviceTensor& tensor : arguments.tensors) {
    if (tensor.name == name) return tensor.data;
  }
  return nullptr;
}

// --- Group norm ----------------------------------------------------------------------------------------------------
// Group norm is LayerNorm over rows of a group's values each. What differs is that gamma and beta belong to channels.
// So solve() is given some for each channel, and they are taken out of its result: what is left is a LayerNorm without.
// gamma is a power of two, and beta a small multiple of a quarter: taking them out costs no digit of an fp32 result
// that counts, (|x| + 4) / 2^24. While solve() is timed, gamma is 1 and beta is 0, and nothing is taken out.

bool is_group_norm(const Entry& entry) {
  return std::find(entry.parameters.begin(), entry.parameters.end(), "groups") != entry.parameters.end();
}
bool is_timed() {
  return std::getenv("WORKLOG_SOLVE_TIMED") != nullptr;
}

// A shape whose groups are so many rows of so many columns.
std::map<std::string, int64_t> group_shape(int64_t rows, int64_t cols) {
  const auto divisor_of = [](int64_t number, int64_t most) {
    int64_t found = std::min(number, most);
    while (number % found != 0) --found;
    return found;
  };
  const int64_t groups = divisor_of(rows, 32), of_group = divisor_of(cols, 16), pixels = cols / of_group;
  const int64_t height = divisor_of(pixels, static_cast<int64_t>(std::sqrt(static_cast<double>(pixels))));
  return {{"samples", rows / groups}, {"groups", groups}, {"channels", groups * of_group},
          {"pixels", pixels},         {"height", height}, {"width", pixels / height}};
}

struct ChannelParameters {
  std::vector<float> gamma, beta;

  explicit ChannelParameters(int64_t channels) {
    for (uint32_t c = 0; c < static_cast<uint32_t>(channels); ++c) {
      const uint32_t bits = (c + 1) * 2654435761u >> 16;  // no two neighbors are alike
      const float power = static_cast<float>(1u << bits % 4) / 2;
      gamma.push_back(is_timed() ? 1.0f : bits & 4 ? -power : power);
      beta.push_back(is_timed() ? 0.0f : (static_cast<float>(bits / 8 % 17) - 8) / 4);
    }
  }
};

class DeviceFloats {
 public:
  explicit DeviceFloats(const std::vector<float>& values) {
    const size_t bytes = values.size() * sizeof(float);
    check_cuda(cudaMalloc(&data_, bytes), "allocating device memory");
    check_cuda(cudaMemcpy(data_, values.data(), bytes, cudaMemcpyHostToDevice), "copying to the device");
  }
  ~DeviceFloats() { cudaFree(data_); }
  DeviceFloats(const DeviceFloats&) = delete;
  DeviceFloats& operator=(const DeviceFloats&) = delete;
  void* data() const { return data_; }

 private:
  float* data_ = nullptr;
};

struct ChannelParametersOnDevice {
  ChannelParameters values;
  DeviceFloats gamma, beta;
  explicit ChannelParametersOnDevice(int64_t channels) : values(channels), gamma(values.gamma), beta(values.beta) {}
};
std::shared_ptr<const ChannelParametersOnDevice> channel_parameters(int64_t channels) {
  static std::map<int64_t, std::shared_ptr<const ChannelParametersOnDevice>> kept;  // what is timed allocates nothing
  if (!is_timed()) return std::make_shared<const ChannelParametersOnDevice>(channels);
  auto& found = kept[channels];
  if (!found) found = std::make_shared<const ChannelParametersOnDevice>(channels);
  return found;
}

void take_out(const ChannelParameters& parameters, const ProblemOptions& options, int64_t pixels, void* device) {
  std::vector<float> values(static_cast<size_t>(options.rows * options.cols));
  const size_t bytes = values.size() * sizeof(float);
  check_cuda(cudaDeviceSynchronize(), "running solve()");
  check_cuda(cudaMemcpy(values.data(), device, bytes, cudaMemcpyDeviceToHost), "copying from the device");
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t channel = i / static_cast<size_t>(pixels) % parameters.gamma.size();
    // A NaN may be what nobody has written, and is told by its bits.
    if (!std::isnan(values[i])) values[i] = (values[i] - parameters.beta[channel]) / parameters.gamma[channel];
  }
  check_cuda(cudaMemcpy(device, values.data(), bytes, cudaMemcpyHostToDevice), "copying to the device");
}

void call(const Entry& entry, const DeviceArguments& arguments, cudaStream_t stream) {
  std::vector<void*> pointers;
  std::vector<long long> sizes;
  std::vector<float> numbers;
  const ProblemOptions& options = arguments.options;
  const bool has_groups = is_group_norm(entry);
  std::map<std::string, int64_t> shape = {{"rows", options.rows}, {"cols", options.cols}};
  if (has_groups) shape = group_shape(options.rows, options.cols);
  const auto parameters = has_groups ? channel_parameters(shape["channels"]) : nullptr;
  for (const std::string& name : entry.parameters) {
    if (shape.contains(name)) {
      sizes.push_back(shape[name]);
    } else if (parameters && (name == "gamma" || name == "beta")) {
      pointers.push_back(name == "gamma" ? parameters->gamma.data() : parameters->beta.data());
    } else if (name == "one" || name == "zero") {
      numbers.push_back(name == "one" ? 1.0f : 0.0f);
    } else if (name == "eps" || name == "momentum") {
      numbers.push_back(name == "eps" ? arguments.options.eps : arguments.options.momentum);
    } else {
      pointers.push_back(const_cast<void*>(pointer_to(arguments, name)));
    }
  }
  worklog_solve(pointers.data(), sizes.data(), numbers.data(), stream);
  check_cuda(cudaGetLastError(), "running solve()");
  if (parameters && !is_timed()) {
    take_out(parameters->values, options, shape["pixels"], const_cast<void*>(pointer_to(arguments, "y")));
  }
}

// Of the outputs, those that solve() is given.
ComparisonOptions comparison_of(const Entry& entry) {
  ComparisonOptions comparison;
  for (const TensorSpec& spec : tensors_of(entry.operation)) {
    const bool is_given =
        std::find(entry.parameters.begin(), entry.parameters.end(), spec.name) != entry.parameters.end();
    if (is_given && spec.role != Role::input) comparison.only.emplace_back(spec.name);
  }
  return comparison;
}

}  // namespace
}  // namespace worklog

int main(int argc, char** argv) {
  using namespace worklog;
  try {
    const Entry entry = read_entry();
#ifdef WORKLOG_BACKEND_CPU
    if (&worklog_multiprocessors != nullptr) {
      simt::Options options = simt::options();
      options.multiprocessors = worklog_multiprocessors;
      simt::set_options(options);
    }
#endif
    Program program("solve", "a kernel from outside");
    program.add("solve", "the entry of the source that is judged")
        .compared_with(comparison_of(entry))
        .implement({entry.operation, entry.dtype, entry.param_dtype,
                    [entry](const DeviceArguments& arguments, cudaStream_t stream) { call(entry, arguments, stream); },
                    nullptr});
    return program.run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "solve: {}\n", error.what());
    return 2;
  }
}
