// What a call of the library costs on the host: which allocations it makes, and how long it takes from the C function
// to the launch. The library's objects are linked into this program, where the linker puts the functions below in the
// place of CUDA's: they count, they answer as an H200 would, and the launch launches nothing.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <new>
#include <string_view>

#include "common/device/arguments.h"
#include "common/device/launch.cuh"
#include "common/library/norm_worklog.h"

namespace {

int launches = 0;
int device_allocations = 0;
int questions = 0;  // to CUDA, of the device and of kernels
int current_device = 0;
int architecture = 90;  // that the kernels were compiled for
int clustered = 0;      // launches in clusters
int overlapped = 0;     // launches that may start before the kernel before them has ended
thread_local int64_t host_allocations = 0;

alignas(256) char device_memory[64];

int answer_of_h200(cudaDeviceAttr attribute) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      return 132;
    case cudaDevAttrComputeCapabilityMajor:
      return 9;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return 227 * 1024;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      return 2048;
    case cudaDevAttrL2CacheSize:
      return 60 * 1024 * 1024;
    case cudaDevAttrClusterLaunch:
    case cudaDevAttrCooperativeLaunch:
      return 1;
    default:
      ADD_FAILURE() << "another attribute is asked for: " << attribute;
      return 0;
  }
}

cudaError_t allocate(void** pointer) {
  ++device_allocations;
  *pointer = device_memory;
  return cudaSuccess;
}

cudaError_t answer(int* value, int with) {
  ++questions;
  *value = with;
  return cudaSuccess;
}

}  // namespace

// The linker's --wrap knows functions by the names that the compiler makes of them.
cudaError_t of_launch(const cudaLaunchConfig_t&,
                      simt::detail::Call) asm("__wrap__ZN4simt6detail6launchERK18cudaLaunchConfig_tNS0_4CallE");
cudaError_t of_malloc(void**, size_t) asm("__wrap__Z10cudaMallocPPvm");
cudaError_t of_malloc_async(void**, size_t, cudaStream_t) asm("__wrap__Z15cudaMallocAsyncPPvmP11CUstream_st");
cudaError_t of_free_async(void*, cudaStream_t) asm("__wrap__Z13cudaFreeAsyncPvP11CUstream_st");
cudaError_t of_get_device(int*) asm("__wrap__Z13cudaGetDevicePi");
cudaError_t of_get_attribute(int*, cudaDeviceAttr, int) asm("__wrap__Z22cudaDeviceGetAttributePi14cudaDeviceAttri");
cudaError_t of_set_attribute(const void*, cudaFuncAttribute,
                             int) asm("__wrap__Z20cudaFuncSetAttributePKv17cudaFuncAttributei");
cudaError_t of_get_attributes(cudaFuncAttributes*,
                              const void*) asm("__wrap__Z21cudaFuncGetAttributesP18cudaFuncAttributesPKv");
cudaError_t of_blocks(int*, const void*, int,
                      size_t) asm("__wrap__Z45cudaOccupancyMaxActiveBlocksPerMultiprocessorPiPKvim");
cudaError_t of_clusters(int*, const void*, const cudaLaunchConfig_t*) asm(
    "__wrap__Z30cudaOccupancyMaxActiveClustersPiPKvPK18cudaLaunchConfig_t");

cudaError_t of_launch(const cudaLaunchConfig_t& config, simt::detail::Call) {
  ++launches;
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    if (config.attrs[i].id == cudaLaunchAttributeClusterDimension) ++clustered;
    if (config.attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization) ++overlapped;
  }
  return cudaSuccess;
}
cudaError_t of_malloc(void** pointer, size_t) {
  return allocate(pointer);
}
cudaError_t of_malloc_async(void** pointer, size_t, cudaStream_t) {
  return allocate(pointer);
}
cudaError_t of_free_async(void*, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t of_get_device(int* device) {
  return answer(device, current_device);
}
cudaError_t of_get_attributes(cudaFuncAttributes* attributes, const void*) {
  ++questions;
  *attributes = {};
  attributes->ptxVersion = attributes->binaryVersion = architecture;
  return cudaSuccess;
}
cudaError_t of_get_attribute(int* value, cudaDeviceAttr attribute, int) {
  return answer(value, answer_of_h200(attribute));
}
cudaError_t of_set_attribute(const void*, cudaFuncAttribute, int) {
  ++questions;
  return cudaSuccess;
}
cudaError_t of_blocks(int* blocks, const void*, int, size_t) {
  return answer(blocks, 1);
}
cudaError_t of_clusters(int* clusters, const void*, const cudaLaunchConfig_t*) {
  return answer(clusters, 32);
}

void* operator new(size_t bytes) {
  ++host_allocations;
  if (void* const data = std::malloc(bytes)) return data;
  throw std::bad_alloc();
}
void operator delete(void* data) noexcept {
  std::free(data);
}
void operator delete(void* data, size_t) noexcept {
  std::free(data);
}

namespace worklog {
namespace {

// Addresses that nothing is read from, since nothing is launched.
template <class T = void>
T* address(int number) {
  return reinterpret_cast<T*>(uintptr_t{1} << 40 | static_cast<uintptr_t>(number) << 32);
}

constexpr int64_t rows = 64;
constexpr int64_t cols = 4096;

template <class Args>
Args struct_of() {
  Args a = {};
  a.size = sizeof a;
  a.dtype = NW_BF16;
  a.param_dtype = NW_FP32;
  a.x = address(1);
  a.gamma = address(2);
  if constexpr (requires { a.rows; }) {
    a.rows = rows;
    a.cols = cols;
    a.x_stride = cols;
  } else {
    a.samples = rows;
    a.channels = cols;
    a.pixels = 1;
  }
  if constexpr (requires { a.y; }) a.y = address(3);
  if constexpr (requires { a.y_stride; }) a.y_stride = cols;
  if constexpr (requires { a.h; }) {
    a.residual = address(4);
    a.h = address(5);
    a.residual_stride = a.h_stride = cols;
  }
  if constexpr (requires { a.beta; }) a.beta = address(6);
  if constexpr (requires { a.mean; }) a.mean = address<float>(7);
  if constexpr (requires { a.rstd; }) a.rstd = address<float>(8);
  if constexpr (requires { a.dy; }) {
    a.dy = address(9);
    a.dx = address(10);
    a.dgamma = address(11);
  }
  if constexpr (requires { a.dy_stride; }) a.dy_stride = a.dx_stride = cols;
  if constexpr (requires { a.dbeta; }) a.dbeta = address(12);
  if constexpr (requires { a.running_mean; }) {
    a.running_mean = address<float>(13);
    a.running_var = address<float>(14);
  }
  if constexpr (requires { a.save_mean; }) {
    a.save_mean = address<float>(15);
    a.save_invstd = address<float>(16);
  }
  if constexpr (requires { a.workspace; }) {
    a.workspace = address(17);
    a.workspace_bytes = size_t{1} << 31;
  }
  return a;
}

// The heads of q and k in a projection of 3 x 16 heads.
template <class Args>
Args struct_of_heads() {
  Args a = {};
  a.size = sizeof a;
  a.dtype = NW_BF16;
  a.param_dtype = NW_FP32;
  a.tokens = rows;
  a.q_heads = a.k_heads = 16;
  a.head_dim = 128;
  a.q = address(1);
  a.k = address(2);
  a.q_gamma = address(3);
  a.k_gamma = address(4);
  a.q_rstd = address<float>(5);
  a.k_rstd = address<float>(6);
  a.q_token_stride = a.k_token_stride = 3 * 16 * 128;
  a.q_head_stride = a.k_head_stride = 128;
  if constexpr (requires { a.q_out; }) {
    a.q_out = address(7);
    a.k_out = address(8);
    a.q_out_token_stride = a.k_out_token_stride = 16 * 128;
    a.q_out_head_stride = a.k_out_head_stride = 128;
  } else {
    a.dq_out = address(9);
    a.dk_out = address(10);
    a.dq = address(11);
    a.dk = address(12);
    a.dq_gamma = address(13);
    a.dk_gamma = address(14);
    a.dq_out_token_stride = a.dk_out_token_stride = a.dq_token_stride = a.dk_token_stride = 16 * 128;
    a.dq_out_head_stride = a.dk_out_head_stride = a.dq_head_stride = a.dk_head_stride = 128;
    a.workspace = address(17);
    a.workspace_bytes = size_t{1} << 31;
  }
  return a;
}

// Calls function(name, struct, the C function) for each operation.
template <class Function>
void for_each_operation(Function&& function) {
  function("layernorm_forward", struct_of<nw_layernorm_forward_args>(), nw_layernorm_forward);
  function("rmsnorm_forward", struct_of<nw_rmsnorm_forward_args>(), nw_rmsnorm_forward);
  function("add_layernorm_forward", struct_of<nw_add_layernorm_forward_args>(), nw_add_layernorm_forward);
  function("add_rmsnorm_forward", struct_of<nw_add_rmsnorm_forward_args>(), nw_add_rmsnorm_forward);
  function("layernorm_backward", struct_of<nw_layernorm_backward_args>(), nw_layernorm_backward);
  function("rmsnorm_backward", struct_of<nw_rmsnorm_backward_args>(), nw_rmsnorm_backward);
  function("batchnorm_train", struct_of<nw_batchnorm_train_args>(), nw_batchnorm_train);
  function("batchnorm_inference", struct_of<nw_batchnorm_inference_args>(), nw_batchnorm_inference);
  function("batchnorm_backward", struct_of<nw_batchnorm_backward_args>(), nw_batchnorm_backward);
  function("qk_norm", struct_of_heads<nw_qk_norm_args>(), nw_qk_norm);
  function("qk_norm_backward", struct_of_heads<nw_qk_norm_backward_args>(), nw_qk_norm_backward);
}

TEST(LibraryCalls, AllocateNothingWhereAWorkspaceIsGiven) {
  for_each_operation([](const char* name, auto args, auto function) {
    SCOPED_TRACE(name);
    ASSERT_EQ(function(&args, nullptr), NW_OK) << nw_last_error();  // the first call gathers the variants
    launches = 0;
    device_allocations = 0;
    const int64_t before = host_allocations;
    const nw_status status = function(&args, nullptr);
    const int64_t allocations = host_allocations - before;
    EXPECT_EQ(status, NW_OK) << nw_last_error();
    EXPECT_GE(launches, 1);
    EXPECT_EQ(device_allocations, 0);
    EXPECT_EQ(allocations, 0);
  });
}

// A build for compute_80 that the driver compiles for a device of 9.0: its kernels know neither of clusters nor of the
// kernel before them. What is loaded is asked once for a device, hence a device of its own.
TEST(LibraryCalls, GoByTheLoadedCodeAndNotByTheDevice) {
  struct Seen {
    int launches, clustered, overlapped;
  };
  const auto seen_on = [](int device, int compiled_for) {
    launches = clustered = overlapped = 0;
    current_device = device;
    architecture = compiled_for;
    for_each_operation([](const char* name, auto args, auto function) {
      SCOPED_TRACE(name);
      if constexpr (requires { args.rows; }) {
        for (const int64_t width : {int64_t{4096}, int64_t{65536}}) {
          // Backward, such rows go to the whole grid without clusters, which clears memory first: there is none here.
          if (width > 4096 && requires { args.dy; }) continue;
          args.cols = args.x_stride = width;
          if constexpr (requires { args.y_stride; }) args.y_stride = width;
          if constexpr (requires { args.h_stride; }) args.residual_stride = args.h_stride = width;
          if constexpr (requires { args.dy_stride; }) args.dy_stride = args.dx_stride = width;
          EXPECT_EQ(function(&args, nullptr), NW_OK) << nw_last_error();
        }
      } else {
        EXPECT_EQ(function(&args, nullptr), NW_OK) << nw_last_error();
      }
    });
    current_device = 0;
    architecture = 90;
    return Seen{launches, clustered, overlapped};
  };
  const Seen with = seen_on(1, 90);
  EXPECT_GE(with.clustered, 4);
  EXPECT_GE(with.overlapped, 4);
  const Seen without = seen_on(2, 80);
  EXPECT_GE(without.launches, 11);
  EXPECT_EQ(without.clustered, 0);
  EXPECT_EQ(without.overlapped, 0);
}

TEST(LibraryCalls, AllocateOnceWhereNoWorkspaceIsGiven) {
  for_each_operation([](const char* name, auto args, auto function) {
    SCOPED_TRACE(name);
    if constexpr (requires { args.workspace; }) {
      args.workspace = nullptr;
      device_allocations = 0;
      EXPECT_EQ(function(&args, nullptr), NW_OK) << nw_last_error();
      EXPECT_EQ(device_allocations, 1);
    }
  });
}

// The least of many, since other programs run on the machine. What CUDA takes itself is not in it: for the launch, and
// to answer what the stages ask before it, which is counted.
TEST(LibraryCalls, TakeLittleTime) {
  fmt::print("{:<22} {:>16} {:>16} {:>10}\n", "", "to the launch", "asks of CUDA", "launches");
  for_each_operation([](const char* name, auto args, auto function) {
    SCOPED_TRACE(name);
    launches = questions = 0;
    ASSERT_EQ(function(&args, nullptr), NW_OK) << nw_last_error();
    const int launches_of_call = launches;
    const int questions_of_call = questions;
    double least = 1;  // s
    for (int sample = 0; sample < 200; ++sample) {
      constexpr int calls = 100;
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < calls; ++i) function(&args, nullptr);
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
      least = std::min(least, taken.count() / calls);
    }
    fmt::print("{:<22} {:>13.0f} ns {:>16} {:>10}\n", name, least * 1e9, questions_of_call, launches_of_call);
    // Under the sanitizers the time is theirs.
#ifndef __SANITIZE_ADDRESS__
    const bool searches = std::string_view(name).starts_with("batchnorm");  // for how to cut the tensor into tiles
    EXPECT_LT(least, searches ? 1e-5 : 1e-6);
#endif
  });
}

}  // namespace
}  // namespace worklog
