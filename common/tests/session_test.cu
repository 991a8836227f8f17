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

#include "common/device/launch.cuh"

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

  void give_flags(const Request& request) const {
    // Google Benchmark keeps its flags from one test to the next.
    std::vector<std::string> flags = {
        "--benchmark_repetitions=1", "--benchmark_min_time=0.5",   "--benchmark_filter=.",
        "--benchmark_out=",          "--benchmark_format=console", "--benchmark_report_aggregates_only=false"};
    flags.insert(flags.end(), request.benchmark_flags.begin(), request.benchmark_flags.end());
    take_benchmark_flags("test", flags);
  }
  // Returns the exit code; output_, talk_ and the JSON file have the rest.
  int run(const Program& program, std::vector<std::string> flags) {
    flags.insert(flags.begin(), "test");
    flags.insert(flags.end(), {"--json", json_.string(), "--max-seconds-per-timing", "0.02"});
    std::vector<char*> argv;
    for (std::string& flag : flags) argv.push_back(flag.data());
    const Request request = parse_flags(program, static_cast<int>(argv.size()), argv.data());
    give_flags(request);
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    Session session(program, request, device_, plan(program, request), WholeFile(request.json));
    session.check_all(true);
    session.time_all();
    const int code = session.finish();
    output_ = testing::internal::GetCapturedStdout();
    talk_ = testing::internal::GetCapturedStderr();
    return code;
  }
  // Whether this Python expression holds, of the JSON document `d`: the one that --json wrote, or that at `path`.
  testing::AssertionResult holds(const std::string& expression, const std::filesystem::path& path = {}) const {
    const std::string command =
        "python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); b = d[\"benchmarks\"]; c = d.get(\"checks\"); "
        "of = lambda name: [e for e in b if e.get(\"aggregate_name\") == name]; s = d.get(\"streams\"); "
        "sys.exit(not (" +
        expression + "))' '" + (path.empty() ? json_ : path).string() + "'";
    if (std::system(command.c_str()) == 0) return testing::AssertionSuccess();
    std::ifstream file(path.empty() ? json_ : path);
    return testing::AssertionFailure() << expression << "\n" << std::string(std::istreambuf_iterator<char>(file), {});
  }

  Device device_;
  std::filesystem::path json_;
  std::string output_, talk_;  // stdout and stderr
};

Program right_program() {
  Program program("00_test", "a test");
  program.add("right", "in double precision", right);
  return program;
}

TEST_F(SessionTest, TimingsAreNamedAndCounted) {
  EXPECT_EQ(run(right_program(), {"--shapes", "7x33,2x8", "--input", "uniform,normal"}), 0) << output_;
  // Six benchmarks, and of each Google Benchmark's statistics and ours.
  for (const std::string name : {"mean", "median", "stddev", "cv", "p10", "p90", "min"}) {
    EXPECT_TRUE(holds("len(of(\"" + name + "\")) == 6"));
  }
  EXPECT_TRUE(holds("len(b) == 42 and all(5 <= e[\"repetitions\"] <= 500 for e in b)"));
  for (const std::string mode : {"cold", "warm", "graph"}) {
    // Without the number of repetitions, which another run would not have.
    const std::string name = "00_test/right/rmsnorm_forward/fp32/7x33/" + mode + "/iterations:1/manual_time";
    EXPECT_TRUE(holds("sum(e[\"run_name\"] == \"" + name + "\" for e in of(\"median\")) == 1"));
    EXPECT_TRUE(holds("sum(e[\"name\"] == \"" + name + "_p90\" for e in b) == 1"));
  }
  EXPECT_TRUE(holds("all(e[\"real_time\"] > 0 and e[\"time_unit\"] == \"us\" for e in of(\"median\"))"));
  EXPECT_TRUE(holds("all(x[\"real_time\"] <= y[\"real_time\"] for x, y in zip(of(\"min\"), of(\"p10\")))"));
  EXPECT_TRUE(holds("all(x[\"real_time\"] <= y[\"real_time\"] for x, y in zip(of(\"p10\"), of(\"median\")))"));
  EXPECT_TRUE(holds("all(x[\"real_time\"] <= y[\"real_time\"] for x, y in zip(of(\"median\"), of(\"p90\")))"));
  // x, gamma, y and rstd, each once.
  EXPECT_TRUE(
      holds("{e[\"bytes\"] for e in of(\"median\")} == {4 * (7 * 33 + 33 + 7 * 33 + 7), 4 * (16 + 8 + 16 + 2)}"));
  EXPECT_TRUE(holds("all(e[\"bytes_per_second\"] > 0 for e in of(\"median\"))"));
  EXPECT_TRUE(holds("all(\"1r1w\" in e[\"label\"] and \"normal\" in e[\"label\"] for e in b)"));
  EXPECT_TRUE(holds("len(s) == 6 and all(e[\"stream\"] == \"1r1w\" and e[\"median_seconds\"] > 0 for e in s)"));
  EXPECT_TRUE(
      holds("[e[\"timing\"] for e in s] == [\"/\".join(e[\"name\"].split(\"/\")[:6]) for e in of(\"median\")]"));
  EXPECT_TRUE(holds("sum(e[\"after_timing\"] for e in c) == 2 and sum(not e[\"after_timing\"] for e in c) == 4"));
  EXPECT_TRUE(holds("float(d[\"context\"][\"empty_launch_us\"]) > 0 and d[\"context\"][\"date\"]"));
  EXPECT_TRUE(holds("list(d[\"context\"])[0] == \"stage\" and \"host_name\" not in d[\"context\"]"));
  EXPECT_NE(output_.find("compared again after timing"), std::string::npos) << output_;
}

// --- Google Benchmark's flags, as its users know them
// -----------------------------------------------------------------

TEST_F(SessionTest, RepetitionsAreSamplesAndAPercentileIsOneOfThem) {
  const std::vector<std::string> flags = {"--shapes=7x33", "--input=normal", "--benchmark_repetitions=21",
                                          "--benchmark_filter=cold", "--benchmark_report_aggregates_only=false"};
  EXPECT_EQ(run(right_program(), flags), 0) << output_;
  EXPECT_TRUE(holds("len(b) == 21 + 7 and all(\"/cold/iterations:1/\" in e[\"name\"] for e in b)"));
  // Of 21 samples in order, the third is the tenth percentile, the nineteenth the ninetieth.
  const std::string times = "sorted(e[\"real_time\"] for e in b if e[\"run_type\"] == \"iteration\")";
  const auto is = [&](const std::string& name, int place) {
    return "abs(of(\"" + name + "\")[0][\"real_time\"] / " + times + "[" + std::to_string(place) + "] - 1) < 1e-9";
  };
  EXPECT_TRUE(holds(is("min", 0)));
  EXPECT_TRUE(holds(is("p10", 2)));
  EXPECT_TRUE(holds(is("median", 10)));
  EXPECT_TRUE(holds(is("p90", 18)));
  EXPECT_TRUE(holds("abs(of(\"mean\")[0][\"real_time\"] * 21 / sum(" + times + ") - 1) < 1e-9"));
  size_t rows = 0;
  for (size_t at = 0; (at = output_.find("7 x 33  cold", at)) != std::string::npos; ++at) ++rows;
  EXPECT_EQ(rows, 22u) << "one for each repetition, and their median\n" << output_;
}

TEST_F(SessionTest, MinTimeMakesARepetitionTheMeanOfMany) {
  const std::vector<std::string> flags = {"--shapes=7x33", "--input=normal", "--benchmark_min_time=0.001",
                                          "--benchmark_filter=warm"};
  EXPECT_EQ(run(right_program(), flags), 0) << output_;
  EXPECT_TRUE(holds("len(b) == 1 and b[0][\"run_type\"] == \"iteration\" and b[0][\"repetitions\"] == 1"));
  EXPECT_TRUE(
      holds("b[0][\"iterations\"] * b[0][\"real_time\"] >= 0.9e3 and b[0][\"name\"].endswith(\"/warm/manual_time\")"));
}

TEST_F(SessionTest, StdoutIsJsonWhereThatIsAskedFor) {
  EXPECT_EQ(run(right_program(), {"--shapes=7x33", "--input=normal", "--benchmark_format=json"}), 0) << talk_;
  const std::filesystem::path shown = json_.string() + ".shown";
  std::ofstream(shown) << output_;
  EXPECT_TRUE(holds("len(of(\"median\")) == 3 and len(b) == 21", shown));
  EXPECT_TRUE(holds("[e[\"name\"] for e in b] == [e[\"name\"] for e in json.load(open(\"" + shown.string() +
                    "\"))[\"benchmarks\"]]"));
  EXPECT_NE(talk_.find("1 check: 1 passed"), std::string::npos) << talk_;
  std::filesystem::remove(shown);
}

TEST_F(SessionTest, NothingTimedIsJsonAsWell) {
  const std::vector<std::string> flags = {"--shapes=7x33", "--input=normal", "--benchmark_format=json",
                                          "--benchmark_filter=none_is_named_so"};
  EXPECT_EQ(run(right_program(), flags), 0) << talk_;
  const std::filesystem::path shown = json_.string() + ".shown";
  std::ofstream(shown) << output_;
  EXPECT_TRUE(holds("b == []", shown));
  EXPECT_TRUE(holds("b == [] and s == [] and len(c) == 1"));
  EXPECT_NE(talk_.find("Failed to match any benchmarks"), std::string::npos) << talk_;
  std::filesystem::remove(shown);
}

// Two files of ours, as Google Benchmark's own script compares them.
TEST_F(SessionTest, ComparePyReadsTwoFiles) {
  const std::filesystem::path out = json_.string() + ".out";
  for (int i = 0; i < 2; ++i) {
    const std::vector<std::string> flags = {"--shapes=7x33", "--input=normal", "--time=cold,graph",
                                            "--benchmark_out=" + out.string() + std::to_string(i)};
    // On the CPU layer no mode can be asked for by name.
    EXPECT_EQ(run(right_program(), on_cpu_layer() ? std::vector{flags[0], flags[1], flags[3]} : flags), 0) << output_;
    EXPECT_TRUE(
        holds("len(of(\"median\")) >= 2 and len(b) == 7 * len(of(\"median\"))", out.string() + std::to_string(i)));
    std::filesystem::copy_file(json_, json_.string() + std::to_string(i));
  }
  const std::string names = "[[e[\"name\"] for e in json.load(open(f))[\"benchmarks\"]] for f in (\"" + out.string() +
                            "0\", \"" + out.string() + "1\")]";
  EXPECT_TRUE(holds("(lambda n: n[0] == n[1] == [e[\"name\"] for e in b])(" + names + ")"));
  const char* const script = "/usr/share/benchmark/compare.py";  // of the package libbenchmark-tools
  const bool can_compare =
      std::filesystem::exists(script) && std::system("python3 -c 'import numpy, scipy' 2>/dev/null") == 0;
  for (const std::string& pair : {out.string(), json_.string()}) {
    const std::string said = pair + ".said";
    if (can_compare) {
      const std::string command = "python3 " + std::string(script) + " --no-color benchmarks '" + pair + "0' '" + pair +
                                  "1' >'" + said + "' 2>&1";
      EXPECT_EQ(std::system(command.c_str()), 0);
      std::ifstream file(said);
      const std::string text(std::istreambuf_iterator<char>(file), {});
      EXPECT_NE(text.find("7x33/cold/iterations:1/manual_time_median"), std::string::npos) << text;
    }
    for (const std::string& path : {pair + "0", pair + "1", said}) std::filesystem::remove(path);
  }
  if (!can_compare) GTEST_SKIP() << "compare.py needs libbenchmark-tools, numpy and scipy";
}

// --- What goes wrong ------------------------------------------------------------------------------------------------

TEST_F(SessionTest, SamplesFromBeforeAnErrorAreNoResult) {
  int calls = 0;
  Program program("00_test", "a test");
  program.add("ends", "right at first", [&calls](const RmsNormForward<float>& p, cudaStream_t stream) {
    // Two calls check it, and on the slowest machine five or more are timed.
    if (++calls > 6) check_cuda(cudaErrorInvalidValue, "pretending to launch");
    right(p, stream);
  });
  EXPECT_EQ(run(program, {"--shapes=7x33", "--input=normal", "--benchmark_filter=cold|warm"}), 1) << output_;
  EXPECT_TRUE(
      holds("len(b) == 2 and all(e[\"error_occurred\"] and \"pretending\" in e[\"error_message\"] for e in b)"));
  EXPECT_TRUE(holds("s == []"));
  EXPECT_NE(output_.find("2 timings could not be taken"), std::string::npos) << output_;
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
