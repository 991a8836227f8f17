// What goes wrong in a call, from where it is found to the status and the sentence that the caller gets.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "common/library/norm_worklog.h"

namespace worklog::library {

// A call that cannot be carried out. what() is one sentence, which begins with the name of the argument.
class Refusal : public std::runtime_error {
 public:
  Refusal(nw_status status, const std::string& sentence) : std::runtime_error(sentence), status(status) {}

  nw_status status;
};

template <class... Values>
[[noreturn]] void refuse(nw_status status, fmt::format_string<Values...> sentence, Values&&... values) {
  throw Refusal(status, fmt::format(sentence, std::forward<Values>(values)...));
}

// Called where an exception has been caught: keeps its sentence for nw_last_error and returns its status.
nw_status status_of_exception() noexcept;
// The calling thread's last sentence.
const char* last_sentence() noexcept;

// Carries out what a C function is there for; nothing is thrown out of it.
template <class Body>
nw_status guarded(Body&& body) noexcept {
  try {
    body();
    return NW_OK;
  } catch (...) {
    return status_of_exception();
  }
}

}  // namespace worklog::library
