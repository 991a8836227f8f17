// A whole run with timings, from flags to the JSON file. On the CPU layer the times mean nothing, and a stage's program
// takes none; what is tested is the way there: benchmarks, names, counters, the comparison after timing.
#include "common/harness/session.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "common/harness/launch.cuh"

namespace worklog {
namespace {

__global__ void rmsnorm(RmsNormForward<float> p) {
  const int64_t row = blockIdx.x;
  double squares = 0;
  for (int64_t col = 0; col < p.cols; ++col) {
    const double x = p.x[row * p.x_stride + col];
    squares += x * x;
  }
  const double rstd = 1 / sqrt(squares / static_cast<double>(p.cols) + p.eps);
  for (int64_t col = 0; col < p.cols; ++col) {
    const double gamma = p.gamma ? p.gamma[col] : 1.0f;
    p.y[row * p.y_stride + col] = static_cast<float>(p.x[row * p.x_stride + col] * rstd * gamma);
  }
  if (p.rstd) p.rstd[row] = static_cast<float>(rstd);
}

void right(const RmsNormForward<float>& p, cudaStream_t stream) {
  if (p.rows == 0) return;
  launch(rmsnorm, {.grid = static_cast<unsigned>(p.rows), .block = 1, .stream = stream}, p);
}

__global__ void spoil_after(RmsNormForward<float> p, int* runs, int limit) {
  if (++*runs > limit) p.y[0] = 12345.0f;
}

class SessionTest : public testing::Test {
 protected:
  void SetUp() override {
    try {
      device_ = current_device();
    } catch (const NoDevice& error) {
      GTEST_SKIP() << error.what();
    }
    device_.l2_bytes = 1 << 16;  // the flush is short where a CPU does it
    json_ = std::filesystem::temp_directory_path() / ("worklog_session_" + std::to_string(getpid()) + ".json");
  }
  void TearDown() override { std::filesystem::remove(json_); }

  // Returns the exit code; output() and json() have the rest.
  int run(const Program& program, std::vector<std::string> flags) {
    flags.insert(flags.begin(), "test");
    flags.insert(flags.end(), {"--json", json_.string(), "--max-seconds-per-timing", "0.02"});
    std::vector<char*> argv;
    for (std::string& flag : flags) argv.push_back(flag.data());
    const Request request = parse_flags(program, static_cast<int>(argv.size()), argv.data());
    testing::internal::CaptureStdout();
    Session session(program, request, device_, plan(program, request), WholeFile(request.json));
    session.check_all(true);
    session.time_all();
    const int code = session.finish();
    output_ = testing::internal::GetCapturedStdout();
    return code;
  }
  // Whether this Python expression holds, of the JSON document `d`.
  testing::AssertionResult holds(const std::string& expression) const {
    const std::string command =
        "python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); b = d[\"benchmarks\"]; c = d[\"checks\"]; "
        "sys.exit(not (" +
        expression + "))' '" + json_.string() + "'";
    if (std::system(command.c_str()) == 0) return testing::AssertionSuccess();
    std::ifstream file(json_);
    return testing::AssertionFailure() << expression << "\n" << std::string(std::istreambuf_iterator<char>(file), {});
  }

  Device device_;
  std::filesystem::path json_;
  std::string output_;
};

TEST_F(SessionTest, TimingsAreNamedAndCounted) {
  Program program("00_test", "a test");
  program.add("right", "in double precision", right);
  EXPECT_EQ(run(program, {"--shapes", "7x33,2x8", "--input", "uniform,normal"}), 0) << output_;
  EXPECT_TRUE(holds("len(b) == 6"));
  for (const std::string mode : {"cold", "warm", "graph"}) {
    const std::string name = "00_test/right/rmsnorm_forward/fp32/7x33/" + mode;
    EXPECT_TRUE(holds("sum(e[\"name\"].startswith(\"" + name + "\") for e in b) == 1"));
  }
  EXPECT_TRUE(holds("all(e[\"median_seconds\"] > 0 and e[\"samples\"] >= 1 and e[\"spread\"] >= 0 for e in b)"));
  // x, gamma, y and rstd, each once.
  EXPECT_TRUE(holds("{e[\"bytes\"] for e in b} == {4 * (7 * 33 + 33 + 7 * 33 + 7), 4 * (16 + 8 + 16 + 2)}"));
  EXPECT_TRUE(holds("all(abs(e[\"bytes_per_second\"] * e[\"median_seconds\"] / e[\"bytes\"] - 1) < 1e-6 for e in b)"));
  EXPECT_TRUE(holds(
      "all(abs(e[\"stream_median_seconds\"] / e[\"median_seconds\"] / e[\"share_of_copy\"] - 1) < 1e-6 for e in b)"));
  EXPECT_TRUE(holds("all(abs(e[\"real_time\"] / 1e6 / e[\"median_seconds\"] - 1) < 1e-6 for e in b)"));
  EXPECT_TRUE(holds("all(\"1r1w\" in e[\"label\"] and \"normal\" in e[\"label\"] for e in b)"));
  EXPECT_TRUE(holds("len(d[\"streams\"]) == 6 and all(s[\"stream\"] == \"1r1w\" for s in d[\"streams\"])"));
  EXPECT_TRUE(holds("sum(e[\"after_timing\"] for e in c) == 2 and sum(not e[\"after_timing\"] for e in c) == 4"));
  EXPECT_TRUE(holds("float(d[\"context\"][\"empty_launch_us\"]) > 0 and d[\"context\"][\"date\"]"));
  EXPECT_NE(output_.find("compared again after timing"), std::string::npos) << output_;
}

TEST_F(SessionTest, ResultsThatGoWrongUnderTimingAreAFailure) {
  int* runs = nullptr;
  check_cuda(cudaMalloc(&runs, sizeof(int)), "allocating");
  check_cuda(cudaMemset(runs, 0, sizeof(int)), "clearing");
  Program program("00_test", "a test");
  program.add("tires", "right twice, then wrong", [runs](const RmsNormForward<float>& p, cudaStream_t stream) {
    right(p, stream);
    launch(spoil_after, {.grid = 1, .block = 1, .stream = stream}, p, runs, 2);
  });
  EXPECT_EQ(run(program, {"--shapes", "3x16", "--input", "normal"}), 1) << output_;
  EXPECT_TRUE(holds("[e[\"verdict\"] for e in c if not e[\"after_timing\"]] == [\"passed\"]"));
  EXPECT_TRUE(holds("[e[\"verdict\"] for e in c if e[\"after_timing\"]] == [\"failed\"]"));
  EXPECT_NE(output_.find("after timing"), std::string::npos) << output_;
  cudaFree(runs);
}

// What a kernel does from its third run on, once the check has been made.
enum class Late { other_right_bits, write_to_gap, write_to_input };

__global__ void act_late(RmsNormForward<float> p, int* runs, Late late) {
  if (++*runs <= 2) return;
  if (late == Late::other_right_bits) p.y[0] = nextafterf(p.y[0], 0.0f);
  if (late == Late::write_to_gap) p.y[p.cols] = 0.0f;
  if (late == Late::write_to_input) const_cast<float*>(p.gamma)[0] = 12345.0f;
}

// The comparison after timing takes what the check has found where the bits are the same, and only there.
TEST_F(SessionTest, WhatChangesUnderTimingIsComparedAnew) {
  struct Case {
    Late late;
    int code;
    const char* verdict;
    const char* words;
  };
  for (const Case& each : {Case{Late::other_right_bits, 0, "passed", "1 results were compared again after timing"},
                           Case{Late::write_to_gap, 1, "failed", "y was written outside its row: row 0, 1 past"},
                           Case{Late::write_to_input, 1, "failed", "the input gamma was changed"}}) {
    int* runs = nullptr;
    check_cuda(cudaMalloc(&runs, sizeof(int)), "allocating");
    check_cuda(cudaMemset(runs, 0, sizeof(int)), "clearing");
    Program program("00_test", "a test");
    program.add("late", "right, and then", [&](const RmsNormForward<float>& p, cudaStream_t stream) {
      right(p, stream);
      launch(act_late, {.grid = 1, .block = 1, .stream = stream}, p, runs, each.late);
    });
    EXPECT_EQ(run(program, {"--shapes", "3x16", "--row-padding", "2", "--input", "normal"}), each.code) << output_;
    EXPECT_TRUE(holds("[e[\"verdict\"] for e in c if not e[\"after_timing\"]] == [\"passed\"]"));
    EXPECT_TRUE(holds("[e[\"verdict\"] for e in c if e[\"after_timing\"]] == [\"" + std::string(each.verdict) + "\"]"));
    EXPECT_NE(output_.find(each.words), std::string::npos) << output_;
    cudaFree(runs);
  }
}

TEST_F(SessionTest, WhatIsWrongIsNotTimed) {
  Program program("00_test", "a test");
  program.add("idle", "launches nothing", [](const RmsNormForward<float>&, cudaStream_t) {});
  EXPECT_EQ(run(program, {"--shapes", "3x16", "--input", "normal"}), 1) << output_;
  EXPECT_TRUE(holds("b == [] and len(c) == 1 and c[0][\"verdict\"] == \"failed\""));
}

}  // namespace
}  // namespace worklog
