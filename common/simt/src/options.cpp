// The options of the layer: from the environment, and from a test (simt/simt.h).
#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string_view>

#include "runtime.h"

namespace simt {

namespace detail {

namespace {

[[noreturn]] void refuse(const char* name, const char* value, const char* allowed) {
  fmt::print(stderr, "simt: {}={}: must be {}\n", name, value, allowed);
  std::_Exit(2);
}

template <class T>
bool parse(std::string_view text, T& number) {
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && rest == end && !text.empty();
}

void read_number(const char* name, unsigned least, unsigned most, auto&& use) {
  const char* const text = std::getenv(name);
  if (text == nullptr) return;
  unsigned number = 0;
  if (!parse(text, number) || number < least || number > most) {
    refuse(name, text, fmt::format("a number from {} to {}", least, most).c_str());
  }
  use(number);
}

Options from_environment() {
  Options options;
  if (const char* const order = std::getenv("WORKLOG_SIMT_ORDER")) {
    if (!read_order(order, options)) refuse("WORKLOG_SIMT_ORDER", order, "forward, reverse or shuffle:SEED");
  }
  read_number("WORKLOG_SIMT_THREADS", 1, 1024, [&](unsigned n) { options.threads = n; });
  read_number("WORKLOG_SIMT_MULTIPROCESSORS", 1, 1024, [&](unsigned n) { options.multiprocessors = n; });
  read_number("WORKLOG_SIMT_BLOCKS_PER_MULTIPROCESSOR", 1, 32,
              [&](unsigned n) { options.blocks_per_multiprocessor = n; });
  read_number("WORKLOG_SIMT_L2_BYTES", 1u << 10, 1u << 31, [&](unsigned n) { options.l2_bytes = n; });
  const auto milliseconds = [](unsigned n) { return std::chrono::milliseconds(n); };
  read_number("WORKLOG_SIMT_SPIN_LIMIT_MS", 10, 1u << 30, [&](unsigned n) { options.spin_limit = milliseconds(n); });
  read_number("WORKLOG_SIMT_BLOCK_LIMIT_MS", 0, 1u << 30, [&](unsigned n) { options.block_limit = milliseconds(n); });
  return options;
}

std::map<std::string, KernelResources> resources_from_environment() {
  std::map<std::string, KernelResources> resources;
  const char* const path = std::getenv("WORKLOG_SIMT_KERNELS");
  if (path == nullptr) return resources;
  std::ifstream file(path);
  if (!file) refuse("WORKLOG_SIMT_KERNELS", path, "a file that can be read");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string symbol;
    KernelResources of;
    if (!(words >> symbol >> of.registers >> of.static_shared_bytes)) {
      refuse("WORKLOG_SIMT_KERNELS", path, "a file of lines 'symbol registers shared-bytes'");
    }
    resources[symbol] = of;
  }
  return resources;
}

ClustersAtOnce clusters_from_environment() {
  constexpr const char* name = "WORKLOG_SIMT_CLUSTERS";
  ClustersAtOnce clusters;
  const char* const text = std::getenv(name);
  std::istringstream entries(text == nullptr ? "" : text);
  for (std::string entry; std::getline(entries, entry, ',');) {
    int size = 0, blocks = 0, count = 0, read = 0;
    const int found = std::sscanf(entry.c_str(), "%d:%d=%d%n", &size, &blocks, &count, &read);
    if (found != 3 || static_cast<size_t>(read) != entry.size() || size < 1 || blocks < 1 || count < 0) {
      refuse(name, text, "a list such as 8:1=15,8:2=30: of clusters of 8 blocks, 15 at once");
    }
    clusters[{size, blocks}] = count;
  }
  return clusters;
}

}  // namespace

State::State()
    : options(from_environment()), resources(resources_from_environment()), clusters(clusters_from_environment()) {}

State& state() {
  static State& instance = *new State();
  return instance;
}

}  // namespace detail

bool read_order(std::string_view words, Options& options) {
  constexpr std::string_view shuffle = "shuffle:";
  if (words.starts_with(shuffle)) {
    options.order = Order::shuffle;
    return detail::parse(words.substr(shuffle.size()), options.seed);
  }
  options.order = words == "reverse" ? Order::reverse : Order::forward;
  return words == "reverse" || words == "forward";
}

Options options() {
  std::lock_guard lock(detail::state().mutex);
  return detail::state().options;
}

void set_options(const Options& options) {
  std::lock_guard lock(detail::state().mutex);
  detail::state().options = options;
}

}  // namespace simt
