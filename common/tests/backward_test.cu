// Stage 07's final kernel: the same bits on every run, and column sums that hold over many rows.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "07_backward/final/backward.cuh"
#include "common/device/launch.cuh"
#include "common/harness/device.h"
#ifdef WORKLOG_BACKEND_CPU
#include "simt/simt.h"
#endif

namespace worklog {
namespace {

template <class T>
class OnDevice {
 public:
  explicit OnDevice(size_t count) : count_(count) {
    check_cuda(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)), "allocating");
  }
  explicit OnDevice(const std::vector<T>& values) : OnDevice(values.size()) {
    check_cuda(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice), "copying");
  }
  ~OnDevice() { cudaFree(data_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  T* get() const { return data_; }
  std::vector<T> download() const {
    std::vector<T> values(count_);
    check_cuda(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost), "copying");
    return values;
  }

 private:
  size_t count_;
  T* data_ = nullptr;
};

std::vector<float> random_values(size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

// A pass over random values, with mean 0.25 and rstd 0.5 in every row.
struct RandomPass {
  RandomPass(int64_t rows, int64_t cols)
      : rows(rows),
        cols(cols),
        x_values(random_values(rows * cols, 1)),
        dy_values(random_values(rows * cols, 2)),
        x(x_values),
        dy(dy_values),
        gamma(random_values(cols, 3)),
        mean(std::vector<float>(rows, 0.25f)),
        rstd(std::vector<float>(rows, 0.5f)),
        dx(rows * cols),
        dgamma(cols),
        dbeta(cols),
        workspace(backward_workspace(cols)) {}

  void run() { run_to(dx); }
  void run_to(const OnDevice<float>& result) {
    const LayerNormBackward<float> p = {
        dy.get(),    x.get(),         nullptr, gamma.get(), mean.get(), rstd.get(), result.get(), dgamma.get(),
        dbeta.get(), workspace.get(), rows,    cols,        cols,       cols,       cols,         cols};
    backward::layer_norm_backward(p, nullptr);
    check_cuda(cudaDeviceSynchronize(), "running the backward pass");
  }

  int64_t rows, cols;
  std::vector<float> x_values, dy_values;
  OnDevice<float> x, dy, gamma, mean, rstd, dx, dgamma, dbeta, workspace;
};

// dgamma and dbeta of a column in double, and the typical size of such a sum.
struct ColumnReference {
  double dgamma = 0, dbeta = 0, typical = 0;
};
ColumnReference reference_of(const RandomPass& pass, int64_t col) {
  ColumnReference sums;
  double squares = 0;
  for (int64_t row = 0; row < pass.rows; ++row) {
    const double dy = pass.dy_values[row * pass.cols + col];
    sums.dgamma += dy * (pass.x_values[row * pass.cols + col] - 0.25) * 0.5;
    sums.dbeta += dy;
    squares += dy * dy;
  }
  sums.typical = std::sqrt(squares);  // of the sum of so many terms of both signs
  return sums;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class Backward : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no CUDA device";
  }
};

// More than enough for narrow rows of `cols` floats to go by tiles.
int rows_of_tiles(int cols) {
  return device_attribute(cudaDevAttrMultiProcessorCount) * 32768 / (4 * cols) + 101;
}

TEST_F(Backward, SameBitsOnEveryRun) {
  // Lanes, a small problem, a block, a cluster and few long rows; and rows that are no whole vectors, on few blocks and
  // on many, and in tiles.
#ifdef WORKLOG_BACKEND_GPU
  constexpr int runs = 20;
#else
  constexpr int runs = 6;  // blocks take turns in an order that seldom changes
#endif
  for (const auto& [rows, cols] : {std::pair{1000, 32},
                                   {rows_of_tiles(50), 50},
                                   {rows_of_tiles(127), 127},
                                   {1000, 100},
                                   {1000, 201},
                                   {500, 1024},
                                   {1100, 1024},
                                   {60, 4095},
                                   {3, 1023},
                                   {40, 8192},
                                   {2, 20000},
                                   {130, 20000},
                                   {13, 20001}}) {
    RandomPass pass(rows, cols);
    pass.run();
    const std::vector<float> dx = pass.dx.download();
    const std::vector<float> dgamma = pass.dgamma.download();
    const std::vector<float> dbeta = pass.dbeta.download();
    for (int run = 1; run < runs; ++run) {
      pass.run();
      EXPECT_TRUE(same_bits(dx, pass.dx.download())) << rows << " x " << cols << ", run " << run;
      EXPECT_TRUE(same_bits(dgamma, pass.dgamma.download())) << rows << " x " << cols << ", run " << run;
      EXPECT_TRUE(same_bits(dbeta, pass.dbeta.download())) << rows << " x " << cols << ", run " << run;
    }
  }
}

// A running sum of 2^18 random terms drifts off by about 2^9 roundings of its size, and one of 2^20 by 2^10. Sums of
// short sums do not: they stay within a few roundings of the sum's magnitude.
TEST_F(Backward, ManyRowsKeepTheDigitsOfColumnSums) {
#ifdef WORKLOG_BACKEND_CPU
  const int64_t rows = 1 << 18;
#else
  const int64_t rows = 1 << 20;
#endif
  const int64_t cols = 32;
  RandomPass pass(rows, cols);
  pass.run();
  const std::vector<float> dgamma = pass.dgamma.download();
  const std::vector<float> dbeta = pass.dbeta.download();
  double most = 0;
  for (int64_t col = 0; col < cols; ++col) {
    const ColumnReference want = reference_of(pass, col);
    most = std::max(
        {most, std::fabs(dgamma[col] - want.dgamma) / want.typical, std::fabs(dbeta[col] - want.dbeta) / want.typical});
  }
  EXPECT_LT(most, 32 * 0x1p-24);
}

void expect_column_sums(const RandomPass& pass) {
  const std::vector<float> dgamma = pass.dgamma.download();
  const std::vector<float> dbeta = pass.dbeta.download();
  for (const int64_t col : {int64_t{0}, int64_t{1}, pass.cols / 2, pass.cols - 2, pass.cols - 1}) {
    const ColumnReference want = reference_of(pass, col);
    const double allowed = 16 * 0x1p-24 * want.typical;
    EXPECT_NEAR(dgamma[col], want.dgamma, allowed) << pass.rows << " x " << pass.cols << ", " << col;
    EXPECT_NEAR(dbeta[col], want.dbeta, allowed) << pass.rows << " x " << pass.cols << ", " << col;
  }
}

// Rows that are no whole vectors are sorted by where they start. Whatever the number of teams is, each row counts once:
// the sums over no rows, few, one, as many as there are kinds of rows, and one more.
TEST_F(Backward, RowsThatStartAnywhereAreCountedOnce) {
  for (const int64_t cols : {131, 1001, 4099}) {
    for (const int64_t rows : {0, 1, 2, 3, 4, 5, 7, 8, 9, 133, 1057}) {
      RandomPass pass(rows, cols);
      pass.run();
      expect_column_sums(pass);
    }
  }
}

// The same of clusters: fewer of them than kinds of rows, a multiple, and others.
TEST_F(Backward, ClustersCountRowsThatStartAnywhereOnce) {
#ifdef WORKLOG_BACKEND_CPU
  const simt::Options before = simt::options();
  for (const unsigned clusters : {2, 3, 4, 7, 9}) {
    simt::Options options = before;
    options.multiprocessors = 2 * clusters;
    options.blocks_per_multiprocessor = 1;
    simt::set_options(options);
#else
  {
#endif
    for (const int64_t rows : {0, 1, 2, 3, 5, 8, 9, 30, 61}) {
      RandomPass pass(rows, 8201);
      pass.run();
      expect_column_sums(pass);
    }
  }
#ifdef WORKLOG_BACKEND_CPU
  simt::set_options(before);
#endif
}

// And of the blocks of a whole grid, whose sums come by mail in global memory: the same bits each time.
TEST_F(Backward, GridsCountRowsThatStartAnywhereOnce) {
#ifdef WORKLOG_BACKEND_CPU
  const simt::Options before = simt::options();
  simt::Options options = before;
  options.multiprocessors = 80;
  options.blocks_per_multiprocessor = 1;
  simt::set_options(options);
#endif
  for (const int64_t rows : {1, 2, 9}) {
    RandomPass pass(rows, 140003);
    pass.run();
    expect_column_sums(pass);
    const std::vector<float> dx = pass.dx.download();
    const std::vector<float> dgamma = pass.dgamma.download();
    for (int run = 1; run < 3; ++run) {
      pass.run();
      EXPECT_TRUE(same_bits(dx, pass.dx.download())) << rows << " rows, run " << run;
      EXPECT_TRUE(same_bits(dgamma, pass.dgamma.download())) << rows << " rows, run " << run;
    }
  }
#ifdef WORKLOG_BACKEND_CPU
  simt::set_options(before);
#endif
}

// Tiles would allow dx to take the place of x or of dy: a tile is read before anything of it is stored. (The interface
// does not: where some blocks find dx beside others, they read what it would overwrite.)
TEST_F(Backward, TilesOfNarrowRowsInPlace) {
  for (const int cols : {33, 50}) {
    RandomPass apart(rows_of_tiles(cols), cols);
    apart.run();
    for (const auto place : {&RandomPass::x, &RandomPass::dy}) {
      RandomPass pass(rows_of_tiles(cols), cols);
      pass.run_to(pass.*place);
      EXPECT_TRUE(same_bits(apart.dx.download(), (pass.*place).download())) << cols << " columns";
      EXPECT_TRUE(same_bits(apart.dgamma.download(), pass.dgamma.download())) << cols << " columns";
    }
  }
}

}  // namespace
}  // namespace worklog
