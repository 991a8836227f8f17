// A stage's program: its variants, and the flags, checks, timings and report that every stage shares.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/harness/arguments.h"
#include "common/harness/problem.h"

namespace worklog {

// Where a variant is known to be wrong, and is expected to be: at every shape of at least this size.
struct FailsFrom {
  int64_t rows = 1;
  int64_t cols = 1;
};

class Variant {
 public:
  // The variant gives wrong results on this input from this shape on. A run in which it passes there has failed.
  Variant& fails_on(Input input, FailsFrom from);
  // The shapes that the variant can do, as a sentence ("cols at most 16384") and as a test.
  Variant& limited_to(std::string sentence, std::function<bool(const ProblemOptions&)> accepts);
};

class Program {
 public:
  Program(std::string stage, std::string summary);

  // Adds a variant: one function for each operation and type that it exists for, each of the form
  //   void function(const LayerNormForward<float>&, cudaStream_t)
  // whose first argument (any struct of arguments.h) says which operation and types it does.
  template <class... Functions>
  Variant& add(std::string name, std::string note, Functions... functions);

  // Reads the flags, checks, times, reports. Returns the exit code: 0, 1 where a result was wrong, 2 where the
  // request was (one sentence on stderr).
  int run(int argc, char** argv);
};

}  // namespace worklog
