// Tensors as .npy files, for Python to look at.
#pragma once

#include <string>
#include <vector>

#include "common/harness/problem.h"

namespace worklog {

// Writes a tensor without its padding: a matrix as [rows, cols], a vector as [count]. numpy has no bf16: its elements
// are written as the uint16 that holds their bits (numpy.load(path).astype(numpy.uint32) << 16, viewed as float32).
// Throws std::runtime_error with one sentence where the file cannot be written.   [NEP 1, format version 1.0]
void save_npy(const std::string& path, const HostTensor& tensor);

// Writes the problem's inputs into a folder of its own in `folder`, and what a variant made of them into one within
// that.
void save_tensors(const std::string& folder, const Problem& problem, const std::vector<HostTensor>& results,
                  const std::string& variant);

}  // namespace worklog
