#include "common/harness/words.h"

#include <charconv>

namespace worklog {
namespace {

template <class Number>
std::optional<Number> number_in(std::string_view word) {
  Number value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return value;
}

}  // namespace

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> words;
  size_t start = 0;
  for (size_t at; (at = text.find(separator, start)) != std::string_view::npos; start = at + 1) {
    words.emplace_back(text.substr(start, at - start));
  }
  words.emplace_back(text.substr(start));
  return words;
}

std::optional<int64_t> whole_number(std::string_view word) {
  return number_in<int64_t>(word);
}

std::optional<double> real_number(std::string_view word) {
  return number_in<double>(word);
}

}  // namespace worklog
