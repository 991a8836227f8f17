// Runs the threads of one block: fibers that take turns on one OS thread.
//
// A thread runs until it must wait. Then it picks the next thread that can run and switches to it directly; there is
// no scheduler in between. Threads that wait are bits in the masks of their warp, so that the last thread to arrive at
// a barrier releases the others by copying 32 words at most.
#pragma once

#include <pthread.h>
#include <csignal>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "blocks_barrier.h"
#include "launch.h"
#include "observer.h"
#include "shared_memory.h"
#include "simt/engine.h"
#include "stacks.h"
#include "switch.h"

namespace simt::detail {

constexpr unsigned warp_size = 32;
constexpr unsigned max_threads = 1024;
constexpr unsigned max_warps = max_threads / warp_size;

class BlockRunner;

// What the blocks of a cluster share.
struct Cluster {
  BlocksBarrier barrier;
  std::vector<BlockRunner*> blocks;  // by rank
};

// What a signal handler or an exception found, for the message.
struct Fault {
  int signal = 0;
  int code = 0;
  uintptr_t address = 0;
  uintptr_t instruction = 0;
};

class BlockRunner {
 public:
  // Runs one block to its end, or until it or another block fails.
  void run(Launch& launch, const uint3& block, Cluster* cluster, unsigned rank, BlocksBarrier* grid_barrier);

  // The runner of this OS thread, while it runs a block.
  static BlockRunner* current() { return running_; }

  // After the blocks that this OS thread ran of a launch.
  void finish_launch(Launch& launch);
  SharedMemory& shared() { return shared_; }
  const Stacks& stacks() const { return stacks_; }

  // Called by running threads, through the functions of simt/engine.h.
  [[gnu::always_inline]] inline uint64_t collective(Collective kind, unsigned mask, uint64_t operand, unsigned source,
                                                    const char* name, Site site);
  unsigned converge(const char* name, Site site);
  [[gnu::always_inline]] inline int barrier(BarrierKind kind, int predicate, const char* name, Site site);
  void group_arrive(Group group, const char* name, Site site);
  void group_wait(Group group, const char* name, Site site);
  void* map_to_rank(const void* shared, unsigned rank, const char* name, Site site);
  int rank_of(const void* shared) const;  // -1: in no block of the cluster
  void collect_tls_blocks();              // before a block of a cluster runs
  void copy_later(void* to, const void* from, size_t bytes, size_t zero_bytes, Site site, const void* code);
  void commit_copies();
  void wait_for_copies(size_t batches_left);
  void spin(const volatile void* address, Site site);
  void yield(Site site);
  // Keeps the error; abandon() must follow.
  void trap(const std::string& what, Site site, cudaError_t code);
  [[noreturn]] void abandon();

  unsigned lane() const { return current_ % warp_size; }
  const Launch& launch() const { return *launch_; }
  Cluster* cluster() const { return cluster_; }
  unsigned rank() const { return rank_; }
  Observer& observer() { return observer_; }

  // Called by signal handlers on this OS thread.
  bool in_kernel() const { return in_block_; }
  bool in_engine() const { return in_engine_; }
  [[noreturn]] void abandon_after(const Fault& fault);
  void preempt(uintptr_t instruction);

  // Read by the watchdog.
  std::atomic<bool> active{false};
  std::atomic<bool> waits_for_blocks{false};  // on the OS thread, for the other blocks of its team
  std::atomic<uint64_t> waits{0};             // that have begun
  std::atomic<bool> only_spins{false};        // every thread of the block has had turns and changed nothing
  std::atomic<uint64_t> spins{0};
  std::atomic<uint64_t> switches{0};

 private:
  struct alignas(64) Lane {
    uint64_t operand = 0;
    uint64_t result = 0;
    const char* name = nullptr;  // of what the lane waits at
    const char* file = nullptr;
    int line = 0;
    unsigned mask = 0;
    const volatile void* spins_on = nullptr;
    Collective kind{};
    uint8_t source = 0;
  };

  // Sets of lanes. A lane that is alive is running, or in exactly one of the sets that begin with ready or at_.
  struct Warp {
    unsigned alive = 0;
    unsigned ready = 0;
    unsigned unstarted = 0;  // of ready
    unsigned at_barrier = 0;
    unsigned at_collective = 0;
    unsigned at_converge = 0;
    unsigned at_group[2] = {};
    unsigned arrived_at_group[2] = {};
    std::array<Lane, warp_size> lanes;
  };

  struct BlockBarrier {
    unsigned arrived = 0;
    BarrierKind kind{};
    const char* name = nullptr;
    Site site{};
    int count = 0;   // of predicates that are true
    int result = 0;  // of the last barrier
  };

  struct GroupState {
    BlocksBarrier* barrier = nullptr;  // null: the launch has no such group
    unsigned arrived = 0;
    bool posted = false;  // all threads have arrived, and so has the block
    uint64_t phase = 0;
    Site site{};  // where a thread waits
  };

  struct Copy {
    void* to;
    const void* from;
    size_t bytes, zero_bytes;
  };
  struct Copies {
    std::vector<Copy> waiting;        // in order
    std::vector<size_t> batch_sizes;  // of those that are committed
    size_t committed = 0;             // the sum of batch_sizes
  };

  enum class Turn {
    stay,        // the next in this warp, so that its stacks stay in the cache
    move_on,     // anyone but those that had their turn
    start_over,  // the first of the block
  };
  static constexpr unsigned nobody = ~0u;

  struct Fiber {
    Context idle = nullptr;  // where it waits for another thread to run
    void* fake_stack = nullptr;
  };

  // The functions below stand by the file that defines them.

  // block.cpp
  void reset();

  // fibers.cpp
  static void fiber_main();
  unsigned take_fiber();
  [[gnu::noinline]] void prepare_start(unsigned thread);
  void resume(unsigned thread);
  void run_threads(unsigned fiber);
  void finish_thread();

  // turns.h
  [[gnu::always_inline]] inline void suspend(Turn turn);
  [[gnu::always_inline]] inline unsigned pick(Turn turn);
  [[gnu::always_inline]] inline void become(unsigned thread);
  [[gnu::always_inline]] inline void switch_to(Context target, unsigned target_fiber, Context* save_at,
                                               void** save_fake_stack);

  // turns.cpp
  [[gnu::noinline]] unsigned release_someone(Turn turn);  // where nobody is ready: as pick, after releasing whom it can
  void make_ready(unsigned warp, unsigned lanes);
  void wait_at(Lane& lane, const char* name, Site site);
  uint64_t random();

  // collectives.cpp
  [[gnu::always_inline]] inline bool same_place(const Lane& lane, const char* name, Site site) const;
  void exchange(Warp& warp, unsigned mask, Collective kind);
  bool release_converged();
  [[noreturn, gnu::cold]] void refuse_mask(unsigned mask, const char* name, Site site);
  [[noreturn, gnu::cold]] void refuse_meeting(const Lane& self, const Lane& other);
  [[noreturn, gnu::cold]] void refuse_return(unsigned waiting);

  // barriers.cpp
  void release_barrier();
  void post_if_all_arrived(Group group);
  void release_group(Group group);
  [[noreturn, gnu::cold]] void refuse_barrier(const char* name, Site site);

  // block_errors.cpp
  [[gnu::noinline]] void check_stop();
  std::string prefix(unsigned thread, const SourceLine& at) const;
  void record(cudaError_t code, unsigned thread, const std::string& what, const SourceLine& at);
  void record_waiting(const std::string& what);
  void describe_fault();

  struct Error {
    cudaError_t code = cudaSuccess;
    unsigned thread = 0;
    std::string what;
    SourceLine at;
    bool lists_waiting = false;  // where every waiting thread waits belongs into the message
  };
  void add_waiting(Error& error) const;

  struct TlsBlock {
    const char* begin;
    size_t bytes;
  };

  static constinit thread_local BlockRunner* running_;  // by this OS thread

  [[no_unique_address]] Observer observer_;
  Launch* launch_ = nullptr;
  Cluster* cluster_ = nullptr;
  unsigned rank_ = 0;
  uint3 block_{};
  unsigned threads_ = 0;
  unsigned alive_ = 0;
  unsigned current_ = 0;  // the running thread, by its number in the block
  unsigned turns_in_warp_ = 0;
  Order order_{};
  uint64_t random_state_ = 0;
  unsigned ready_warps_ = 0;
  std::array<Warp, max_warps> warps_;
  BlockBarrier barrier_;
  std::array<GroupState, 2> groups_;
  std::array<Context, max_threads> contexts_{};  // of suspended threads
  std::array<uint16_t, max_threads> fiber_of_{};
  std::array<void*, max_threads> fake_stacks_{};
  std::array<uint3, max_threads> indices_{};  // threadIdx of each thread, for the shape below
  dim3 shape_{0, 0, 0};

  std::vector<Copies> copies_;  // by thread; empty until the first asynchronous copy
  BlocksBarrier solo_;          // the cluster barrier of a launch without clusters

  Stacks stacks_;
  std::vector<Fiber> fibers_;
  std::vector<uint16_t> free_fibers_;
  Context scheduler_ = nullptr;
  void* scheduler_fake_stack_ = nullptr;
  [[maybe_unused]] char* scheduler_stack_ = nullptr;  // for the address sanitizer
  [[maybe_unused]] size_t scheduler_stack_bytes_ = 0;

  std::vector<TlsBlock> tls_blocks_;
  SharedMemory shared_;
  Fault fault_;
  Error error_;
  bool faulted_ = false;
  volatile std::sig_atomic_t in_block_ = 0;
  volatile std::sig_atomic_t in_engine_ = 0;
  bool abandoned_ = false;
};

[[noreturn, gnu::cold]] void called_on_host(const char* name);

// The runner of the thread that calls `name`, which nothing but a kernel may.
inline BlockRunner& runner_for(const char* name) {
  BlockRunner* const runner = BlockRunner::current();
  if (runner == nullptr || !runner->in_kernel()) called_on_host(name);
  return *runner;
}

// The signal handlers: of faults, and of the watchdog's tap on the shoulder.
void install_signal_handlers();
void use_signal_stack();                                // on each OS thread that runs blocks
void interrupt(pthread_t thread, BlockRunner& runner);  // that runs on it

}  // namespace simt::detail
