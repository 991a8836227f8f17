// The tensors of one problem on the device.
#pragma once

#include <string>
#include <vector>

#include "common/harness/bind.h"
#include "common/harness/device_buffer.h"
#include "common/harness/problem.h"
#include "common/harness/program.h"

namespace worklog {

// What the kernels of an operation are given to work in, floats; none for operations that need none.
int64_t workspace_of(const ProblemOptions& options);

class Workspace {
 public:
  // Each tensor starts `misalign` elements past a 256-byte boundary, and holds nothing until the first reset(). The
  // problem must outlive the workspace. Throws OutOfDeviceMemory.
  Workspace(const Problem& problem, int64_t misalign);

  // From here on each named output lies where its input does, until this is called again. Both have the same shape,
  // type and stride. A name that the problem does not have, or has not present, is left alone.
  void overwrite(const std::vector<Variant::Overwrite>& overwritten);
  // Every tensor as the problem has it: inputs hold their values, outputs the poison pattern. Guards are made whole.
  void reset();
  // What a variant is called with.
  const DeviceArguments& arguments() const { return arguments_; }
  // What came out, in the order of Problem::tensors(); inputs are left empty.
  std::vector<HostTensor> download() const;
  // Whether this came out once more, bit for bit and the gaps between rows included: what download() gave before.
  bool holds(const std::vector<HostTensor>& results) const;
  // One sentence for each guard zone that was written to and for each input that was changed.
  std::vector<std::string> damage() const;

 private:
  const Problem& problem_;
  int present(std::string_view name) const;  // its index, or -1

  std::vector<DeviceBuffer> buffers_;  // as Problem::tensors(); an absent tensor has an empty one
  DeviceBuffer room_;                  // for the kernels to work in; none for operations that need none
  std::vector<int> place_;             // of each tensor: the buffer that it lies in
  DeviceArguments arguments_;
};

}  // namespace worklog
