#include "block.h"

#include <fmt/format.h>
#include <link.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>

#if defined(__SANITIZE_ADDRESS__)
#define SIMT_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIMT_ASAN 1
#endif
#endif
#ifdef SIMT_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

extern "C" void* __tls_get_addr(void* index);  // of the C library

constinit thread_local uint3 threadIdx{};
constinit thread_local uint3 blockIdx{};
constinit thread_local dim3 blockDim{};
constinit thread_local dim3 gridDim{};

// The dynamic shared memory of the block that this OS thread runs, as common/device/launch.cuh declares it, and what
// must stay untouched behind it.
constexpr size_t shared_redzone_bytes = 1024;
alignas(128) thread_local unsigned char worklog_dynamic_shared[simt::detail::max_shared_bytes + shared_redzone_bytes];

namespace simt::detail {

constinit thread_local unsigned turns_without_change = 0;

namespace {

constinit thread_local BlockRunner* runner_of_this_thread = nullptr;

constexpr unsigned char poison = 0xff;  // four of them are a NaN, as are two in either 16-bit type

#ifdef SIMT_ASAN
constexpr size_t stack_bytes = 256 * 1024;
#else
constexpr size_t stack_bytes = 64 * 1024;
#endif
constexpr size_t guard_bytes = 4096;
constexpr size_t stack_stride = stack_bytes + guard_bytes;

// A process may have 65530 mappings, and a guard page costs two. Past this many, stacks go without.
std::atomic<int> guards_left{20'000};

unsigned bit(unsigned index) {
  return 1u << index;
}

// The first of a set that is not empty, counting up or down, and those of a set that come after `index`.
[[gnu::always_inline]] inline unsigned first(unsigned set, bool down) {
  return static_cast<unsigned>(down ? 31 - std::countl_zero(set) : std::countr_zero(set));
}
[[gnu::always_inline]] inline unsigned after(unsigned set, unsigned index, bool down) {
  return set & (down ? bit(index) - 1 : ~1u << index);
}

// "lane 3", "lanes 0-3, 8"
std::string lanes_text(unsigned set) {
  std::string text = std::has_single_bit(set) ? "lane " : "lanes ";
  for (bool first = true; set != 0; first = false) {
    const int from = std::countr_zero(set);
    const int run = std::countr_one(set >> from);
    text += fmt::format("{}{}", first ? "" : ", ", from);
    if (run > 1) text += fmt::format("-{}", from + run - 1);
    set &= from + run == 32 ? 0u : ~0u << (from + run);
  }
  return text;
}

[[noreturn]] void called_on_host(const char* name) {
  report(fmt::format("simt: {} was called outside of a kernel", name));
  std::abort();
}

BlockRunner& runner_for(const char* name) {
  if (runner_of_this_thread == nullptr || !runner_of_this_thread->in_kernel()) called_on_host(name);
  return *runner_of_this_thread;
}

}  // namespace

std::string to_text(const uint3& index) {
  return fmt::format("({}, {}, {})", index.x, index.y, index.z);
}

// --- Barriers over blocks ------------------------------------------------------------------------------------------

void BlocksBarrier::reset(unsigned blocks) {
  blocks_ = blocks;
  arrived_ = 0;
}

void BlocksBarrier::complete_if_all_arrived() {
  if (arrived_ == 0 || arrived_ < blocks_) return;
  arrived_ = 0;
  ++phase_;
  passed_.notify_all();
}

uint64_t BlocksBarrier::arrive() {
  std::lock_guard lock(mutex_);
  const uint64_t phase = phase_;
  ++arrived_;
  complete_if_all_arrived();
  return phase;
}

void BlocksBarrier::leave() {
  std::lock_guard lock(mutex_);
  --blocks_;
  complete_if_all_arrived();
}

bool BlocksBarrier::wait(uint64_t phase, const Launch& launch) {
  std::unique_lock lock(mutex_);
  while (phase_ == phase) {
    if (launch.stop.load(std::memory_order_relaxed) != Stop::none) return false;
    passed_.wait_for(lock, std::chrono::milliseconds(5));
  }
  return true;
}

// --- Stacks --------------------------------------------------------------------------------------------------------

Stacks::Stacks() {
  void* const memory = mmap(nullptr, max_threads * stack_stride, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<char*>(memory);
  madvise(memory_, max_threads * stack_stride, MADV_NOHUGEPAGE);
}

Stacks::~Stacks() {
  munmap(memory_, max_threads * stack_stride);
}

char* Stacks::bottom(unsigned fiber) {
  for (; guarded_ <= fiber; ++guarded_) {
    if (guards_left.fetch_sub(1, std::memory_order_relaxed) > 0) {
      mprotect(memory_ + guarded_ * stack_stride, guard_bytes, PROT_NONE);
    }
  }
  return memory_ + fiber * stack_stride + guard_bytes;
}

// The tops are staggered over the sets of the first-level cache: the threads of a block wait at the same depth, and
// with page-aligned tops would all compete for the same few lines.
char* Stacks::top(unsigned fiber) {
  return bottom(fiber) + stack_bytes - fiber * 192 % 4096;
}

bool Stacks::in_guard(uintptr_t address) const {
  const uintptr_t offset = address - reinterpret_cast<uintptr_t>(memory_);
  return offset < max_threads * stack_stride && offset % stack_stride < guard_bytes;
}

size_t Stacks::bytes() {
  return max_threads * stack_stride;
}

void Stacks::forget_abandoned() {
#ifdef SIMT_ASAN
  for (unsigned fiber = 0; fiber < guarded_; ++fiber) __asan_unpoison_memory_region(bottom(fiber), stack_bytes);
#endif
}

// --- Running a block -----------------------------------------------------------------------------------------------

BlockRunner* BlockRunner::current() {
  return runner_of_this_thread;
}

void BlockRunner::reset() {
  const dim3& shape = launch_->block;
  if (shape.x != shape_.x || shape.y != shape_.y || shape.z != shape_.z) {
    shape_ = shape;
    for (unsigned thread = 0; thread < launch_->threads_per_block(); ++thread) {
      indices_[thread] = {thread % shape.x, thread / shape.x % shape.y, thread / shape.x / shape.y};
    }
  }
  threads_ = alive_ = launch_->threads_per_block();
  current_ = 0;
  turns_in_warp_ = 0;
  turns_without_change = 0;
  barrier_ = {};
  ready_warps_ = 0;
  copies_.clear();
  for (unsigned warp = 0; warp * warp_size < threads_; ++warp) {
    Warp& w = warps_[warp];
    const unsigned lanes = std::min(warp_size, threads_ - warp * warp_size);
    w.alive = w.unstarted = lanes == warp_size ? ~0u : bit(lanes) - 1;
    w.ready = 0;
    w.at_barrier = w.at_collective = w.at_converge = 0;
    for (const int group : {0, 1}) w.at_group[group] = w.arrived_at_group[group] = 0;
    make_ready(warp, w.alive);
  }
}

void BlockRunner::run(Launch& launch, const uint3& block, Cluster* cluster, unsigned rank,
                      BlocksBarrier* grid_barrier) {
  launch_ = &launch;
  cluster_ = cluster;
  rank_ = rank;
  block_ = block;
  solo_.reset(1);
  groups_[0] = {cluster != nullptr ? &cluster->barrier : &solo_, 0, false, 0};
  order_ = launch.options.order;
  groups_[1] = {grid_barrier, 0, false, 0};
  random_state_ =
      launch.options.seed * 0x9e3779b97f4a7c15u + (uint64_t{block.z} << 42 ^ uint64_t{block.y} << 21 ^ block.x);
  runner_of_this_thread = this;
  reset();

  blockIdx = block;
  blockDim = launch.block;
  gridDim = launch.grid;
  unsigned char* const shared_end = worklog_dynamic_shared + launch.shared_bytes;
#ifdef SIMT_ASAN
  __asan_unpoison_memory_region(worklog_dynamic_shared, sizeof(worklog_dynamic_shared));
#endif
  std::memset(worklog_dynamic_shared, poison, launch.shared_bytes);
  if (poisoned_after_ != launch.shared_bytes) {
    std::memset(shared_end, poison, shared_redzone_bytes);
    poisoned_after_ = launch.shared_bytes;
  }
#ifdef SIMT_ASAN
  __asan_poison_memory_region(shared_end, sizeof(worklog_dynamic_shared) - launch.shared_bytes);
#endif

  abandoned_ = faulted_ = false;
  error_ = {};
  observer_.begin_block(launch, block, cluster, rank, stacks_.memory(), Stacks::bytes(), current_);
  in_engine_ = 1;
  in_block_ = 1;
  resume(pick(Turn::start_over));
  in_block_ = 0;
  observer_.end_block();

#ifdef SIMT_ASAN
  __asan_unpoison_memory_region(worklog_dynamic_shared, sizeof(worklog_dynamic_shared));
#endif
  if (abandoned_) {
    if (faulted_) describe_fault();
    if (error_.lists_waiting) add_waiting(error_);
    if (error_.code != cudaSuccess) launch_->fail(error_.code, prefix(error_.thread, error_.at) + error_.what);
    fibers_.clear();
    free_fibers_.clear();
    stacks_.forget_abandoned();
  } else {
    for (size_t i = 0; i < shared_redzone_bytes; ++i) {
      if (shared_end[i] == poison) continue;
      poisoned_after_ = ~size_t{0};
      launch_->fail(cudaErrorIllegalAddress,
                    fmt::format("simt: kernel {}, block {}: a thread wrote {} bytes past the end of the {} bytes of "
                                "dynamic shared memory that the launch asked for",
                                function_name(launch_->call.kernel), to_text(block_), i, launch_->shared_bytes));
      break;
    }
  }
  // A block of a cluster that reads this one's shared memory from now on reads poison.
  if (cluster != nullptr) std::memset(worklog_dynamic_shared, poison, launch.shared_bytes);
  for (const GroupState& group : groups_) {
    if (group.barrier != nullptr) group.barrier->leave();
  }
}

// Switches to `target`, on the stack of `target_fiber` (nobody: that of the OS thread); returns when someone switches
// back to what is saved.
void BlockRunner::switch_to(Context target, [[maybe_unused]] unsigned target_fiber, Context* save_at,
                            [[maybe_unused]] void** save_fake_stack) {
#ifdef SIMT_ASAN
  if (target_fiber == nobody) {
    __sanitizer_start_switch_fiber(save_fake_stack, scheduler_stack_, scheduler_stack_bytes_);
  } else {
    __sanitizer_start_switch_fiber(save_fake_stack, stacks_.bottom(target_fiber), stacks_.usable_bytes(target_fiber));
  }
#endif
  switch_stack(target, save_at);
#ifdef SIMT_ASAN
  __sanitizer_finish_switch_fiber(*save_fake_stack, nullptr, nullptr);
#endif
}

void BlockRunner::fiber_main() {
#ifdef SIMT_ASAN
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
  BlockRunner& runner = *runner_of_this_thread;
  runner.run_threads(runner.fiber_of_[runner.current_]);
}

unsigned BlockRunner::take_fiber() {
  if (!free_fibers_.empty()) {
    const unsigned fiber = free_fibers_.back();
    free_fibers_.pop_back();
    return fiber;
  }
  const auto fiber = static_cast<unsigned>(fibers_.size());
  fibers_.push_back({make_context<fiber_main>(stacks_.top(fiber), stacks_.usable_bytes(fiber)), nullptr});
  return fiber;
}

// Switches from the OS thread's own stack to the first thread; returns when the block is done.
void BlockRunner::resume(unsigned thread) {
#ifdef SIMT_ASAN
  if (scheduler_stack_ == nullptr) {
    pthread_attr_t attributes;
    pthread_getattr_np(pthread_self(), &attributes);
    void* stack = nullptr;
    pthread_attr_getstack(&attributes, &stack, &scheduler_stack_bytes_);
    pthread_attr_destroy(&attributes);
    scheduler_stack_ = static_cast<char*>(stack);
  }
#endif
  prepare_start(thread);
  become(thread);
  switch_to(contexts_[thread], fiber_of_[thread], &scheduler_, &scheduler_fake_stack_);
}

// Runs threads on one fiber, one after the other: a thread that never waits costs no switch at all.
void BlockRunner::run_threads(unsigned fiber) {
  for (;;) {
    Lane& lane = warps_[current_ / warp_size].lanes[current_ % warp_size];
    lane.spins_on = nullptr;
    bool threw = false;
    try {
      in_engine_ = 0;
      launch_->call.invoke(launch_->call.arguments);
      in_engine_ = 1;
    } catch (const std::exception& exception) {
      record(cudaErrorLaunchFailure, current_, fmt::format("an exception left the kernel: {}", exception.what()), {});
      threw = true;
    } catch (...) {
      record(cudaErrorLaunchFailure, current_, "an exception left the kernel", {});
      threw = true;
    }
    if (threw) abandon();
    finish_thread();
    check_stop();

    unsigned next = pick(Turn::stay);
    if (next == nobody) next = release_someone(Turn::stay);
    if (next == nobody) {
      free_fibers_.push_back(static_cast<uint16_t>(fiber));
      switch_to(scheduler_, nobody, &fibers_[fiber].idle, &fibers_[fiber].fake_stack);
      continue;
    }
    become(next);
    Warp& warp = warps_[next / warp_size];
    if (warp.unstarted & bit(next % warp_size)) {
      warp.unstarted &= ~bit(next % warp_size);
      fiber_of_[next] = static_cast<uint16_t>(fiber);
    } else {
      free_fibers_.push_back(static_cast<uint16_t>(fiber));
      switch_to(contexts_[next], fiber_of_[next], &fibers_[fiber].idle, &fibers_[fiber].fake_stack);
    }
  }
}

// The running thread gives way to the next. It is in a set that says what it waits for, or ready.
void BlockRunner::suspend(Turn turn) {
  if (launch_->stop.load(std::memory_order_relaxed) != Stop::none) [[unlikely]]
    check_stop();
  const unsigned self = current_;
  unsigned next = pick(turn);
  if (next == nobody) [[unlikely]]
    next = release_someone(turn);
  if (next == self) return;
  if (warps_[next / warp_size].unstarted & bit(next % warp_size)) prepare_start(next);
  // The stack that is most likely to follow.
  const char* const following = reinterpret_cast<const char*>(contexts_[(next + 1) % max_threads]);
  __builtin_prefetch(following);
  __builtin_prefetch(following + 64);
  __builtin_prefetch(following + 128);
  become(next);
  switch_to(contexts_[next], fiber_of_[next], &contexts_[self], &fake_stacks_[self]);
}

void BlockRunner::become(unsigned thread) {
  switches.store(switches.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  current_ = thread;
  threadIdx = indices_[thread];
}

// Gives a thread that has not run yet a stack.
void BlockRunner::prepare_start(unsigned thread) {
  warps_[thread / warp_size].unstarted &= ~bit(thread % warp_size);
  const unsigned fiber = take_fiber();
  fiber_of_[thread] = static_cast<uint16_t>(fiber);
  contexts_[thread] = fibers_[fiber].idle;
}

void BlockRunner::make_ready(unsigned warp, unsigned lanes) {
  warps_[warp].ready |= lanes;
  if (lanes != 0) ready_warps_ |= bit(warp);
}

uint64_t BlockRunner::random() {  // splitmix64 [Steele, Lea, Flood 2014]
  uint64_t z = random_state_ += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

// Takes the next thread out of the ready ones, in the order that the options ask for.
unsigned BlockRunner::pick(Turn turn) {
  if (ready_warps_ == 0) return nobody;
  const Order order = order_;
  const bool down = order == Order::reverse;
  const auto any = [this](unsigned set) {
    const int turned = static_cast<int>(random() % 32);
    return (static_cast<unsigned>(std::countr_zero(std::rotr(set, turned))) + static_cast<unsigned>(turned)) % 32;
  };

  unsigned warp = current_ / warp_size;
  unsigned lane;
  if (order == Order::shuffle) {
    const bool stays = turn == Turn::stay && warps_[warp].ready != 0 && random() % 16 != 0;
    if (!stays) warp = any(ready_warps_);
    lane = any(warps_[warp].ready);
  } else {
    constexpr unsigned most_turns_in_warp = 4096;  // so that a warp that loops cannot keep the others from their turn
    const unsigned later = after(warps_[warp].ready, current_ % warp_size, down);
    if (turn != Turn::start_over && later != 0 && ++turns_in_warp_ < most_turns_in_warp) {
      lane = first(later, down);
    } else if (turn == Turn::stay && warps_[warp].ready != 0 && turns_in_warp_ < most_turns_in_warp) {
      lane = first(warps_[warp].ready, down);
    } else {
      const unsigned later_warps = turn == Turn::start_over ? 0 : after(ready_warps_, warp, down);
      warp = first(later_warps != 0 ? later_warps : ready_warps_, down);
      lane = first(warps_[warp].ready, down);
      turns_in_warp_ = 0;
    }
  }
  warps_[warp].ready &= ~bit(lane);
  if (warps_[warp].ready == 0) ready_warps_ &= ~bit(warp);
  return warp * warp_size + lane;
}

// nobody: the block is done.
unsigned BlockRunner::release_someone(Turn turn) {
  for (;;) {
    const unsigned next = pick(turn);
    if (next != nobody || alive_ == 0) return next;
    if (release_converged()) continue;
    bool released = false;
    for (const Group group : {Group::cluster, Group::grid}) {
      GroupState& state = groups_[static_cast<size_t>(group)];
      if (!state.posted) continue;
      waits.store(waits.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
      waits_for_blocks.store(true, std::memory_order_relaxed);
      const bool passed = state.barrier->wait(state.phase, *launch_);
      waits_for_blocks.store(false, std::memory_order_relaxed);
      if (!passed) {
        if (launch_->stop.load(std::memory_order_relaxed) == Stop::spin_limit) {
          record_waiting("a wait for other blocks that does not end");
          abandon();
        }
        check_stop();
      }
      release_group(group);
      released = true;
      break;
    }
    if (!released) {
      record_waiting("deadlock: no thread of the block can go on");
      abandon();
    }
  }
}

void BlockRunner::finish_thread() {
  Warp& warp = warps_[current_ / warp_size];
  const unsigned lane = current_ % warp_size;
  warp.alive &= ~bit(lane);
  --alive_;
  turns_without_change = 0;
  for (unsigned rest = warp.at_collective; rest != 0; rest &= rest - 1) {
    const unsigned waiting = static_cast<unsigned>(std::countr_zero(rest));
    const Lane& waits = warp.lanes[waiting];
    if ((waits.mask & bit(lane)) == 0) continue;
    record(cudaErrorLaunchFailure, current_ - lane + waiting,
           fmt::format("{} waits for {}, which its mask {:#010x} names and which has returned", waits.name,
                       lanes_text(bit(lane)), waits.mask),
           {waits.file, waits.line});
    abandon();
  }
  if (barrier_.arrived != 0 && barrier_.arrived == alive_) release_barrier();
  for (const Group group : {Group::cluster, Group::grid}) {
    const auto g = static_cast<size_t>(group);
    if (warp.arrived_at_group[g] & bit(lane)) {
      warp.arrived_at_group[g] &= ~bit(lane);
      --groups_[g].arrived;
    }
    post_if_all_arrived(group);
  }
}

// --- Waiting together ----------------------------------------------------------------------------------------------

void BlockRunner::wait_at(Lane& lane, const char* name, Site site) {
  lane.name = name;
  lane.file = site.file;
  lane.line = site.line;
}

bool BlockRunner::same_place(const Lane& lane, const char* name, Site site) const {
  return lane.line == site.line && (lane.name == name || std::strcmp(lane.name, name) == 0) &&
         (lane.file == site.file || std::strcmp(lane.file, site.file) == 0);
}

uint64_t BlockRunner::collective(Collective kind, unsigned mask, uint64_t operand, unsigned source, const char* name,
                                 Site site) {
  in_engine_ = 1;
  const unsigned lane = current_ % warp_size;
  const unsigned warp_number = current_ / warp_size;
  Warp& warp = warps_[warp_number];
  if ((mask & bit(lane)) == 0 || (mask & ~warp.alive) != 0) [[unlikely]]
    refuse_mask(mask, name, site);

  Lane& self = warp.lanes[lane];
  self.operand = operand;
  self.mask = mask;
  self.kind = kind;
  self.source = static_cast<uint8_t>(source);
  wait_at(self, name, site);
  turns_without_change = 0;

  const unsigned others = mask & ~bit(lane);
  warp.at_collective |= bit(lane);
  if ((others & ~warp.at_collective) == 0) {  // the last to arrive
    for (unsigned rest = others; rest != 0; rest &= rest - 1) {
      const Lane& other = warp.lanes[std::countr_zero(rest)];
      if (other.mask != mask || other.kind != kind || !same_place(other, name, site)) [[unlikely]] {
        refuse_meeting(self, other);
      }
    }
    exchange(warp, mask, kind);
    observer_.collective_passed(warp_number, mask, warp.alive, kind, site,
                                [&](unsigned of) { return warp.lanes[of].source; });
    warp.at_collective &= ~mask;
    make_ready(warp_number, mask);
  }
  suspend(Turn::stay);
  const uint64_t result = self.result;
  in_engine_ = 0;
  return result;
}

void BlockRunner::refuse_mask(unsigned mask, const char* name, Site site) {
  const unsigned lane = current_ % warp_size;
  const Warp& warp = warps_[current_ / warp_size];
  if ((mask & bit(lane)) == 0) {
    record(cudaErrorLaunchFailure, current_,
           fmt::format("{} is called by lane {}, which its mask {:#010x} does not name", name, lane, mask),
           {site.file, site.line});
    abandon();
  }
  const unsigned in_warp = threads_ - (current_ - lane);
  const unsigned missing = in_warp >= warp_size ? 0 : mask & ~(bit(in_warp) - 1);
  const unsigned returned = mask & ~warp.alive & ~missing;
  record(cudaErrorLaunchFailure, current_,
         fmt::format("{} waits for {}, which its mask {:#010x} names and which {}", name,
                     lanes_text(missing != 0 ? missing : returned), mask,
                     missing != 0                    ? fmt::format("the block of {} threads does not have", threads_)
                     : std::has_single_bit(returned) ? "has returned"
                                                     : "have returned"),
         {site.file, site.line});
  abandon();
}

void BlockRunner::refuse_meeting(const Lane& self, const Lane& other) {
  const auto lane = static_cast<unsigned>(&other - warps_[current_ / warp_size].lanes.data());
  record(cudaErrorLaunchFailure, current_,
         fmt::format("{} with mask {:#010x} meets {} with mask {:#010x} of lane {}, {}:{}", self.name, self.mask,
                     other.name, other.mask, lane, other.file, other.line),
         {self.file, self.line});
  abandon();
}

void BlockRunner::exchange(Warp& warp, unsigned mask, Collective kind) {
  const auto for_each = [&](auto&& visit) {
    for (unsigned rest = mask; rest != 0; rest &= rest - 1) visit(warp.lanes[std::countr_zero(rest)]);
  };
  const auto same_for_all = [&](uint64_t result) { for_each([&](Lane& lane) { lane.result = result; }); };
  const auto reduced = [&](auto combine) {
    uint64_t result = warp.lanes[std::countr_zero(mask)].operand;
    for (unsigned rest = mask & (mask - 1); rest != 0; rest &= rest - 1) {
      result = static_cast<uint64_t>(
          combine(static_cast<int64_t>(result), static_cast<int64_t>(warp.lanes[std::countr_zero(rest)].operand)));
    }
    return result;
  };
  const auto lanes_equal_to = [&](uint64_t operand) {
    uint64_t equal = 0;
    for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
      if (warp.lanes[std::countr_zero(rest)].operand == operand) equal |= rest & -rest;
    }
    return equal;
  };
  switch (kind) {
    case Collective::sync:
      break;
    case Collective::shuffle:
      // What a lane outside of the mask holds is undefined; here it is a NaN.
      for_each([&](Lane& lane) { lane.result = mask & bit(lane.source) ? warp.lanes[lane.source].operand : ~0ull; });
      break;
    case Collective::ballot:
      same_for_all(lanes_equal_to(1));
      break;
    case Collective::match_any:
      for_each([&](Lane& lane) { lane.result = lanes_equal_to(lane.operand); });
      break;
    case Collective::match_all: {
      const uint64_t equal = lanes_equal_to(warp.lanes[std::countr_zero(mask)].operand);
      same_for_all(equal == mask ? mask : 0);
      break;
    }
    case Collective::add:
      same_for_all(reduced([](int64_t a, int64_t b) { return a + b; }));
      break;
    case Collective::bitwise_and:
      same_for_all(reduced([](int64_t a, int64_t b) { return a & b; }));
      break;
    case Collective::bitwise_or:
      same_for_all(reduced([](int64_t a, int64_t b) { return a | b; }));
      break;
    case Collective::bitwise_xor:
      same_for_all(reduced([](int64_t a, int64_t b) { return a ^ b; }));
      break;
    case Collective::min:
      same_for_all(reduced([](int64_t a, int64_t b) { return std::min(a, b); }));
      break;
    case Collective::max:
      same_for_all(reduced([](int64_t a, int64_t b) { return std::max(a, b); }));
      break;
  }
}

unsigned BlockRunner::converge(const char* name, Site site) {
  in_engine_ = 1;
  Warp& warp = warps_[current_ / warp_size];
  Lane& self = warp.lanes[current_ % warp_size];
  wait_at(self, name, site);
  warp.at_converge |= bit(current_ % warp_size);
  suspend(Turn::stay);
  const auto result = static_cast<unsigned>(self.result);
  in_engine_ = 0;
  return result;
}

// Lets go the lanes that ask who is with them; those of the same line are together. False: there are none.
bool BlockRunner::release_converged() {
  bool released = false;
  for (unsigned w = 0; w * warp_size < threads_; ++w) {
    Warp& warp = warps_[w];
    if (warp.ready != 0) continue;
    for (unsigned rest = warp.at_converge; rest != 0;) {
      const Lane& leader = warp.lanes[std::countr_zero(rest)];
      unsigned together = 0;
      for (unsigned others = rest; others != 0; others &= others - 1) {
        const int other = std::countr_zero(others);
        if (same_place(warp.lanes[other], leader.name, {leader.file, leader.line})) together |= bit(other);
      }
      for (unsigned lanes = together; lanes != 0; lanes &= lanes - 1) {
        warp.lanes[std::countr_zero(lanes)].result = together;
      }
      rest &= ~together;
      released = true;
    }
    make_ready(w, warp.at_converge);
    warp.at_converge = 0;
  }
  return released;
}

int BlockRunner::barrier(BarrierKind kind, int predicate, const char* name, Site site) {
  in_engine_ = 1;
  if (barrier_.arrived == 0) {
    barrier_.kind = kind;
    barrier_.name = name;
    barrier_.site = site;
    barrier_.count = 0;
  } else if (barrier_.kind != kind || barrier_.site.line != site.line ||
             (barrier_.site.file != site.file && std::strcmp(barrier_.site.file, site.file) != 0)) [[unlikely]] {
    refuse_barrier(name, site);
  }
  warps_[current_ / warp_size].at_barrier |= bit(current_ % warp_size);
  ++barrier_.arrived;
  barrier_.count += predicate != 0;
  turns_without_change = 0;
  const bool last = barrier_.arrived == alive_;
  if (last) release_barrier();
  suspend(last ? Turn::start_over : Turn::stay);
  in_engine_ = 0;
  return barrier_.result;
}

void BlockRunner::refuse_barrier(const char* name, Site site) {
  record(cudaErrorLaunchFailure, current_,
         fmt::format("{} meets another barrier: {} of the block's threads wait at {}, {}:{}", name, barrier_.arrived,
                     barrier_.name, barrier_.site.file, barrier_.site.line),
         {site.file, site.line});
  abandon();
}

void BlockRunner::release_barrier() {
  switch (barrier_.kind) {
    case BarrierKind::sync:
      break;
    case BarrierKind::count:
      barrier_.result = barrier_.count;
      break;
    case BarrierKind::all:
      barrier_.result = barrier_.count == static_cast<int>(barrier_.arrived);
      break;
    case BarrierKind::any:
      barrier_.result = barrier_.count != 0;
      break;
  }
  observer_.barrier_passed(barrier_.site);
  barrier_.arrived = 0;
  for (unsigned warp = 0; warp * warp_size < threads_; ++warp) {
    make_ready(warp, warps_[warp].at_barrier);
    warps_[warp].at_barrier = 0;
  }
}

void BlockRunner::post_if_all_arrived(Group group) {
  GroupState& state = groups_[static_cast<size_t>(group)];
  if (state.posted || state.arrived == 0 || state.arrived < alive_) return;
  state.posted = true;
  observer_.group_posted([&] {
    unsigned waiting = 0;
    for (unsigned warp = 0; warp * warp_size < threads_; ++warp) {
      waiting += static_cast<unsigned>(std::popcount(warps_[warp].at_group[static_cast<size_t>(group)]));
    }
    return waiting + 1 >= alive_;
  });
  state.phase = state.barrier->arrive();
}

void BlockRunner::release_group(Group group) {
  const auto g = static_cast<size_t>(group);
  observer_.group_passed(group, groups_[g].site);
  groups_[g].posted = false;
  groups_[g].arrived = 0;
  for (unsigned warp = 0; warp * warp_size < threads_; ++warp) {
    make_ready(warp, warps_[warp].at_group[g]);
    warps_[warp].at_group[g] = warps_[warp].arrived_at_group[g] = 0;
  }
}

void BlockRunner::group_arrive(Group group, const char* name, Site site) {
  in_engine_ = 1;
  const auto g = static_cast<size_t>(group);
  Warp& warp = warps_[current_ / warp_size];
  const unsigned lane = bit(current_ % warp_size);
  if (groups_[g].barrier == nullptr) {
    record(cudaErrorLaunchFailure, current_, fmt::format("{} in a kernel that was not launched cooperatively", name),
           {site.file, site.line});
    abandon();
  }
  if (warp.arrived_at_group[g] & lane) {
    record(cudaErrorLaunchFailure, current_, fmt::format("{} by a thread that has arrived already", name),
           {site.file, site.line});
    abandon();
  }
  warp.arrived_at_group[g] |= lane;
  ++groups_[g].arrived;
  turns_without_change = 0;
  post_if_all_arrived(group);
  in_engine_ = 0;
}

void BlockRunner::group_wait(Group group, const char* name, Site site) {
  in_engine_ = 1;
  const auto g = static_cast<size_t>(group);
  Warp& warp = warps_[current_ / warp_size];
  const unsigned lane = bit(current_ % warp_size);
  if (warp.arrived_at_group[g] & lane) {  // else the barrier has been passed since this thread arrived
    wait_at(warp.lanes[current_ % warp_size], name, site);
    warp.at_group[g] |= lane;
    groups_[g].site = site;
    suspend(Turn::stay);
  }
  in_engine_ = 0;
}

// --- Asynchronous copies -------------------------------------------------------------------------------------------

void BlockRunner::copy_later(void* to, const void* from, size_t bytes, size_t zero_bytes, Site site,
                             [[maybe_unused]] const void* code) {
  in_engine_ = 1;
  const bool right_size = (bytes == 4 || bytes == 8 || bytes == 16) && zero_bytes <= bytes;
  if (!right_size || (reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % bytes != 0) {
    record(cudaErrorMisalignedAddress, current_,
           fmt::format("__pipeline_memcpy_async() of {} bytes, {} of them zeros, from {} to {}: it copies 4, 8 or 16 "
                       "bytes between addresses that are a multiple of that",
                       bytes, zero_bytes, from, to),
           {site.file, site.line});
    abandon();
  }
  observer_.copy_issued(to, from, bytes, zero_bytes, code);
  if (copies_.empty()) copies_.resize(max_threads);
  copies_[current_].waiting.push_back({to, from, bytes, zero_bytes});
  in_engine_ = 0;
}

void BlockRunner::commit_copies() {
  in_engine_ = 1;
  if (copies_.empty()) copies_.resize(max_threads);
  Copies& copies = copies_[current_];
  copies.batch_sizes.push_back(copies.waiting.size() - copies.committed);
  copies.committed = copies.waiting.size();
  in_engine_ = 0;
}

void BlockRunner::wait_for_copies(size_t batches_left) {
  in_engine_ = 1;
  if (!copies_.empty() && copies_[current_].batch_sizes.size() > batches_left) {
    Copies& copies = copies_[current_];
    const auto last_batch = copies.batch_sizes.end() - static_cast<std::ptrdiff_t>(batches_left);
    size_t due = 0;
    for (auto batch = copies.batch_sizes.begin(); batch != last_batch; ++batch) due += *batch;
    for (size_t i = 0; i < due; ++i) {
      const Copy& copy = copies.waiting[i];
      const size_t read = copy.bytes - copy.zero_bytes;
      if (read > 0) std::memcpy(copy.to, copy.from, read);
      std::memset(static_cast<char*>(copy.to) + read, 0, copy.zero_bytes);
      observer_.copy_arrived(copy.to, copy.bytes);
    }
    copies.waiting.erase(copies.waiting.begin(), copies.waiting.begin() + static_cast<std::ptrdiff_t>(due));
    copies.batch_sizes.erase(copies.batch_sizes.begin(), last_batch);
    copies.committed -= due;
  }
  in_engine_ = 0;
}

// --- Spinning ------------------------------------------------------------------------------------------------------

void BlockRunner::spin(const volatile void* address, Site site) {
  Lane& lane = warps_[current_ / warp_size].lanes[current_ % warp_size];
  if (lane.spins_on == address) {
    yield(site);
  } else {
    lane.spins_on = address;
  }
}

void BlockRunner::yield(Site site) {
  in_engine_ = 1;
  const unsigned turns = ++turns_without_change;
  const bool all_had_turns = turns > 2 * alive_;
  only_spins.store(all_had_turns, std::memory_order_relaxed);
  if (all_had_turns) {
    spins.store(spins.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    if (launch_->stop.load(std::memory_order_relaxed) == Stop::spin_limit) {
      record(cudaErrorLaunchTimeout, current_,
             fmt::format("a wait that does not end: for {} ms every thread has waited, or has tried atomic operations "
                         "that changed nothing",
                         launch_->options.spin_limit.count()),
             {site.file, site.line});
      abandon();
    }
    if (turns % alive_ == 0) {
      turns > 64 * alive_ ? static_cast<void>(usleep(50)) : static_cast<void>(sched_yield());  // the other blocks
    }
    release_converged();
  }
  make_ready(current_ / warp_size, bit(current_ % warp_size));
  suspend(Turn::move_on);
  in_engine_ = 0;
}

// The watchdog has found the same thread running for some time. Where it waits for another in a loop of plain loads,
// only this lets the other run.
void BlockRunner::preempt(uintptr_t instruction) {
  // Not in the C library, which may hold a lock.
  if (instruction < launch_->code_begin || instruction >= launch_->code_end || observer_.is_busy()) return;
  const Stop stop = launch_->stop.load(std::memory_order_relaxed);
  if (stop != Stop::none && stop != Stop::spin_limit) abandon_after({0, 0, 0, instruction});
  if (ready_warps_ == 0) return;
  in_engine_ = 1;
  turns_without_change = 0;
  make_ready(current_ / warp_size, bit(current_ % warp_size));
  suspend(Turn::move_on);
  in_engine_ = 0;
}

// --- Errors --------------------------------------------------------------------------------------------------------
//
// A thread that fails records its message and switches to the OS thread's own stack for good; the stacks of the block
// are used afresh by the next. Nothing on them is unwound, so no object with a destructor may be alive here.

void BlockRunner::abandon() {
  abandoned_ = true;
#ifdef SIMT_ASAN
  __sanitizer_start_switch_fiber(nullptr, scheduler_stack_, scheduler_stack_bytes_);
#endif
  Context forgotten;
  switch_stack(scheduler_, &forgotten);
  __builtin_unreachable();
}

void BlockRunner::abandon_after(const Fault& fault) {
  in_engine_ = 1;
  fault_ = fault;
  faulted_ = true;
  abandon();
}

void BlockRunner::check_stop() {
  const Stop stop = launch_->stop.load(std::memory_order_relaxed);
  if (stop == Stop::none || stop == Stop::spin_limit) [[likely]]
    return;  // whoever spins or waits reports that limit
  if (stop == Stop::block_limit) {
    record_waiting(fmt::format("no block has started or finished for {} ms", launch_->options.block_limit.count()));
  }
  abandon();
}

std::string BlockRunner::prefix(unsigned thread, const SourceLine& at) const {
  return fmt::format("simt: kernel {}, block {}, thread {}{}: ", function_name(launch_->call.kernel), to_text(block_),
                     to_text(indices_[thread]), at.file.empty() ? "" : fmt::format(", {}:{}", at.file, at.line));
}

// Only notes the error: its message is put together on the OS thread's own stack, which is large enough to read debug
// information.
void BlockRunner::record(cudaError_t code, unsigned thread, const std::string& what, const SourceLine& at) {
  in_engine_ = 1;
  error_ = {code, thread, what, at, false};
}

void BlockRunner::record_waiting(const std::string& what) {
  record(cudaErrorLaunchTimeout, current_, what, {});
  error_.lists_waiting = true;
}

// Every set of waiting threads, with the line that they wait at. The message is under the name of the first.
void BlockRunner::add_waiting(Error& error) const {
  struct Waiting {
    std::string name;
    SourceLine at;
    unsigned first, count;
  };
  std::vector<Waiting> groups;
  for (unsigned thread = 0; thread < threads_; ++thread) {
    const Warp& warp = warps_[thread / warp_size];
    const Lane& lane = warp.lanes[thread % warp_size];
    const unsigned own = bit(thread % warp_size);
    Waiting waiting{"", {}, thread, 1};
    if (warp.at_barrier & own) {
      waiting.name = barrier_.name;
      waiting.at = {barrier_.site.file, barrier_.site.line};
    } else if (warp.at_collective & own) {
      waiting.name = fmt::format("{} with mask {:#010x}", lane.name, lane.mask);
      waiting.at = {lane.file, lane.line};
    } else if ((warp.at_converge | warp.at_group[0] | warp.at_group[1]) & own) {
      waiting.name = lane.name;
      waiting.at = {lane.file, lane.line};
    } else {
      continue;
    }
    const auto known = std::find_if(groups.begin(), groups.end(), [&](const Waiting& other) {
      return other.name == waiting.name && other.at.file == waiting.at.file && other.at.line == waiting.at.line;
    });
    known == groups.end() ? groups.push_back(waiting) : static_cast<void>(++known->count);
  }
  for (const Waiting& group : groups) {
    error.what += fmt::format("\n  {} of {} threads, the first of them {}, wait at {}, {}:{}", group.count, threads_,
                              to_text(indices_[group.first]), group.name, group.at.file, group.at.line);
  }
  if (alive_ < threads_) error.what += fmt::format("\n  {} have returned", threads_ - alive_);
  if (!groups.empty()) {
    error.thread = groups[0].first;
    error.at = groups[0].at;
  }
}

void BlockRunner::trap(const std::string& what, Site site, cudaError_t code) {
  record(code, current_, what, {site.file, site.line});
}

// Names what a signal handler saw.
void BlockRunner::describe_fault() {
  const SourceLine at = source_line(fault_.instruction);
  std::string what;
  cudaError_t code = cudaErrorLaunchFailure;
  switch (fault_.signal) {
    case 0:  // the watchdog's
      if (launch_->stop.load() != Stop::block_limit) return;
      code = cudaErrorLaunchTimeout;
      what = fmt::format("no block has started or finished for {} ms; this thread was running here",
                         launch_->options.block_limit.count());
      break;
    case SIGSEGV:
    case SIGBUS:
      code = cudaErrorIllegalAddress;
      if (stacks_.in_guard(fault_.address)) {
        code = cudaErrorLaunchFailure;
        what = fmt::format("the thread's stack of {} KB overflowed", stack_bytes / 1024);
      } else if (fault_.code == SI_KERNEL) {
        code = cudaErrorMisalignedAddress;
        what = "an access to an address that is not aligned as its type asks, or that no pointer can hold";
      } else {
        what = fmt::format("an access to {}", describe_address(fault_.address));
      }
      break;
    case SIGFPE:
      what = fault_.code == FPE_INTDIV ? "an integer division by zero" : "an arithmetic fault (SIGFPE)";
      break;
    case SIGABRT:
      what = "abort() was called";
      break;
    default:
      code = cudaErrorIllegalInstruction;
      what = "an illegal instruction";
  }
  record(code, current_, what, at);
}

// --- Clusters ------------------------------------------------------------------------------------------------------

// Where this OS thread has the thread-local storage of each module, in the same order on every thread.
void BlockRunner::collect_tls_blocks() {
  tls_blocks_.clear();
  dl_iterate_phdr(
      [](dl_phdr_info* module, size_t, void* self) {
        for (int i = 0; i < module->dlpi_phnum; ++i) {
          const auto& header = module->dlpi_phdr[i];
          if (header.p_type != PT_TLS || module->dlpi_tls_modid == 0) continue;
          const char* begin = static_cast<const char*>(module->dlpi_tls_data);
          if (begin == nullptr) {  // a module that was loaded later, and not touched by this thread yet
            struct {
              unsigned long module, offset;
            } index{module->dlpi_tls_modid, 0};
            begin = static_cast<const char*>(__tls_get_addr(&index));
          }
          static_cast<BlockRunner*>(self)->tls_blocks_.push_back({begin, header.p_memsz});
        }
        return 0;
      },
      this);
}

void* BlockRunner::map_to_rank(const void* shared, unsigned rank, const char* name, Site site) {
  const unsigned blocks = cluster_ == nullptr ? 1 : static_cast<unsigned>(cluster_->blocks.size());
  if (rank >= blocks) {
    record(cudaErrorLaunchFailure, current_, fmt::format("{} of rank {} in a cluster of {} blocks", name, rank, blocks),
           {site.file, site.line});
    abandon();
  }
  if (rank == rank_ || cluster_ == nullptr) return const_cast<void*>(shared);
  const char* const address = static_cast<const char*>(shared);
  for (size_t i = 0; i < tls_blocks_.size(); ++i) {
    const TlsBlock& own = tls_blocks_[i];
    if (address < own.begin || address >= own.begin + own.bytes) continue;
    const char* const other = cluster_->blocks[rank]->tls_blocks_[i].begin;
    return const_cast<char*>(other + (address - own.begin));
  }
  record(cudaErrorLaunchFailure, current_, fmt::format("{} of an address that is not in shared memory", name),
         {site.file, site.line});
  abandon();
}

int BlockRunner::rank_of(const void* shared) const {
  if (cluster_ == nullptr) return 0;
  const char* const address = static_cast<const char*>(shared);
  for (size_t rank = 0; rank < cluster_->blocks.size(); ++rank) {
    for (const TlsBlock& block : cluster_->blocks[rank]->tls_blocks_) {
      if (address >= block.begin && address < block.begin + block.bytes) return static_cast<int>(rank);
    }
  }
  return -1;
}

// --- The engine's functions, as the headers call them --------------------------------------------------------------

uint64_t warp_collective(Collective kind, unsigned mask, uint64_t operand, unsigned source, const char* name,
                         Site site) {
  return runner_for(name).collective(kind, mask, operand, source, name, site);
}

unsigned converged_lanes(const char* name, Site site) {
  return runner_for(name).converge(name, site);
}

unsigned lane_id() {
  return runner_for("a warp's operation").lane();
}

int block_barrier(BarrierKind kind, int predicate, const char* name, Site site) {
  return runner_for(name).barrier(kind, predicate, name, site);
}

void group_arrive(Group group, const char* name, Site site) {
  runner_for(name).group_arrive(group, name, site);
}

void group_wait(Group group, const char* name, Site site) {
  runner_for(name).group_wait(group, name, site);
}

ClusterShape cluster_shape() {
  const BlockRunner& runner = runner_for("a cluster's operation");
  return {runner.launch().cluster_blocks(), runner.rank()};
}

bool launched_cooperatively() {
  return runner_for("a grid's operation").launch().cooperative;
}

void* map_to_rank(const void* shared, unsigned rank, const char* name, Site site) {
  return runner_for(name).map_to_rank(shared, rank, name, site);
}

int rank_of_shared(const void* shared) {
  return runner_for("a cluster's operation").rank_of(shared);
}

void copy_later(void* to, const void* from, size_t bytes, size_t zero_bytes, Site site) {
  runner_for("__pipeline_memcpy_async()").copy_later(to, from, bytes, zero_bytes, site, __builtin_return_address(0));
}

void commit_copies() {
  runner_for("__pipeline_commit()").commit_copies();
}

void wait_for_copies(size_t batches_left) {
  runner_for("__pipeline_wait_prior()").wait_for_copies(batches_left);
}

void atomic_changed_nothing(const volatile void* address, Site site) {
  BlockRunner* const runner = runner_of_this_thread;
  if (runner == nullptr || !runner->in_kernel()) return;
  runner->spin(address, site);
}

void yield(Site site) {
  runner_for("__nanosleep()").yield(site);
}

void trap(const char* what, Site site, int error) {
  BlockRunner& runner = runner_for(what);
  runner.trap(what, site, static_cast<cudaError_t>(error));
  runner.abandon();
}

}  // namespace simt::detail

// What assert() calls. In a kernel it ends the launch; elsewhere it ends the program, as the C library's does.
extern "C" [[noreturn]] void __assert_fail(const char* expression, const char* file, unsigned line,
                                           const char* function) noexcept {
  using simt::detail::BlockRunner;
  BlockRunner* const runner = BlockRunner::current();
  if (runner != nullptr && runner->in_kernel()) {
    runner->trap(fmt::format("assertion failed: {}", expression), {file, static_cast<int>(line)}, cudaErrorAssert);
    runner->abandon();
  }
  fmt::print(stderr, "{}:{}: {}: Assertion `{}' failed.\n", file, line, function, expression);
  std::abort();
}
