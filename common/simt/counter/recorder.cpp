#include "recorder.h"

#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "../src/block.h"
#include "../src/variables.h"

extern thread_local unsigned char worklog_dynamic_shared[];

namespace simt::detail {

constinit thread_local Recorder* recording = nullptr;

namespace {

constexpr unsigned banks = 32;
constexpr unsigned bank_bytes = 4;

// Calls f(lane) for each lane of a set.
template <class Function>
void for_each_lane(uint32_t lanes, Function f) {
  for (; lanes != 0; lanes &= lanes - 1) f(static_cast<unsigned>(std::countr_zero(lanes)));
}

Operation operation_of(Collective kind) {
  switch (kind) {
    case Collective::sync:
      return Operation::warp_sync;
    case Collective::shuffle:
      return Operation::shuffle;
    default:
      return Operation::vote;
  }
}

// The passes over the banks that a group of lanes needs: as many as there are different words in the fullest bank.
class BankPasses {
 public:
  void add(uint64_t word) {
    const auto bank = static_cast<unsigned>(word % banks);
    if (occupied_ & 1u << bank) {
      if (std::find(words_.begin(), words_.begin() + count_, word) != words_.begin() + count_) return;
    }
    occupied_ |= 1u << bank;
    words_[count_++] = word;
    passes_ = std::max<unsigned>(passes_, ++in_bank_[bank]);
  }
  unsigned passes() const { return passes_; }

 private:
  uint32_t occupied_ = 0;
  unsigned count_ = 0, passes_ = 0;
  std::array<uint64_t, 2 * 32 + 32> words_;
  std::array<uint8_t, banks> in_bank_{};
};

}  // namespace

// --- Blocks and barriers -------------------------------------------------------------------------------------------

namespace {
// Recorders belong to OS threads that never end.
std::mutex recorders_mutex;
std::vector<Recorder*>& recorders() {
  static std::vector<Recorder*>& all = *new std::vector<Recorder*>();
  return all;
}
}  // namespace

void for_each_recorder(const std::function<void(Recorder&)>& f) {
  std::lock_guard lock(recorders_mutex);
  for (Recorder* const recorder : recorders()) f(*recorder);
}

// The thread-local storage of the program on the calling OS thread.
Recorder::Range Recorder::thread_storage() {
  Range found{0, 0};
  dl_iterate_phdr(
      [](dl_phdr_info* module, size_t, void* result) {
        const uintptr_t wanted = reinterpret_cast<uintptr_t>(&threadIdx);
        const uintptr_t begin = reinterpret_cast<uintptr_t>(module->dlpi_tls_data);
        for (int i = 0; i < module->dlpi_phnum; ++i) {
          const auto& header = module->dlpi_phdr[i];
          if (header.p_type != PT_TLS || wanted - begin >= header.p_memsz) continue;
          *static_cast<Range*>(result) = {begin, header.p_memsz};
          return 1;
        }
        return 0;
      },
      &found);
  return found;
}

Recorder::Recorder() : table_(1024) {
  {
    std::lock_guard lock(recorders_mutex);
    recorders().push_back(this);
  }
  for (Warp& warp : warps_) {
    for (auto& row : warp.known) row.fill(0);
    warp.clock.fill(1);
  }
}

void Recorder::begin_block(const Launch& launch, const uint3& block, Cluster* cluster, unsigned rank,
                           const void* stacks, size_t stack_bytes, const unsigned& current_thread) {
  launch_ = &launch;
  launch_number_ = number_of_launch();
  current_thread_ = &current_thread;
  block_ = block.x + uint64_t{launch.grid.x} * (block.y + uint64_t{launch.grid.y} * block.z);
  warps_in_block_ = (launch.threads_per_block() + 31) / 32;
  stacks_ = reinterpret_cast<uintptr_t>(stacks);
  stack_bytes_ = stack_bytes;
  cluster_ = cluster;
  rank_ = rank;
  if (tls_ == 0) {
    const Range range = thread_storage();
    void* const cells = mmap(nullptr, range.bytes * sizeof(SharedByte), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (cells == MAP_FAILED) throw std::bad_alloc();
    shared_ = static_cast<SharedByte*>(cells);
    void* const global = mmap(nullptr, global_cells * sizeof(GlobalCell), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (global == MAP_FAILED) throw std::bad_alloc();
    global_ = static_cast<GlobalCell*>(global);
    tls_bytes_ = range.bytes;
    tls_ = range.begin;
    const auto range_of = [](auto& variable) {
      return Range{reinterpret_cast<uintptr_t>(&variable), sizeof(variable)};
    };
    engines_ = {range_of(threadIdx), range_of(blockIdx), range_of(blockDim), range_of(gridDim),
                range_of(turns_without_change)};
  }
  if (cluster != nullptr) {  // phases of a cluster begin afresh in each
    const size_t dynamic = reinterpret_cast<uintptr_t>(worklog_dynamic_shared) - tls_;
    std::fill(shared_, shared_ + dynamic + launch.shared_bytes, SharedByte{});
    std::fill(shared_ + dynamic + max_shared_bytes, shared_ + tls_bytes_, SharedByte{});
  }
  results_.memory.resize(named_memory().size());
  for (unsigned warp = 0; warp < warps_in_block_; ++warp) warps_[warp].loads.fill(0);
  cluster_phase_ = 0;
  grid_phase_ = 0;
  acquired_ = 0;
  time_ = 0;
  time_of_.fill(0);
  first_run_ = first_run_of_launch();
  start_run();
  block_run_ = run_;
  ++epoch_;
  traces_ = watch().block == block_;
  recording = this;
}

void Recorder::start_run() {
  run_ = start_block_run({block_, block_ / launch_->cluster_blocks(), cluster_phase_, grid_phase_, 0});
}

void Recorder::end_block() {
  recording = nullptr;
  meet_all();
  for (unsigned warp = 0; warp < warps_in_block_; ++warp) {
    const std::array<uint32_t, 32>& loads = warps_[warp].loads;
    const uint64_t most = *std::max_element(loads.begin(), loads.end());
    results_.most_loads_of_thread = std::max(results_.most_loads_of_thread, most);
  }
  traces_ = false;
}

void Recorder::barrier_passed(Site site) {
  meet_all();
  ++epoch_;
  const uint32_t instruction = instruction_of({0, site}, Operation::barrier, 0);
  ++instructions_[instruction].counts.requests;
  if (traces_) add_mark(instruction, 0, ~0u);
}

void Recorder::group_passed(Group group, Site site) {
  meet_all();
  ++epoch_;
  group == Group::cluster ? static_cast<void>(++cluster_phase_) : static_cast<void>(++grid_phase_);
  start_run();
  const uint32_t instruction = instruction_of({0, site}, Operation::group_barrier, 0);
  ++instructions_[instruction].counts.requests;
  if (traces_) add_mark(instruction, 0, ~0u);
}

void Recorder::collective(unsigned warp, unsigned mask, unsigned alive, Collective kind, Site site) {
  if (mask == alive) meet(warps_[warp], warp);
  if (kind == Collective::sync) join_clocks(warps_[warp], mask);
  const uint32_t instruction = instruction_of({0, site}, operation_of(kind), 0);
  Counts& counts = instructions_[instruction].counts;
  ++counts.requests;
  counts.lanes += static_cast<unsigned>(std::popcount(mask));
  if (traces_) add_mark(instruction, warp, mask);
}

// Lanes that meet in __syncwarp know afterwards what each of them knew before.
void Recorder::join_clocks(Warp& warp, unsigned mask) {
  std::array<uint32_t, 32> joined{};
  for_each_lane(mask, [&](unsigned lane) {
    for (unsigned other = 0; other < 32; ++other) joined[other] = std::max(joined[other], warp.known[lane][other]);
  });
  for_each_lane(mask, [&](unsigned lane) { joined[lane] = warp.clock[lane]; });
  for_each_lane(mask, [&](unsigned lane) {
    warp.known[lane] = joined;
    ++warp.clock[lane];
  });
}

// --- Accesses ------------------------------------------------------------------------------------------------------

void Recorder::access(uintptr_t address, unsigned bytes, bool is_write, uintptr_t code) {
  if (address - stacks_ < stack_bytes_) return;
  busy_ = true;
  touch(address, bytes, !is_write, is_write, false, {code, {nullptr, 0}}, 0);
  busy_ = false;
}

// A copy of a struct that is no vector: a GPU's compiler moves it in pieces as large as its size lets it assume.
void Recorder::access_range(uintptr_t address, size_t bytes, bool is_write, uintptr_t code) {
  if (address - stacks_ < stack_bytes_ || bytes == 0) return;
  busy_ = true;
  const size_t aligned_to = address == 0 ? 16 : address & -address;  // a null pointer: the access itself will tell
  const size_t piece = std::min({size_t{16}, bytes & -bytes, aligned_to});
  for (size_t done = 0; done < bytes; done += piece) {
    touch(address + done, static_cast<unsigned>(piece), !is_write, is_write, false, {code, {nullptr, 0}},
          static_cast<unsigned>(done / piece));
  }
  busy_ = false;
}

void Recorder::atomic_access(uintptr_t address, unsigned bytes, uintptr_t code) {
  if (address - stacks_ < stack_bytes_) return;
  busy_ = true;
  touch(address, bytes, true, true, true, {code, {nullptr, 0}}, 0);
  busy_ = false;
  fence();
}

void Recorder::volatile_access(uintptr_t address, unsigned bytes, bool is_write, uintptr_t code) {
  is_volatile_ = true;
  access(address, bytes, is_write, code);
  is_volatile_ = false;
  fence();
}

void Recorder::fence() {
  time_of_[thread()] = ++time_;
}

void Recorder::copy_issued(const void* to, const void* from, size_t bytes, size_t zero_bytes, const void* code) {
  const Place place{reinterpret_cast<uintptr_t>(code), {nullptr, 0}};
  const auto source = reinterpret_cast<uintptr_t>(from);
  const auto target = reinterpret_cast<uintptr_t>(to);
  const auto read = static_cast<unsigned>(bytes - zero_bytes);
  if (read > 0 && Shadow::instance().covers(source)) {
    const uint32_t instruction = instruction_of(place, Operation::async_copy_load, 0);
    check_global(source, read, true, false, false, instruction);
    record(instruction, source, read);
  }
  const uint32_t instruction = instruction_of(place, Operation::async_copy_store, 0);
  if (target - tls_ < tls_bytes_) stays_in_a_variable(*this, target, static_cast<unsigned>(bytes), true, instruction);
  record(instruction, target, static_cast<unsigned>(bytes));
}

void Recorder::copy_arrived(const void* to, size_t bytes) {
  const auto target = reinterpret_cast<uintptr_t>(to);
  if (target - tls_ >= tls_bytes_ || !is_in_a_variable(target - tls_, static_cast<unsigned>(bytes))) return;
  // Where it was issued is not kept; what reads it too early is told that nobody has written it.
  const uint32_t instruction = instruction_of({}, Operation::async_copy_store, 1);
  check_shared(*this, target, static_cast<unsigned>(bytes), false, true, false, instruction);
}

Recorder::Space Recorder::space_of(uintptr_t address, Recorder** owner) {
  if (Shadow::instance().covers(address)) return Space::global;
  if (address - tls_ < tls_bytes_) {
    for (const Range& own : engines_) {
      if (address - own.begin < own.bytes) return Space::local;
    }
    *owner = this;
    return Space::shared;
  }
  if (cluster_ == nullptr) return Space::local;
  for (BlockRunner* const block : cluster_->blocks) {
    Recorder& other = block->observer();
    if (address - other.tls_ >= other.tls_bytes_) continue;
    *owner = &other;
    return Space::remote;
  }
  return Space::local;
}

void Recorder::touch(uintptr_t address, unsigned bytes, bool reads, bool writes, bool atomic, const Place& place,
                     unsigned piece) {
  Recorder* owner = nullptr;
  const Space space = space_of(address, &owner);
  const auto of = [&](Operation load, Operation store, Operation exchange) {
    return atomic ? exchange : writes ? store : load;
  };
  switch (space) {
    case Space::local:
      if (is_misplaced(address, writes)) {
        const Operation operation = of(Operation::shared_load, Operation::shared_store, Operation::shared_atomic);
        tell_of_bounds(address - tls_, bytes, writes, instruction_of(place, operation, piece));
      }
      return;
    case Space::global: {
      const Operation operation = of(Operation::global_load, Operation::global_store, Operation::global_atomic);
      const uint32_t instruction = instruction_of(place, operation, piece);
      check_global(address, bytes, reads, writes, atomic, instruction);
      return record(instruction, address, bytes);
    }
    case Space::shared: {
      const Operation operation = of(Operation::shared_load, Operation::shared_store, Operation::shared_atomic);
      const uint32_t instruction = instruction_of(place, operation, piece);
      if (stays_in_a_variable(*owner, address, bytes, writes, instruction)) {
        check_shared(*owner, address, bytes, reads, writes, atomic, instruction);
      }
      return record(instruction, address, bytes);
    }
    case Space::remote: {
      const uint32_t instruction = instruction_of(place, Operation::remote_shared, piece);
      if (stays_in_a_variable(*owner, address, bytes, writes, instruction)) {
        check_shared(*owner, address, bytes, reads, writes, atomic, instruction);
      }
      return record(instruction, address, bytes);
    }
  }
}

uint32_t Recorder::instruction_of(const Place& place, Operation operation, unsigned piece) {
  const Key key{place.code != 0 ? place.code : reinterpret_cast<uintptr_t>(place.site.file),
                static_cast<uint32_t>(place.site.line) << 12 | piece << 4 | static_cast<uint32_t>(operation)};
  const size_t mask = table_.size() - 1;
  for (size_t i = (key.where * 0x9e3779b97f4a7c15u + key.what * 0x85ebca6bu) >> 40;; ++i) {
    Entry& entry = table_[i & mask];
    if (entry.used && entry.key == key) return entry.instruction;
    if (entry.used) continue;
    if (instructions_.size() * 2 > table_.size()) {
      grow_table();
      return instruction_of(place, operation, piece);
    }
    entry = {key, static_cast<uint32_t>(instructions_.size()), true};
    instructions_.push_back({number_of_place(place), operation, {}, ~size_t{0}});
    return entry.instruction;
  }
}

void Recorder::grow_table() {
  std::vector<Entry> old(table_.size() * 4);
  old.swap(table_);
  for (const Entry& entry : old) {
    if (!entry.used) continue;
    size_t i = (entry.key.where * 0x9e3779b97f4a7c15u + entry.key.what * 0x85ebca6bu) >> 40;
    while (table_[i & (table_.size() - 1)].used) ++i;
    table_[i & (table_.size() - 1)] = entry;
  }
}

// Puts an access of the running thread into the request that it belongs to.
void Recorder::record(uint32_t instruction, uintptr_t address, unsigned bytes) {
  Warp& warp = warps_[thread() / 32];
  const unsigned lane = thread() % 32;
  if (warp.pending.size() <= instruction) warp.pending.resize(instructions_.size());
  Pending& pending = warp.pending[instruction];
  if (pending.meeting != warp.meeting) {
    pending.meeting = warp.meeting;
    pending.used = 0;
    pending.by_lane.fill(0);
    warp.touched.push_back(instruction);
  }
  const uint32_t number = pending.by_lane[lane]++;
  if (number == pending.used) {
    if (pending.requests.size() <= number) pending.requests.resize(number + 1);
    Request& fresh = pending.requests[pending.used++];
    fresh.lanes = fresh.order = 0;
    fresh.bytes = bytes;
  }
  Request& request = pending.requests[number];
  request.lanes |= 1u << lane;
  request.address[lane] = address;
  if (traces_) request.order = std::max(request.order, warp.accesses[lane]++);
}

// --- Counting ------------------------------------------------------------------------------------------------------

// All lanes are at one place: what they asked for since the last time is complete.
void Recorder::meet(Warp& warp, unsigned number) {
  if (warp.touched.empty()) return;
  struct Ordered {
    uint32_t order, instruction;
    const Request* request;
  };
  std::vector<Ordered> traced;
  for (const uint32_t instruction : warp.touched) {
    Pending& pending = warp.pending[instruction];
    const Operation operation = instructions_[instruction].operation;
    if (operation == Operation::global_load || operation == Operation::async_copy_load) {
      for (unsigned lane = 0; lane < 32; ++lane) warp.loads[lane] += pending.by_lane[lane];
    }
    for (uint32_t i = 0; i < pending.used; ++i) {
      count(instructions_[instruction], pending.requests[i]);
      if (traces_) traced.push_back({pending.requests[i].order, instruction, &pending.requests[i]});
    }
  }
  if (traces_) {
    std::stable_sort(traced.begin(), traced.end(), [](const auto& a, const auto& b) { return a.order < b.order; });
    for (const auto& [order, instruction, request] : traced) add_step(instructions_[instruction], number, *request);
    warp.accesses.fill(0);
  }
  warp.touched.clear();
  ++warp.meeting;
}

void Recorder::meet_all() {
  for (unsigned warp = 0; warp < warps_in_block_; ++warp) meet(warps_[warp], warp);
}

void Recorder::count(Instruction& instruction, const Request& request) {
  Counts& counts = instruction.counts;
  const auto lanes = static_cast<unsigned>(std::popcount(request.lanes));
  ++counts.requests;
  counts.lanes += lanes;
  counts.bytes_asked += uint64_t{lanes} * request.bytes;
  switch (instruction.operation) {
    case Operation::global_load:
    case Operation::async_copy_load:
      count_global(instruction, request);
      return count_memory(instruction, request, true, false);
    case Operation::global_store:
      count_global(instruction, request);
      return count_memory(instruction, request, false, true);
    case Operation::global_atomic:
      count_global(instruction, request);
      return count_memory(instruction, request, true, true);
    default:
      return count_shared(instruction, request);
  }
}

void Recorder::count_global(Instruction& instruction, const Request& request) {
  struct Touched {
    uint64_t sector;
    uint32_t bytes;  // of the sector, a bit for each
  };
  std::array<Touched, 2 * 32> touched;  // an access of 16 bytes may straddle two
  unsigned count = 0;
  const Shadow& shadow = Shadow::instance();
  const auto add = [&](uint64_t sector, uint32_t bytes) {
    if (count > 0 && touched[count - 1].sector == sector) {
      touched[count - 1].bytes |= bytes;
      return;
    }
    for (unsigned i = count; i-- > 0 && touched[count - 1].sector >= sector;) {
      if (touched[i].sector != sector) continue;
      touched[i].bytes |= bytes;
      return;
    }
    unsigned at = count++;  // kept in order
    for (; at > 0 && touched[at - 1].sector > sector; --at) touched[at] = touched[at - 1];
    touched[at] = {sector, bytes};
  };
  const uint32_t all = request.bytes == 32 ? ~0u : (1u << request.bytes) - 1;
  for_each_lane(request.lanes, [&](unsigned lane) {
    const uint64_t sector = shadow.sector_of(request.address[lane]);
    const auto offset = static_cast<unsigned>(request.address[lane] % sector_bytes);
    add(sector, all << offset);
    if (offset + request.bytes > sector_bytes) add(sector + 1, all >> (sector_bytes - offset));
  });

  Counts& counts = instruction.counts;
  counts.sectors += count;
  const bool reads = instruction.operation != Operation::global_store;
  const bool writes =
      instruction.operation == Operation::global_store || instruction.operation == Operation::global_atomic;
  Shadow& memory = Shadow::instance();
  uint64_t last_line = ~uint64_t{0};
  for (unsigned i = 0; i < count; ++i) {
    const uint64_t sector = touched[i].sector;
    counts.bytes_used += static_cast<unsigned>(std::popcount(touched[i].bytes));
    const uint64_t line = sector / (line_bytes / sector_bytes);
    counts.lines += line != last_line;
    last_line = line;
    if (reads && !memory.was_written(sector, launch_number_) && memory.first_read(sector, launch_number_)) {
      ++results_.dram_read_sectors;
    }
    if (writes && memory.first_written(sector, launch_number_)) ++results_.dram_write_sectors;
  }
}

// Lanes that ask for 8 or 16 bytes have their turn in groups of 128 bytes. A load hands out 128 bytes in a pass: where
// two neighbors get the same, or each lane and the next but one, twice as many lanes have their turn together. Source:
// NVIDIA's answer on its forum to "Unexpected shared memory bank conflict", and stage 08's counters in
// docs/counting.md.
void Recorder::count_shared(Instruction& instruction, const Request& request) {
  Counts& counts = instruction.counts;
  const auto pairs_agree = [&](unsigned distance) {
    for (unsigned lane = 0; lane < 32; ++lane) {
      const unsigned other = lane ^ distance;
      const uint32_t pair = 1u << lane | 1u << other;
      if ((request.lanes & pair) == pair && request.address[lane] != request.address[other]) return false;
    }
    return true;
  };
  unsigned group = 32;
  if (request.bytes > bank_bytes) {
    group = 32 * bank_bytes / request.bytes;
    if (instruction.operation == Operation::shared_load && (pairs_agree(1) || pairs_agree(2))) group *= 2;
  }
  for (unsigned first = 0; first < 32; first += group) {
    const uint32_t of_group = group == 32 ? ~0u : ((1u << group) - 1) << first;
    if ((request.lanes & of_group) == 0) continue;
    BankPasses banks_of_group;
    for_each_lane(request.lanes & of_group, [&](unsigned lane) {
      const uint64_t begin = request.address[lane] / bank_bytes;
      const uint64_t end = (request.address[lane] + request.bytes - 1) / bank_bytes;
      for (uint64_t word = begin; word <= end; ++word) banks_of_group.add(word);
    });
    counts.wavefronts += banks_of_group.passes();
    counts.conflicts += banks_of_group.passes() - 1;
  }
}

void Recorder::count_memory(Instruction& instruction, const Request& request, bool reads, bool writes) {
  const std::vector<NamedMemory>& named = named_memory();
  const uint64_t address = request.address[static_cast<unsigned>(std::countr_zero(request.lanes))];
  const auto is_in = [&](size_t index) { return address - named[index].begin < named[index].bytes; };
  if (instruction.memory >= named.size() || !is_in(instruction.memory)) {
    const auto after = std::upper_bound(named.begin(), named.end(), address,
                                        [](uint64_t value, const NamedMemory& memory) { return value < memory.begin; });
    instruction.memory = static_cast<size_t>(after - named.begin()) - 1;
    if (after == named.begin() || !is_in(instruction.memory)) {
      instruction.memory = ~size_t{0};
      return;
    }
  }
  const uint64_t bytes = static_cast<uint64_t>(std::popcount(request.lanes)) * request.bytes;
  MemoryCounts& counts = results_.memory[instruction.memory];
  if (reads) counts.bytes_read += bytes;
  if (writes) counts.bytes_written += bytes;
  if (reads && watch().bytes != 0 && block_ < results_.first_watching_block) {
    for_each_lane(request.lanes, [&](unsigned lane) {
      if (request.address[lane] - watch().begin < watch().bytes) results_.first_watching_block = block_;
    });
  }
}

void Recorder::add_step(const Instruction& instruction, unsigned warp, const Request& request) {
  results_.steps.push_back(
      {instruction.place, instruction.operation, warp, request.lanes, request.bytes, request.address});
}

void Recorder::add_mark(uint32_t instruction, unsigned warp, uint32_t lanes) {
  Step step{instructions_[instruction].place, instructions_[instruction].operation, warp, lanes, 0, {}};
  for (unsigned lane = 0; lane < 32; ++lane) step.address[lane] = sources_[lane];
  results_.steps.push_back(step);
}

Recorder::Results Recorder::take_results() {
  results_.instructions = std::move(instructions_);
  instructions_.clear();
  std::fill(table_.begin(), table_.end(), Entry{});
  Results results = std::move(results_);
  results_ = {};
  return results;
}

// --- Findings ------------------------------------------------------------------------------------------------------

void Recorder::find(const Found& found) {
  for (Found& known : results_.findings) {
    if (known.kind == found.kind && known.place == found.place && known.other_place == found.other_place) {
      // The first block and thread stand for all, so that the text does not depend on who was faster.
      const uint64_t count = known.count + 1;
      if (std::pair(found.block, found.thread) < std::pair(known.block, known.thread)) known = found;
      known.count = count;
      return;
    }
  }
  results_.findings.push_back(found);
  results_.findings.back().count = 1;
}

// What the running thread does, before it is known what is wrong with it.
Recorder::Found Recorder::found_at(uintptr_t address, unsigned bytes, bool writes, uint32_t instruction) const {
  Found found;
  found.place = instructions_[instruction].place;
  found.is_write = writes;
  found.block = block_;
  found.thread = thread();
  found.bytes = bytes;
  found.address = address;
  return found;
}

void Recorder::check_global(uintptr_t address, unsigned bytes, bool reads, bool writes, bool atomic,
                            uint32_t instruction) {
  Shadow& shadow = Shadow::instance();
  Found found = found_at(address, bytes, writes, instruction);
  if (address % bytes != 0 && std::has_single_bit(bytes)) {
    found.kind = FindingKind::misaligned;
    find(found);
  }
  if (reads && !shadow.all_written(address, bytes)) {
    found.kind = FindingKind::uninitialized_read;
    for (unsigned i = 0; i < bytes; ++i) {
      const ByteState state = shadow.state(address + i);
      if (state == ByteState::outside || state == ByteState::forbidden) found.kind = FindingKind::out_of_bounds;
    }
    find(found);
  }
  if (writes && !shadow.write(address, bytes)) {
    found.kind = FindingKind::out_of_bounds;
    find(found);
  }
  if (atomic) {
    release_and_acquire(address);
  } else if (writes) {
    const Writer self{run_, static_cast<uint16_t>(thread()), found.place};
    for (unsigned i = 0; i < bytes; i += 2) {
      const Writer before = shadow.exchange_writer(address + i, self);
      if (before.run == run_ || before.run < first_run_ || simt::detail::is_ordered(before.run, run_, acquired_))
        continue;
      found.kind = FindingKind::global_write_race;
      found.other_place = before.instruction;
      found.other_is_write = true;
      found.other_block = block_of_run(before.run);
      found.other_thread = before.thread;
      find(found);
      break;
    }
  }
  const AccessKind kind = is_volatile_ ? AccessKind::polled : atomic ? AccessKind::atomic : AccessKind::plain;
  check_race(address, bytes, writes, kind, found);
}

// Two threads of this block at one place since the last barrier: a plain write, and whatever the other did. That a
// volatile access meets a write is meant so. Other than in shared memory, a plain read may meet an atomic: so does
// every loop about a compare-and-swap begin.
void Recorder::check_race(uintptr_t address, unsigned bytes, bool writes, AccessKind kind, Found& found) {
  const auto races = [&](const GlobalAccess& before, bool before_is_write, const GlobalAccess& self) {
    const bool plain_write =
        (writes && kind == AccessKind::plain) || (before_is_write && before.kind == AccessKind::plain);
    if (!plain_write || (before.bytes & self.bytes) == 0 || is_ordered(before)) return false;
    if (kind == AccessKind::polled || before.kind == AccessKind::polled) return false;
    found.kind = FindingKind::global_race;
    found.other_place = before.place;
    found.other_is_write = before_is_write;
    found.other_block = block_;
    found.other_thread = before.thread;
    find(found);
    return true;
  };
  bool is_found = false;
  for (uintptr_t where = address / 2; where <= (address + bytes - 1) / 2; ++where) {
    GlobalCell& cell = global_[where % global_cells];
    if (cell.where != where || cell.epoch != epoch_) {
      cell = {};
      cell.where = where;
      cell.epoch = epoch_;
    }
    const auto touched =
        static_cast<uint8_t>((2 * where >= address ? 1 : 0) | (2 * where + 1 < address + bytes ? 2 : 0));
    const GlobalAccess self{
        warps_[thread() / 32].clock[thread() % 32], time_, static_cast<uint16_t>(thread()), found.place, touched, kind};
    if (!is_found) is_found = races(cell.write, true, self);
    if (writes) {
      if (!is_found) is_found = races(cell.read, false, self) || races(cell.other_read, false, self);
      // A thread's atomic does not hide that it wrote there plainly before.
      const bool hides = cell.write.bytes != 0 && cell.write.thread == self.thread &&
                         cell.write.kind == AccessKind::plain && kind != AccessKind::plain;
      if (!hides) cell.write = self;
    } else {
      if (cell.read.thread != self.thread) cell.other_read = cell.read;
      cell.read = self;
    }
  }
}

void Recorder::release_and_acquire(uintptr_t address) {
  acquired_ = std::max(acquired_, release(address, run_));
}

// Whether a barrier or a __syncwarp lies between what was done before and the running thread.
bool Recorder::is_ordered(const SharedAccess& before) const {
  if (before.epoch == 0) return true;
  if (before.rank != rank_) return before.cluster_phase != cluster_phase_;
  if (before.epoch != epoch_ || before.thread == thread()) return true;
  if (before.thread / 32 != thread() / 32) return false;
  const Warp& warp = warps_[thread() / 32];
  return warp.known[thread() % 32][before.thread % 32] >= before.clock;
}

bool Recorder::is_in_a_variable(uintptr_t offset, unsigned bytes) const {
  const SharedVariables& variables = SharedVariables::instance();
  if (!variables.is_known()) return true;
  const uint16_t first = variables.at(offset);
  if (first == SharedVariables::none || first != variables.at(offset + bytes - 1)) return false;
  return first != variables.dynamic() || offset + bytes <= variables[first].offset + launch_->shared_bytes;
}

bool Recorder::stays_in_a_variable(const Recorder& owner, uintptr_t address, unsigned bytes, bool writes,
                                   uint32_t instruction) {
  if (is_in_a_variable(address - owner.tls_, bytes)) [[likely]]
    return true;
  tell_of_bounds(address - owner.tls_, bytes, writes, instruction);
  return false;
}

// Whether an access to what is no shared memory can only have been meant for it: a write of threadIdx and its kin,
// which no kernel writes; or, on x86-64, what lies behind the storage: the system's notes on the OS thread, and then
// the stacks of others, as far as shared memory could reach.
bool Recorder::is_misplaced(uintptr_t address, bool writes) const {
#ifdef __x86_64__
  if (address - tls_ - tls_bytes_ < max_shared_bytes) return true;
#endif
  return writes && std::any_of(engines_.begin(), engines_.begin() + 4,
                               [&](const Range& own) { return address - own.begin < own.bytes; });
}

void Recorder::tell_of_bounds(uintptr_t offset, unsigned bytes, bool writes, uint32_t instruction) {
  Found found = found_at(offset, bytes, writes, instruction);
  found.kind = FindingKind::out_of_bounds;
  found.is_shared = true;
  find(found);
}

// Whether a __syncwarp lies between, or something that threads hand memory over with: the one before had an atomic, a
// fence or a volatile access after it, and the running thread one after that.
bool Recorder::is_ordered(const GlobalAccess& before) const {
  if (before.thread == thread()) return true;
  if (time_of_[before.thread] > before.time && time_of_[thread()] > before.time) return true;
  if (before.thread / 32 != thread() / 32) return false;
  const Warp& warp = warps_[thread() / 32];
  return warp.known[thread() % 32][before.thread % 32] >= before.clock;
}

void Recorder::check_shared(Recorder& owner, uintptr_t address, unsigned bytes, bool reads, bool writes, bool atomic,
                            uint32_t instruction) {
  std::unique_lock<std::mutex> lock;
  if (cluster_ != nullptr) lock = std::unique_lock(owner.shared_mutex_);
  SharedByte* const cells = owner.shared_ + (address - owner.tls_);
  Found found = found_at(address, bytes, writes, instruction);
  found.is_shared = true;
  if (address % bytes != 0 && std::has_single_bit(bytes)) {
    found.kind = FindingKind::misaligned;
    find(found);
  }
  const SharedAccess self{epoch_,
                          warps_[thread() / 32].clock[thread() % 32],
                          static_cast<uint16_t>(thread()),
                          found.place,
                          cluster_phase_,
                          static_cast<uint8_t>(rank_),
                          atomic};
  const auto races = [&](const SharedAccess& before, bool before_is_write) {
    if (is_ordered(before) || (atomic && before.atomic)) return false;
    found.kind = FindingKind::shared_race;
    found.other_place = before.place;
    found.other_is_write = before_is_write;
    found.other_thread = before.thread;
    found.other_block =
        before.rank == rank_ || cluster_ == nullptr ? block_ : cluster_->blocks[before.rank]->observer().block_;
    find(found);
    return true;
  };
  bool is_found = false;
  for (unsigned i = 0; i < bytes; ++i) {
    SharedByte& cell = cells[i];
    if (reads && cell.written_in != owner.block_run_ && !is_found) {
      found.kind = FindingKind::uninitialized_read;
      find(found);
      is_found = true;
    }
    if (!is_found) is_found = races(cell.write, true);
    if (writes) {
      if (!is_found) is_found = races(cell.read, false) || races(cell.other_read, false);
      cell.write = self;
      cell.written_in = owner.block_run_;
    } else {
      if (cell.read.thread != self.thread || cell.read.rank != self.rank) cell.other_read = cell.read;
      cell.read = self;
    }
  }
}

}  // namespace simt::detail
