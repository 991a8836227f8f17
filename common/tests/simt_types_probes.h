// The functions of cuda_fp16.h and cuda_bf16.h as functions from bits to bits, so that two implementations can be laid
// side by side: simt_types_probes.cpp is compiled once against the CPU layer's headers and once against the toolkit's.
#pragma once

#include <cstddef>
#include <cstdint>

namespace worklog {

// What the bits of an argument stand for. Signed integers are sign-extended.
enum class Domain { half, bfloat16, half_pair, bfloat16_pair, float_, double_, int32, uint32, int64, uint64 };

struct Probe {
  const char* name;
  Domain domain;
  // results[i] = function(a[i], b[i]); functions of one argument leave b alone.
  void (*apply)(const uint64_t* a, const uint64_t* b, uint64_t* results, size_t count);
};

struct Probes {
  const Probe* first;
  size_t count;
};

}  // namespace worklog

extern "C" worklog::Probes cpu_layer_probes();
extern "C" worklog::Probes toolkit_probes();
