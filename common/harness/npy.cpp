#include "common/harness/npy.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace worklog {

void save_npy(const std::string& path, const HostTensor& tensor) {
  const char* element = tensor.dtype == Dtype::fp32   ? "<f4"
                        : tensor.dtype == Dtype::fp16 ? "<f2"
                        : tensor.dtype == Dtype::bf16 ? "<u2"
                        : tensor.dtype == Dtype::int8 ? "|i1"
                                                      : "|u1";
  const std::string shape = tensor.spec.extent == Extent::matrix ? fmt::format("({}, {})", tensor.rows, tensor.cols)
                                                                 : fmt::format("({},)", tensor.rows * tensor.cols);
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}", element, shape);
  constexpr size_t preamble = 10;                            // magic, version, length of the header
  header.append(63 - (preamble + header.size()) % 64, ' ');  // the data start at a multiple of 64 bytes
  header += '\n';

  std::ofstream file(path, std::ios::binary);
  file.write("\x93NUMPY\x01\x00", 8);
  const uint16_t length = static_cast<uint16_t>(header.size());
  const char little_endian[] = {static_cast<char>(length & 0xff), static_cast<char>(length >> 8)};
  file.write(little_endian, 2);
  file << header;
  const int64_t size = static_cast<int64_t>(size_of(tensor.dtype));
  for (int64_t row = 0; row < tensor.rows; ++row) {
    file.write(reinterpret_cast<const char*>(tensor.bytes.data() + tensor.start_of(row) * size), tensor.cols * size);
  }
  file.close();
  if (!file) throw std::runtime_error(fmt::format("cannot write {}: {}", path, std::strerror(errno)));
}

void save_tensors(const std::string& folder, const Problem& problem, const std::vector<HostTensor>& results,
                  const std::string& variant) {
  const ProblemOptions& o = problem.options();
  const std::filesystem::path inputs =
      std::filesystem::path(folder) /
      fmt::format("{}-{}-{}x{}-{}", operation_name(o), name_of(o.dtype), o.rows, o.cols, name_of(o.input));
  const std::filesystem::path outputs = inputs / variant;
  std::filesystem::create_directories(outputs);
  for (const HostTensor& tensor : problem.tensors()) {
    if (!tensor.present || tensor.spec.role == Role::output) continue;
    const char* suffix = tensor.spec.role == Role::updated ? "_before" : "";
    save_npy(inputs / fmt::format("{}{}.npy", tensor.spec.name, suffix), tensor);
  }
  for (const HostTensor& tensor : results) {
    if (!tensor.present || tensor.spec.role == Role::input) continue;
    save_npy(outputs / fmt::format("{}.npy", tensor.spec.name), tensor);
  }
}

}  // namespace worklog
