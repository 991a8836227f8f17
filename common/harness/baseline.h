// What an operation's time is compared with: a copy, or a stream of as many reads and writes, of the same bytes.
#pragma once

#include <string>
#include <vector>

#include "common/harness/device_buffer.h"
#include "common/harness/streams.h"
#include "common/harness/timing.h"

namespace worklog {

// What a copy, or a stream of as many reads and writes, takes for the bytes of an operation.
class Baseline {
 public:
  // The stream's arrays are all of the same length, together at least `bytes`, in `sets` sets. Throws
  // OutOfDeviceMemory.
  Baseline(int reads, int writes, int64_t bytes, int sets);

  std::string name() const;  // "1r1w"
  int reads() const { return reads_; }
  int writes() const { return writes_; }
  int64_t bytes() const { return (reads_ + writes_) * array_bytes_; }

  // Adds one measurement by each way there is: the kernel and, for a copy, cudaMemcpyAsync. The best way's median over
  // all measurements counts. Called before and after the operation that is compared with it.
  void measure(Timer& timer, TimingMode mode, const Sampling& sampling);

  struct Result {
    double median_seconds = 0;
    double spread = 0;
    std::string way;   // "kernel" or "cudaMemcpyAsync"
    double drift = 0;  // the last measurement's median over the first one's, less one
  };
  Result result() const;

 private:
  struct Way {
    std::string name;
    TimedOperation operation;
    std::vector<Summary> measurements;
  };

  StreamArrays arrays(int set) const;

  int reads_, writes_, sets_;
  int64_t array_bytes_;
  DeviceMemory memory_;
  std::vector<Way> ways_;
};

}  // namespace worklog
