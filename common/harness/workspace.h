// The tensors of one problem on the device.
#pragma once

#include <string>
#include <vector>

#include "common/harness/bind.h"
#include "common/harness/device_buffer.h"
#include "common/harness/problem.h"

namespace worklog {

class Workspace {
 public:
  // Each tensor starts `misalign` elements past a 256-byte boundary. The problem must outlive the workspace.
  // Throws OutOfDeviceMemory.
  Workspace(const Problem& problem, int64_t misalign);

  // Every tensor as the problem has it: inputs hold their values, outputs the poison pattern. Guards are made whole.
  void reset();
  // What a variant is called with.
  const DeviceArguments& arguments() const { return arguments_; }
  // What came out, in the order of Problem::tensors(); inputs are left empty.
  std::vector<HostTensor> download() const;
  // One sentence for each guard zone that was written to and for each input that was changed.
  std::vector<std::string> damage() const;

 private:
  const Problem& problem_;
  std::vector<DeviceBuffer> buffers_;  // as Problem::tensors(); an absent tensor has an empty one
  DeviceArguments arguments_;
};

}  // namespace worklog
