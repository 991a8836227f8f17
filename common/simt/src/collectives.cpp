// What the lanes of a warp do together: shuffles, votes, reductions, __syncwarp(), and finding out who is with them.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "turns.h"

namespace simt::detail {

namespace {

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

}  // namespace

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

void BlockRunner::refuse_return(unsigned waiting) {
  const unsigned lane = current_ % warp_size;
  const Lane& waits = warps_[current_ / warp_size].lanes[waiting];
  record(cudaErrorLaunchFailure, current_ - lane + waiting,
         fmt::format("{} waits for {}, which its mask {:#010x} names and which has returned", waits.name,
                     lanes_text(bit(lane)), waits.mask),
         {waits.file, waits.line});
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

// As the headers call them (simt/engine.h).

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

}  // namespace simt::detail
