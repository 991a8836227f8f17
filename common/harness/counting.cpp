#include "common/harness/counting.h"

#include <fmt/format.h>
#include <simt/counts.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "common/harness/provenance.h"

namespace worklog {
namespace {

using simt::Counts;
using simt::KernelCounts;
using simt::Operation;

// 12345678 as 12,345,678.
std::string grouped(uint64_t number) {
  if (number < 1000) return fmt::format("{}", number);
  return fmt::format("{},{:03}", grouped(number / 1000), number % 1000);
}

std::string ratio(uint64_t a, uint64_t b, int digits = 1) {
  return b == 0 ? "-" : fmt::format("{:.{}f}", static_cast<double>(a) / static_cast<double>(b), digits);
}

std::string in_words(Operation operation) {
  switch (operation) {
    case Operation::global_load:
      return "global loads";
    case Operation::global_store:
      return "global stores";
    case Operation::global_atomic:
      return "global atomics";
    case Operation::async_copy_load:
      return "asynchronous copies, from global";
    case Operation::shared_load:
      return "shared loads";
    case Operation::shared_store:
      return "shared stores";
    case Operation::shared_atomic:
      return "shared atomics";
    case Operation::async_copy_store:
      return "asynchronous copies, to shared";
    case Operation::remote_shared:
      return "shared, of another block";
    case Operation::shuffle:
      return "shuffles";
    case Operation::vote:
      return "votes and warp reductions";
    case Operation::warp_sync:
      return "__syncwarp";
    case Operation::barrier:
      return "barriers of a block";
    case Operation::group_barrier:
      break;
  }
  return "barriers of a cluster or grid";
}

void print_counts(const std::string& title, const simt::CountsByOperation& all, bool by_line, Table& table) {
  for (size_t i = 0; i < simt::operations; ++i) {
    const Counts& c = all[i];
    if (c.requests == 0) continue;
    const bool is_memory = c.bytes_asked > 0;
    const bool is_global = c.sectors > 0;
    const auto if_memory = [&](const std::string& text) { return is_memory ? text : ""; };
    const auto if_global = [&](const std::string& text) { return is_global ? text : ""; };
    const auto if_shared = [&](const std::string& text) { return is_memory && !is_global ? text : ""; };
    const std::string what = in_words(static_cast<Operation>(i));
    table.print_row({by_line ? fmt::format("{}  {}", title, what) : what, grouped(c.requests),
                     c.lanes == 0 ? "" : ratio(c.lanes, c.requests), if_memory(grouped(c.bytes_asked)),
                     if_global(grouped(c.sectors)), if_global(ratio(c.sectors, c.requests)),
                     if_global(ratio(100 * c.bytes_used, 32 * c.sectors, 0) + " %"), if_shared(grouped(c.wavefronts)),
                     if_shared(ratio(c.wavefronts, c.requests)), if_shared(grouped(c.conflicts))});
  }
}

Table counts_table(const KernelCounts& kernel, bool by_line) {
  size_t widest = by_line ? 0 : 16;
  for (const simt::LineCounts& line : kernel.lines) {
    if (by_line) widest = std::max(widest, fmt::format("{}:{}", line.file, line.line).size() + 16);
  }
  return Table({{by_line ? "line" : "", widest},
                {"requests", 10, true},
                {"lanes", 0, true},
                {"bytes asked", 11, true},
                {"sectors", 10, true},
                {"per request", 0, true},
                {"used", 5, true},
                {"wavefronts", 0, true},
                {"per request", 0, true},
                {"conflicts", 0, true}});
}

std::string extent(const dim3& d) {
  if (d.y == 1 && d.z == 1) return fmt::format("{}", d.x);
  return fmt::format("({}, {}, {})", d.x, d.y, d.z);
}

void print_kernel(const KernelCounts& kernel, bool lines) {
  fmt::print("  {}, {} blocks of {} threads", kernel.kernel, extent(kernel.grid), extent(kernel.block));
  if (kernel.cluster > 1) fmt::print(", in clusters of {}", kernel.cluster);
  fmt::print("\n");
  Table table = counts_table(kernel, false);
  print_counts("", kernel.counts, false, table);
  fmt::print("    DRAM, each sector once: {} bytes read, {} written\n", grouped(kernel.dram_read_bytes),
             grouped(kernel.dram_write_bytes));
  for (const simt::MemoryCounts& memory : kernel.memory) {
    fmt::print("    {}: {} bytes", memory.name, grouped(memory.bytes));
    if (memory.bytes_read > 0) fmt::print(", read {} times", ratio(memory.bytes_read, memory.bytes, 2));
    if (memory.bytes_written > 0) fmt::print(", written {} times", ratio(memory.bytes_written, memory.bytes, 2));
    fmt::print("\n");
  }
  if (!lines) return;
  fmt::print("\n");
  Table by_line = counts_table(kernel, true);
  for (const simt::LineCounts& line : kernel.lines) {
    print_counts(line.file.empty() ? "?" : fmt::format("{}:{}", line.file, line.line), line.counts, true, by_line);
  }
}

// --- JSON ----------------------------------------------------------------------------------------------------------

std::string json_of(const simt::CountsByOperation& all, const std::string& indent) {
  std::string text;
  for (size_t i = 0; i < simt::operations; ++i) {
    const Counts& c = all[i];
    if (c.requests == 0) continue;
    text += fmt::format(
        "{}\n{}  \"{}\": {{\"requests\": {}, \"lanes\": {}, \"bytes_asked\": {}, \"bytes_used\": {}, \"sectors\": {}, "
        "\"lines\": {}, \"wavefronts\": {}, \"conflicts\": {}}}",
        text.empty() ? "" : ",", indent, name_of(static_cast<Operation>(i)), c.requests, c.lanes, c.bytes_asked,
        c.bytes_used, c.sectors, c.lines, c.wavefronts, c.conflicts);
  }
  return fmt::format("{{{}\n{}}}", text, indent);
}

std::string json_of(const dim3& d) {
  return fmt::format("[{}, {}, {}]", d.x, d.y, d.z);
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += fmt::format("{}{}", text.empty() ? "" : ",", part);
  return text;
}

}  // namespace

std::string json_of(const KernelCounts& kernel) {
  std::vector<std::string> lines, memory, findings;
  for (const simt::LineCounts& line : kernel.lines) {
    lines.push_back(fmt::format("\n          {{\"file\": {}, \"line\": {}, \"counts\": {}}}", json_string(line.file),
                                line.line, json_of(line.counts, "          ")));
  }
  for (const simt::MemoryCounts& m : kernel.memory) {
    memory.push_back(
        fmt::format("\n          {{\"name\": {}, \"bytes\": {}, \"bytes_read\": {}, \"bytes_written\": {}}}",
                    json_string(m.name), m.bytes, m.bytes_read, m.bytes_written));
  }
  for (const simt::Finding& f : kernel.findings) {
    findings.push_back(fmt::format(
        "\n          {{\"kind\": \"{}\", \"count\": {}, \"text\": {}, \"file\": {}, \"line\": {}, \"other_file\": {}, "
        "\"other_line\": {}}}",
        name_of(f.kind), f.count, json_string(f.text), json_string(f.file), f.line, json_string(f.other_file),
        f.other_line));
  }
  return fmt::format(
      "\n        {{\n          \"kernel\": {},\n          \"grid\": {},\n          \"block\": {},\n"
      "          \"cluster\": {},\n          \"dynamic_shared_bytes\": {},\n          \"dram_read_bytes\": {},\n"
      "          \"dram_write_bytes\": {},\n          \"counts\": {},\n          \"memory\": [{}],\n"
      "          \"findings\": [{}],\n          \"lines\": [{}]\n        }}",
      json_string(kernel.kernel), json_of(kernel.grid), json_of(kernel.block), kernel.cluster, kernel.shared_bytes,
      kernel.dram_read_bytes, kernel.dram_write_bytes, json_of(kernel.counts, "          "), joined(memory),
      joined(findings), joined(lines));
}

namespace {

struct Counted {
  Check check;
  int64_t bytes = 0;  // that the operation must move
  std::vector<KernelCounts> kernels;
};

std::string json_of(const Counted& counted, const std::string& stage) {
  const ProblemOptions& o = counted.check.options;
  std::vector<std::string> kernels;
  for (const KernelCounts& kernel : counted.kernels) kernels.push_back(worklog::json_of(kernel));
  return fmt::format(
      "\n    {{\n      \"name\": {},\n      \"stage\": {},\n      \"variant\": {},\n      \"operation\": \"{}\",\n"
      "      \"dtype\": \"{}\",\n      \"rows\": {},\n      \"cols\": {},\n      \"pixels\": {},\n      \"bytes\": "
      "{},\n"
      "      \"verdict\": \"{}\",\n      \"error\": {},\n      \"kernels\": [{}]\n    }}",
      json_string(fmt::format("{}/{}/{}/{}/{}", stage, counted.check.variant, name_of(o.operation), name_of(o.dtype),
                              shape_name(o))),
      json_string(stage), json_string(counted.check.variant), name_of(o.operation), name_of(o.dtype), o.rows, o.cols,
      o.pixels, counted.bytes, name_of(counted.check.verdict), json_string(counted.check.error), joined(kernels));
}

// Values do not change what is counted; normal ones are the least special.
Input input_of(const Request& request) {
  const bool has_normal =
      std::find(request.inputs.begin(), request.inputs.end(), Input::normal) != request.inputs.end();
  return has_normal ? Input::normal : request.inputs.front();
}

Counted count_one(const Problem& problem, const Runner& runner, Workspace& workspace, int64_t misalign) {
  simt::start_counting();
  Counted counted;
  counted.check = run_check(problem, *runner.variant, *runner.implementation, workspace, misalign, nullptr);
  counted.bytes = problem.bytes_read() + problem.bytes_written();
  counted.kernels = simt::take_counts();
  return counted;
}

// The results are compared with what the memory holds, and the counts come from what the compiler told of. Where a
// right result was written in a way that the compiler did not tell of, the counts are too low: a sentence that says so.
std::string untold_writes(const Problem& problem, const Workspace& workspace) {
  for (size_t i = 0; i < problem.tensors().size(); ++i) {
    const HostTensor& tensor = problem.tensors()[i];
    if (!tensor.present || tensor.spec.role != Role::output) continue;
    const char* const data = static_cast<const char*>(workspace.arguments().tensors[i].data);
    const int64_t size = static_cast<int64_t>(size_of(tensor.dtype));
    for (int64_t row = 0; row < tensor.rows; ++row) {
      const size_t bytes = static_cast<size_t>(tensor.cols * size);
      if (const size_t missing = simt::bytes_not_written(data + row * tensor.stride * size, bytes)) {
        return fmt::format("the counter was not told of {} of the {} bytes that were written to row {} of {}", missing,
                           bytes, row, tensor.spec.name);
      }
    }
  }
  return "";
}

}  // namespace

void become_counting_program(char** argv) {
  if (simt::can_count()) return;
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path program = self.parent_path() / "counting" / self.filename();
  if (error || !std::filesystem::exists(program)) {
    throw RequestError(
        fmt::format("--count and --trace need the counting build of this program, and '{}' is not there "
                    "(it needs g++, and a build without sanitizers)",
                    program.string()));
  }
  execv(program.c_str(), argv);
  throw RequestError(fmt::format("'{}' could not be started: {}", program.string(), std::strerror(errno)));
}

int count_all(const Program& program, const Request& request, const std::vector<Case>& cases,
              const std::optional<WholeFile>& json_file) {
  std::vector<Counted> all;
  size_t findings = 0;
  bool is_wrong = false;
  bool is_lost = false;  // a kernel left an error that nothing can follow
  for (const Case& each : cases) {
    if (is_lost) break;
    ProblemOptions options = each.options;
    options.input = input_of(request);
    const Problem problem(options);
    Workspace workspace(problem, request.misalign);
    for (const Runner& runner : each.runners) {
      if (!runner.left_out.empty() || is_lost) continue;
      const Counted& counted = all.emplace_back(count_one(problem, runner, workspace, request.misalign));
      fmt::print("{}, {}, {}, {}\n", runner.variant->name(), name_of(options.operation), name_of(options.dtype),
                 shape_of(options));
      for (const KernelCounts& kernel : counted.kernels) {
        print_kernel(kernel, request.lines);
        for (const simt::Finding& finding : kernel.findings) {
          ++findings;
          fmt::print("    FOUND: {}{}\n", finding.text,
                     finding.count > 1 ? fmt::format(" ({} times)", grouped(finding.count)) : "");
        }
      }
      if (!is_accepted(counted.check.verdict)) {
        is_wrong = true;
        fmt::print("{}\n", counted.check.explain());
      } else if (const std::string untold = untold_writes(problem, workspace); !untold.empty()) {
        is_wrong = true;
        fmt::print("    NOT COUNTED: {}\n", untold);
      }
      fmt::print("\n");
      std::fflush(stdout);
      is_lost = device_is_lost();
    }
  }
  if (is_lost) fmt::print("A kernel failed, and nothing can be counted after it.\n");
  fmt::print("{} runs counted; {}\n", all.size(),
             findings == 0 ? "nothing was found to be wrong" : fmt::format("{} findings", findings));
  if (json_file) {
    std::vector<std::string> counts;
    for (const Counted& counted : all) counts.push_back(json_of(counted, program.stage()));
    const Provenance from = provenance();
    json_file->write(fmt::format(
        "{{\n  \"context\": {{\n    \"stage\": {},\n    \"commit\": {},\n    \"source_hash\": {}\n  }},\n"
        "  \"counts\": [{}\n  ]\n}}\n",
        json_string(program.stage()), json_string(from.commit), json_string(from.source_hash), joined(counts)));
  }
  return findings > 0 || is_wrong ? 1 : 0;
}

int trace_one(const Program& program, const Request& request, const std::vector<Case>& cases) {
  const Case& each = cases.front();
  const auto runner = std::find_if(each.runners.begin(), each.runners.end(),
                                   [](const Runner& candidate) { return candidate.left_out.empty(); });
  if (runner == each.runners.end()) throw RequestError("no variant that was asked for can do this shape");
  ProblemOptions options = each.options;
  options.input = input_of(request);
  if (request.row < 0 || request.row >= options.rows) {
    throw RequestError(fmt::format("--row takes a row from 0 to {}; it was given {}", options.rows - 1, request.row));
  }
  const WholeFile file(request.trace);
  const Problem problem(options);
  Workspace workspace(problem, request.misalign);

  // The row of the first matrix that is read, which all operations have.
  size_t matrix = 0;
  while (problem.tensors()[matrix].spec.extent != Extent::matrix ||
         problem.tensors()[matrix].spec.role == Role::output) {
    ++matrix;
  }
  const HostTensor& tensor = problem.tensors()[matrix];
  const size_t element = size_of(tensor.dtype);
  const char* const data = static_cast<const char*>(workspace.arguments().tensors[matrix].data);
  simt::watch_memory(data + static_cast<size_t>(request.row * tensor.stride) * element,
                     static_cast<size_t>(tensor.cols) * element);
  count_one(problem, *runner, workspace, request.misalign);
  if (!simt::trace_found_block()) throw std::runtime_error("no block reads that row");
  run_check(problem, *runner->variant, *runner->implementation, workspace, request.misalign, nullptr);
  const simt::Trace trace = simt::take_trace();

  std::vector<std::string> steps, tensors;
  for (const simt::TraceStep& step : trace.steps) {
    std::string offsets;
    for (unsigned lane = 0; lane < 32; ++lane) {
      const bool active = (step.lanes & 1u << lane) != 0;
      offsets += fmt::format("{}{}", lane == 0 ? "" : ",", active ? step.offset[lane] : 0);
    }
    steps.push_back(
        fmt::format("\n    {{\"operation\": \"{}\", \"warp\": {}, \"file\": {}, \"line\": {}, \"lanes\": {}, "
                    "\"bytes\": {}, \"memory\": {}, \"offset\": [{}]}}",
                    name_of(step.operation), step.warp, json_string(step.file), step.line, step.lanes, step.bytes,
                    json_string(step.memory), offsets));
  }
  for (const HostTensor& each_tensor : problem.tensors()) {
    if (!each_tensor.present) continue;
    tensors.push_back(fmt::format("\n    {{\"name\": {}, \"element_bytes\": {}, \"cols\": {}, \"stride\": {}}}",
                                  json_string(each_tensor.spec.name), size_of(each_tensor.dtype), each_tensor.cols,
                                  each_tensor.stride));
  }
  file.write(fmt::format(
      "{{\n  \"stage\": {},\n  \"variant\": {},\n  \"operation\": \"{}\",\n  \"dtype\": \"{}\",\n  \"rows\": {},\n"
      "  \"cols\": {},\n  \"row\": {},\n  \"kernel\": {},\n  \"grid\": {},\n  \"block\": {},\n"
      "  \"traced_block\": [{}, {}, {}],\n  \"tensors\": [{}\n  ],\n  \"steps\": [{}\n  ]\n}}\n",
      json_string(program.stage()), json_string(runner->variant->name()), name_of(options.operation),
      name_of(options.dtype), options.rows, options.cols, request.row, json_string(trace.kernel), json_of(trace.grid),
      json_of(trace.block), trace.traced_block.x, trace.traced_block.y, trace.traced_block.z, joined(tensors),
      joined(steps)));
  fmt::print("{} steps of block ({}, {}, {}) of {} written to {}\n", trace.steps.size(), trace.traced_block.x,
             trace.traced_block.y, trace.traced_block.z, trace.kernel, request.trace);
  return 0;
}

}  // namespace worklog
