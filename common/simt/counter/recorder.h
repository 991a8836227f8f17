// Follows the threads of the blocks that one OS thread runs: makes warp requests of their accesses, counts them, and
// looks for what is wrong with them.
//
// The lanes of a warp run one after the other here, and together on a GPU. What they would ask for together is what
// they ask for at the same instruction, the same number of times after the last point where all lanes met (a barrier,
// or a shuffle of the whole warp). So accesses are kept until the warp meets again, and are counted then.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "../src/launch.h"
#include "shadow.h"
#include "simt/counts.h"
#include "simt/engine.h"

namespace simt::detail {

struct Cluster;
class Recorder;

// Where an operation stands: an address in the program, or a line that a CUDA function was told.
struct Place {
  uintptr_t code = 0;  // behind the instruction
  Site site{nullptr, 0};

  bool operator==(const Place& other) const {
    return code == other.code && site.file == other.site.file && site.line == other.site.line;
  }
};

// Numbers for places, the same in all recorders.
uint16_t number_of_place(const Place& place);
Place place_of_number(uint16_t number);

// One run of a block between two barriers of its grid or cluster: what orders it against other blocks.
struct BlockRun {
  uint64_t block;
  uint64_t cluster;
  uint32_t cluster_phase, grid_phase;
  uint64_t first_release;  // the time of its first atomic operation on global memory; 0: none
};

// What one thread did to a byte of shared memory.
struct SharedAccess {
  uint32_t epoch = 0;  // of the block; 0: nobody did
  uint32_t clock = 0;  // of the lane
  uint16_t thread = 0;
  uint16_t place = 0;
  uint16_t cluster_phase = 0;
  uint8_t rank = 0;
  bool atomic = false;
};
struct SharedByte {
  SharedAccess write, read, other_read;  // the last of each; other_read by another thread than read
  uint32_t written_in = 0;               // the run of the block that wrote it
};

// What one thread did to two bytes of global memory, at most so long ago as the last barrier of its block.
enum class AccessKind : uint8_t { plain, atomic, polled };  // polled: volatile
struct GlobalAccess {
  uint32_t clock = 0;  // of the lane
  uint32_t time = 0;   // of the block: counts its atomics, fences and volatile accesses
  uint16_t thread = 0;
  uint16_t place = 0;
  uint8_t bytes = 0;  // a bit for each of the two; 0: nobody did
  AccessKind kind = AccessKind::plain;
};
struct GlobalCell {
  uintptr_t where = 0;                   // the address, halved
  uint32_t epoch = 0;                    // of the block; another than the present one: nothing is known
  GlobalAccess write, read, other_read;  // as in SharedByte
};

class Recorder {
 public:
  Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // --- What the engine tells ---
  void begin_block(const Launch& launch, const uint3& block, Cluster* cluster, unsigned rank, const void* stacks,
                   size_t stack_bytes, const unsigned& current_thread);
  void end_block();
  void barrier_passed(Site site);
  // The block arrives at a barrier of its grid or cluster. Where all threads wait there, what they did is counted
  // before other blocks go on, so that what these find written does not depend on who is faster.
  template <class AllWait>
  void group_posted(AllWait all_wait) {
    if (all_wait()) meet_all();
  }
  void group_passed(Group group, Site site);
  // `source(lane)`: the lane that a shuffling lane reads.
  template <class Sources>
  void collective_passed(unsigned warp, unsigned mask, unsigned alive, Collective kind, Site site, Sources source) {
    if (traces_) {
      for (unsigned lane = 0; lane < 32; ++lane) sources_[lane] = source(lane);
    }
    collective(warp, mask, alive, kind, site);
  }
  void copy_issued(const void* to, const void* from, size_t bytes, size_t zero_bytes, const void* code);
  void copy_arrived(const void* to, size_t bytes);
  // A signal handler must not switch to another thread now.
  bool is_busy() const { return busy_; }
  // After an exception.
  void give_up() { busy_ = is_volatile_ = false; }

  // --- What the compiler's callbacks tell ---
  void access(uintptr_t address, unsigned bytes, bool is_write, uintptr_t code);
  void access_range(uintptr_t address, size_t bytes, bool is_write, uintptr_t code);
  void atomic_access(uintptr_t address, unsigned bytes, uintptr_t code);
  void volatile_access(uintptr_t address, unsigned bytes, bool is_write, uintptr_t code);
  void fence();

  // --- What the end of a launch takes ---
  struct Found {
    FindingKind kind{};
    uint16_t place = 0, other_place = 0;
    bool is_write = false, other_is_write = false, is_shared = false;
    uint64_t block = 0, other_block = 0;
    unsigned thread = 0, other_thread = 0;
    unsigned bytes = 0;
    uintptr_t address = 0;  // out of bounds in shared memory: the offset in the thread-local storage
    uint64_t count = 0;
  };
  struct Instruction {
    uint16_t place = 0;
    Operation operation{};
    Counts counts;
    size_t memory = ~size_t{0};  // the named range that it touched last
  };
  struct Step {
    uint16_t place;
    Operation operation;
    unsigned warp;
    uint32_t lanes;
    unsigned bytes;
    std::array<uint64_t, 32> address;
  };
  struct Results {
    std::vector<Instruction> instructions;
    std::vector<MemoryCounts> memory;  // as named_memory(); names are left out
    uint64_t dram_read_sectors = 0, dram_write_sectors = 0;
    uint64_t most_loads_of_thread = 0;
    std::vector<Found> findings;
    std::vector<Step> steps;
    uint64_t first_watching_block = ~uint64_t{0};
  };
  Results take_results();

 private:
  // What the lanes of a warp ask for together.
  struct Request {
    uint32_t lanes = 0;
    uint32_t bytes = 0;
    uint32_t order = 0;  // how many accesses a lane had made before
    std::array<uint64_t, 32> address;
  };
  // The requests of one instruction since the warp met last.
  struct Pending {
    uint32_t meeting = 0;
    uint32_t used = 0;                   // of requests, which keep their memory
    std::array<uint32_t, 32> by_lane{};  // how many each lane has made
    std::vector<Request> requests;
  };
  struct Warp {
    uint32_t meeting = 1;  // how often the warp has met
    std::vector<uint32_t> touched;
    std::vector<Pending> pending;  // by instruction
    std::array<uint32_t, 32> accesses{};
    std::array<uint32_t, 32> loads{};  // of global memory, by each lane in this block
    // Who knows of whom: lane a knows of what lane b did up to its clock known[a][b].
    std::array<std::array<uint32_t, 32>, 32> known;
    std::array<uint32_t, 32> clock;
  };
  struct Key {
    uint64_t where = 0;
    uint32_t what = 0;
    bool operator==(const Key&) const = default;
  };
  struct Entry {
    Key key;
    uint32_t instruction = 0;
    bool used = false;
  };

  uint32_t instruction_of(const Place& place, Operation operation, unsigned piece);
  void grow_table();
  void record(uint32_t instruction, uintptr_t address, unsigned bytes);
  void collective(unsigned warp, unsigned mask, unsigned alive, Collective kind, Site site);
  void meet(Warp& warp, unsigned number);
  void meet_all();
  void count(Instruction& instruction, const Request& request);
  void count_global(Instruction& instruction, const Request& request);
  void count_shared(Instruction& instruction, const Request& request);
  void count_memory(Instruction& instruction, const Request& request, bool reads, bool writes);
  void add_step(const Instruction& instruction, unsigned warp, const Request& request);
  void add_mark(uint32_t instruction, unsigned warp, uint32_t lanes);

  struct Range {
    uintptr_t begin = 0, bytes = 0;
  };
  static Range thread_storage();

  enum class Space : uint8_t { local, global, shared, remote };
  Space space_of(uintptr_t address, Recorder** owner);
  // What one thread does to one place, by operation.
  void touch(uintptr_t address, unsigned bytes, bool reads, bool writes, bool atomic, const Place& place,
             unsigned piece);
  Found found_at(uintptr_t address, unsigned bytes, bool writes, uint32_t instruction) const;
  void check_global(uintptr_t address, unsigned bytes, bool reads, bool writes, bool atomic, uint32_t instruction);
  void check_race(uintptr_t address, unsigned bytes, bool writes, AccessKind kind, Found& found);
  bool is_ordered(const GlobalAccess& before) const;
  // Whether an access of shared memory is to one variable; else it is told of.
  bool stays_in_a_variable(const Recorder& owner, uintptr_t address, unsigned bytes, bool writes, uint32_t instruction);
  bool is_in_a_variable(uintptr_t offset, unsigned bytes) const;
  bool is_misplaced(uintptr_t address, bool writes) const;
  void tell_of_bounds(uintptr_t offset, unsigned bytes, bool writes, uint32_t instruction);
  void check_shared(Recorder& owner, uintptr_t address, unsigned bytes, bool reads, bool writes, bool atomic,
                    uint32_t instruction);
  bool is_ordered(const SharedAccess& before) const;
  void join_clocks(Warp& warp, unsigned mask);
  void release_and_acquire(uintptr_t address);
  void start_run();
  void find(const Found& found);

  unsigned thread() const { return *current_thread_; }

  volatile bool busy_ = false;  // read by a signal handler
  bool traces_ = false;
  const Launch* launch_ = nullptr;
  uint32_t launch_number_ = 0;
  const unsigned* current_thread_ = nullptr;
  uint64_t block_ = 0;
  unsigned warps_in_block_ = 0;
  uintptr_t stacks_ = 0;
  size_t stack_bytes_ = 0;
  std::atomic<uintptr_t> tls_{0};  // the thread-local storage of the program, where shared memory is
  size_t tls_bytes_ = 0;
  std::array<Range, 5> engines_{};  // threadIdx and its kin (the first four), which lie there too
  Cluster* cluster_ = nullptr;
  unsigned rank_ = 0;

  uint32_t run_ = 0;        // of this block
  uint32_t first_run_ = 0;  // of the launch
  uint32_t block_run_ = 0;  // the first run of this block
  uint32_t epoch_ = 0;      // counts barriers, and never goes back
  uint16_t cluster_phase_ = 0;
  uint32_t grid_phase_ = 0;
  uint64_t acquired_ = 0;  // all that was released before this time is known

  std::vector<Entry> table_;
  std::vector<Instruction> instructions_;
  std::array<Warp, 32> warps_;
  SharedByte* shared_ = nullptr;  // by byte of tls_
  // What this block did to global memory since its last barrier: a place for each of so many halved addresses, which
  // the latest takes. So a race may be missed where a block touches more than 128 KiB between two barriers.
  static constexpr size_t global_cells = size_t{1} << 16;
  GlobalCell* global_ = nullptr;
  bool is_volatile_ = false;  // the access at hand
  uint32_t time_ = 0;
  std::array<uint32_t, 1024> time_of_{};  // of each thread's last atomic, fence or volatile access
  std::mutex shared_mutex_;               // of a cluster, whose blocks reach into each other
  std::array<unsigned, 32> sources_{};
  Results results_;
};

// --- The process as a whole ---

void* reserve_addresses(size_t bytes);
void observe_allocation(const void* data, size_t bytes);
void observe_free(const void* data, size_t bytes);
void observe_host_write(const void* data, size_t bytes);
void observe_launch(const Launch& launch);
void observe_launch_end(const Launch& launch);

struct NamedMemory {
  uintptr_t begin = 0;
  size_t bytes = 0;
  std::string name;
};
const std::vector<NamedMemory>& named_memory();  // by address; does not change during a launch

// What is watched or traced.
struct Watch {
  uintptr_t begin = 0;
  size_t bytes = 0;
  uint64_t block = ~uint64_t{0};  // the block to trace; ~0: none
};
const Watch& watch();
uint32_t number_of_launch();

// The runs of blocks of a launch, and when they released what they wrote.
uint32_t start_block_run(const BlockRun& run);
uint32_t first_run_of_launch();
// Whether something orders the earlier run before the later one, which has acquired all up to `acquired`.
bool is_ordered(uint32_t earlier, uint32_t later, uint64_t acquired);
// An atomic operation at this address by this run. Returns the time up to which others had released there.
uint64_t release(uintptr_t address, uint32_t run);
uint64_t block_of_run(uint32_t run);

// Calls f(recorder) for the recorder of each OS thread. Not during a launch.
void for_each_recorder(const std::function<void(Recorder&)>& f);

// Set while this OS thread runs a kernel.
extern constinit thread_local Recorder* recording;

}  // namespace simt::detail
