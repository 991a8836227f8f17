// Stands in for a stage's program where submissions are graded: the judge, which runs no kernel.
//
//   PROGRAM prepare TASKS FLAGS...              writes the memory that the kernels are to work on
//   PROGRAM judge OUTCOMES FLAGS... --json FILE  judges what a submission's program has made of it
//
// FLAGS are a stage's program's. Both calls are given the same, --seed among them: the same inputs come of it. The
// report has the form that the harness's has.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/classroom/handover.h"
#include "common/harness/cases.h"
#include "common/harness/check.h"
#include "common/harness/device_buffer.h"
#include "common/harness/document.h"
#include "common/harness/flags.h"
#include "common/harness/program.h"
#include "common/harness/report.h"
#include "common/harness/reporter.h"
#include "common/harness/workspace.h"

namespace worklog {
namespace {

constexpr int64_t guard = DeviceBuffer::guard_bytes;

void poison(Dtype dtype, std::byte* data, int64_t bytes) {
  const auto size = static_cast<int64_t>(size_of(dtype));
  for (int64_t i = 0; i < bytes; i += size) store_bits(dtype, poison_pattern(dtype), data + i);
}

// A tensor between guard zones, `misalign` elements off its alignment.
MemoryImage image_of(std::string_view name, Dtype dtype, int64_t count, int64_t misalign) {
  const auto size = static_cast<int64_t>(size_of(dtype));
  MemoryImage image{.name = std::string(name), .dtype = dtype};
  image.start = guard + misalign * size;
  image.end = image.start + count * size;
  image.bytes.resize(static_cast<size_t>(image.end + guard));
  poison(dtype, image.bytes.data(), static_cast<int64_t>(image.bytes.size()));
  return image;
}

// Of each tensor, the one in whose memory it lies: itself, but for an output that a variant writes over an input.
std::vector<size_t> places_of(const Problem& problem, const Variant& variant) {
  const std::vector<HostTensor>& tensors = problem.tensors();
  std::vector<size_t> places(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) places[i] = i;
  const auto present = [&](const std::string& name) {
    return std::find_if(tensors.begin(), tensors.end(),
                        [&](const HostTensor& tensor) { return tensor.spec.name == name && tensor.present; });
  };
  for (const auto& [input, output] : variant.overwritten()) {
    const auto from = present(input);
    const auto to = present(output);
    if (from != tensors.end() && to != tensors.end()) {
      places[static_cast<size_t>(to - tensors.begin())] = static_cast<size_t>(from - tensors.begin());
    }
  }
  return places;
}

Task task_of(const Problem& problem, const Variant& variant, int64_t misalign) {
  Task task{variant.name(), problem.options(), {}};
  task.options.seed = 0;
  task.options.input = Input::normal;
  const std::vector<size_t> places = places_of(problem, variant);
  for (size_t i = 0; i < places.size(); ++i) {
    const HostTensor& tensor = problem.tensors()[i];
    MemoryImage image{.name = std::string(tensor.spec.name), .dtype = tensor.dtype};
    if (tensor.present && places[i] == i) {
      image = image_of(tensor.spec.name, tensor.dtype, tensor.count(), misalign);
      std::copy(tensor.bytes.begin(), tensor.bytes.end(), image.bytes.begin() + image.start);
      const std::vector<std::string>& only = variant.comparison().only;
      image.is_output = tensor.spec.role == Role::output &&
                        (only.empty() || std::find(only.begin(), only.end(), tensor.spec.name) != only.end());
    } else if (tensor.present) {
      image.lies_in = static_cast<int64_t>(places[i]);
    }
    image.stride = tensor.stride;
    image.rows = tensor.rows;
    image.cols = tensor.cols;
    task.images.push_back(std::move(image));
  }
  if (const int64_t room = workspace_of(problem.options()); room > 0) {
    task.images.push_back(image_of("workspace", Dtype::fp32, room, 0));
  }
  return task;
}

// One sentence for each guard zone that was written to and for each input that was changed.
std::vector<std::string> damage_of(const Problem& problem, const Task& task, const Outcome& outcome) {
  std::vector<std::string> sentences;
  for (size_t i = 0; i < task.images.size(); ++i) {
    const MemoryImage& image = task.images[i];
    const std::vector<std::byte>& now = outcome.images[i];
    const auto size = static_cast<int64_t>(size_of(image.dtype));
    const auto changed = [&](int64_t begin, int64_t end) {  // the first element that is not as it was, or -1
      for (int64_t at = begin; at < end; at += size) {
        if (std::memcmp(&now[at], &image.bytes[at], static_cast<size_t>(size)) != 0) return at;
      }
      return int64_t{-1};
    };
    if (now.empty()) continue;
    if (changed(0, image.start) >= 0 || changed(image.end, static_cast<int64_t>(now.size())) >= 0) {
      sentences.push_back(fmt::format("{} was written outside its bounds", image.name));
    }
    const bool shared = std::any_of(task.images.begin(), task.images.end(),
                                    [&](const MemoryImage& other) { return other.lies_in == static_cast<int64_t>(i); });
    const bool is_input = i < problem.tensors().size() && problem.tensors()[i].spec.role == Role::input;
    if (!is_input || shared) continue;
    if (const int64_t at = changed(image.start, image.end); at >= 0) {
      const int64_t element = (at - image.start) / size;
      sentences.push_back(fmt::format("the input {} was changed, first at row {}, column {}", image.name,
                                      element / image.stride, element % image.stride));
    }
  }
  return sentences;
}

std::vector<HostTensor> results_of(const Problem& problem, const Task& task, const Outcome& outcome) {
  std::vector<HostTensor> results;
  for (size_t i = 0; i < problem.tensors().size(); ++i) {
    const HostTensor& tensor = problem.tensors()[i];
    HostTensor& result = results.emplace_back();
    result.spec = tensor.spec;
    result.dtype = tensor.dtype;
    result.rows = tensor.rows;
    result.cols = tensor.cols;
    result.stride = tensor.stride;
    result.present = tensor.present;
    if (!tensor.present || tensor.spec.role == Role::input) continue;
    const size_t place = task.images[i].lies_in >= 0 ? static_cast<size_t>(task.images[i].lies_in) : i;
    const std::vector<std::byte>& bytes = outcome.images[place];
    result.bytes.assign(bytes.begin() + task.images[place].start, bytes.begin() + task.images[place].end);
  }
  return results;
}

Check check_of(const Problem& problem, const Variant& variant, const Task& task, int64_t misalign,
               const std::optional<Outcome>& outcome) {
  Check check;
  check.variant = variant.name();
  check.options = problem.options();
  check.misalign = misalign;
  if (!outcome) {
    check.error = "the program ended before it came to this";
  } else if (!outcome->error.empty()) {
    check.error = outcome->error;
  } else {
    check.damage = damage_of(problem, task, *outcome);
    check.comparison = problem.compare(results_of(problem, task, *outcome), variant.comparison());
  }
  judge(check, variant);
  return check;
}

int run_judge(const Program& program, int argc, char** argv) {
  const std::string_view verb = argc > 2 ? argv[1] : "";
  if (verb != "prepare" && verb != "judge") throw RequestError("the first word must be prepare or judge");
  const std::string path = argv[2];
  argv[2] = argv[0];
  const Request request = parse_flags(program, argc - 2, argv + 2);

  // Every problem once more in the same order, with what is run on it.
  struct Planned {
    Problem problem;
    std::vector<const Variant*> variants;
  };
  std::vector<Planned> planned;
  std::vector<Task> tasks;
  for (const Case& each : plan(program, request)) {
    for (const Input input : request.inputs) {
      ProblemOptions options = each.options;
      options.input = input;
      Planned& added = planned.emplace_back(Planned{Problem(options), {}});
      for (const Runner& runner : each.runners) {
        if (!runner.left_out.empty()) continue;
        added.variants.push_back(runner.variant);
        tasks.push_back(task_of(added.problem, *runner.variant, request.misalign));
      }
    }
  }
  if (verb == "prepare") {
    write_tasks(path, tasks);
    return 0;
  }

  const std::vector<Outcome> outcomes = read_outcomes(path, tasks);
  std::vector<Check> checks;
  for (const Planned& each : planned) {
    for (const Variant* variant : each.variants) {
      const size_t number = checks.size();
      const auto outcome = number < outcomes.size() ? std::optional(outcomes[number]) : std::nullopt;
      checks.push_back(check_of(each.problem, *variant, tasks[number], request.misalign, outcome));
    }
  }
  const WholeFile file(request.json);
  const Json document =
      document_of(JsonCollector().document(), {{"stage", program.stage()}}, program.stage(), checks, {}, {});
  file.write(text_of(document));
  const bool all_accepted =
      std::all_of(checks.begin(), checks.end(), [](const Check& check) { return is_accepted(check.verdict); });
  return all_accepted ? 0 : 1;
}

}  // namespace

int Program::run(int argc, char** argv) {
  try {
    return run_judge(*this, argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", stage_, error.what());
    return 2;
  }
}

}  // namespace worklog
