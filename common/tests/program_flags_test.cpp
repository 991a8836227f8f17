// The flags and exit codes of a stage's program, as a shell sees them: the program of stage 01 is run.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace worklog {
namespace {

using Json = nlohmann::json;

struct Outcome {
  int exit_code;
  std::string out, err;
};

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class ProgramTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() / fmt::format("worklog_program_{}_{}", getpid(), test->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override {
    std::filesystem::permissions(folder_, std::filesystem::perms::owner_all);
    std::filesystem::remove_all(folder_);
  }

  // `flags` as typed into a shell.
  Outcome run(const std::string& flags) const {
    const std::string out = folder_ / "out.txt";
    const std::string err = folder_ / "err.txt";
    const int status =
        std::system(fmt::format("'{}/01_naive' {} >'{}' 2>'{}'", WORKLOG_PROGRAM_DIR, flags, out, err).c_str());
    Outcome outcome = {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(out), read(err)};
    std::filesystem::remove(out);
    std::filesystem::remove(err);
    return outcome;
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

  std::filesystem::path folder_;
};

// The program wanted a device, and this is a gpu build on a machine that has none.
bool has_no_device(const Outcome& outcome) {
  return outcome.exit_code == 2 && outcome.err.find("no CUDA device") != std::string::npos;
}

struct BadRequest {
  const char* flags;
  std::vector<const char*> said;  // parts of the sentence: the argument, and what is allowed
};

TEST_F(ProgramTest, BadRequestsAreRefusedInOneSentence) {
  const std::vector<BadRequest> requests = {
      {"--cols 0", {"--cols", "from 1 to 1048576", "'0'"}},
      {"--rows -3", {"--rows", "from 0 to", "'-3'"}},
#ifdef WORKLOG_BACKEND_CPU
      {"--order backwards", {"--order", "forward, reverse or shuffle:SEED", "'backwards'"}},
#else
      {"--order reverse", {"--order", "needs the CPU layer"}},
#endif
      {"--deny cluster", {"--deny", "clusters", "shared=KIB", "'cluster'"}},
      {"--deny clusters,shared=16", {"--deny", "from 48", "'shared=16'"}},
      {"--deny multiprocessors=0", {"--deny", "from 1", "'multiprocessors=0'"}},
      {"--deny shared", {"--deny", "shared=KIB", "'shared'"}},
      {"--rows 1,x", {"--rows", "'x'"}},
      {"--rows 1,,2", {"--rows"}},
      {"--rows 1.5", {"--rows", "whole numbers", "'1.5'"}},
      {"--rows 99999999999999999999", {"--rows"}},
      {"--rows 100000000 --cols 100000000", {"--cols", "1048576"}},
      {"--rows 2147483648 --cols 1048576", {"rows x cols", "GiB"}},
      {"--shapes 4", {"--shapes", "ROWSxCOLS", "'4'"}},
      {"--shapes 4x4,5x0", {"--shapes", "'5x0'"}},
      {"--shapes 4x4 --rows 2", {"--shapes", "--rows"}},
      {"--dtype int8", {"--dtype", "fp32", "'int8'"}},
      {"--input nonsense", {"--input", "normal", "arange", "'nonsense'"}},
      {"--variant nonsense", {"--variant", "thread_per_row", "'nonsense'"}},
      {"--operation nonsense", {"--operation", "layernorm_forward", "'nonsense'"}},
      {"--norm batch", {"--norm", "all, layer or rms", "'batch'"}},
      {"--norm rms", {"--norm rms", "no operation", "01_naive"}},  // which has LayerNorm alone
      {"--param-dtype fp64", {"--param-dtype", "bf16", "'fp64'"}},
      {"--row-padding -1", {"--row-padding", "from 0"}},
      {"--misalign 1000000", {"--misalign", "from 0"}},
      {"--uneven z", {"--uneven takes one of: all, x", "'z'"}},
      {"--uneven y:0", {"--uneven", "from 1 to 1024", "'0'"}},
      {"--uneven :8", {"--uneven takes one of: all, x", "''"}},
      {"--without residual", {"--without", "gamma", "'residual'"}},
      {"--packed-results", {"--packed-results", "--heads"}},
      {"--eps -1", {"--eps", "from 0"}},
      {"--eps nan", {"--eps", "'nan'"}},
      {"--seed x", {"--seed", "'x'"}},
#ifdef WORKLOG_BACKEND_CPU
      {"--time hot", {"--time", "CPU layer"}},
#else
      {"--time hot", {"--time", "cold, warm, graph", "'hot'"}},
#endif
      {"--max-seconds-per-timing 0", {"--max-seconds-per-timing"}},
      {"--unknown-flag", {"--unknown-flag"}},
      {"stray", {"stray"}},
      {"--benchmark_nonsense=1", {"--benchmark_nonsense"}},
      {"--benchmark_format=xml", {"--benchmark_format", "console, json or csv", "'xml'"}},
      {"--benchmark_out_format=xml", {"--benchmark_out_format", "console, json or csv", "'xml'"}},
      {"--benchmark_out=/nonexistent-folder/out.json", {"--benchmark_out", "/nonexistent-folder/out.json"}},
      {"--benchmark_enable_random_interleaving=true", {"--benchmark_enable_random_interleaving", "not taken"}},
  };
  for (const BadRequest& request : requests) {
    const std::string json = folder_ / "results.json";
    const Outcome outcome = run(fmt::format("{} --json '{}'", request.flags, json));
    SCOPED_TRACE(request.flags);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    for (const char* part : request.said)
      EXPECT_NE(outcome.err.find(part), std::string::npos) << part << " in " << outcome.err;
    EXPECT_TRUE(files().empty()) << "a file was left: " << files().front();
  }
}

TEST_F(ProgramTest, AResultsFileThatCannotBeWrittenIsFoundBeforeAnyWork) {
  for (const std::string& path :
       {std::string("/nonexistent-folder/results.json"), folder_.string(), std::string("/dev/full")}) {
    const Outcome outcome = run(fmt::format("--json '{}'", path));
    SCOPED_TRACE(path);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_NE(outcome.err.find("--json"), std::string::npos) << outcome.err;
    EXPECT_TRUE(files().empty());
  }
}

TEST_F(ProgramTest, AFolderForTensorsThatCannotBeMadeIsRefused) {
  const Outcome outcome = run("--save-tensors /dev/null/tensors");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("--save-tensors"), std::string::npos) << outcome.err;
}

TEST_F(ProgramTest, HelpAndListNeedNoDevice) {
  const Outcome help = run("--help");
  EXPECT_EQ(help.exit_code, 0);
  for (const char* flag : {"--rows",      "--cols",      "--shapes",      "--dtype",        "--input",
                           "--variant",   "--operation", "--param-dtype", "--row-padding",  "--misalign",
                           "--without",   "--eps",       "--seed",        "--check-only",   "--list",
                           "--resources", "--time",      "--json",        "--save-tensors", "--max-seconds-per-timing",
                           "--uneven",    "--benchmark_"}) {
    EXPECT_NE(help.out.find(flag), std::string::npos) << flag;
  }
  const Outcome list = run("--list");
  EXPECT_EQ(list.exit_code, 0);
  for (const char* word : {"thread_per_row", "layernorm_forward", "fp32", "large_mean", "nan_row", "fails on"}) {
    EXPECT_NE(list.out.find(word), std::string::npos) << word;
  }
}

TEST_F(ProgramTest, AnEmptyTensorIsNothingToDo) {
  const Outcome outcome = run("--rows 0 --cols 1,1024 --check-only");
  if (has_no_device(outcome)) GTEST_SKIP() << outcome.err;
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_EQ(outcome.err, "");
}

TEST_F(ProgramTest, ResultsAreWrittenAsAWhole) {
  const std::string json = folder_ / "results.json";
  const Outcome outcome = run(fmt::format("--shapes 7x33 --input normal,uniform --check-only --json '{}'", json));
  if (has_no_device(outcome)) GTEST_SKIP() << outcome.err;
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_EQ(files(), std::vector<std::string>{"results.json"}) << "and nothing beside it";
  const std::string check = fmt::format(
      "python3 -c 'import json, sys\n"
      "document = json.load(open(sys.argv[1]))\n"
      "context, checks = document[\"context\"], document[\"checks\"]\n"
      "assert context[\"stage\"] == \"01_naive\" and len(context[\"source_hash\"]) == 64 and context[\"commit\"]\n"
      "assert document[\"benchmarks\"] == []\n"
      "assert {{c[\"input\"] for c in checks}} == {{\"normal\", \"uniform\"}}\n"
      "assert all(c[\"verdict\"] == \"passed\" and c[\"compared\"] > 0 and c[\"differing\"] == 0 for c in checks)\n"
      "assert all((c[\"rows\"], c[\"cols\"]) == (7, 33) for c in checks)' '{}'",
      json);
  EXPECT_EQ(std::system(check.c_str()), 0) << read(json);
}

TEST_F(ProgramTest, TensorsAreSavedForPython) {
  const Outcome outcome =
      run(fmt::format("--shapes 3x5 --input uniform --variant thread_per_row --check-only --without beta "
                      "--row-padding 2 --save-tensors '{}'",
                      (folder_ / "tensors").string()));
  if (has_no_device(outcome)) GTEST_SKIP() << outcome.err;
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  const std::filesystem::path inputs = folder_ / "tensors" / "layernorm_forward-fp32-3x5-uniform";
  const std::filesystem::path outputs = inputs / "thread_per_row";
  EXPECT_TRUE(std::filesystem::exists(inputs / "x.npy"));
  EXPECT_TRUE(std::filesystem::exists(inputs / "gamma.npy"));
  EXPECT_FALSE(std::filesystem::exists(inputs / "beta.npy")) << "it was not there";
  EXPECT_TRUE(std::filesystem::exists(outputs / "y.npy"));
  EXPECT_TRUE(std::filesystem::exists(outputs / "rstd.npy"));
  EXPECT_NE(read(outputs / "y.npy").find("(3, 5)"), std::string::npos) << "without its padding";
}

TEST_F(ProgramTest, TheSameSeedGivesTheSameResults) {
  const auto saved = [&](const std::string& folder, int seed) {
    const Outcome outcome =
        run(fmt::format("--shapes 4x9 --input normal --variant thread_per_row --check-only --seed {} "
                        "--save-tensors '{}'",
                        seed, (folder_ / folder).string()));
    return outcome.exit_code == 0 ? read(folder_ / folder / "layernorm_forward-fp32-4x9-normal" / "x.npy")
                                  : outcome.err;
  };
  const std::string one = saved("one", 1);
  if (one.find("no CUDA device") != std::string::npos) GTEST_SKIP() << one;
  EXPECT_FALSE(one.empty());
  EXPECT_EQ(one, saved("again", 1));
  EXPECT_NE(one, saved("other", 2));
}

TEST_F(ProgramTest, KernelsShowWhatTheyTake) {
  const std::string json = folder_ / "results.json";
  const Outcome outcome = run(fmt::format("--shapes 3x5 --input normal --check-only --resources --json '{}'", json));
  if (has_no_device(outcome)) GTEST_SKIP() << outcome.err;
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  for (const std::string& text : {outcome.out, read(json)}) {
    EXPECT_NE(text.find("worklog::naive::layernorm_thread_per_row"), std::string::npos) << text;
    EXPECT_NE(text.find("registers"), std::string::npos) << text;
  }
}

// Whatever was timed, and on the CPU layer nothing is: stdout can be given to a program that reads JSON.
TEST_F(ProgramTest, StdoutIsJsonWhereThatIsAskedFor) {
  const Outcome outcome = run("--shapes 3x33 --input normal --check-only --benchmark_format=json");
  if (has_no_device(outcome)) GTEST_SKIP() << outcome.err;
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json document = Json::parse(outcome.out, nullptr, false);
  ASSERT_FALSE(document.is_discarded()) << outcome.out;
  EXPECT_EQ(document.at("context").at("stage"), "01_naive");
  EXPECT_EQ(document.at("context").at("source_hash").get<std::string>().size(), 64u);
  EXPECT_TRUE(document.at("benchmarks").empty());
  EXPECT_NE(outcome.err.find("4 checks: 4 passed"), std::string::npos) << outcome.err;
}

TEST_F(ProgramTest, FlagsOfGoogleBenchmarkAreTaken) {
  const std::string out = folder_ / "out.json";
  const Outcome outcome =
      run(fmt::format("--shapes 3x33 --input normal --check-only --benchmark_repetitions=3 --benchmark_min_time=0.1 "
                      "--benchmark_filter=cold --benchmark_out='{}' --benchmark_report_aggregates_only",
                      out));
  if (has_no_device(outcome)) GTEST_SKIP() << outcome.err;
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(files().empty()) << "nothing was timed, and nothing of the trial is left";
}

TEST_F(ProgramTest, ACpuShowsNoTimes) {
#ifdef WORKLOG_BACKEND_CPU
  const Outcome outcome = run("--shapes 3x33");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_NE(outcome.out.find("This is the CPU layer"), std::string::npos) << outcome.out;
  for (const char* word : {"GB/s", "median", "share", " us", " ms"}) {
    EXPECT_EQ(outcome.out.find(word), std::string::npos) << word << " in " << outcome.out;
  }
  EXPECT_EQ(run("--shapes 3x33 --time cold").exit_code, 2);
#else
  GTEST_SKIP() << "this is a gpu build";
#endif
}

}  // namespace
}  // namespace worklog
