// What goes to a submission's program and what comes back, when submissions are graded (grade.py).
//
// The judge, a program of ours, writes the memory that the kernels are to work on. The submission's program copies it
// to the device, runs the kernels, and writes back all of that memory as it then is. It is told neither what must come
// out nor where its guard zones are, and says nothing of its own that counts for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/harness/problem.h"

namespace worklog {

// One tensor with the guard zones around it, as it lies in memory.
struct MemoryImage {
  std::string name = {};  // of the pointer in arguments.h
  Dtype dtype = Dtype::fp32;
  int64_t stride = 0;                 // elements from a row to the next
  int64_t rows = 0, cols = 0;         // as they are stored
  int64_t start = 0;                  // bytes in front of the first element
  int64_t end = 0;                    // bytes up to the last element's end
  int64_t lies_in = -1;               // the image that it shares, where an output lies over an input
  bool is_output = false;             // its elements are not to be read before they are written
  std::vector<std::byte> bytes = {};  // none: the tensor is absent, or lies in another
};

// A variant that is to be run once.
struct Task {
  std::string variant;
  ProblemOptions options;  // without the input's name and seed
  std::vector<MemoryImage> images;
};

// What became of a task: an error, or each image's bytes afterwards.
struct Outcome {
  std::string error;
  std::vector<std::vector<std::byte>> images;
};

// All throw std::runtime_error, with one sentence, where a file cannot be written, or is not what it should be.
void write_tasks(const std::string& path, const std::vector<Task>& tasks);
std::vector<Task> read_tasks(const std::string& path);

// Outcomes are written one by one, to a file that is open: a program that ends early has written those before.
void append_outcome(int file, const Outcome& outcome);
void write_all(int file, std::string_view text);
// As many as are whole. The file may hold anything: its writer is not trusted. Its images have the sizes of the tasks'.
std::vector<Outcome> read_outcomes(const std::string& path, const std::vector<Task>& tasks);

}  // namespace worklog
