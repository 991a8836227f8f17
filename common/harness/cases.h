// What a request comes to: operations at shapes and types, and the variants that do each.
#pragma once

#include <string>
#include <vector>

#include "common/harness/device_buffer.h"
#include "common/harness/flags.h"
#include "common/harness/problem.h"
#include "common/harness/program.h"

namespace worklog {

// A variant's function for one case, or the sentence why it is left out.
struct Runner {
  const Variant* variant;
  const Variant::Implementation* implementation;
  std::string left_out;  // empty: it runs
};

// An operation at one shape and type, for every input that was asked for.
struct Case {
  ProblemOptions options;  // the input is set later
  std::vector<Runner> runners;
};

// What a variant has for an operation and a type: with the parameters' type that the request names, else the elements'
// own, else what there is. Null where there is nothing.
const Variant::Implementation* find_implementation(const Variant& variant, Operation operation, Dtype dtype,
                                                   const Request& request);

// All that a request comes to, checked: nothing has been allocated yet. Throws RequestError or std::invalid_argument.
std::vector<Case> plan(const Program& program, const Request& request);

// Out of memory, said of the case that asked for it: throws RequestError.
[[noreturn]] void refuse(const OutOfDeviceMemory& error, const ProblemOptions& options);

}  // namespace worklog
