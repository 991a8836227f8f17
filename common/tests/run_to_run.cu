// How often stage 07's variants give the same dgamma and dbeta. Prints docs/data/run_to_run_<backend>.json:
//
//     run_to_run gpu > docs/data/run_to_run_gpu.json
//
// Exit code 1 where the results of `staying` or of the final kernel are not the same bits.
//
// The CPU layer's blocks are operating system threads, so that there, too, another may come first on every run.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "07_backward/final/backward.cuh"
#include "07_backward/kernels.cuh"
#include "07_backward/staying.cuh"
#include "common/harness/provenance.h"

namespace {

using namespace worklog;

constexpr int64_t rows = 1024;
constexpr int64_t cols = 256;
constexpr int runs = 20;

float* on_device(const std::vector<float>& values) {
  void* memory = nullptr;
  check_cuda(cudaMalloc(&memory, values.size() * sizeof(float)), "allocating");
  check_cuda(cudaMemcpy(memory, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice), "copying");
  return static_cast<float*>(memory);
}

struct Runs {
  size_t different;    // results that are not the same bits
  double largest_ulp;  // between two runs, of a column's sum, in ulp at the sum's typical size, sqrt(rows)
};

Runs run(const LayerNormBackward<float>& p, const std::function<void(const LayerNormBackward<float>&)>& variant) {
  std::set<std::string> results;
  std::vector<float> least(2 * cols, INFINITY), most(2 * cols, -INFINITY);
  for (int i = 0; i < runs; ++i) {
    variant(p);
    check_cuda(cudaDeviceSynchronize(), "running the backward pass");
    std::vector<float> sums(2 * cols);
    check_cuda(cudaMemcpy(sums.data(), p.dgamma, cols * sizeof(float), cudaMemcpyDeviceToHost), "copying");
    check_cuda(cudaMemcpy(sums.data() + cols, p.dbeta, cols * sizeof(float), cudaMemcpyDeviceToHost), "copying");
    results.insert(std::string(reinterpret_cast<const char*>(sums.data()), sums.size() * sizeof(float)));
    for (size_t k = 0; k < sums.size(); ++k) {
      least[k] = std::min(least[k], sums[k]);
      most[k] = std::max(most[k], sums[k]);
    }
  }
  double apart = 0;
  for (size_t k = 0; k < least.size(); ++k) apart = std::max<double>(apart, most[k] - least[k]);
  return {results.size(), apart / (std::sqrt(static_cast<double>(rows)) * 0x1p-23)};
}

}  // namespace

int main(int argc, char** argv) {
  const std::string backend = argc > 1 ? argv[1] : "gpu";
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no CUDA device\n");
    return 77;  // CTest: skipped
  }
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  const auto random = [&](size_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = normal(generator);
    return on_device(values);
  };
  const auto constant = [](size_t count, float value) { return on_device(std::vector<float>(count, value)); };
  LayerNormBackward<float> p = {};
  p.dy = random(rows * cols);
  p.x = random(rows * cols);
  p.gamma = random(cols);
  p.mean = constant(rows, 0.0f);
  p.rstd = constant(rows, 1.0f);
  p.dx = constant(rows * cols, 0.0f);
  p.dgamma = constant(cols, 0.0f);
  p.dbeta = constant(cols, 0.0f);
  p.workspace = constant(backward_workspace(cols), 0.0f);
  p.rows = rows;
  p.cols = p.dy_stride = p.x_stride = p.dh_stride = p.dx_stride = cols;
  cudaDeviceProp properties = {};
  check_cuda(cudaGetDeviceProperties(&properties, 0), "asking for the device");
  std::printf(
      "{\n  \"source\": {\n    \"title\": \"dgamma and dbeta of %d runs of stage 07's variants on the same data\",\n",
      runs);
  std::printf(
      "    \"backend\": \"%s\",\n    \"device\": \"%s\",\n    \"shape\": \"%lldx%lld\",\n    \"dtype\": \"fp32\",\n",
      backend.c_str(), properties.name, static_cast<long long>(rows), static_cast<long long>(cols));
  std::printf("    \"commit\": \"%s\",\n    \"commit_note\": \"The tree that the program was built from\"\n",
              provenance().commit.c_str());
  std::printf("  },\n  \"figures\": {\n");
  const std::pair<const char*, void (*)(const LayerNormBackward<float>&, cudaStream_t)> variants[] = {
      {"separate", backward::separate<float, float>},
      {"atomics", backward::atomics<float, float>},
      {"grouped", backward::grouped<float, float>},
      {"staying", backward::staying<float, float>},
      {"persistent", backward::layer_norm_backward<float, float>}};
  bool reproducible = true;
  for (const auto& [name, variant] : variants) {
    const auto launch_it = variant;
    const Runs found = run(p, [launch_it](const LayerNormBackward<float>& pass) { launch_it(pass, nullptr); });
    const bool is_final = std::strcmp(name, "persistent") == 0;
    if (is_final || std::strcmp(name, "staying") == 0) reproducible = reproducible && found.different == 1;
    std::printf(
        "    \"%s_results\": {\"value\": %zu, \"unit\": \"count\", \"meaning\": \"different results of %d runs\"},\n",
        name, found.different, runs);
    std::printf(
        "    \"%s_apart\": {\"value\": %.4g, \"unit\": \"ulp\", \"meaning\": \"largest difference of a sum between two "
        "runs, in ulp at the square root of the rows\"}%s\n",
        name, found.largest_ulp, is_final ? "" : ",");
  }
  std::printf("  }\n}\n");
  return reproducible ? 0 : 1;
}
