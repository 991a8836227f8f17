// The program around a learner's solve() (judge.py): its one variant, "solve", calls it.
//
// What judge.py writes behind the learner's source says what solve() is: the operation, the types of its elements and
// its parameters, then what it takes, in its order: "layernorm_forward fp32 fp32 x gamma beta y rows cols eps". And it
// has worklog_solve(), which hands over what it is given in that order. The program that judges the results has
// neither, and is told the same by WORKLOG_SOLVE.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
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

extern "C" __attribute__((weak)) const char worklog_entry[];
extern "C" __attribute__((weak)) const unsigned worklog_multiprocessors;  // that the CPU layer is to report
// Of what solve() takes, each pointer, each size and each number, in its order.
extern "C" __attribute__((weak)) void worklog_solve(void* const* pointers, const long long* sizes, const float* numbers,
                                                    cudaStream_t stream);

#ifndef WORKLOG_BACKEND_CPU
// The waits of a source that nvcc compiles (judge_gpu.py). While it is timed they are left out: what follows in the
// same stream waits by itself, and the host's way there and back is none of a kernel's time.
static bool has_waits() {
  const char* const text = std::getenv("WORKLOG_SOLVE_WAITS");
  return text == nullptr || std::string_view(text) != "0";
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
  const char* const text = worklog_solve != nullptr ? worklog_entry : std::getenv("WORKLOG_SOLVE");
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

void call(const Entry& entry, const DeviceArguments& arguments, cudaStream_t stream) {
  std::vector<void*> pointers;
  std::vector<long long> sizes;
  std::vector<float> numbers;
  for (const std::string& name : entry.parameters) {
    if (name == "rows" || name == "cols") {
      sizes.push_back(name == "rows" ? arguments.options.rows : arguments.options.cols);
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
