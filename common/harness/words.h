// Text taken apart: lists of words, and words that are numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace worklog {

// The words between the separators, one more than there are of those: "" is one empty word.
std::vector<std::string> split(std::string_view text, char separator);

// The number that the whole word is in decimal; nothing where it is none, or none that fits.
std::optional<int64_t> whole_number(std::string_view word);
std::optional<double> real_number(std::string_view word);

}  // namespace worklog
