#include "common/harness/workspace.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "common/device/launch.cuh"

#ifdef WORKLOG_BACKEND_CPU
#include <simt/counts.h>
#endif

namespace worklog {

#ifdef WORKLOG_BACKEND_CPU
namespace {

// What a counting build is to know of a tensor: its name, where it ends, and whether there is anything to read.
void tell_counter(const HostTensor& tensor, const DeviceBuffer& buffer) {
  char* const data = static_cast<char*>(buffer.data());
  const size_t bytes = static_cast<size_t>(buffer.bytes());
  simt::name_memory(data, bytes, tensor.spec.name);
  simt::forbid_memory(data - DeviceBuffer::guard_bytes, DeviceBuffer::guard_bytes);
  simt::forbid_memory(data + bytes, DeviceBuffer::guard_bytes);
  if (tensor.spec.role == Role::output) simt::forget_memory(data, bytes);
}

}  // namespace
#endif

int64_t workspace_of(const ProblemOptions& options) {
  return spec_of(options.operation).workspace(options.rows, options.cols);
}

Workspace::Workspace(const Problem& problem, int64_t misalign)
    : problem_(problem), room_(Dtype::fp32, workspace_of(problem.options())) {
  arguments_.options = problem.options();
  for (const HostTensor& tensor : problem.tensors()) {
    buffers_.emplace_back(tensor.dtype, tensor.present ? tensor.count() : 0, misalign + tensor.more);
    arguments_.tensors.push_back({tensor.spec.name, tensor.dtype, tensor.present ? buffers_.back().data() : nullptr,
                                  tensor.stride, tensor.head_stride});
  }
  if (room_.count() > 0) {
    arguments_.tensors.push_back({"workspace", Dtype::fp32, room_.data(), 0});
  }
  overwrite({});
}

int Workspace::present(std::string_view name) const {
  const std::vector<HostTensor>& tensors = problem_.tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].spec.name == name && tensors[i].present) return static_cast<int>(i);
  }
  return -1;
}

void Workspace::overwrite(const std::vector<Variant::Overwrite>& overwritten) {
  place_.resize(buffers_.size());
  std::iota(place_.begin(), place_.end(), 0);
  for (const auto& [input, output] : overwritten) {
    const int from = present(input);
    const int to = present(output);
    if (from >= 0 && to >= 0) place_[to] = from;
  }
  for (size_t i = 0; i < buffers_.size(); ++i) {
    if (problem_.tensors()[i].present) arguments_.tensors[i].data = buffers_[place_[i]].data();
  }
}

void Workspace::reset() {
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const HostTensor& tensor = problem_.tensors()[i];
    if (tensor.present && tensor.spec.role == Role::output) {
      buffers_[i].poison();
    } else if (tensor.present) {
      buffers_[i].upload(tensor.bytes.data());
    }
    buffers_[i].restore_guards();
#ifdef WORKLOG_BACKEND_CPU
    tell_counter(tensor, buffers_[i]);
#endif
  }
  room_.restore_guards();
  // Copies may return before they are done, and kernels run on other streams.
  check_cuda(cudaDeviceSynchronize(), "copying the inputs to the device");
}

std::vector<HostTensor> Workspace::download() const {
  std::vector<HostTensor> results;
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const HostTensor& tensor = problem_.tensors()[i];
    HostTensor& result = results.emplace_back();
    result.spec = tensor.spec;
    result.dtype = tensor.dtype;
    result.rows = tensor.rows;
    result.cols = tensor.cols;
    result.stride = tensor.stride;
    result.heads = tensor.heads;
    result.head_stride = tensor.head_stride;
    result.first_row = tensor.first_row;
    result.present = tensor.present;
    if (!tensor.present || tensor.spec.role == Role::input) continue;
    result.bytes.resize(buffers_[place_[i]].bytes());
    buffers_[place_[i]].download(result.bytes.data());
  }
  return results;
}

bool Workspace::holds(const std::vector<HostTensor>& results) const {
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const HostTensor& tensor = problem_.tensors()[i];
    if (!tensor.present || tensor.spec.role == Role::input) continue;
    if (buffers_[place_[i]].first_difference(results[i].bytes.data()) >= 0) return false;
  }
  return true;
}

std::vector<std::string> Workspace::damage() const {
  std::vector<std::string> sentences;
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const HostTensor& tensor = problem_.tensors()[i];
    for (std::string& sentence : buffers_[i].guard_damage(tensor.spec.name)) sentences.push_back(std::move(sentence));
    const bool overwritten = std::count(place_.begin(), place_.end(), static_cast<int>(i)) > 1;
    if (!tensor.present || tensor.spec.role != Role::input || overwritten) continue;
    const int64_t changed = buffers_[i].first_difference(tensor.bytes.data());
    if (changed >= 0) {
      sentences.push_back(
          fmt::format("the input {} was changed, first at {}", tensor.spec.name, place_of(tensor, changed)));
    }
  }
  for (std::string& sentence : room_.guard_damage("workspace")) sentences.push_back(std::move(sentence));
  return sentences;
}

}  // namespace worklog
