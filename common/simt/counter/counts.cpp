// Puts together what the recorders found, launch by launch.
#include "simt/counts.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <unordered_map>

#include "../src/block.h"
#include "../src/variables.h"
#include "recorder.h"

namespace simt {

using namespace detail;

namespace {

// All that is not a single recorder's. Changes between launches, but for what `mutex` guards.
struct Process {
  std::mutex mutex;
  std::deque<Place> places;
  std::unordered_map<uint64_t, std::vector<uint16_t>> numbers_of_places;
  std::deque<BlockRun> runs;  // of this launch
  uint64_t time = 0;          // counts atomic operations on global memory
  std::unordered_map<uintptr_t, uint64_t> released;

  std::vector<NamedMemory> named;
  Watch watch;
  uint32_t launch = 0;
  uint32_t first_run = 1;
  std::vector<KernelCounts> launches;
  Trace trace;
};

Process& process() {
  static Process& instance = *new Process();
  return instance;
}

uint3 index_in(uint64_t number, const dim3& extent) {
  return {static_cast<unsigned>(number % extent.x), static_cast<unsigned>(number / extent.x % extent.y),
          static_cast<unsigned>(number / extent.x / extent.y)};
}

SourceLine line_of(uint16_t number) {
  const Place place = place_of_number(number);
  SourceLine line;
  if (place.code != 0) line = source_line(place.code - 1);
  if (place.site.file != nullptr) line = {place.site.file, place.site.line};
  const std::string root = SIMT_SOURCE_ROOT;
  if (line.file.starts_with(root)) line.file.erase(0, root.size());
  return line;
}

// Each place once: finding a line is slow.
class Lines {
 public:
  const SourceLine& operator[](uint16_t place) {
    const auto [entry, is_new] = lines_.try_emplace(place);
    if (is_new) entry->second = line_of(place);
    return entry->second;
  }

 private:
  std::map<uint16_t, SourceLine> lines_;
};

std::string text_of(const SourceLine& line) {
  return line.file.empty() ? "a line that is not known" : fmt::format("{}:{}", line.file, line.line);
}

// The named range that an address is in or near, as the end of a phrase.
std::string describe(uintptr_t address) {
  const NamedMemory* nearest = nullptr;
  uintptr_t distance = 4096;
  for (const NamedMemory& memory : process().named) {
    const uintptr_t end = memory.begin + memory.bytes;
    if (address >= memory.begin && address < end)
      return fmt::format("{}[byte {}]", memory.name, address - memory.begin);
    const uintptr_t gap = address < memory.begin ? memory.begin - address : address - end;
    if (gap < distance) distance = gap, nearest = &memory;
  }
  if (nearest == nullptr) return describe_address(address);
  if (address < nearest->begin) return fmt::format("{} bytes before {}", nearest->begin - address, nearest->name);
  return fmt::format("{} bytes past the end of {}", address - nearest->begin - nearest->bytes, nearest->name);
}

// Where an access to shared memory went that is in no variable, as the end of a sentence.
std::string describe_shared(uintptr_t offset, const Launch& launch) {
  const SharedVariables& variables = SharedVariables::instance();
  const uint16_t number = variables.before(offset);
  if (number == SharedVariables::none) return "of shared memory before every variable";
  const SharedVariables::Variable& variable = variables[number];
  const bool is_dynamic = number == variables.dynamic();
  const size_t bytes = is_dynamic ? launch.shared_bytes : variable.bytes;
  return fmt::format("at byte {} of {}, which has {}", offset - variable.offset,
                     is_dynamic ? "the dynamic shared memory" : fmt::format("'{}' in shared memory", variable.name),
                     bytes);
}

Finding finding_of(const Recorder::Found& found, const Launch& launch, Lines& lines) {
  const SourceLine& at = lines[found.place];
  const SourceLine& other = lines[found.other_place];
  const auto block = [&](uint64_t number) { return to_text(index_in(number, launch.grid)); };
  const auto thread = [&](unsigned number) { return to_text(index_in(number, launch.block)); };
  const char* const does = found.is_write ? "writes" : "reads";
  std::string what;
  switch (found.kind) {
    case FindingKind::shared_race:
      what = fmt::format("{} shared memory that thread {}{} {} at {}, and no barrier orders the two", does,
                         thread(found.other_thread),
                         found.other_block == found.block ? "" : fmt::format(" of block {}", block(found.other_block)),
                         found.other_is_write ? "writes" : "reads", text_of(other));
      break;
    case FindingKind::global_write_race:
      what = fmt::format(
          "writes {}, which thread {} of block {} writes too, at {}; neither is atomic, and nothing "
          "orders the two",
          describe(found.address), thread(found.other_thread), block(found.other_block), text_of(other));
      break;
    case FindingKind::global_race:
      what =
          fmt::format("{} {}, which thread {} {} at {}, and no barrier orders the two", does, describe(found.address),
                      thread(found.other_thread), found.other_is_write ? "writes" : "reads", text_of(other));
      break;
    case FindingKind::uninitialized_read:
      what = fmt::format("reads {} bytes of {} that nobody has written", found.bytes,
                         found.is_shared ? "shared memory" : describe(found.address));
      break;
    case FindingKind::out_of_bounds:
      what = fmt::format("{} {} bytes {}", does, found.bytes,
                         found.is_shared ? describe_shared(found.address, launch) : describe(found.address));
      break;
    case FindingKind::misaligned:
      what = fmt::format("{} {} bytes at an address that is no multiple of {}: {}", does, found.bytes, found.bytes,
                         found.is_shared ? "shared memory" : describe(found.address));
      break;
  }
  return {found.kind,
          fmt::format("kernel {}, block {}, thread {}, {}: {}", function_name(launch.call.kernel), block(found.block),
                      thread(found.thread), text_of(at), what),
          at.file,
          other.file,
          at.line,
          other.line,
          found.count};
}

// A step with the addresses as offsets in what they are addresses of.
TraceStep step_of(const Recorder::Step& step, Lines& lines) {
  const SourceLine& at = lines[step.place];
  TraceStep result{step.operation, step.warp, at.file, at.line, step.lanes, step.bytes, "", step.address};
  if (step.bytes == 0) return result;
  uint64_t lowest = ~uint64_t{0};
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (step.lanes & 1u << lane) lowest = std::min(lowest, step.address[lane]);
  }
  uint64_t base = lowest / line_bytes * line_bytes;
  result.memory = "shared";
  if (Shadow::instance().covers(lowest)) {
    result.memory = "global";
    for (const NamedMemory& memory : process().named) {
      if (lowest - memory.begin < memory.bytes) result.memory = memory.name, base = memory.begin;
    }
  }
  for (uint64_t& offset : result.offset) offset -= base;
  return result;
}

}  // namespace

bool can_count() {
  return true;
}

void start_counting() {
  process().launches.clear();
  process().trace = {};
}

std::vector<KernelCounts> take_counts() {
  return std::exchange(process().launches, {});
}

Trace take_trace() {
  return std::exchange(process().trace, {});
}

void name_memory(const void* data, size_t bytes, std::string_view name) {
  std::vector<NamedMemory>& named = process().named;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data);
  std::erase_if(named, [&](const NamedMemory& m) { return m.begin < begin + bytes && begin < m.begin + m.bytes; });
  if (bytes == 0) return;
  const auto after = std::find_if(named.begin(), named.end(), [&](const NamedMemory& m) { return m.begin > begin; });
  named.insert(after, {begin, bytes, std::string(name)});
}

void forbid_memory(const void* data, size_t bytes) {
  Shadow::instance().set_state(data, bytes, ByteState::forbidden);
}

void forget_memory(const void* data, size_t bytes) {
  Shadow::instance().set_state(data, bytes, ByteState::unwritten);
}

size_t bytes_not_written(const void* data, size_t bytes) {
  size_t count = 0;
  const auto begin = reinterpret_cast<uintptr_t>(data);
  for (uintptr_t at = begin; at < begin + bytes; ++at) count += Shadow::instance().state(at) == ByteState::unwritten;
  return count;
}

namespace {
// Since watch_memory(): the block, and the kernel of the first launch that has read the range.
uint64_t found_block = ~uint64_t{0};
const void* found_kernel = nullptr;
// Since trace_found_block(): what is traced.
uint64_t traced_block = ~uint64_t{0};
const void* traced_kernel = nullptr;
}  // namespace

void watch_memory(const void* data, size_t bytes) {
  process().watch = {reinterpret_cast<uintptr_t>(data), bytes, ~uint64_t{0}};
  process().launches.clear();
  process().trace = {};
  traced_kernel = nullptr;
}

bool trace_found_block() {
  traced_block = std::exchange(found_block, ~uint64_t{0});
  traced_kernel = std::exchange(found_kernel, nullptr);
  process().watch.bytes = 0;
  return traced_kernel != nullptr;
}

namespace detail {

const std::vector<NamedMemory>& named_memory() {
  return process().named;
}
const Watch& watch() {
  return process().watch;
}
uint32_t number_of_launch() {
  return process().launch;
}

uint16_t number_of_place(const Place& place) {
  Process& p = process();
  std::lock_guard lock(p.mutex);
  const uint64_t key =
      place.code + reinterpret_cast<uintptr_t>(place.site.file) + static_cast<uint64_t>(place.site.line);
  std::vector<uint16_t>& numbers = p.numbers_of_places[key];
  for (const uint16_t number : numbers) {
    if (p.places[number] == place) return number;
  }
  if (p.places.empty()) p.places.emplace_back();  // 0: not known
  if (p.places.size() > 0xffff) return 0;
  numbers.push_back(static_cast<uint16_t>(p.places.size()));
  p.places.push_back(place);
  return numbers.back();
}

Place place_of_number(uint16_t number) {
  Process& p = process();
  std::lock_guard lock(p.mutex);
  return number < p.places.size() ? p.places[number] : Place{};
}

// --- Blocks in time ------------------------------------------------------------------------------------------------

uint32_t first_run_of_launch() {
  return process().first_run;
}

uint32_t start_block_run(const BlockRun& run) {
  Process& p = process();
  std::lock_guard lock(p.mutex);
  p.runs.push_back(run);
  return p.first_run + static_cast<uint32_t>(p.runs.size()) - 1;
}

uint64_t block_of_run(uint32_t run) {
  Process& p = process();
  std::lock_guard lock(p.mutex);
  return p.runs[run - p.first_run].block;
}

bool is_ordered(uint32_t earlier, uint32_t later, uint64_t acquired) {
  Process& p = process();
  std::lock_guard lock(p.mutex);
  const BlockRun& a = p.runs[earlier - p.first_run];
  const BlockRun& b = p.runs[later - p.first_run];
  return a.block == b.block || a.grid_phase != b.grid_phase ||
         (a.cluster == b.cluster && a.cluster_phase != b.cluster_phase) ||
         (a.first_release != 0 && a.first_release <= acquired);
}

// What is released is not told apart by block: who acquires at an address knows of all releases, anywhere, before the
// last one there. That can hide a race, in kernels that use atomics; it cannot make one up.
uint64_t release(uintptr_t address, uint32_t run) {
  Process& p = process();
  std::lock_guard lock(p.mutex);
  const uint64_t now = ++p.time;
  BlockRun& self = p.runs[run - p.first_run];
  if (self.first_release == 0) self.first_release = now;
  return std::exchange(p.released[address], now);
}

// --- Memory and launches -------------------------------------------------------------------------------------------

void* reserve_addresses(size_t bytes) {
  return Shadow::instance().reserve(bytes);
}
void observe_allocation(const void* data, size_t bytes) {
  Shadow::instance().set_state(data, bytes, ByteState::unwritten);
}
void observe_free(const void* data, size_t bytes) {
  Shadow::instance().set_state(data, bytes, ByteState::outside);
  name_memory(data, bytes, "");
  std::erase_if(process().named, [](const NamedMemory& memory) { return memory.name.empty(); });
}
void observe_host_write(const void* data, size_t bytes) {
  Shadow::instance().set_state(data, bytes, ByteState::written);
}

void observe_launch(const Launch& launch) {
  Process& p = process();
  SharedVariables::instance().start(launch.call.kernel);
  ++p.launch;
  p.watch.block = launch.call.kernel == traced_kernel ? traced_block : ~uint64_t{0};
  p.first_run += static_cast<uint32_t>(p.runs.size());
  p.runs.clear();
  p.released.clear();
  p.time = 0;
}

void observe_launch_end(const Launch& launch) {
  Process& p = process();
  KernelCounts result;
  result.kernel = function_name(launch.call.kernel);
  result.grid = launch.grid;
  result.block = launch.block;
  result.cluster = launch.cluster_blocks();
  result.shared_bytes = launch.shared_bytes;
  for (const NamedMemory& memory : p.named) result.memory.push_back({memory.name, memory.bytes, 0, 0});

  Lines lines;
  std::map<std::pair<std::string, int>, LineCounts> by_line;
  std::vector<Recorder::Found> findings;
  for_each_recorder([&](Recorder& recorder) {
    const Recorder::Results part = recorder.take_results();
    for (const Recorder::Instruction& instruction : part.instructions) {
      if (instruction.counts.requests == 0) continue;
      const SourceLine& at = lines[instruction.place];
      LineCounts& line = by_line[{at.file, at.line}];
      line.file = at.file;
      line.line = at.line;
      const auto operation = static_cast<size_t>(instruction.operation);
      line.counts[operation] += instruction.counts;
      result.counts[operation] += instruction.counts;
    }
    for (size_t i = 0; i < std::min(part.memory.size(), result.memory.size()); ++i) {
      result.memory[i].bytes_read += part.memory[i].bytes_read;
      result.memory[i].bytes_written += part.memory[i].bytes_written;
    }
    result.most_loads_of_thread = std::max(result.most_loads_of_thread, part.most_loads_of_thread);
    result.dram_read_bytes += part.dram_read_sectors * sector_bytes;
    result.dram_write_bytes += part.dram_write_sectors * sector_bytes;
    for (const Recorder::Found& found : part.findings) {
      const auto known = std::find_if(findings.begin(), findings.end(), [&](const Recorder::Found& other) {
        return other.kind == found.kind && other.place == found.place && other.other_place == found.other_place;
      });
      if (known == findings.end()) {
        findings.push_back(found);
        continue;
      }
      // The first block and thread stand for all, so that the text does not depend on who was faster.
      const uint64_t count = known->count + found.count;
      if (std::pair(found.block, found.thread) < std::pair(known->block, known->thread)) *known = found;
      known->count = count;
    }
    if (!part.steps.empty()) {
      p.trace = {result.kernel, result.grid, result.block, index_in(p.watch.block, launch.grid), {}};
      for (const Recorder::Step& step : part.steps) p.trace.steps.push_back(step_of(step, lines));
    }
    if (part.first_watching_block != ~uint64_t{0} && (!found_kernel || found_kernel == launch.call.kernel)) {
      found_kernel = launch.call.kernel;
      found_block = std::min(found_block, part.first_watching_block);
    }
  });
  for (auto& [at, line] : by_line) result.lines.push_back(std::move(line));
  for (const Recorder::Found& found : findings) result.findings.push_back(finding_of(found, launch, lines));
  std::sort(result.findings.begin(), result.findings.end(), [](const Finding& a, const Finding& b) {
    return std::tie(a.kind, a.file, a.line, a.other_line) < std::tie(b.kind, b.file, b.line, b.other_line);
  });
  std::erase_if(result.memory, [](const MemoryCounts& m) { return m.bytes_read + m.bytes_written == 0; });
  p.launches.push_back(std::move(result));
}

}  // namespace detail

}  // namespace simt
