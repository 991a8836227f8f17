// The OS threads that blocks run on. They are started when first needed, and kept for the launches that follow.
#include <link.h>
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <semaphore>
#include <system_error>
#include <thread>
#include <vector>

#include "block.h"

namespace simt::detail {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds watchdog_period{10};
constexpr unsigned most_threads = 1024;
constexpr size_t stack_of_worker = 8 << 20, guard_behind_worker = 4 << 20;  // bytes

// The i-th of n to run, in the order of the options: a permutation of 0 .. n - 1.
uint64_t in_order(uint64_t i, uint64_t n, const Options& options) {
  switch (options.order) {
    case Order::forward:
      return i;
    case Order::reverse:
      return n - 1 - i;
    case Order::shuffle: {  // a step that has no factor in common with n visits every number once
      const uint64_t most = std::min(n, (~uint64_t{0} >> 1) / n);  // so that i * step fits
      uint64_t step = 1 + (options.seed * 0x9e3779b97f4a7c15u >> 33) % most;
      while (std::gcd(step, n) != 1) --step;
      return (i * step + options.seed % n) % n;
    }
  }
  return i;
}

// The workers that run one team of blocks after the other.
struct Gang {
  explicit Gang(unsigned size) : size(size), together(size) {}

  unsigned size;
  std::barrier<> together;
  uint64_t team = 0;
  std::vector<BlockRunner*> runners;
  std::vector<std::unique_ptr<Cluster>> clusters;
  BlocksBarrier grid_barrier;
};

class Worker {
 public:
  Worker();

  void start(Launch& launch, Gang* gang, unsigned rank) {
    launch_ = &launch;
    gang_ = gang;
    rank_ = rank;
    runner_.active.store(true);
    go_.release();
  }
  BlockRunner& runner() { return runner_; }
  void interrupt() { detail::interrupt(native_, runner_); }

  uint64_t seen_switches = 0, seen_spins = 0, seen_waits = 0;  // the watchdog's notes

 private:
  void loop();
  void run_blocks();
  void run_teams();

  BlockRunner runner_;
  Launch* launch_ = nullptr;
  Gang* gang_ = nullptr;
  unsigned rank_ = 0;
  std::binary_semaphore go_{0};
  pthread_t native_;
};

class Pool {
 public:
  // Never destroyed: its threads may outlive main().
  static Pool& instance() {
    static Pool& pool = *new Pool();
    return pool;
  }
  void run(Launch& launch);
  void worker_done();

 private:
  Pool();
  void watch();
  void look_after(Launch& launch);
  Worker& worker(unsigned index);

  std::mutex one_launch_;
  std::mutex mutex_;  // of what follows
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::unique_ptr<Gang>> gangs_;
  unsigned active_ = 0;   // the first so many workers have a part in the launch
  unsigned running_ = 0;  // of those, the ones that are not done
  Launch* launch_ = nullptr;
  milliseconds spinning_{0}, without_event_{0};
  uint64_t seen_events_ = 0;

  std::binary_semaphore done_{0};
  std::atomic<bool> watchdog_sleeps_{false};
  std::binary_semaphore wake_watchdog_{0};
};

// An OS thread has its thread-local storage, and in it the static shared memory, at the upper end of its stack. Here
// nothing that could be touched follows: a write far past a shared array would end up in whatever the system had put
// there.
Worker::Worker() {
  constexpr size_t bytes = guard_behind_worker + stack_of_worker + guard_behind_worker;
  void* const memory = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  char* const stack = static_cast<char*>(memory) + guard_behind_worker;
  mprotect(stack, stack_of_worker, PROT_READ | PROT_WRITE);
  runner_.shared().set_guard(stack + stack_of_worker, guard_behind_worker);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstack(&attributes, stack, stack_of_worker);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  const int error = pthread_create(
      &native_, &attributes,
      [](void* self) -> void* {
        static_cast<Worker*>(self)->loop();
        return nullptr;
      },
      this);
  pthread_attr_destroy(&attributes);
  if (error != 0) throw std::system_error(error, std::generic_category(), "starting an OS thread for blocks");
}

void Worker::loop() {
  use_signal_stack();
  for (;;) {
    go_.acquire();
    gang_ == nullptr ? run_blocks() : run_teams();
    runner_.finish_launch(*launch_);
    runner_.active.store(false);
    Pool::instance().worker_done();
  }
}

void Worker::run_blocks() {
  Launch& launch = *launch_;
  for (;;) {
    const uint64_t next = launch.next_team.fetch_add(1, std::memory_order_relaxed);
    if (next >= launch.teams || launch.stop.load(std::memory_order_relaxed) != Stop::none) return;
    launch.block_events.fetch_add(1, std::memory_order_relaxed);
    runner_.run(launch, launch.block_of(in_order(next, launch.teams, launch.options), 0), nullptr, 0, nullptr);
    launch.block_events.fetch_add(1, std::memory_order_relaxed);
  }
}

// Every worker of the gang runs its block of the same team; nobody goes on to the next team before all are done.
void Worker::run_teams() {
  Launch& launch = *launch_;
  Gang& gang = *gang_;
  const unsigned in_cluster = launch.cluster_blocks();
  runner_.collect_tls_blocks();
  for (;;) {
    if (rank_ == 0) {
      gang.team = launch.stop.load() == Stop::none ? launch.next_team.fetch_add(1) : launch.teams;
      if (gang.team < launch.teams) gang.team = in_order(gang.team, launch.teams, launch.options);
      for (auto& cluster : gang.clusters) cluster->barrier.reset(in_cluster);
      gang.grid_barrier.reset(gang.size);
    }
    gang.together.arrive_and_wait();
    if (gang.team >= launch.teams) return;
    launch.block_events.fetch_add(1, std::memory_order_relaxed);
    const unsigned member =
        launch.cooperative ? static_cast<unsigned>(in_order(rank_, gang.size, launch.options)) : rank_;
    Cluster* const cluster = in_cluster > 1 ? gang.clusters[member / in_cluster].get() : nullptr;
    if (cluster != nullptr) cluster->blocks[member % in_cluster] = &runner_;
    gang.together.arrive_and_wait();
    runner_.run(launch, launch.block_of(gang.team, member), cluster, member % in_cluster,
                launch.cooperative ? &gang.grid_barrier : nullptr);
    launch.block_events.fetch_add(1, std::memory_order_relaxed);
    gang.together.arrive_and_wait();
  }
}

Pool::Pool() {
  install_signal_handlers();
  std::thread([this] { watch(); }).detach();
}

Worker& Pool::worker(unsigned index) {
  while (workers_.size() <= index) workers_.push_back(std::make_unique<Worker>());
  return *workers_[index];
}

void Pool::worker_done() {
  std::lock_guard lock(mutex_);
  if (--running_ == 0) {
    launch_ = nullptr;
    done_.release();
  }
}

void Pool::run(Launch& launch) {
  std::lock_guard one_launch(one_launch_);
  SharedVariables::instance().start(launch.call.kernel);
  launch.zones = SharedVariables::instance().zones_of_running();
  {
    std::lock_guard lock(mutex_);
    const uint64_t threads = pool_threads(launch.options);
    const uint64_t gangs = std::min(launch.teams, std::max<uint64_t>(1, threads / launch.team_size));
    active_ = running_ = static_cast<unsigned>(gangs * launch.team_size);
    gangs_.clear();
    for (uint64_t i = 0; i < gangs && (launch.team_size > 1 || launch.cooperative); ++i) {
      gangs_.push_back(std::make_unique<Gang>(launch.team_size));
      for (unsigned c = 0; c < launch.team_size / launch.cluster_blocks(); ++c) {
        gangs_.back()->clusters.push_back(std::make_unique<Cluster>());
        gangs_.back()->clusters.back()->blocks.resize(launch.cluster_blocks());
      }
    }
    for (unsigned i = 0; i < active_; ++i) worker(i);
    launch_ = &launch;
    spinning_ = without_event_ = milliseconds(0);
    for (unsigned i = 0; i < active_; ++i) {
      Gang* const gang = gangs_.empty() ? nullptr : gangs_[i / launch.team_size].get();
      workers_[i]->start(launch, gang, i % launch.team_size);
    }
  }
  if (watchdog_sleeps_.exchange(false)) wake_watchdog_.release();
  done_.acquire();
}

// Looks at the running launch now and then. It counts its own looks and not the time of day, so that a program that a
// debugger holds has all the time in the world.
void Pool::watch() {
  unsigned idle = 0;
  for (;;) {
    std::this_thread::sleep_for(watchdog_period);
    std::unique_lock lock(mutex_);
    if (launch_ != nullptr) {
      idle = 0;
      look_after(*launch_);
    } else if (++idle == 20) {
      idle = 0;
      watchdog_sleeps_.store(true);
      lock.unlock();
      wake_watchdog_.acquire();
    }
  }
}

void Pool::look_after(Launch& launch) {
  bool all_spin = true;
  bool some_new = true;  // every worker has spun since the last look
  for (unsigned i = 0; i < active_; ++i) {
    Worker& worker = *workers_[i];
    BlockRunner& runner = worker.runner();
    if (!runner.active.load()) continue;
    const uint64_t switches = runner.switches.load(std::memory_order_relaxed);
    const uint64_t spins = runner.spins.load(std::memory_order_relaxed);
    const uint64_t waits = runner.waits.load(std::memory_order_relaxed);
    if (waits != worker.seen_waits) all_spin = false;  // it has gone on, even if it waits again
    if (!runner.waits_for_blocks.load(std::memory_order_relaxed)) {
      if (!runner.only_spins.load(std::memory_order_relaxed)) all_spin = false;
      if (spins == worker.seen_spins) some_new = false;
      if (switches == worker.seen_switches || launch.stop.load() != Stop::none) worker.interrupt();
    }
    worker.seen_switches = switches;
    worker.seen_spins = spins;
    worker.seen_waits = waits;
  }

  const uint64_t events = launch.block_events.load(std::memory_order_relaxed);
  without_event_ = events == seen_events_ ? without_event_ + watchdog_period : milliseconds(0);
  seen_events_ = events;
  const milliseconds limit = launch.options.block_limit;
  Stop none = Stop::none;
  if (limit.count() != 0 && without_event_ >= limit) launch.stop.compare_exchange_strong(none, Stop::block_limit);

  if (!all_spin) spinning_ = milliseconds(0);
  if (!all_spin || !some_new) return;
  spinning_ += watchdog_period;
  none = Stop::none;
  if (spinning_ >= launch.options.spin_limit) launch.stop.compare_exchange_strong(none, Stop::spin_limit);
  // Blocks that wait for one that has not started yet: on a GPU, more would be running. Start twice as many.
  if (gangs_.empty() && spinning_ % milliseconds(30) == milliseconds(0)) {
    const uint64_t waiting = launch.teams - std::min(launch.teams, launch.next_team.load());
    const auto more = static_cast<unsigned>(std::min<uint64_t>({waiting, active_, most_threads - active_}));
    for (unsigned i = 0; i < more; ++i) {
      ++running_;
      worker(active_++).start(launch, nullptr, 0);
    }
    if (more > 0) spinning_ = milliseconds(0);
  }
}

}  // namespace

uint3 Launch::block_of(uint64_t team, unsigned rank) const {
  // A team is the whole grid, in which clusters lie side by side, or one cluster of it.
  const uint64_t number = cooperative ? rank / cluster_blocks() : team;
  const unsigned within = cooperative ? rank % cluster_blocks() : rank;
  const uint64_t across = grid.x / cluster.x;
  const uint64_t down = grid.y / cluster.y;
  return {static_cast<unsigned>(number % across) * cluster.x + within % cluster.x,
          static_cast<unsigned>(number / across % down) * cluster.y + within / cluster.x % cluster.y,
          static_cast<unsigned>(number / across / down) * cluster.z + within / cluster.x / cluster.y};
}

void Launch::fail(cudaError_t code, const std::string& message) {
  {
    std::lock_guard lock(mutex_);
    if (error_ != cudaSuccess) return;
    error_ = code;
    report(message);
  }
  stop.store(Stop::failed);
}

unsigned pool_threads(const Options& options) {
  return options.threads != 0 ? std::min(options.threads, most_threads)
                              : std::max(1u, std::thread::hardware_concurrency());
}

void run_on_pool(Launch& launch) {
  // The code that a thread may be stopped in: that of the module the kernel is in.
  struct Search {
    uintptr_t kernel, begin, end;
  } search{reinterpret_cast<uintptr_t>(launch.call.kernel), 0, 0};
  dl_iterate_phdr(
      [](dl_phdr_info* module, size_t, void* data) {
        auto& wanted = *static_cast<Search*>(data);
        for (int i = 0; i < module->dlpi_phnum; ++i) {
          const auto& header = module->dlpi_phdr[i];
          const uintptr_t begin = module->dlpi_addr + header.p_vaddr;
          if (header.p_type != PT_LOAD || wanted.kernel < begin || wanted.kernel >= begin + header.p_memsz) continue;
          wanted.begin = begin;
          wanted.end = begin + header.p_memsz;
          return 1;
        }
        return 0;
      },
      &search);
  launch.code_begin = search.begin;
  launch.code_end = search.end;
  Pool::instance().run(launch);
}

}  // namespace simt::detail
