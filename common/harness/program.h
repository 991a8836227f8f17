// A stage's program: its variants, and the flags, checks, timings and report that every stage shares.
#pragma once

#include <cuda_runtime.h>

#include <deque>
#include <functional>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/device/arguments.h"
#include "common/harness/bind.h"
#include "common/harness/problem.h"

namespace worklog {

// Where a variant is known to be wrong, and is expected to be: at every shape of at least this size.
struct FailsFrom {
  int64_t rows = 1;
  int64_t cols = 1;
  std::vector<Dtype> dtypes = {};                           // the element types that it holds for; none named: all
  int64_t most_cols = std::numeric_limits<int64_t>::max();  // it does not hold for longer rows
  int64_t most_rows = std::numeric_limits<int64_t>::max();  // nor for more of them
  int64_t least_rows = 0;                                   // nor for fewer

  // No shape is so large that the variant has to fail: its result depends on rounding, so either is accepted.
  bool is_never() const { return rows == std::numeric_limits<int64_t>::max(); }
};

// One way to do an operation, for the types that it exists for.
class Variant {
 public:
  // A function of the stage, seen without the type of its struct.
  struct Implementation {
    Operation operation;
    Dtype dtype, param_dtype;
    std::function<void(const DeviceArguments&, cudaStream_t)> launch;
    // The same with the function's own struct, of which this is a pointer.
    std::function<void(const void*, cudaStream_t)> launch_with;
    float gamma_offset = 0.0f;  // what the function adds to gamma
  };
  struct Expectation {
    Input input;
    FailsFrom from;
  };
  // An output that lies where an input lies.
  struct Overwrite {
    std::string input, output;
  };
  struct Limit {
    std::string sentence;
    std::function<bool(const ProblemOptions&)> accepts;
  };

  Variant(std::string name, std::string note) : name_(std::move(name)), note_(std::move(note)) {}

  // The variant gives wrong results on this input from this shape on. A run in which it passes there has failed. At
  // smaller shapes either result is accepted.
  Variant& fails_on(Input input, FailsFrom from);
  // Whether the variant's result on this input is right depends on rounding: on whether a compiler fuses a
  // multiplication and an addition, say, or on two values that lie close together by chance. Either is accepted, in up
  // to `most_rows` rows of up to `most_cols`.
  Variant& may_fail_on(Input input, std::vector<Dtype> dtypes = {},
                       int64_t most_cols = std::numeric_limits<int64_t>::max(),
                       int64_t most_rows = std::numeric_limits<int64_t>::max());
  // The shapes that the variant can do, as a sentence ("cols at most 16384") and as a test.
  Variant& limited_to(std::string sentence, std::function<bool(const ProblemOptions&)> accepts);
  // The variant is called with `output` pointing to the tensor `input`, which it may then change.
  Variant& overwrites(std::string input, std::string output);
  // How results are compared, where it is not as Problem::compare does it by itself.
  Variant& compared_with(ComparisonOptions comparison);
  // Adds one function; Program::add does.
  template <class Function>
  void implement(Function function);
  // Adds one that takes the tensors by their names, for an operation that is only known at run time.
  Variant& implement(Implementation implementation);

  const std::string& name() const { return name_; }
  const std::string& note() const { return note_; }
  const std::vector<Implementation>& implementations() const { return implementations_; }
  const std::vector<Expectation>& expectations() const { return expectations_; }
  const std::vector<Limit>& limits() const { return limits_; }
  const std::vector<Overwrite>& overwritten() const { return overwritten_; }
  const ComparisonOptions& comparison() const { return comparison_; }

 private:
  std::string name_, note_;
  std::vector<Implementation> implementations_;
  std::vector<Expectation> expectations_;
  std::vector<Limit> limits_;
  std::vector<Overwrite> overwritten_;
  ComparisonOptions comparison_;
};

class Program {
 public:
  Program(std::string stage, std::string summary) : stage_(std::move(stage)), summary_(std::move(summary)) {}

  // Adds a variant: one function for each operation and type that it exists for, each of the form
  //   void function(const LayerNormForward<float>&, cudaStream_t)
  // or a function object of that form, whose first argument (any struct of arguments.h) says which operation and types
  // it does. The variant stays where it is for the life of the program.
  template <class... Functions>
  Variant& add(std::string name, std::string note, Functions... functions) {
    Variant& variant = variants_.emplace_back(std::move(name), std::move(note));
    (variant.implement(std::move(functions)), ...);
    return variant;
  }

  // Reads the flags, checks, times, reports. Returns the exit code: 0, 1 where a result was wrong, 2 where the
  // request was (one sentence on stderr).
  int run(int argc, char** argv);

  const std::string& stage() const { return stage_; }
  const std::string& summary() const { return summary_; }
  const std::deque<Variant>& variants() const { return variants_; }

 private:
  std::string stage_, summary_;
  std::deque<Variant> variants_;
};

namespace detail {

// The struct that a launching function takes, by the form of the function.
template <class Arguments, class Stream>
std::remove_cvref_t<Arguments> arguments_of(const std::function<void(Arguments, Stream)>&);

}  // namespace detail

template <class Function>
void Variant::implement(Function function) {
#ifdef WORKLOG_OF_EXERCISE  // main() copies it, before anything is watched; what is asked of std could be specialized
  static_assert(__has_trivial_destructor(Function) && __is_trivially_constructible(Function, Function&) &&
                    __is_trivially_constructible(Function, const Function&) &&
                    __is_trivially_constructible(Function, Function) &&
                    __is_trivially_constructible(Function, const Function),
                "a variant is a function, or an object that is copied byte by byte");
#endif
  using Arguments = decltype(detail::arguments_of(std::function(function)));
  using Bound = Binding<Arguments>;
  for (const Operation operation : Bound::operations) {
    implementations_.push_back({operation, dtype_of<typename Bound::Element>, dtype_of<typename Bound::Parameter>,
                                [function](const DeviceArguments& arguments, cudaStream_t stream) {
                                  function(Bound::bind(arguments), stream);
                                },
                                [function](const void* arguments, cudaStream_t stream) {
                                  function(*static_cast<const Arguments*>(arguments), stream);
                                },
                                gamma_offset_of<Arguments>});
  }
}

}  // namespace worklog
