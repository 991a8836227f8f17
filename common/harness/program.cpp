#include "common/harness/program.h"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <optional>
#include <system_error>

#include "common/harness/device.h"
#include "common/harness/flags.h"
#include "common/harness/launches.h"
#include "common/harness/session.h"
#ifdef WORKLOG_BACKEND_CPU
#include "common/harness/counting.h"
#include "simt/simt.h"
#endif

namespace worklog {
namespace {

std::string_view meaning_of(Input input) {
  switch (input) {
    case Input::normal:
      return "mean 0, deviation 1";
    case Input::uniform:
      return "from -1 to 1";
    case Input::arange:
      return "1, 2, ... rows * cols, as the worklog article has it";
    case Input::large_mean:
      return "mean 1e4, deviation 1 (more where the type is coarser)";
    case Input::constant:
      return "every element the same: variance zero";
    case Input::tiny_variance:
      return "a deviation of 1e-4 around a mean that is much larger";
    case Input::outlier_channels:
      return "a few columns 100 times the rest, as transformer activations have them";
    case Input::huge:
      return "near the top of the type";
    case Input::nan_row:
      break;
  }
  return "normal, and one row that holds a NaN";
}

void print_list(const Program& program) {
  fmt::print("{}: {}\n\nvariants\n", program.stage(), program.summary());
  for (const Variant& variant : program.variants()) {
    fmt::print("  {}: {}\n", variant.name(), variant.note());
    for (const Variant::Implementation& i : variant.implementations()) {
      fmt::print("    {} in {} with parameters in {}{}\n", name_of(i.operation), name_of(i.dtype),
                 name_of(i.param_dtype), i.gamma_offset == 0.0f ? "" : " about zero");
    }
    for (const auto& [input, output] : variant.overwritten()) fmt::print("    writes {} over {}\n", output, input);
    for (const Variant::Limit& limit : variant.limits()) fmt::print("    limited: {}\n", limit.sentence);
    for (const auto& [input, from] : variant.expectations()) {
      std::string types;
      for (const Dtype dtype : from.dtypes) types += fmt::format("{}{}", types.empty() ? " in " : ", ", name_of(dtype));
      if (from.is_never()) {
        const bool bounded = from.most_cols < std::numeric_limits<int64_t>::max();
        std::string shapes = bounded ? fmt::format(" with up to {} columns", from.most_cols) : "";
        if (from.most_rows < std::numeric_limits<int64_t>::max())
          shapes += fmt::format(" in up to {} rows", from.most_rows);
        fmt::print("    may fail on {}{}{}\n", name_of(input), shapes, types);
      } else {
        fmt::print("    fails on {} from {} x {}{}\n", name_of(input), from.rows, from.cols, types);
      }
    }
  }
  fmt::print("\ninputs\n");
  for (const Input input : all_inputs()) fmt::print("  {:<18}{}\n", name_of(input), meaning_of(input));
}

void print_header(const Program& program, const Device& device, const std::string& order, std::FILE* to) {
  fmt::print(to, "{}: {}\n", program.stage(), program.summary());
  if (on_cpu_layer()) {
    fmt::print(
        to,
        "This is the CPU layer: the kernels run on this machine's CPU, not on a GPU. Their results are checked as on a "
        "GPU;\n"
        "no time is shown, since a time taken here says nothing about a GPU.\n{}\n",
        order.empty() ? "" : fmt::format("Blocks, warps and lanes get their turns in this order: {}.\n", order));
  } else {
    fmt::print(to, "{}, compute capability {}.{}, {} multiprocessors, {} MiB of L2 cache\n\n", device.name,
               device.major, device.minor, device.multiprocessors, device.l2_bytes >> 20);
  }
}

#ifdef WORKLOG_BACKEND_CPU
// The CPU layer's order of threads, as long as this lives.
class InOrder {
 public:
  explicit InOrder(const std::string& order) : before_(simt::options()) {
    simt::Options options = before_;
    if (order.empty()) return;
    if (!simt::read_order(order, options)) {
      throw RequestError(fmt::format("--order takes forward, reverse or shuffle:SEED; it was given '{}'", order));
    }
    simt::set_options(options);
  }
  ~InOrder() { simt::set_options(before_); }
  InOrder(const InOrder&) = delete;
  InOrder& operator=(const InOrder&) = delete;

 private:
  simt::Options before_;
};
#endif

void make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    throw RequestError(
        fmt::format("--save-tensors takes a folder that can be written to; '{}': {}", path, error.message()));
  }
}

int run_request(const Program& program, int argc, char** argv) {
  const Request request = parse_flags(program, argc, argv);
  if (!request.help.empty()) {
    fmt::print("{}", request.help);
    return 0;
  }
  if (request.list) {
    print_list(program);
    return 0;
  }
  denied = request.deny;
  if (!request.launches.empty()) {
    current_device();  // throws where there is none
    return tell_launches(program, request.launches);
  }
  if (request.plan) {
    current_device();
    return tell_plan(program, request, plan(program, request));
  }
#ifdef WORKLOG_BACKEND_CPU
  if (request.count || !request.trace.empty()) become_counting_program(argv);
  const InOrder in_order(request.order);
#endif
  take_benchmark_flags(program.stage(), request.benchmark_flags);
  // All that can be wrong with the request is found before anything is done.
  std::vector<Case> cases = plan(program, request);
  std::optional<WholeFile> json_file;
  if (!request.json.empty()) json_file.emplace(request.json);
  std::error_code error;
  if (!request.benchmark_out.empty() && !std::filesystem::is_other(request.benchmark_out, error)) {
    const WholeFile can_be_written(request.benchmark_out, "--benchmark_out");  // which Google Benchmark opens late
  }
  if (!request.save_tensors.empty()) make_folder(request.save_tensors);
#ifdef WORKLOG_BACKEND_CPU
  if (!request.trace.empty()) return trace_one(program, request, cases);
  if (request.count) return count_all(program, request, cases, json_file);
#endif
  const Device device = current_device();
  for (const auto& [key, value] : context_of(program, device, request.deny_words))
    benchmark::AddCustomContext(key, value);
  Session session(program, request, device, std::move(cases), std::move(json_file));
  print_header(program, device, request.order, request.talk());
  const bool is_timed = !on_cpu_layer() && !request.check_only;
  session.check_all(is_timed);
  if (is_timed) session.time_all();
  return session.finish();
}

}  // namespace

int Program::run(int argc, char** argv) {
  const auto refuse = [&](const std::exception& error) {
    std::fflush(stdout);
    fmt::print(stderr, "{}: {}\n", stage_, error.what());
    return 2;
  };
  try {
    return run_request(*this, argc, argv);
  } catch (const RequestError& error) {
    return refuse(error);
  } catch (const NoDevice& error) {
    return refuse(error);
  } catch (const OutOfDeviceMemory& error) {
    return refuse(error);
  } catch (const std::invalid_argument& error) {  // a problem that cannot be made
    return refuse(error);
  } catch (const std::exception& error) {
    std::fflush(stdout);
    fmt::print(stderr, "{}: {}\n", stage_, error.what());
    return 1;
  }
}

}  // namespace worklog
