// --count and --trace: what the kernels do to memory, from a counting build of the stage's program (CPU layer only).
#pragma once

#include <simt/counts.h>

#include <optional>
#include <vector>

#include "common/harness/cases.h"
#include "common/harness/document.h"
#include "common/harness/flags.h"
#include "common/harness/program.h"
#include "common/harness/report.h"

namespace worklog {

// What was counted of one launch, as --json writes it.
Json json_of(const simt::KernelCounts& kernel);

// Where this program is the ordinary build, becomes the counting build beside it, which is given the same words. Throws
// RequestError where there is none, and on a GPU. Returns in a counting build.
void become_counting_program(char** argv);

// Runs each case once, and prints and writes what was counted. Returns the exit code: 1 where something was found to be
// wrong with a kernel, or its results were.
int count_all(const Program& program, const Request& request, const std::vector<Case>& cases,
              const std::optional<WholeFile>& json_file);

// Writes the steps of the block that works on row request.row as JSON.
int trace_one(const Program& program, const Request& request, const std::vector<Case>& cases);

}  // namespace worklog
