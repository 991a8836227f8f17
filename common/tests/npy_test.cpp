// .npy files, read back byte by byte.
#include "common/harness/npy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "common/tests/results_on_host.h"

namespace worklog {
namespace {

std::string written(const HostTensor& tensor) {
  const std::string path = testing::TempDir() + "worklog_npy_test.npy";
  save_npy(path, tensor);
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Npy, HoldsShapeTypeAndValuesWithoutPadding) {
  for (const auto& [dtype, name] : {std::pair{Dtype::fp32, "<f4"}, {Dtype::fp16, "<f2"}, {Dtype::bf16, "<u2"}}) {
    ProblemOptions options;
    options.dtype = dtype;
    options.rows = 3;
    options.cols = 5;
    options.row_padding = 4;
    const Problem problem(options);
    const HostTensor& x = problem.tensors()[0];
    const std::string file = written(x);
    ASSERT_EQ(file.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
    const size_t header = static_cast<uint8_t>(file[8]) + 256 * static_cast<uint8_t>(file[9]);
    EXPECT_EQ((10 + header) % 64, 0u);
    const std::string text = file.substr(10, header);
    EXPECT_EQ(text.back(), '\n');
    EXPECT_EQ(text.substr(0, text.find('}') + 1),
              std::string("{'descr': '") + name + "', 'fortran_order': False, 'shape': (3, 5), }");
    const size_t size = size_of(dtype);
    ASSERT_EQ(file.size(), 10 + header + 15 * size);
    for (int64_t row = 0; row < 3; ++row) {
      EXPECT_EQ(std::memcmp(file.data() + 10 + header + row * 5 * size, element_at(x, row, 0), 5 * size), 0);
    }
    EXPECT_NE(written(named(problem.tensors(), "gamma")).find("'shape': (5,), }"), std::string::npos);
  }
}

TEST(Npy, AnUnwritablePathIsSaidSo) {
  const Problem problem(ProblemOptions{.rows = 1, .cols = 1});
  try {
    save_npy("/nonexistent/x.npy", problem.tensors()[0]);
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_EQ(std::string(error.what()).substr(0, 36), "cannot write /nonexistent/x.npy: No ");
  }
}

}  // namespace
}  // namespace worklog
