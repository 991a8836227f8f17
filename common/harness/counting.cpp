#include "common/harness/counting.h"

#include <fmt/format.h>
#include <simt/counts.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

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

std::string in_brackets(const dim3& d) {
  if (d.y == 1 && d.z == 1) return fmt::format("{}", d.x);
  return fmt::format("({}, {}, {})", d.x, d.y, d.z);
}

void print_kernel(const KernelCounts& kernel, bool lines) {
  fmt::print("  {}, {} blocks of {} threads", kernel.kernel, in_brackets(kernel.grid), in_brackets(kernel.block));
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

Json json_of(const simt::CountsByOperation& all) {
  Json counts = Json::object();
  for (size_t i = 0; i < simt::operations; ++i) {
    const Counts& c = all[i];
    if (c.requests == 0) continue;
    counts[std::string(name_of(static_cast<Operation>(i)))] = {
        {"requests", c.requests}, {"lanes", c.lanes}, {"bytes_asked", c.bytes_asked}, {"bytes_used", c.bytes_used},
        {"sectors", c.sectors},   {"lines", c.lines}, {"wavefronts", c.wavefronts},   {"conflicts", c.conflicts}};
  }
  return counts;
}

Json json_of(const dim3& d) {
  return {d.x, d.y, d.z};
}

}  // namespace

Json json_of(const KernelCounts& kernel) {
  Json memory = Json::array(), findings = Json::array(), lines = Json::array();
  for (const simt::MemoryCounts& m : kernel.memory) {
    memory.push_back(
        {{"name", m.name}, {"bytes", m.bytes}, {"bytes_read", m.bytes_read}, {"bytes_written", m.bytes_written}});
  }
  for (const simt::Finding& f : kernel.findings) {
    findings.push_back({{"kind", name_of(f.kind)},
                        {"count", f.count},
                        {"text", f.text},
                        {"file", f.file},
                        {"line", f.line},
                        {"other_file", f.other_file},
                        {"other_line", f.other_line}});
  }
  for (const simt::LineCounts& line : kernel.lines) {
    lines.push_back({{"file", line.file}, {"line", line.line}, {"counts", json_of(line.counts)}});
  }
  return {{"kernel", kernel.kernel},
          {"grid", json_of(kernel.grid)},
          {"block", json_of(kernel.block)},
          {"cluster", kernel.cluster},
          {"dynamic_shared_bytes", kernel.shared_bytes},
          {"dram_read_bytes", kernel.dram_read_bytes},
          {"dram_write_bytes", kernel.dram_write_bytes},
          {"most_loads_of_thread", kernel.most_loads_of_thread},
          {"counts", json_of(kernel.counts)},
          {"memory", memory},
          {"findings", findings},
          {"lines", lines}};
}

namespace {

struct Counted {
  Check check;
  int64_t bytes = 0;  // that the operation must move
  std::vector<KernelCounts> kernels;
};

Json json_of(const Counted& counted, const std::string& stage) {
  const ProblemOptions& o = counted.check.options;
  Json kernels = Json::array();
  for (const KernelCounts& kernel : counted.kernels) kernels.push_back(worklog::json_of(kernel));
  return {{"name", case_name(stage, counted.check.variant, o)},
          {"stage", stage},
          {"variant", counted.check.variant},
          {"operation", operation_name(o)},
          {"dtype", name_of(o.dtype)},
          {"rows", o.rows},
          {"cols", o.cols},
          {"pixels", o.pixels},
          {"bytes", counted.bytes},
          {"verdict", name_of(counted.check.verdict)},
          {"error", counted.check.error},
          {"kernels", kernels}};
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
      if (const size_t missing = simt::bytes_not_written(data + tensor.start_of(row) * size, bytes)) {
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
        fmt::format("--count and --trace need the counting build of this program, and '{}' is not there; "
                    "./worklog build {}_counting makes it, with g++ and without sanitizers",
                    program.string(), program.filename().string()));
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
      fmt::print("{}, {}, {}, {}\n", runner.variant->name(), operation_name(options), name_of(options.dtype),
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
    const Provenance from = provenance();
    Json document = {
        {"context", {{"stage", program.stage()}, {"commit", from.commit}, {"source_hash", from.source_hash}}},
        {"counts", Json::array()}};
    for (const Counted& counted : all) document["counts"].push_back(json_of(counted, program.stage()));
    json_file->write(text_of(document));
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

  Json steps = Json::array(), tensors = Json::array();
  for (const simt::TraceStep& step : trace.steps) {
    Json offsets = Json::array();
    for (unsigned lane = 0; lane < 32; ++lane) {
      const bool active = (step.lanes & 1u << lane) != 0;
      offsets.push_back(active ? step.offset[lane] : 0);
    }
    steps.push_back({{"operation", name_of(step.operation)},
                     {"warp", step.warp},
                     {"file", step.file},
                     {"line", step.line},
                     {"lanes", step.lanes},
                     {"bytes", step.bytes},
                     {"memory", step.memory},
                     {"offset", offsets}});
  }
  for (const HostTensor& each_tensor : problem.tensors()) {
    if (!each_tensor.present) continue;
    tensors.push_back({{"name", each_tensor.spec.name},
                       {"element_bytes", size_of(each_tensor.dtype)},
                       {"cols", each_tensor.cols},
                       {"stride", each_tensor.stride}});
  }
  file.write(text_of({{"stage", program.stage()},
                      {"variant", runner->variant->name()},
                      {"operation", operation_name(options)},
                      {"dtype", name_of(options.dtype)},
                      {"rows", options.rows},
                      {"cols", options.cols},
                      {"row", request.row},
                      {"kernel", trace.kernel},
                      {"grid", json_of(trace.grid)},
                      {"block", json_of(trace.block)},
                      {"traced_block", json_of(trace.traced_block)},
                      {"tensors", tensors},
                      {"steps", steps}}));
  fmt::print("{} steps of block ({}, {}, {}) of {} written to {}\n", trace.steps.size(), trace.traced_block.x,
             trace.traced_block.y, trace.traced_block.z, trace.kernel, request.trace);
  return 0;
}

}  // namespace worklog
