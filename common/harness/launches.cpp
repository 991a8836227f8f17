#include "common/harness/launches.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "common/device/launch.cuh"
#include "common/harness/cases.h"
#include "common/harness/device_buffer.h"
#include "common/harness/document.h"
#include "common/harness/flags.h"
#include "common/harness/provenance.h"
#include "common/harness/words.h"
#include "common/harness/workspace.h"

namespace worklog {
namespace {

std::vector<KernelLaunch>* recorded = nullptr;

// "1024", or "64x8" where there is more than one dimension.
std::string extent(const dim3& size) {
  if (size.z > 1) return fmt::format("{}x{}x{}", size.x, size.y, size.z);
  return size.y > 1 ? fmt::format("{}x{}", size.x, size.y) : fmt::format("{}", size.x);
}

const char* symbol_of(const KernelLaunch& launch) {
  const char* symbol = nullptr;
  check_cuda(cudaFuncGetName(&symbol, launch.kernel), "asking for a kernel's name");
  return symbol;
}

// What a line of the file asks for.
struct NamedCase {
  std::string name;
  const Variant* variant = nullptr;
  const Variant::Implementation* implementation = nullptr;
  ProblemOptions options;
  int64_t misalign = 0;  // elements
  bool adds_dh = false;  // the backward pass of a sum: its struct with dh, which the plain operation leaves null
};

// 1024x1024, with the pixels 64x256x3136, and 64x256x3136-first where the channels come first; tokens of 16 and 4 heads
// are 8192x16+4x128.
bool read_shape(std::string_view text, ProblemOptions& options) {
  constexpr std::string_view first = "-first";
  const bool channels_first = text.ends_with(first);
  if (channels_first) text.remove_suffix(first.size());
  const size_t plus = text.find('+');
  std::string without_heads(text);
  if (plus != std::string_view::npos) {
    const size_t begin = text.rfind('x', plus), end = std::min(text.find('x', plus), text.size());
    if (begin == std::string_view::npos) return false;
    options.q_heads = whole_number(text.substr(begin + 1, plus - begin - 1)).value_or(-1);
    options.k_heads = whole_number(text.substr(plus + 1, end - plus - 1)).value_or(-1);
    without_heads = std::string(text.substr(0, begin)) + std::string(text.substr(end));
  }
  std::vector<int64_t> extents;
  for (const std::string& word : split(without_heads, 'x')) extents.push_back(whole_number(word).value_or(-1));
  if (extents.size() != 3 && (extents.size() != 2 || channels_first)) return false;
  if (*std::min_element(extents.begin(), extents.end()) < 0) return false;
  options.rows = extents[0];
  options.cols = extents[1];
  if (extents.size() == 3) options.pixels = extents[2];
  if (channels_first) options.layout = ChannelLayout::channels_first;
  return true;
}

// Whether this is the operation's name; where that says what is in y, the options are told.
bool is_named(Operation operation, std::string_view name, ProblemOptions& options) {
  if (!is_quantized(operation)) return name_of(operation) == name;
  ProblemOptions named = options;
  named.operation = operation;
  for (const ByteFormat format : {ByteFormat::e4m3, ByteFormat::int8}) {
    for (const Scaling scaling : {Scaling::row, Scaling::block, Scaling::tensor}) {
      named.format = format;
      named.scaling = scaling;
      if (operation_name(named) != name) continue;
      options = named;
      return true;
    }
  }
  return false;
}

NamedCase case_named(const Program& program, const std::string& name) {
  constexpr std::string_view without = "without=";
  const std::vector<std::string> parts = split(name, '/');
  NamedCase found;
  found.name = name;
  const bool plain = parts.size() == 4;
  if (!(plain || (parts.size() == 5 && parts[4].starts_with(without))) || !read_shape(parts[3], found.options)) {
    throw RequestError(
        fmt::format("--launches takes lines such as layer_norm/layernorm_forward/fp32/1024x1024, with "
                    "/without=gamma,beta behind it where tensors are null; it was given '{}'",
                    name));
  }
  std::string operation = parts[1];
  if (operation == "add_rmsnorm_backward") {  // of the library; the harness checks the others
    operation = "rmsnorm_backward";
    found.adds_dh = true;
  }
  for (const Variant& each : program.variants()) {
    if (each.name() != parts[0]) continue;
    for (const Variant::Implementation& i : each.implementations()) {
      if (!is_named(i.operation, operation, found.options) || name_of(i.dtype) != parts[2]) continue;
      found.variant = &each;
      found.implementation = find_implementation(each, i.operation, i.dtype, Request());
    }
  }
  if (!found.implementation) {
    throw RequestError(
        fmt::format("--launches: {} has nothing that does '{}' (--list shows what there is)", program.stage(), name));
  }
  found.options.operation = found.implementation->operation;
  found.options.dtype = found.implementation->dtype;
  found.options.param_dtype = found.implementation->param_dtype;
  found.options.gamma_offset = found.implementation->gamma_offset;
  if (!plain) found.options.absent = split(parts[4].substr(without.size()), ',');
  check_arguments(found.options);
  return found;
}

// The case's arguments. No tensor has memory: each has an address of its own, aligned as cudaMalloc aligns, which
// nothing reads from or writes to. The workspace is there, since functions may clear it before they launch.
DeviceArguments arguments_without_tensors(const NamedCase& named, const DeviceMemory& workspace) {
  constexpr uintptr_t apart = uintptr_t{1} << 40;
  DeviceArguments arguments;
  arguments.options = named.options;
  uintptr_t address = 0;
  const auto add = [&](std::string_view name, const HostTensor& like) {
    address += apart;
    const uintptr_t start = address + (named.misalign + like.more) * size_of(like.dtype);
    void* const data = like.present ? reinterpret_cast<void*>(start) : nullptr;
    arguments.tensors.push_back({name, like.dtype, data, like.stride, like.head_stride});
  };
  const auto place_of = [&](std::string_view name) {
    return std::find_if(arguments.tensors.begin(), arguments.tensors.end(),
                        [name](const DeviceTensor& tensor) { return tensor.name == name; });
  };
  const std::vector<HostTensor> tensors = shape_tensors(named.options);
  for (const HostTensor& tensor : tensors) add(tensor.spec.name, tensor);
  if (named.adds_dh) add("dh", tensors.front());  // of dy's form
  for (const auto& [input, output] : named.variant->overwritten()) {
    const auto from = place_of(input);
    const auto to = place_of(output);
    if (from != arguments.tensors.end() && to != arguments.tensors.end()) to->data = from->data;
  }
  if (workspace_of(named.options) > 0) {
    arguments.tensors.push_back({"workspace", Dtype::fp32, workspace.data(), 0});
  }
  return arguments;
}

// One workspace for all of the cases: its memory may be large, and the CPU layer fills what it gives.
DeviceMemory workspace_for(const std::vector<ProblemOptions>& all) {
  int64_t most = 1;
  for (const ProblemOptions& options : all) most = std::max(most, workspace_of(options));
  return DeviceMemory(most * int64_t{sizeof(float)});
}

std::vector<KernelLaunch> launches_of(const NamedCase& named, const DeviceMemory& workspace) {
  const DeviceArguments arguments = arguments_without_tensors(named, workspace);
  std::vector<KernelLaunch> launches;
  const LaunchRecorder recorder(launches, LaunchRecorder::Then::skip);
  named.implementation->launch(arguments, nullptr);
  check_cuda(cudaDeviceSynchronize(), "clearing the workspace");
  return launches;
}

}  // namespace

LaunchRecorder::LaunchRecorder(std::vector<KernelLaunch>& launches, Then then) {
  recorded = &launches;
  if (then == Then::launch) {
    launch_observer = [](const void* kernel, const LaunchShape& shape) {
      recorded->push_back({kernel, shape});
      return true;
    };
  } else {
    launch_observer = [](const void* kernel, const LaunchShape& shape) {
      recorded->push_back({kernel, shape});
      return false;
    };
  }
}

LaunchRecorder::~LaunchRecorder() {
  launch_observer = nullptr;
}

nlohmann::ordered_json json_of(const KernelLaunch& launch) {
  const char* const symbol = symbol_of(launch);
  cudaFuncAttributes attributes = {};
  check_cuda(cudaFuncGetAttributes(&attributes, launch.kernel), "asking for a kernel's attributes");
  const LaunchShape& shape = launch.shape;
  nlohmann::ordered_json json = {{"kernel", readable_name(symbol)}};
  // The driver's own compilation of PTX is no code that the build could have noted.
  if (const std::string_view code = code_of(symbol, attributes.binaryVersion); !code.empty()) json["code"] = code;
  json["grid"] = extent(shape.grid);
  json["block"] = extent(shape.block);
  if (shape.cluster > 1) {
    json["cluster"] = shape.cluster;
    json["at_once"] = clusters_at_once(launch.kernel, shape.cluster, launch.threads(), shape.shared_bytes);
  }
  if (shape.shared_bytes > 0) json["shared_bytes"] = shape.shared_bytes;
  if (shape.cooperative) json["cooperative"] = true;
  if (shape.overlap) json["overlap"] = true;
  if (shape.rule) json["rule"] = shape.rule;
  return json;
}

int tell_plan(const Program& program, const Request& request, const std::vector<Case>& cases) {
  fmt::print("{}: which kernels are launched, by the rules for them; none runs\n", program.stage());
  std::vector<ProblemOptions> all;
  for (const Case& each : cases) all.push_back(each.options);
  const DeviceMemory workspace = workspace_for(all);
  for (const Case& each : cases) {
    for (const Runner& runner : each.runners) {
      const ProblemOptions& o = each.options;
      fmt::print("\n  {}, {}, {}, {} x {}\n", runner.variant->name(), operation_name(o), name_of(o.dtype), o.rows,
                 o.cols);
      if (!runner.left_out.empty()) {
        fmt::print("    {}\n", runner.left_out);
        continue;
      }
      const NamedCase named = {.name = "",
                               .variant = runner.variant,
                               .implementation = runner.implementation,
                               .options = o,
                               .misalign = request.misalign};
      for (const KernelLaunch& launch : launches_of(named, workspace)) {
        const LaunchShape& shape = launch.shape;
        fmt::print("    {}\n      {} blocks of {} threads", readable_name(symbol_of(launch)), extent(shape.grid),
                   extent(shape.block));
        if (shape.cluster > 1) fmt::print(", {} to a cluster", shape.cluster);
        if (shape.shared_bytes > 0) fmt::print(", {} bytes of shared memory each", shape.shared_bytes);
        fmt::print("\n");
        if (shape.rule)
          fmt::print("      by the rule {}\n", *shape.rule ? shape.rule : "for what no measured rule takes");
      }
    }
  }
  return 0;
}

int tell_launches(const Program& program, const std::string& file) {
  std::ifstream lines(file);
  if (!lines) throw RequestError(fmt::format("--launches takes a file of cases; '{}' cannot be read", file));
  std::vector<NamedCase> cases;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) cases.push_back(case_named(program, line));
  }
  std::vector<ProblemOptions> options;
  for (const NamedCase& named : cases) options.push_back(named.options);
  const DeviceMemory workspace = workspace_for(options);
  Json all = Json::array();
  for (const NamedCase& named : cases) {
    Json launches = Json::array();
    for (const KernelLaunch& launch : launches_of(named, workspace)) {
      launches.push_back(json_of(launch));
      launches.back()["symbol"] = symbol_of(launch);
    }
    all.push_back({{"case", named.name}, {"launches", std::move(launches)}});
  }
  fmt::print("{}", text_of(all));
  return 0;
}

}  // namespace worklog
