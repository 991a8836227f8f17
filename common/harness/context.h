// Where results come from: the device, the program, and what it was built from.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/harness/device.h"
#include "common/harness/program.h"

namespace worklog {

// Keys and values of a context, all values as strings, as Google Benchmark writes its own.
using ContextEntries = std::vector<std::pair<std::string, std::string>>;

// What is known of a run before it begins. `denied`: what --deny took from the choice of kernels.
ContextEntries context_of(const Program& program, const Device& device, const std::vector<std::string>& denied = {});

}  // namespace worklog
