#include "common/classroom/handover.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <type_traits>

namespace worklog {
namespace {

constexpr int64_t longest_text = 1 << 16;

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw std::runtime_error(fmt::format("{}: {}", path, what));
}

class Writer {
 public:
  explicit Writer(std::ostream& to) : to_(to) {}

  template <class Number>
  requires std::is_arithmetic_v<Number>
  void put(Number number) { to_.write(reinterpret_cast<const char*>(&number), sizeof(number)); }
  void put(const std::string& text) {
    put(static_cast<int64_t>(text.size()));
    to_.write(text.data(), static_cast<std::streamsize>(text.size()));
  }
  void put(const std::vector<std::byte>& bytes) {
    put(static_cast<int64_t>(bytes.size()));
    to_.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }

 private:
  std::ostream& to_;
};

// Throws where the file ends too early, or a length is out of its bounds.
class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), file_(path, std::ios::binary) {
    if (!file_) fail(path_, "cannot be read");
  }

  template <class Number>
  Number number() {
    Number value{};
    take(&value, sizeof(value));
    return value;
  }
  int64_t length(int64_t most) {
    const auto value = number<int64_t>();
    if (value < 0 || value > most) fail(path_, fmt::format("holds the length {}", value));
    return value;
  }
  std::string text() {
    std::string value(static_cast<size_t>(length(longest_text)), '\0');
    take(value.data(), value.size());
    return value;
  }
  std::vector<std::byte> bytes(int64_t least, int64_t most) {
    const int64_t size = length(most);
    if (size < least) fail(path_, fmt::format("holds the length {}", size));
    std::vector<std::byte> value(static_cast<size_t>(size));
    take(value.data(), value.size());
    return value;
  }

 private:
  void take(void* to, size_t bytes) {
    file_.read(static_cast<char*>(to), static_cast<std::streamsize>(bytes));
    if (!file_) fail(path_, "ends too early");
  }

  std::string path_;
  std::ifstream file_;
};

constexpr int64_t most_bytes = int64_t{1} << 33;
constexpr int64_t most_entries = 1 << 20;

}  // namespace

void write_tasks(const std::string& path, const std::vector<Task>& tasks) {
  std::ofstream target(path, std::ios::trunc | std::ios::binary);
  Writer file(target);
  file.put(static_cast<int64_t>(tasks.size()));
  for (const Task& task : tasks) {
    const ProblemOptions& o = task.options;
    file.put(task.variant);
    for (const int64_t number :
         {static_cast<int64_t>(o.operation), static_cast<int64_t>(o.dtype), static_cast<int64_t>(o.param_dtype), o.rows,
          o.cols, o.pixels, static_cast<int64_t>(o.layout), static_cast<int64_t>(o.round_before_gamma),
          static_cast<int64_t>(o.format), static_cast<int64_t>(o.scaling)}) {
      file.put(number);
    }
    file.put(o.eps);
    file.put(o.momentum);
    file.put(static_cast<int64_t>(task.images.size()));
    for (const MemoryImage& image : task.images) {
      file.put(image.name);
      for (const int64_t number : {static_cast<int64_t>(image.dtype), image.stride, image.rows, image.cols, image.start,
                                   image.end, image.lies_in, static_cast<int64_t>(image.is_output)}) {
        file.put(number);
      }
      file.put(image.bytes);
    }
  }
  target.close();
  if (!target) fail(path, fmt::format("cannot be written: {}", std::strerror(errno)));
}

std::vector<Task> read_tasks(const std::string& path) {
  Reader file(path);
  std::vector<Task> tasks(static_cast<size_t>(file.length(most_entries)));
  for (Task& task : tasks) {
    ProblemOptions& o = task.options;
    task.variant = file.text();
    o.operation = static_cast<Operation>(file.number<int64_t>());
    o.dtype = static_cast<Dtype>(file.number<int64_t>());
    o.param_dtype = static_cast<Dtype>(file.number<int64_t>());
    o.rows = file.number<int64_t>();
    o.cols = file.number<int64_t>();
    o.pixels = file.number<int64_t>();
    o.layout = static_cast<ChannelLayout>(file.number<int64_t>());
    o.round_before_gamma = file.number<int64_t>() != 0;
    o.format = static_cast<ByteFormat>(file.number<int64_t>());
    o.scaling = static_cast<Scaling>(file.number<int64_t>());
    o.eps = file.number<float>();
    o.momentum = file.number<float>();
    task.images.resize(static_cast<size_t>(file.length(most_entries)));
    for (MemoryImage& image : task.images) {
      image.name = file.text();
      image.dtype = static_cast<Dtype>(file.number<int64_t>());
      image.stride = file.number<int64_t>();
      image.rows = file.number<int64_t>();
      image.cols = file.number<int64_t>();
      image.start = file.number<int64_t>();
      image.end = file.number<int64_t>();
      image.lies_in = file.number<int64_t>();
      image.is_output = file.number<int64_t>() != 0;
      image.bytes = file.bytes(0, most_bytes);
    }
  }
  return tasks;
}

void append_outcome(int file, const Outcome& outcome) {
  std::ostringstream text;
  Writer writer(text);
  writer.put(outcome.error.substr(0, longest_text));
  for (const std::vector<std::byte>& bytes : outcome.images) writer.put(bytes);
  write_all(file, text.view());
}

void write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(file, text.data(), text.size());
    if (written < 0) throw std::runtime_error(fmt::format("what came out cannot be written: {}", std::strerror(errno)));
    text.remove_prefix(static_cast<size_t>(written));
  }
}

std::vector<Outcome> read_outcomes(const std::string& path, const std::vector<Task>& tasks) {
  std::vector<Outcome> outcomes;
  try {
    Reader file(path);
    for (const Task& task : tasks) {
      Outcome outcome;
      outcome.error = file.text();
      for (const MemoryImage& image : task.images) {
        const auto size = static_cast<int64_t>(image.bytes.size());
        if (outcome.error.empty()) outcome.images.push_back(file.bytes(size, size));
      }
      outcomes.push_back(std::move(outcome));
    }
  } catch (const std::runtime_error&) {
    // The rest is missing: what is there is judged, and the others count as not run.
  }
  return outcomes;
}

}  // namespace worklog
