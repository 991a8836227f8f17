// libnormworklog through its C interface: every operation against the reference, what it refuses and says, threads,
// streams, graphs and workspaces.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/device/launch.cuh"
#include "common/harness/device.h"
#include "common/harness/device_buffer.h"
#include "common/harness/dtype.h"
#include "common/harness/problem.h"
#include "common/harness/workspace.h"
#include "common/library/norm_worklog.h"

namespace worklog {
namespace {

// --- From a problem of the harness to a call -------------------------------------------------------------------------

nw_operation operation_of(Operation operation) {
  switch (operation) {
    case Operation::layernorm_forward:
      return NW_LAYERNORM_FORWARD;
    case Operation::rmsnorm_forward:
      return NW_RMSNORM_FORWARD;
    case Operation::add_layernorm_forward:
      return NW_ADD_LAYERNORM_FORWARD;
    case Operation::add_rmsnorm_forward:
      return NW_ADD_RMSNORM_FORWARD;
    case Operation::rmsnorm_backward:
      return NW_RMSNORM_BACKWARD;
    case Operation::batchnorm_train:
      return NW_BATCHNORM_TRAIN;
    case Operation::batchnorm_inference:
      return NW_BATCHNORM_INFERENCE;
    case Operation::batchnorm_backward:
      return NW_BATCHNORM_BACKWARD;
    case Operation::qk_norm:
      return NW_QK_NORM;
    case Operation::qk_norm_backward:
      return NW_QK_NORM_BACKWARD;
    case Operation::layernorm_quantized:
    case Operation::rmsnorm_quantized:
    case Operation::add_layernorm_quantized:
    case Operation::add_rmsnorm_quantized:
      return NW_QUANTIZED_NORM;
    default:
      return NW_LAYERNORM_BACKWARD;
  }
}

nw_dtype dtype_of(Dtype dtype) {
  return dtype == Dtype::fp32 ? NW_FP32 : dtype == Dtype::fp16 ? NW_FP16 : NW_BF16;
}

const DeviceTensor& find(const DeviceArguments& a, std::string_view name) {
  static const DeviceTensor absent = {};
  for (const DeviceTensor& tensor : a.tensors) {
    if (tensor.name == name) return tensor;
  }
  return absent;
}
void* pointer(const DeviceArguments& a, std::string_view name) {
  return find(a, name).data;
}
float* floats(const DeviceArguments& a, std::string_view name) {
  return static_cast<float*>(pointer(a, name));
}

// What a struct of heads has that the others have not.
template <class Args>
void fill_heads(const DeviceArguments& a, Args& s) {
  s.tokens = a.options.rows;
  s.q_heads = a.options.q_heads;
  s.k_heads = a.options.k_heads;
  s.head_dim = a.options.cols;
  s.gamma_offset = a.options.gamma_offset;
  s.q = pointer(a, "q");
  s.k = pointer(a, "k");
  s.q_gamma = pointer(a, "q_gamma");
  s.k_gamma = pointer(a, "k_gamma");
  s.q_rstd = floats(a, "q_rstd");
  s.k_rstd = floats(a, "k_rstd");
  const auto strides = [&](const char* name, int64_t& token, int64_t& head) {
    token = find(a, name).stride;
    head = find(a, name).head_stride;
  };
  strides("q", s.q_token_stride, s.q_head_stride);
  strides("k", s.k_token_stride, s.k_head_stride);
  if constexpr (requires { s.q_out; }) {
    s.q_out = pointer(a, "q_out");
    s.k_out = pointer(a, "k_out");
    strides("q_out", s.q_out_token_stride, s.q_out_head_stride);
    strides("k_out", s.k_out_token_stride, s.k_out_head_stride);
  } else {
    s.dq_out = pointer(a, "dq_out");
    s.dk_out = pointer(a, "dk_out");
    s.dq = pointer(a, "dq");
    s.dk = pointer(a, "dk");
    s.dq_gamma = pointer(a, "dq_gamma");
    s.dk_gamma = pointer(a, "dk_gamma");
    strides("dq_out", s.dq_out_token_stride, s.dq_out_head_stride);
    strides("dk_out", s.dk_out_token_stride, s.dk_out_head_stride);
    strides("dq", s.dq_token_stride, s.dq_head_stride);
    strides("dk", s.dk_token_stride, s.dk_head_stride);
  }
}

// Whatever fields a struct has get what the problem has for them.
template <class Args>
Args struct_of(const DeviceArguments& a) {
  Args s = {};
  s.size = sizeof s;
  s.dtype = dtype_of(a.options.dtype);
  s.param_dtype = dtype_of(a.options.param_dtype);
  if constexpr (requires { s.x; }) s.x = pointer(a, "x");
  if constexpr (requires { s.x_stride; }) s.x_stride = find(a, "x").stride;
  if constexpr (requires { s.residual; }) s.residual = pointer(a, "residual");
  if constexpr (requires { s.residual_stride; }) s.residual_stride = find(a, "residual").stride;
  if constexpr (requires { s.gamma; }) s.gamma = pointer(a, "gamma");
  if constexpr (requires { s.beta; }) s.beta = pointer(a, "beta");
  if constexpr (requires { s.h; }) s.h = pointer(a, "h");
  if constexpr (requires { s.h_stride; }) s.h_stride = find(a, "h").stride;
  if constexpr (requires { s.y; }) s.y = pointer(a, "y");
  if constexpr (requires { s.y_stride; }) s.y_stride = find(a, "y").stride;
  if constexpr (requires { s.mean; }) s.mean = floats(a, "mean");
  if constexpr (requires { s.rstd; }) s.rstd = floats(a, "rstd");
  if constexpr (requires { s.dy; }) s.dy = pointer(a, "dy");
  if constexpr (requires { s.dy_stride; }) s.dy_stride = find(a, "dy").stride;
  if constexpr (requires { s.dh; }) s.dh = pointer(a, "dh");
  if constexpr (requires { s.dh_stride; }) s.dh_stride = find(a, "dh").stride;
  if constexpr (requires { s.dx; }) s.dx = pointer(a, "dx");
  if constexpr (requires { s.dx_stride; }) s.dx_stride = find(a, "dx").stride;
  if constexpr (requires { s.dgamma; }) s.dgamma = pointer(a, "dgamma");
  if constexpr (requires { s.dbeta; }) s.dbeta = pointer(a, "dbeta");
  if constexpr (requires { s.running_mean; }) s.running_mean = floats(a, "running_mean");
  if constexpr (requires { s.running_var; }) s.running_var = floats(a, "running_var");
  if constexpr (requires { s.save_mean; }) s.save_mean = floats(a, "save_mean");
  if constexpr (requires { s.save_invstd; }) s.save_invstd = floats(a, "save_invstd");
  if constexpr (requires { s.scale; }) s.scale = floats(a, "scale");
  if constexpr (requires { s.scales; }) {
    s.scales = floats(a, "scales");
    s.scales_stride = find(a, "scales").stride;
    s.norm = subtracts_mean(a.options.operation) ? NW_LAYER_NORM : NW_RMS_NORM;
    s.format = a.options.format == ByteFormat::e4m3 ? NW_E4M3 : NW_INT8;
    s.scaling = a.options.scaling == Scaling::row     ? NW_SCALE_OF_ROW
                : a.options.scaling == Scaling::block ? NW_SCALE_OF_BLOCK
                                                      : NW_SCALE_GIVEN;
  }
  if constexpr (requires { s.eps; }) s.eps = a.options.eps;
  if constexpr (requires { s.momentum; }) s.momentum = a.options.momentum;
  if constexpr (requires { s.round_before_gamma; }) s.round_before_gamma = a.options.round_before_gamma ? 1 : 0;
  if constexpr (requires { s.gamma_offset; }) s.gamma_offset = a.options.gamma_offset;
  if constexpr (requires { s.head_dim; }) {
    fill_heads(a, s);
  } else if constexpr (requires { s.rows; }) {
    s.rows = a.options.rows;
    s.cols = a.options.cols;
  } else {
    s.samples = a.options.rows;
    s.channels = a.options.cols;
    s.pixels = a.options.pixels;
    s.layout = a.options.layout == ChannelLayout::channels_first ? NW_CHANNELS_FIRST : NW_CHANNELS_LAST;
  }
  return s;
}

// Calls function(struct, the operation's own function).
template <class Function>
auto with_struct(const DeviceArguments& a, Function&& function) {
  switch (operation_of(a.options.operation)) {
    case NW_LAYERNORM_FORWARD:
      return function(struct_of<nw_layernorm_forward_args>(a), nw_layernorm_forward);
    case NW_RMSNORM_FORWARD:
      return function(struct_of<nw_rmsnorm_forward_args>(a), nw_rmsnorm_forward);
    case NW_ADD_LAYERNORM_FORWARD:
      return function(struct_of<nw_add_layernorm_forward_args>(a), nw_add_layernorm_forward);
    case NW_ADD_RMSNORM_FORWARD:
      return function(struct_of<nw_add_rmsnorm_forward_args>(a), nw_add_rmsnorm_forward);
    case NW_RMSNORM_BACKWARD:
      return function(struct_of<nw_rmsnorm_backward_args>(a), nw_rmsnorm_backward);
    case NW_BATCHNORM_TRAIN:
      return function(struct_of<nw_batchnorm_train_args>(a), nw_batchnorm_train);
    case NW_BATCHNORM_INFERENCE:
      return function(struct_of<nw_batchnorm_inference_args>(a), nw_batchnorm_inference);
    case NW_BATCHNORM_BACKWARD:
      return function(struct_of<nw_batchnorm_backward_args>(a), nw_batchnorm_backward);
    case NW_QK_NORM:
      return function(struct_of<nw_qk_norm_args>(a), nw_qk_norm);
    case NW_QK_NORM_BACKWARD:
      return function(struct_of<nw_qk_norm_backward_args>(a), nw_qk_norm_backward);
    case NW_QUANTIZED_NORM:
      return function(struct_of<nw_quantized_norm_args>(a), nw_quantized_norm);
    default:
      return function(struct_of<nw_layernorm_backward_args>(a), nw_layernorm_backward);
  }
}

// Room for a call to work in: what nw_workspace_size asks for and no byte more.
template <class Args>
DeviceMemory give_workspace(Operation operation, Args& args) {
  size_t bytes = 0;
  EXPECT_EQ(nw_workspace_size(operation_of(operation), &args, &bytes), NW_OK) << nw_last_error();
  DeviceMemory memory(static_cast<int64_t>(bytes));
  if constexpr (requires { args.workspace; }) {
    EXPECT_GT(bytes, 0u);
    args.workspace = memory.data();
    args.workspace_bytes = bytes;
  } else {
    EXPECT_EQ(bytes, 0u);
  }
  return memory;
}

enum class Room { none, given };

nw_status call(const DeviceArguments& arguments, Room room, void* stream) {
  return with_struct(arguments, [&](auto args, auto function) {
    if (room == Room::none) return function(&args, stream);
    const DeviceMemory memory = give_workspace(arguments.options.operation, args);
    const nw_status status = function(&args, stream);
    check_cuda(cudaDeviceSynchronize(), "running the kernels");
    return status;
  });
}

void expect_right(const Problem& problem, const Workspace& workspace) {
  check_cuda(cudaDeviceSynchronize(), "running the kernels");
  const Comparison comparison = problem.compare(workspace.download(), {.summation = Summation::pairwise});
  EXPECT_TRUE(comparison.passed) << comparison.describe();
  for (const std::string& sentence : workspace.damage()) ADD_FAILURE() << sentence;
}

std::string shown(const ProblemOptions& o) {
  return operation_name(o) + " " + std::string(name_of(o.dtype)) + "/" + std::string(name_of(o.param_dtype)) + " " +
         std::to_string(o.rows) + " x " + std::to_string(o.cols) + " x " + std::to_string(o.pixels) +
         (o.layout == ChannelLayout::channels_first ? " channels first" : "") + ", padding " +
         std::to_string(o.row_padding);
}

struct Types {
  Dtype dtype, param_dtype;
};
constexpr Types all_types[] = {{Dtype::fp32, Dtype::fp32},
                               {Dtype::fp16, Dtype::fp16},
                               {Dtype::fp16, Dtype::fp32},
                               {Dtype::bf16, Dtype::bf16},
                               {Dtype::bf16, Dtype::fp32}};

std::vector<ProblemOptions> problems_of(Operation operation, float gamma_offset = 0.0f) {
  std::vector<ProblemOptions> problems;
  const auto add = [&](ProblemOptions options) {
    options.operation = operation;
    options.gamma_offset = gamma_offset;
    for (const auto& [dtype, param_dtype] : all_types) {
      options.dtype = dtype;
      options.param_dtype = param_dtype;
      problems.push_back(options);
    }
  };
  if (is_batchnorm(operation)) {
    add({.rows = 33, .cols = 64});
    add({.rows = 7, .cols = 19, .pixels = 49});
    add({.rows = 7, .cols = 16, .pixels = 49, .layout = ChannelLayout::channels_first});
  } else if (is_of_heads(operation)) {
    add({.rows = 6, .cols = 128, .q_heads = 4, .k_heads = 2});
    add({.rows = 3, .cols = 65, .q_heads = 3, .k_heads = 5, .row_padding = 1});
    add({.rows = 5, .cols = 64, .q_heads = 1, .k_heads = 0, .gamma_offset = 1});
  } else if (is_quantized(operation)) {
    for (const ByteFormat format : {ByteFormat::e4m3, ByteFormat::int8}) {
      for (const Scaling scaling : {Scaling::row, Scaling::block, Scaling::tensor}) {
        add({.rows = 6, .cols = 1024, .format = format, .scaling = scaling});
        add({.rows = 4, .cols = 1001, .row_padding = 3, .format = format, .scaling = scaling});
      }
    }
  } else {
    add({.rows = 6, .cols = 1024});
    add({.rows = 3, .cols = 1001});
    add({.rows = 5, .cols = 192, .row_padding = 64});
    add({.rows = 2, .cols = 4097, .row_padding = 3});
    add({.rows = 1, .cols = 12288});
  }
  return problems;
}

class Library : public testing::Test {
 protected:
  void SetUp() override {
    try {
      current_device();
    } catch (const NoDevice& error) {
      GTEST_SKIP() << error.what();
    }
  }
};

class Stream {
 public:
  Stream() { check_cuda(cudaStreamCreate(&stream_), "creating a stream"); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// --- Results ---------------------------------------------------------------------------------------------------------

TEST_F(Library, EveryOperationIsRight) {
  for (const Operation operation : all_operations) {
    for (const ProblemOptions& options : problems_of(operation)) {
      SCOPED_TRACE(shown(options));
      const Problem problem(options);
      Workspace workspace(problem, options.row_padding % 2);
      workspace.reset();
      EXPECT_EQ(call(workspace.arguments(), Room::given, nullptr), NW_OK) << nw_last_error();
      expect_right(problem, workspace);
    }
  }
}

TEST_F(Library, EveryNormOverRowsIsRightWithWeightsAboutZero) {
  for (const Operation operation : all_operations) {
    if (is_batchnorm(operation) || is_quantized(operation)) continue;
    for (const ProblemOptions& options : problems_of(operation, 1.0f)) {
      SCOPED_TRACE(shown(options));
      const Problem problem(options);
      Workspace workspace(problem, options.row_padding % 2);
      workspace.reset();
      EXPECT_EQ(call(workspace.arguments(), Room::given, nullptr), NW_OK) << nw_last_error();
      expect_right(problem, workspace);
    }
  }
}

TEST_F(Library, AWorkspaceIsHadWhereNoneIsGiven) {
  for (const Operation operation : {Operation::layernorm_backward, Operation::rmsnorm_backward,
                                    Operation::batchnorm_train, Operation::batchnorm_backward}) {
    const Problem problem({.operation = operation, .rows = 40, .cols = 96});
    Workspace workspace(problem, 0);
    workspace.reset();
    EXPECT_EQ(call(workspace.arguments(), Room::none, nullptr), NW_OK) << nw_last_error();
    expect_right(problem, workspace);
  }
}

TEST_F(Library, OptionalTensorsMayBeNull) {
  struct Without {
    Operation operation;
    std::vector<std::string> absent;
  };
  for (const Without& each : {Without{Operation::layernorm_forward, {"gamma", "beta", "mean", "rstd"}},
                              {Operation::rmsnorm_forward, {"gamma", "rstd"}},
                              {Operation::add_layernorm_forward, {"gamma", "beta", "mean", "rstd"}},
                              {Operation::add_rmsnorm_forward, {"gamma", "rstd"}},
                              {Operation::add_layernorm_quantized, {"gamma", "beta"}},
                              {Operation::rmsnorm_quantized, {"gamma"}},
                              {Operation::layernorm_backward, {"gamma", "dgamma", "dbeta"}},
                              {Operation::layernorm_backward, {"dx"}},
                              {Operation::rmsnorm_backward, {"gamma", "dgamma"}},
                              {Operation::rmsnorm_backward, {"dx"}},
                              {Operation::batchnorm_train, {"gamma", "beta", "running_mean", "running_var"}},
                              {Operation::batchnorm_inference, {"gamma", "beta"}},
                              {Operation::batchnorm_backward, {"gamma", "dgamma", "dbeta"}},
                              {Operation::batchnorm_backward, {"dx"}},
                              {Operation::qk_norm, {"q_gamma", "k_gamma", "q_rstd", "k_rstd"}},
                              {Operation::qk_norm_backward, {"q_gamma", "k_gamma", "dq", "dk_gamma"}}}) {
    SCOPED_TRACE(name_of(each.operation));
    const Problem problem({.operation = each.operation, .rows = 9, .cols = 200, .absent = each.absent});
    Workspace workspace(problem, 0);
    workspace.reset();
    EXPECT_EQ(call(workspace.arguments(), Room::given, nullptr), NW_OK) << nw_last_error();
    expect_right(problem, workspace);
  }
}

TEST_F(Library, RmsNormRoundsBeforeGammaWhereItIsAskedTo) {
  const Problem problem({.operation = Operation::rmsnorm_forward,
                         .dtype = Dtype::bf16,
                         .param_dtype = Dtype::bf16,
                         .rows = 4,
                         .cols = 512,
                         .round_before_gamma = true});
  Workspace workspace(problem, 0);
  workspace.reset();
  EXPECT_EQ(call(workspace.arguments(), Room::none, nullptr), NW_OK) << nw_last_error();
  expect_right(problem, workspace);
}

TEST_F(Library, OutputsMayTakeThePlacesThatTheHeaderNames) {
  struct InPlace {
    Operation operation;
    std::vector<Variant::Overwrite> overwritten;
  };
  for (const InPlace& each : {InPlace{Operation::layernorm_forward, {{"x", "y"}}},
                              {Operation::rmsnorm_forward, {{"x", "y"}}},
                              {Operation::add_layernorm_forward, {{"x", "h"}}},
                              {Operation::add_layernorm_forward, {{"residual", "h"}, {"x", "y"}}},
                              {Operation::add_rmsnorm_forward, {{"residual", "h"}}},
                              {Operation::add_rmsnorm_forward, {{"x", "h"}, {"residual", "y"}}},
                              {Operation::add_layernorm_quantized, {{"residual", "h"}}},
                              {Operation::add_rmsnorm_quantized, {{"x", "h"}}},
                              {Operation::batchnorm_inference, {{"x", "y"}}},
                              {Operation::qk_norm, {{"q", "q_out"}, {"k", "k_out"}}}}) {
    SCOPED_TRACE(name_of(each.operation));
    for (const int64_t cols : {192, 1001, 8192}) {
      for (const float gamma_offset : {0.0f, 1.0f}) {
        const bool has_none = is_batchnorm(each.operation) || is_quantized(each.operation);
        if (has_none && gamma_offset != 0.0f) continue;
        const Problem problem({.operation = each.operation, .rows = 12, .cols = cols, .gamma_offset = gamma_offset});
        Workspace workspace(problem, 0);
        workspace.overwrite(each.overwritten);
        workspace.reset();
        EXPECT_EQ(call(workspace.arguments(), Room::none, nullptr), NW_OK) << nw_last_error();
        expect_right(problem, workspace);
      }
    }
  }
}

// The gradient that reaches h past the norm is added to the norm's own.
TEST_F(Library, RmsNormsBackwardPassAddsWhatReachesTheSum) {
  struct Kind {
    Dtype dtype;
    float gamma_offset;
    double rounding;  // of an element
  };
  struct Shape {
    int64_t rows, cols;
  };
  for (const Kind& kind : {Kind{Dtype::fp32, 0.0f, 1e-6},
                           {Dtype::fp32, 1.0f, 1e-6},
                           {Dtype::bf16, 0.0f, 0.004},
                           {Dtype::bf16, 1.0f, 0.004}}) {
    // The last three are so many rows that the kernels are not those of small problems.
    for (const auto& [rows, cols] :
         {Shape{6, 64}, {6, 1001}, {6, 2304}, {6, 5376}, {6, 12288}, {2100, 768}, {900, 5376}, {400, 12288}}) {
      const Problem problem({.operation = Operation::rmsnorm_backward,
                             .dtype = kind.dtype,
                             .param_dtype = kind.dtype,
                             .rows = rows,
                             .cols = cols,
                             .gamma_offset = kind.gamma_offset});
      Workspace workspace(problem, 0);
      const auto dx_with = [&](const void* dh) {
        workspace.reset();
        auto args = struct_of<nw_rmsnorm_backward_args>(workspace.arguments());
        const DeviceMemory memory = give_workspace(Operation::rmsnorm_backward, args);
        args.dh = dh;
        args.dh_stride = cols;
        EXPECT_EQ(nw_rmsnorm_backward(&args, nullptr), NW_OK) << nw_last_error();
        check_cuda(cudaDeviceSynchronize(), "running the kernels");
        std::vector<std::byte> bytes(rows * cols * size_of(kind.dtype));
        check_cuda(cudaMemcpy(bytes.data(), args.dx, bytes.size(), cudaMemcpyDeviceToHost), "copying");
        std::vector<double> values(rows * cols);
        load_elements(kind.dtype, bytes.data(), rows * cols, 1, values.data());
        return values;
      };
      const std::vector<double> plain = dx_with(nullptr);
      const std::vector<double> with_dh = dx_with(pointer(workspace.arguments(), "x"));
      ASSERT_EQ(problem.tensors()[1].spec.name, "x");
      std::vector<double> x(rows * cols);
      load_elements(kind.dtype, problem.tensors()[1].bytes.data(), rows * cols, 1, x.data());
      for (size_t i = 0; i < plain.size(); ++i) {
        const double sum = plain[i] + x[i];
        ASSERT_NEAR(with_dh[i], sum, kind.rounding * (std::fabs(plain[i]) + std::fabs(sum)) + 1e-5)
            << rows << " x " << cols << ", element " << i;
      }
    }
  }
}

// y where h was: the sum is lost, and y is what it would have been.
TEST_F(Library, TheNormMayTakeThePlaceOfTheSum) {
  const Problem problem({.operation = Operation::add_layernorm_forward, .rows = 5, .cols = 768});
  Workspace apart(problem, 0);
  apart.reset();
  ASSERT_EQ(call(apart.arguments(), Room::none, nullptr), NW_OK) << nw_last_error();
  Workspace together(problem, 0);
  together.reset();
  auto args = struct_of<nw_add_layernorm_forward_args>(together.arguments());
  args.h = args.y;
  ASSERT_EQ(nw_add_layernorm_forward(&args, nullptr), NW_OK) << nw_last_error();
  check_cuda(cudaDeviceSynchronize(), "running the kernels");
  const std::vector<HostTensor> one = apart.download();
  const std::vector<HostTensor> other = together.download();
  for (size_t i = 0; i < one.size(); ++i) {
    if (one[i].spec.name != "y") continue;
    EXPECT_EQ(one[i].bytes, other[i].bytes);
  }
}

TEST_F(Library, WithoutRowsOnlyTheSumsAreWritten) {
  for (const Operation operation : all_operations) {
    for (const Types& types : {all_types[0], all_types[3]}) {
      ProblemOptions options = {
          .operation = operation, .dtype = types.dtype, .param_dtype = types.param_dtype, .rows = 0, .cols = 50};
      SCOPED_TRACE(shown(options));
      const Problem problem(options);
      Workspace workspace(problem, 0);
      workspace.reset();
      with_struct(workspace.arguments(), [&](auto args, auto function) {
        if constexpr (requires { args.x; }) args.x = nullptr;  // where there are no elements, there may be no memory
        EXPECT_EQ(function(&args, nullptr), NW_OK) << nw_last_error();
      });
      check_cuda(cudaDeviceSynchronize(), "running the kernels");
      for (const HostTensor& tensor : workspace.download()) {
        const bool is_sum = tensor.spec.extent == Extent::per_col && tensor.spec.name.starts_with('d');
        if (!is_sum) continue;
        EXPECT_EQ(tensor.bytes, HostBytes(tensor.bytes.size(), std::byte{0})) << tensor.spec.name;
      }
      for (const std::string& sentence : workspace.damage()) ADD_FAILURE() << sentence;
    }
  }
}

// --- Threads, streams, graphs ----------------------------------------------------------------------------------------

TEST_F(Library, TwoThreadsWorkOnTwoStreams) {
  const auto work = [](Operation operation, uint64_t seed) {
    const Stream stream;
    for (int64_t rows = 3; rows < 43; rows += 8) {
      const Problem problem({.operation = operation, .rows = rows, .cols = 640, .seed = seed});
      Workspace workspace(problem, 0);
      workspace.reset();
      EXPECT_EQ(call(workspace.arguments(), Room::given, stream.get()), NW_OK) << nw_last_error();
      expect_right(problem, workspace);
    }
  };
  std::thread one(work, Operation::layernorm_backward, 1);
  std::thread other(work, Operation::layernorm_forward, 2);
  one.join();
  other.join();
}

TEST_F(Library, EachThreadHasItsOwnLastError) {
  nw_layernorm_forward_args args = {};
  EXPECT_EQ(nw_layernorm_forward(&args, nullptr), NW_ERROR_STRUCT_SIZE);
  const std::string mine = nw_last_error();
  EXPECT_NE(mine, "");
  std::thread([] {
    EXPECT_STREQ(nw_last_error(), "");
    EXPECT_EQ(nw_layernorm_forward(nullptr, nullptr), NW_ERROR_NULL);
    EXPECT_STREQ(nw_last_error(), "args must not be null");
  }).join();
  EXPECT_EQ(nw_last_error(), mine);
}

void capture_and_replay(const ProblemOptions& options) {
  const Problem problem(options);
  Workspace workspace(problem, 0);
  workspace.reset();
  const Stream stream;
  with_struct(workspace.arguments(), [&](auto args, auto function) {
    const DeviceMemory memory = give_workspace(options.operation, args);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    check_cuda(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "capturing");
    const nw_status status = function(&args, stream.get());
    check_cuda(cudaStreamEndCapture(stream.get(), &graph), "capturing");
    EXPECT_EQ(status, NW_OK) << nw_last_error();
    check_cuda(cudaGraphInstantiate(&executable, graph, 0), "instantiating a graph");
    for (int i = 0; i < 2; ++i) {
      workspace.reset();
      check_cuda(cudaGraphLaunch(executable, stream.get()), "launching a graph");
      expect_right(problem, workspace);
    }
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
  });
}

TEST_F(Library, AGraphCanBeCapturedWhereAWorkspaceIsGiven) {
  for (const Operation operation : all_operations) {
    SCOPED_TRACE(name_of(operation));
    capture_and_replay({.operation = operation, .rows = 24, .cols = 256});
  }
}

// The backward pass of rows that clusters and tiles have side by side, of narrow odd ones, and of rows that blocks of
// the whole grid have together, whose mail is cleared in the graph.
TEST_F(Library, AGraphCanBeCapturedOfEachWayThroughARow) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{2, 16384}, {30000, 50}, {2, 200000}}) {
    SCOPED_TRACE(testing::Message() << rows << " x " << cols);
    capture_and_replay({.operation = Operation::layernorm_backward, .rows = rows, .cols = cols});
  }
}

// --- What is refused -------------------------------------------------------------------------------------------------

// A call that is right but for what a test changes.
template <class Args>
class Valid {
 public:
  explicit Valid(ProblemOptions options) : problem_(options), workspace_(problem_, 0) {
    workspace_.reset();
    args = struct_of<Args>(workspace_.arguments());
    memory_ = std::make_unique<DeviceMemory>(give_workspace(options.operation, args));
  }
  Args args;

 private:
  Problem problem_;
  Workspace workspace_;
  std::unique_ptr<DeviceMemory> memory_;
};

void expect_refused(nw_status got, nw_status want, const std::string& sentence) {
  EXPECT_STREQ(nw_status_name(got), nw_status_name(want));
  EXPECT_EQ(std::string(nw_last_error()).substr(0, sentence.size()), sentence);
}

void* beside(const void* data, int64_t bytes) {
  return static_cast<std::byte*>(const_cast<void*>(data)) + bytes;
}

TEST_F(Library, RefusesWhatIsWrongInAForwardPass) {
  const auto refuses = [](auto change, nw_status status, const std::string& sentence) {
    Valid<nw_layernorm_forward_args> valid({.operation = Operation::layernorm_forward,
                                            .dtype = Dtype::bf16,
                                            .param_dtype = Dtype::fp32,
                                            .rows = 10,
                                            .cols = 64,
                                            .row_padding = 16});
    change(valid.args);
    expect_refused(nw_layernorm_forward(&valid.args, nullptr), status, sentence);
  };
  using Args = nw_layernorm_forward_args;
  refuses([](Args& a) { a.size = 8; }, NW_ERROR_STRUCT_SIZE, "size must be that of the struct, 120; it is 8");
  refuses([](Args& a) { a.size = size_t{1} << 40; }, NW_ERROR_STRUCT_SIZE, "size is ");
  refuses([](Args& a) { a.dtype = 3; }, NW_ERROR_TYPE,
          "dtype must be NW_FP32 (0), NW_FP16 (1) or NW_BF16 (2); it is 3");
  refuses([](Args& a) { a.dtype = -1; }, NW_ERROR_TYPE, "dtype must be");
  refuses([](Args& a) { a.param_dtype = NW_FP16; }, NW_ERROR_TYPE, "param_dtype must be dtype, 2, or NW_FP32 (0)");
  refuses([](Args& a) { a.param_dtype = 7; }, NW_ERROR_TYPE, "param_dtype must be");
  refuses([](Args& a) { a.rows = -1; }, NW_ERROR_SHAPE, "rows must be from 0 to 2147483648; it is -1");
  refuses([](Args& a) { a.rows = int64_t{1} << 32; }, NW_ERROR_SHAPE, "rows must be");
  refuses([](Args& a) { a.cols = 0; }, NW_ERROR_SHAPE, "cols must be from 1 to 1048576; it is 0");
  refuses([](Args& a) { a.cols = (1 << 20) + 1; }, NW_ERROR_SHAPE, "cols must be");
  refuses([](Args& a) { a.eps = -1e-6f; }, NW_ERROR_VALUE, "eps must be a finite number, 0 or more");
  refuses([](Args& a) { a.eps = std::numeric_limits<float>::quiet_NaN(); }, NW_ERROR_VALUE, "eps must be");
  refuses([](Args& a) { a.eps = std::numeric_limits<float>::infinity(); }, NW_ERROR_VALUE, "eps must be");
  refuses([](Args& a) { a.x = nullptr; }, NW_ERROR_NULL, "x must not be null");
  refuses([](Args& a) { a.y = nullptr; }, NW_ERROR_NULL, "y must not be null");
  refuses([](Args& a) { a.x_stride = 63; }, NW_ERROR_STRIDE,
          "x_stride must be at least 64, the elements of a row; it is 63");
  refuses([](Args& a) { a.y_stride = -80; }, NW_ERROR_STRIDE, "y_stride must be at least 64");
  refuses([](Args& a) { a.x_stride = std::numeric_limits<int64_t>::max() / 4; }, NW_ERROR_STRIDE, "x_stride is ");
  refuses([](Args& a) { a.x = beside(a.x, 1); }, NW_ERROR_ALIGNMENT, "x must be aligned to its elements of 2 bytes");
  refuses([](Args& a) { a.gamma = beside(a.gamma, 2); }, NW_ERROR_ALIGNMENT,
          "gamma must be aligned to its elements of 4");
  refuses([](Args& a) { a.y = beside(a.x, 2); }, NW_ERROR_OVERLAP,
          "y overlaps x: in its place it must have the same pointer and the same stride");
  refuses([](Args& a) { a.y = const_cast<void*>(a.x), a.y_stride = 96; }, NW_ERROR_OVERLAP, "y overlaps x");
  refuses([](Args& a) { a.y = const_cast<void*>(a.gamma); }, NW_ERROR_OVERLAP, "y must not overlap gamma");
  refuses([](Args& a) { a.rstd = a.mean + 9; }, NW_ERROR_OVERLAP, "mean must not overlap rstd");
  refuses([](Args& a) { a.mean = static_cast<float*>(a.y); }, NW_ERROR_OVERLAP, "y must not overlap mean");
}

TEST_F(Library, RefusesWhatIsWrongInTheOtherOperations) {
  const ProblemOptions rows = {.rows = 10, .cols = 64};
  {
    ProblemOptions options = rows;
    options.operation = Operation::rmsnorm_forward;
    Valid<nw_rmsnorm_forward_args> valid(options);
    valid.args.round_before_gamma = 2;
    expect_refused(nw_rmsnorm_forward(&valid.args, nullptr), NW_ERROR_VALUE,
                   "round_before_gamma must be 0 or 1; it is 2");
    valid.args.round_before_gamma = 0;
    valid.args.batch_invariant = -1;
    expect_refused(nw_rmsnorm_forward(&valid.args, nullptr), NW_ERROR_VALUE,
                   "batch_invariant must be 0 or 1; it is -1");
    valid.args.batch_invariant = 0;
    valid.args.gamma_offset = 0.5f;
    expect_refused(nw_rmsnorm_forward(&valid.args, nullptr), NW_ERROR_VALUE, "gamma_offset must be 0 or 1; it is 0.5");
    valid.args.gamma_offset = std::numeric_limits<float>::quiet_NaN();
    expect_refused(nw_rmsnorm_forward(&valid.args, nullptr), NW_ERROR_VALUE, "gamma_offset must be 0 or 1; it is nan");
  }
  {
    ProblemOptions options = rows;
    options.operation = Operation::add_rmsnorm_forward;
    Valid<nw_add_rmsnorm_forward_args> valid(options);
    const nw_add_rmsnorm_forward_args right = valid.args;
    valid.args.residual = nullptr;
    expect_refused(nw_add_rmsnorm_forward(&valid.args, nullptr), NW_ERROR_NULL, "residual must not be null");
    valid.args = right;
    valid.args.h = beside(right.x, 4);
    expect_refused(nw_add_rmsnorm_forward(&valid.args, nullptr), NW_ERROR_OVERLAP, "h overlaps x");
    valid.args = right;
    valid.args.h_stride = 60;
    expect_refused(nw_add_rmsnorm_forward(&valid.args, nullptr), NW_ERROR_STRIDE, "h_stride must be at least 64");
    valid.args = right;
    valid.args.y = beside(right.h, 64);
    expect_refused(nw_add_rmsnorm_forward(&valid.args, nullptr), NW_ERROR_OVERLAP, "h must not overlap y");
  }
  {
    ProblemOptions options = rows;
    options.operation = Operation::add_layernorm_backward;
    Valid<nw_layernorm_backward_args> valid(options);
    const nw_layernorm_backward_args right = valid.args;
    const auto refuses = [&](auto change, nw_status status, const std::string& sentence) {
      valid.args = right;
      change(valid.args);
      expect_refused(nw_layernorm_backward(&valid.args, nullptr), status, sentence);
    };
    using Args = nw_layernorm_backward_args;
    refuses([](Args& a) { a.mean = nullptr; }, NW_ERROR_NULL, "mean must not be null");
    refuses([](Args& a) { a.rstd = nullptr; }, NW_ERROR_NULL, "rstd must not be null");
    refuses([](Args& a) { a.dy = nullptr; }, NW_ERROR_NULL, "dy must not be null");
    refuses([](Args& a) { a.dh_stride = 1; }, NW_ERROR_STRIDE, "dh_stride must be at least 64");
    refuses([](Args& a) { a.dx = const_cast<void*>(a.dy); }, NW_ERROR_OVERLAP, "dx must not overlap dy");
    refuses([](Args& a) { a.dgamma = const_cast<void*>(a.gamma); }, NW_ERROR_OVERLAP, "dgamma must not overlap gamma");
    refuses([](Args& a) { a.workspace_bytes -= 1; }, NW_ERROR_WORKSPACE,
            "workspace_bytes must be at least " + std::to_string(right.workspace_bytes) + "; it is ");
    refuses([](Args& a) { a.workspace = beside(a.workspace, 8); }, NW_ERROR_ALIGNMENT,
            "workspace must be aligned to 16 bytes");
    refuses([](Args& a) { a.workspace = a.dx; }, NW_ERROR_OVERLAP, "dx must not overlap workspace");
  }
  {
    Valid<nw_batchnorm_train_args> valid({.operation = Operation::batchnorm_train, .rows = 6, .cols = 8, .pixels = 4});
    const nw_batchnorm_train_args right = valid.args;
    const auto refuses = [&](auto change, nw_status status, const std::string& sentence) {
      valid.args = right;
      change(valid.args);
      expect_refused(nw_batchnorm_train(&valid.args, nullptr), status, sentence);
    };
    using Args = nw_batchnorm_train_args;
    refuses([](Args& a) { a.samples = -1; }, NW_ERROR_SHAPE, "samples must be from 0 to 2147483648; it is -1");
    refuses([](Args& a) { a.channels = 0; }, NW_ERROR_SHAPE, "channels must be from 1");
    refuses([](Args& a) { a.pixels = 0; }, NW_ERROR_SHAPE, "pixels must be from 1");
    refuses([](Args& a) { a.samples = a.pixels = 1 << 20; }, NW_ERROR_SHAPE,
            "samples * pixels must be at most 2147483648");
    refuses([](Args& a) { a.samples = a.pixels = 1; }, NW_ERROR_SHAPE, "samples * pixels must be 0 or at least 2");
    refuses([](Args& a) { a.layout = 2; }, NW_ERROR_VALUE, "layout must be");
    refuses([](Args& a) { a.momentum = 1.5f; }, NW_ERROR_VALUE, "momentum must be from 0 to 1; it is 1.5");
    refuses([](Args& a) { a.momentum = std::numeric_limits<float>::quiet_NaN(); }, NW_ERROR_VALUE, "momentum must be");
    refuses([](Args& a) { a.save_mean = nullptr; }, NW_ERROR_NULL, "save_mean must not be null");
    refuses([](Args& a) { a.y = const_cast<void*>(a.x); }, NW_ERROR_OVERLAP, "y must not overlap x");
    refuses([](Args& a) { a.running_var = a.running_mean; }, NW_ERROR_OVERLAP,
            "running_mean must not overlap running_var");
    refuses([](Args& a) { a.workspace_bytes = 0; }, NW_ERROR_WORKSPACE, "workspace_bytes must be at least");
  }
  {
    Valid<nw_batchnorm_inference_args> valid({.operation = Operation::batchnorm_inference, .rows = 6, .cols = 8});
    valid.args.running_var = nullptr;
    expect_refused(nw_batchnorm_inference(&valid.args, nullptr), NW_ERROR_NULL, "running_var must not be null");
  }
  {
    Valid<nw_batchnorm_backward_args> valid({.operation = Operation::batchnorm_backward, .rows = 6, .cols = 8});
    valid.args.save_invstd = nullptr;
    expect_refused(nw_batchnorm_backward(&valid.args, nullptr), NW_ERROR_NULL, "save_invstd must not be null");
  }
  {
    Valid<nw_qk_norm_args> valid({.operation = Operation::qk_norm, .rows = 6, .cols = 64, .q_heads = 4, .k_heads = 2});
    const nw_qk_norm_args right = valid.args;
    const auto refuses = [&](auto change, nw_status status, const std::string& sentence) {
      valid.args = right;
      change(valid.args);
      expect_refused(nw_qk_norm(&valid.args, nullptr), status, sentence);
    };
    using Args = nw_qk_norm_args;
    refuses([](Args& a) { a.tokens = -1; }, NW_ERROR_SHAPE, "tokens must be from 0 to 2147483648; it is -1");
    refuses([](Args& a) { a.q_heads = 0; }, NW_ERROR_SHAPE, "q_heads must be from 1 to 65536; it is 0");
    refuses([](Args& a) { a.k_heads = -1; }, NW_ERROR_SHAPE, "k_heads must be from 0");
    refuses([](Args& a) { a.head_dim = 0; }, NW_ERROR_SHAPE, "head_dim must be from 1");
    refuses([](Args& a) { a.eps = -1; }, NW_ERROR_VALUE, "eps must be a finite number");
    refuses([](Args& a) { a.gamma_offset = 0.5f; }, NW_ERROR_VALUE, "gamma_offset must be 0 or 1; it is 0.5");
    refuses([](Args& a) { a.round_before_gamma = 2; }, NW_ERROR_VALUE, "round_before_gamma must be 0 or 1; it is 2");
    refuses([](Args& a) { a.k = nullptr; }, NW_ERROR_NULL, "k must not be null");
    refuses([](Args& a) { a.q_head_stride = 63; }, NW_ERROR_STRIDE,
            "q_head_stride must be at least 64, the elements of a head; it is 63");
    refuses([](Args& a) { a.k_out_token_stride = 127; }, NW_ERROR_STRIDE,
            "k_out_token_stride must be at least 128, the elements of the row that it steps over; it is 127");
    refuses([](Args& a) { a.q_head_stride = a.q_token_stride = int64_t{1} << 60; }, NW_ERROR_STRIDE,
            "q_head_stride is 1152921504606846976: 4 of them are more than memory can hold");
    refuses([](Args& a) { a.q_token_stride = int64_t{1} << 60; }, NW_ERROR_STRIDE,
            "q_token_stride is 1152921504606846976: 6 of them are more than memory can hold");
    refuses([](Args& a) { a.q_out = beside(a.q_out, 2); }, NW_ERROR_ALIGNMENT, "q_out must be aligned");
    refuses([](Args& a) { a.q_out = const_cast<void*>(a.k); }, NW_ERROR_OVERLAP, "q_out must not overlap k");
    refuses([](Args& a) { a.q_out = a.k_out; }, NW_ERROR_OVERLAP, "q_out must not overlap k_out");
    refuses([](Args& a) { a.q_out = beside(a.q, 4); }, NW_ERROR_OVERLAP, "q_out overlaps q: in its place");
    refuses([](Args& a) { a.k_rstd = a.q_rstd; }, NW_ERROR_OVERLAP, "q_rstd must not overlap k_rstd");
  }
}

// q, k and v of a token side by side, and q, k and v of each head: all in one tensor, of which q and k are overwritten.
TEST_F(Library, HeadsOfOneProjectionAreNormalizedWhereTheyLie) {
  constexpr int64_t tokens = 5, heads = 3, dim = 64;
  for (const bool is_interleaved : {false, true}) {
    SCOPED_TRACE(is_interleaved);
    const Problem problem({.operation = Operation::qk_norm,
                           .rows = tokens,
                           .cols = dim,
                           .q_heads = heads,
                           .k_heads = heads,
                           .absent = {"q_rstd", "k_rstd"}});
    Workspace workspace(problem, 0);
    workspace.reset();
    nw_qk_norm_args args = struct_of<nw_qk_norm_args>(workspace.arguments());
    const DeviceMemory projection(3 * tokens * heads * dim * 4);
    std::vector<float> values(3 * tokens * heads * dim, 7.0f);
    std::vector<HostTensor> results = workspace.download();
    const auto place = [&](int64_t part, int64_t token, int64_t head) {
      return values.data() +
             (is_interleaved ? ((token * heads + head) * 3 + part) * dim : ((token * 3 + part) * heads + head) * dim);
    };
    const auto for_each_row = [&](auto use) {  // of q, then of k
      for (int64_t part = 0; part < 2; ++part) {
        for (int64_t token = 0; token < tokens; ++token) {
          for (int64_t head = 0; head < heads; ++head) use(part, token * heads + head, place(part, token, head));
        }
      }
    };
    for_each_row([&](int64_t part, int64_t row, float* to) {
      const HostTensor& from = problem.tensors()[part];
      std::memcpy(to, from.bytes.data() + from.start_of(row) * 4, dim * 4);
    });
    check_cuda(cudaMemcpy(projection.data(), values.data(), values.size() * 4, cudaMemcpyHostToDevice), "copying");
    auto* const first = reinterpret_cast<float*>(projection.data());
    args.q = args.q_out = first;
    args.k = args.k_out = first + (is_interleaved ? dim : heads * dim);
    args.q_token_stride = args.k_token_stride = args.q_out_token_stride = args.k_out_token_stride = 3 * heads * dim;
    args.q_head_stride = args.k_head_stride = args.q_out_head_stride = args.k_out_head_stride =
        is_interleaved ? 3 * dim : dim;
    ASSERT_EQ(nw_qk_norm(&args, nullptr), NW_OK) << nw_last_error();
    check_cuda(cudaMemcpy(values.data(), projection.data(), values.size() * 4, cudaMemcpyDeviceToHost), "copying");
    for_each_row([&](int64_t part, int64_t row, float* from) {
      HostTensor& to = results[4 + part];
      std::memcpy(to.bytes.data() + to.start_of(row) * 4, from, dim * 4);
      std::fill(from, from + dim, 7.0f);
    });
    const Comparison comparison = problem.compare(results, {.summation = Summation::pairwise});
    EXPECT_TRUE(comparison.passed) << comparison.describe();
    EXPECT_EQ(values, std::vector<float>(values.size(), 7.0f)) << "v was written to";
  }
}

TEST_F(Library, RefusesWhatIsWrongOfEightBits) {
  ProblemOptions options = {.operation = Operation::add_layernorm_quantized,
                            .dtype = Dtype::bf16,
                            .param_dtype = Dtype::bf16,
                            .rows = 10,
                            .cols = 300};
  const auto refuses = [&](auto change, nw_status status, const std::string& sentence) {
    Valid<nw_quantized_norm_args> valid(options);
    change(valid.args);
    expect_refused(nw_quantized_norm(&valid.args, nullptr), status, sentence);
  };
  using Args = nw_quantized_norm_args;
  float other = 1;
  refuses([](Args& a) { a.norm = 2; }, NW_ERROR_VALUE, "norm must be NW_RMS_NORM (0) or NW_LAYER_NORM (1); it is 2");
  refuses([](Args& a) { a.format = 2; }, NW_ERROR_VALUE, "format must be NW_E4M3 (0) or NW_INT8 (1); it is 2");
  refuses([](Args& a) { a.scaling = -1; }, NW_ERROR_VALUE, "scaling must be");
  refuses([](Args& a) { a.norm = NW_RMS_NORM; }, NW_ERROR_VALUE, "beta must be null with NW_RMS_NORM");
  refuses([](Args& a) { a.residual = nullptr; }, NW_ERROR_VALUE, "h must be null without a residual");
  refuses([](Args& a) { a.h = nullptr; }, NW_ERROR_NULL, "h must not be null");
  refuses([](Args& a) { a.y = nullptr; }, NW_ERROR_NULL, "y must not be null");
  refuses([](Args& a) { a.scales = nullptr; }, NW_ERROR_NULL, "scales must not be null");
  refuses([&](Args& a) { a.scale = &other; }, NW_ERROR_VALUE, "scale must be null but with NW_SCALE_GIVEN");
  refuses([](Args& a) { a.scaling = NW_SCALE_GIVEN; }, NW_ERROR_VALUE, "scales must be null with NW_SCALE_GIVEN");
  refuses([](Args& a) { a.scales_stride = 0; }, NW_ERROR_STRIDE, "scales_stride must be at least 1");
  refuses([](Args& a) { a.y_stride = 299; }, NW_ERROR_STRIDE, "y_stride must be at least 300");
  refuses([](Args& a) { a.scales = reinterpret_cast<float*>(beside(a.scales, 2)); }, NW_ERROR_ALIGNMENT,
          "scales must be");
  refuses([](Args& a) { a.y = const_cast<void*>(a.x); }, NW_ERROR_OVERLAP, "y must not overlap x");
  refuses([](Args& a) { a.scales = static_cast<float*>(a.h); }, NW_ERROR_OVERLAP, "h must not overlap scales");
  options.scaling = Scaling::block;
  refuses([](Args& a) { a.scales_stride = 2; }, NW_ERROR_STRIDE, "scales_stride must be at least 3");
  options.scaling = Scaling::tensor;
  refuses([](Args& a) { a.scale = nullptr; }, NW_ERROR_NULL, "scale must not be null");
}

// What is not there has no stride, and no place that anything could overlap.
TEST_F(Library, WithoutAResidualItsStridesAreNotLookedAt) {
  const Problem problem({.operation = Operation::rmsnorm_quantized, .rows = 5, .cols = 256});
  Workspace workspace(problem, 0);
  workspace.reset();
  auto args = struct_of<nw_quantized_norm_args>(workspace.arguments());
  args.residual_stride = 3;
  args.h_stride = -7;
  EXPECT_EQ(nw_quantized_norm(&args, nullptr), NW_OK) << nw_last_error();
  expect_right(problem, workspace);
}

TEST_F(Library, TheLargerStructOfALaterHeaderIsTakenWhereItAsksForNothingMore) {
  const Problem problem({.rows = 3, .cols = 32});
  Workspace workspace(problem, 0);
  workspace.reset();
  struct Later {
    nw_layernorm_forward_args args;
    int64_t further = 0;
  } later = {struct_of<nw_layernorm_forward_args>(workspace.arguments())};
  later.args.size = sizeof later;
  EXPECT_EQ(nw_layernorm_forward(&later.args, nullptr), NW_OK) << nw_last_error();
  expect_right(problem, workspace);
  later.further = 1;
  expect_refused(nw_layernorm_forward(&later.args, nullptr), NW_ERROR_STRUCT_SIZE, "size is 128: a later version");
}

TEST_F(Library, TheSmallerStructOfAnEarlierHeaderIsTaken) {
  const Problem problem({.rows = 3, .cols = 32});
  Workspace workspace(problem, 0);
  workspace.reset();
  nw_layernorm_forward_args args = struct_of<nw_layernorm_forward_args>(workspace.arguments());
  args.size = offsetof(nw_layernorm_forward_args, gamma_offset);
  args.gamma_offset = 77.0f;  // lies behind it
  EXPECT_EQ(nw_layernorm_forward(&args, nullptr), NW_OK) << nw_last_error();
  expect_right(problem, workspace);
  args.size = offsetof(nw_layernorm_forward_args, batch_invariant);
  args.batch_invariant = 77;
  workspace.reset();
  EXPECT_EQ(nw_layernorm_forward(&args, nullptr), NW_OK) << nw_last_error();
  expect_right(problem, workspace);
  args.size = sizeof args - 1;
  expect_refused(nw_layernorm_forward(&args, nullptr), NW_ERROR_STRUCT_SIZE, "size must be that of the struct, 120");
}

TEST_F(Library, TheSameRowComesOutTheSameWhateverTheBatch) {
  for (const Operation operation :
       {Operation::layernorm_forward, Operation::rmsnorm_forward, Operation::add_layernorm_forward,
        Operation::add_rmsnorm_forward, Operation::layernorm_backward, Operation::rmsnorm_backward}) {
    const Problem problem({.operation = operation, .rows = 40, .cols = 520});
    Workspace workspace(problem, 0);
    const char* const output = find(workspace.arguments(), "dx").data ? "dx" : "y";
    const auto bytes = [&](int64_t rows, float gamma_offset) {
      workspace.reset();
      with_struct(workspace.arguments(), [&](auto args, auto function) {
        if constexpr (requires { args.batch_invariant; }) args.batch_invariant = 1;
        if constexpr (requires { args.gamma_offset; }) args.gamma_offset = gamma_offset;
        if constexpr (requires { args.rows; }) args.rows = rows;
        EXPECT_EQ(function(&args, nullptr), NW_OK) << nw_last_error();
      });
      check_cuda(cudaDeviceSynchronize(), "waiting");
      std::vector<float> row(520);
      check_cuda(cudaMemcpy(row.data(), find(workspace.arguments(), output).data, row.size() * sizeof(float),
                            cudaMemcpyDefault),
                 "copying");
      return row;
    };
    for (const float gamma_offset : {0.0f, 1.0f}) {
      const std::vector<float> alone = bytes(1, gamma_offset);
      for (const int64_t rows : {2, 8, 40}) EXPECT_EQ(bytes(rows, gamma_offset), alone) << rows << " rows";
    }
  }
}

// Columns of one matrix: the memory of one reaches into that of the other, and no element is in both.
TEST_F(Library, TensorsMayBeColumnsOfOneMatrix) {
  constexpr int64_t rows = 7, cols = 40, stride = 100;
  std::vector<float> values(rows * stride);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * i % 101);
  DeviceBuffer matrix(Dtype::fp32, rows * stride);
  matrix.upload(reinterpret_cast<const std::byte*>(values.data()));
  auto* const data = static_cast<float*>(matrix.data());
  nw_layernorm_forward_args args = {};
  args.size = sizeof args;
  args.x = data + 60;
  args.y = data;
  args.rows = rows;
  args.cols = cols;
  args.x_stride = args.y_stride = stride;
  args.eps = 1e-5f;
  EXPECT_EQ(nw_layernorm_forward(&args, nullptr), NW_OK) << nw_last_error();
  check_cuda(cudaDeviceSynchronize(), "running the kernels");
  std::vector<float> after(values.size());
  matrix.download(reinterpret_cast<std::byte*>(after.data()));
  for (int64_t row = 0; row < rows; ++row) {
    double mean = 0, m2 = 0;
    for (int64_t col = 60; col < stride; ++col) mean += values[row * stride + col] / cols;
    for (int64_t col = 60; col < stride; ++col) m2 += std::pow(values[row * stride + col] - mean, 2);
    for (int64_t col = 0; col < stride; ++col) {
      const float before = values[row * stride + col];
      const double want = col < cols ? (values[row * stride + col + 60] - mean) / std::sqrt(m2 / cols + 1e-5) : before;
      ASSERT_NEAR(after[row * stride + col], want, 1e-4) << row << ", " << col;
    }
  }
  args.y = data + 21;  // its last column is x's first
  expect_refused(nw_layernorm_forward(&args, nullptr), NW_ERROR_OVERLAP, "y overlaps x");
  args.y = data + 99;  // its second column is the next row's first: y's own rows reach into x
  expect_refused(nw_layernorm_forward(&args, nullptr), NW_ERROR_OVERLAP, "y overlaps x");
}

TEST(LibraryWithoutDevice, SaysThatThereIsNone) {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess && count > 0) GTEST_SKIP() << "there is a device";
  float values[4] = {};
  nw_layernorm_forward_args args = {};
  args.size = sizeof args;
  args.x = values;
  args.y = values;
  args.rows = 1;
  args.cols = 4;
  expect_refused(nw_layernorm_forward(&args, nullptr), NW_ERROR_NO_DEVICE, "");
  EXPECT_NE(std::string(nw_last_error()), "");
}

// --- Workspace sizes -------------------------------------------------------------------------------------------------

TEST(LibraryWorkspace, IsAskedForByShapeAlone) {
  nw_layernorm_backward_args args = {};
  args.size = sizeof args;
  args.rows = 5;
  args.cols = 1000;
  size_t bytes = 0;
  EXPECT_EQ(nw_workspace_size(NW_LAYERNORM_BACKWARD, &args, &bytes), NW_OK) << nw_last_error();
  EXPECT_EQ(bytes, backward_workspace(1000) * sizeof(float));
  expect_refused(nw_workspace_size(12, &args, &bytes), NW_ERROR_VALUE, "operation must be from 0 to 11; it is 12");
  expect_refused(nw_workspace_size(-1, &args, &bytes), NW_ERROR_VALUE, "operation must be");
  expect_refused(nw_workspace_size(NW_LAYERNORM_BACKWARD, nullptr, &bytes), NW_ERROR_NULL, "args must not be null");
  expect_refused(nw_workspace_size(NW_LAYERNORM_BACKWARD, &args, nullptr), NW_ERROR_NULL, "bytes must not be null");
  args.cols = -4;
  expect_refused(nw_workspace_size(NW_LAYERNORM_BACKWARD, &args, &bytes), NW_ERROR_SHAPE, "cols must be");
}

// --- Stages and variants ---------------------------------------------------------------------------------------------

nw_kernel_info describe(const nw_kernel* kernel) {
  nw_kernel_info info = {};
  info.size = sizeof info;
  EXPECT_EQ(nw_describe_kernel(kernel, &info), NW_OK) << nw_last_error();
  return info;
}

TEST(LibraryVariants, AreFoundByName) {
  std::set<std::string> stages;
  int finals = 0;
  for (size_t i = 0; i < nw_kernel_count(); ++i) {
    const nw_kernel* kernel = nullptr;
    ASSERT_EQ(nw_kernel_at(i, &kernel), NW_OK) << nw_last_error();
    const nw_kernel_info info = describe(kernel);
    stages.insert(info.stage);
    EXPECT_STRNE(info.note, "");
    const nw_kernel* found = nullptr;
    EXPECT_EQ(nw_find_kernel(info.stage, info.variant, info.operation, info.dtype, info.param_dtype, &found), NW_OK);
    EXPECT_EQ(found, kernel) << info.stage << " " << info.variant;
    if (info.is_final == 0) continue;
    ++finals;
    EXPECT_EQ(nw_find_kernel(nullptr, nullptr, info.operation, info.dtype, info.param_dtype, &found), NW_OK);
    EXPECT_EQ(found == kernel, info.gamma_offset == 0.0f);
  }
  EXPECT_EQ(stages, (std::set<std::string>{"01_naive", "02_shared_reduction", "03_warp_shuffle", "04_vectorized",
                                           "05_welford", "06_fused_residual", "07_backward", "08_batchnorm"}));
  EXPECT_EQ(finals, (12 + 6) * 5);  // those over rows with weights about zero, too
}

TEST(LibraryVariants, AreDescribedToAProgramOfAnEarlierHeader) {
  const nw_kernel* kernel = nullptr;
  ASSERT_EQ(nw_find_kernel("06_fused_residual", "zero_centered", NW_RMSNORM_FORWARD, NW_BF16, NW_FP32, &kernel), NW_OK);
  nw_kernel_info info = {};
  info.size = offsetof(nw_kernel_info, gamma_offset);
  info.gamma_offset = 77.0f;  // lies behind it
  EXPECT_EQ(nw_describe_kernel(kernel, &info), NW_OK) << nw_last_error();
  EXPECT_STREQ(info.variant, "zero_centered");
  EXPECT_EQ(info.gamma_offset, 77.0f);
  info.size = 8;
  expect_refused(nw_describe_kernel(kernel, &info), NW_ERROR_STRUCT_SIZE, "size must be that of the struct");
}

TEST(LibraryVariants, AreMissedByOtherNames) {
  const nw_kernel* kernel = nullptr;
  const auto find = [&](const char* stage, const char* variant, nw_operation operation, nw_dtype dtype) {
    return nw_find_kernel(stage, variant, operation, dtype, NW_FP32, &kernel);
  };
  expect_refused(find("09_none", "x", 0, 0), NW_ERROR_NO_SUCH_KERNEL, "stage: there is no kernel");
  expect_refused(find("05_welford", "x", 0, 0), NW_ERROR_NO_SUCH_KERNEL, "variant: there is no kernel");
  expect_refused(find("05_welford", "chan", 1, 0), NW_ERROR_NO_SUCH_KERNEL, "operation: there is no kernel");
  expect_refused(find("01_naive", "thread_per_row", 0, 2), NW_ERROR_NO_SUCH_KERNEL, "dtype: there is no kernel");
  expect_refused(find("01_naive", nullptr, 0, 0), NW_ERROR_NULL, "variant must not be null");
  expect_refused(find("01_naive", "thread_per_row", 0, 5), NW_ERROR_TYPE, "dtype must be");
  expect_refused(find("01_naive", "thread_per_row", 12, 0), NW_ERROR_VALUE, "operation must be");
  expect_refused(nw_find_kernel("a", "b", 0, 0, 0, nullptr), NW_ERROR_NULL, "kernel must not be null");
  expect_refused(nw_kernel_at(nw_kernel_count(), &kernel), NW_ERROR_VALUE, "index must be less than");
  expect_refused(nw_describe_kernel(nullptr, nullptr), NW_ERROR_NULL, "kernel must not be null");
  expect_refused(nw_launch(nullptr, nullptr, nullptr), NW_ERROR_NULL, "kernel must not be null");
}

// Every variant that can do a small, well-behaved problem, on it.
TEST_F(Library, EveryVariantIsRightByItsName) {
  for (const Operation operation : all_operations) {
    for (const auto& [dtype, param_dtype] : all_types) {
      const ProblemOptions options = {.operation = operation,
                                      .dtype = dtype,
                                      .param_dtype = param_dtype,
                                      .rows = 20,
                                      .cols = 96,
                                      .input = Input::uniform};
      ProblemOptions about_zero = options;
      about_zero.gamma_offset = is_batchnorm(operation) ? 0.0f : 1.0f;
      const Problem problem_about_one(options), problem_about_zero(about_zero);
      Workspace workspace_about_one(problem_about_one, 0), workspace_about_zero(problem_about_zero, 0);
      for (size_t i = 0; i < nw_kernel_count(); ++i) {
        const nw_kernel* kernel = nullptr;
        ASSERT_EQ(nw_kernel_at(i, &kernel), NW_OK);
        const nw_kernel_info info = describe(kernel);
        if (info.operation != operation_of(operation) || info.dtype != dtype_of(dtype) ||
            info.param_dtype != dtype_of(param_dtype)) {
          continue;
        }
        const Problem& problem = info.gamma_offset == 0.0f ? problem_about_one : problem_about_zero;
        Workspace& workspace = info.gamma_offset == 0.0f ? workspace_about_one : workspace_about_zero;
        // Its sums are rounded to the weights' 16 bits at each addition: its program records that it fails.
        if (std::string(info.variant) == "grouped" && info.param_dtype != NW_FP32) continue;
        SCOPED_TRACE(std::string(info.stage) + " " + info.variant + " " + shown(options));
        workspace.reset();
        with_struct(workspace.arguments(), [&](auto args, auto) {
          const DeviceMemory memory = give_workspace(operation, args);
          // Some clear it with cudaMemsetAsync. Of the CPU layer there are two in this process, the program's and the
          // library's, and each clears what it has allocated itself.
          if constexpr (on_cpu_layer() && requires { args.workspace; }) args.workspace = nullptr;
          EXPECT_EQ(nw_launch(kernel, &args, nullptr), NW_OK) << nw_last_error();
          check_cuda(cudaDeviceSynchronize(), "running the kernels");
        });
        check_cuda(cudaDeviceSynchronize(), "running the kernels");
        const Comparison comparison = problem.compare(workspace.download());
        EXPECT_TRUE(comparison.passed) << comparison.describe();
      }
    }
  }
}

TEST_F(Library, AVariantIsRefusedWhatItCannotDo) {
  const nw_kernel* kernel = nullptr;
  ASSERT_EQ(nw_find_kernel("05_welford", "chan", NW_LAYERNORM_FORWARD, NW_FP32, NW_FP32, &kernel), NW_OK);
  Valid<nw_layernorm_forward_args> wide({.rows = 1, .cols = 20000});
  expect_refused(nw_launch(kernel, &wide.args, nullptr), NW_ERROR_UNSUPPORTED,
                 "kernel chan of 05_welford is limited: cols");

  Valid<nw_layernorm_forward_args> valid({.rows = 4, .cols = 64});
  valid.args.y = const_cast<void*>(valid.args.x);  // what only the final kernel promises
  expect_refused(nw_launch(kernel, &valid.args, nullptr), NW_ERROR_OVERLAP, "y must not overlap x");
  valid.args.dtype = NW_BF16;
  expect_refused(nw_launch(kernel, &valid.args, nullptr), NW_ERROR_TYPE, "dtype must be the kernel's, 0; it is 2");

  Valid<nw_add_rmsnorm_forward_args> sum({.operation = Operation::add_rmsnorm_forward, .rows = 4, .cols = 64});
  sum.args.h = const_cast<void*>(sum.args.residual);
  ASSERT_EQ(nw_find_kernel("06_fused_residual", "unfused", NW_ADD_RMSNORM_FORWARD, NW_FP32, NW_FP32, &kernel), NW_OK);
  expect_refused(nw_launch(kernel, &sum.args, nullptr), NW_ERROR_OVERLAP, "h must not overlap residual");
  ASSERT_EQ(nw_find_kernel("06_fused_residual", "fused_inplace", NW_ADD_RMSNORM_FORWARD, NW_FP32, NW_FP32, &kernel),
            NW_OK);
  EXPECT_EQ(nw_launch(kernel, &sum.args, nullptr), NW_OK) << nw_last_error();
  check_cuda(cudaDeviceSynchronize(), "running the kernels");
  sum.args.gamma_offset = 1.0f;
  expect_refused(nw_launch(kernel, &sum.args, nullptr), NW_ERROR_VALUE,
                 "gamma_offset must be the kernel's, 0; it is 1");
  ASSERT_EQ(nw_find_kernel(nullptr, nullptr, NW_ADD_RMSNORM_FORWARD, NW_FP32, NW_FP32, &kernel), NW_OK);
  expect_refused(nw_launch(kernel, &sum.args, nullptr), NW_ERROR_VALUE,
                 "gamma_offset must be the kernel's, 0; it is 1");
}

// --- Version ---------------------------------------------------------------------------------------------------------

TEST(LibraryVersion, IsTheHeaders) {
  EXPECT_EQ(nw_abi_version(), NW_ABI_VERSION);
  EXPECT_STREQ(nw_version(), WORKLOG_VERSION);
  EXPECT_STREQ(nw_backend(), on_cpu_layer() ? "cpu" : "cuda");
}

TEST(LibraryVersion, EveryStatusHasItsName) {
  std::set<std::string> names;
  for (nw_status status = NW_OK; status <= NW_ERROR_INTERNAL; ++status) names.insert(nw_status_name(status));
  EXPECT_EQ(names.size(), static_cast<size_t>(NW_ERROR_INTERNAL) + 1);
  EXPECT_STREQ(nw_status_name(NW_OK), "NW_OK");
  EXPECT_STREQ(nw_status_name(NW_ERROR_UNSUPPORTED), "NW_ERROR_UNSUPPORTED");
  EXPECT_STREQ(nw_status_name(NW_ERROR_INTERNAL), "NW_ERROR_INTERNAL");
  EXPECT_STREQ(nw_status_name(-1), "unknown status");
  EXPECT_STREQ(nw_status_name(NW_ERROR_INTERNAL + 1), "unknown status");
}

}  // namespace
}  // namespace worklog
