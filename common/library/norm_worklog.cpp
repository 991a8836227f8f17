// The functions of norm_worklog.h: they check what they are given, and call.
#include "common/library/norm_worklog.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "common/device/launch.cuh"
#include "common/library/errors.h"
#include "common/library/kernels.h"
#include "common/library/operations.h"
#include "common/library/zeros.cuh"

namespace worklog::library {
namespace {

// --- Checks of what all structs have ---------------------------------------------------------------------------------

// Whether an earlier header's struct had so many bytes: it ended where a field begins that has been added since.
template <class Args>
constexpr bool was_size(size_t size) {
  if constexpr (WithGammaOffset<Args>) {
    return size == offsetof(Args, batch_invariant) || size == offsetof(Args, gamma_offset);
  }
  return false;
}

// The struct as it is in this header. One of an earlier header lacks fields at its end; those of a later one's further
// fields must be zeros. Zeros ask for nothing. (A field that is added lies past the end of the struct before it, its
// padding included: that holds anything.)
template <class Args>
Args whole_struct(const Args* args) {
  if (!args) refuse(NW_ERROR_NULL, "args must not be null");
  Args whole = {};
  if (args->size == sizeof(Args) || was_size<Args>(args->size)) {
    std::memcpy(&whole, args, args->size);
    whole.size = sizeof(Args);
    return whole;
  }
  if (args->size < sizeof(Args)) {
    refuse(NW_ERROR_STRUCT_SIZE, "size must be that of the struct, {}; it is {}", sizeof(Args), args->size);
  }
  constexpr size_t largest = 4096;
  const char* const bytes = reinterpret_cast<const char*>(args);
  if (args->size > largest ||
      std::any_of(bytes + sizeof(Args), bytes + args->size, [](char byte) { return byte != 0; })) {
    refuse(NW_ERROR_STRUCT_SIZE, "size is {}: a later version of the struct, with fields that this library lacks",
           args->size);
  }
  whole = *args;
  whole.size = sizeof(Args);
  return whole;
}

void check_types(nw_dtype dtype, nw_dtype param_dtype) {
  if (dtype < 0 || dtype >= dtypes) {
    refuse(NW_ERROR_TYPE, "dtype must be NW_FP32 (0), NW_FP16 (1) or NW_BF16 (2); it is {}", dtype);
  }
  if (param_dtype != dtype && param_dtype != NW_FP32) {
    refuse(NW_ERROR_TYPE, "param_dtype must be dtype, {}, or NW_FP32 (0); it is {}", dtype, param_dtype);
  }
}

void check_operation(nw_operation operation) {
  if (operation < 0 || operation >= operations) {
    refuse(NW_ERROR_VALUE, "operation must be from 0 to {}; it is {}", operations - 1, operation);
  }
}

template <class Args>
void check_workspace(const Args& a) {
  if (!a.workspace) return;
  if (reinterpret_cast<uintptr_t>(a.workspace) % 16 != 0) {
    refuse(NW_ERROR_ALIGNMENT, "workspace must be aligned to 16 bytes; it is {}", a.workspace);
  }
  const auto needed = static_cast<size_t>(workspace_of(a));
  if (a.workspace_bytes < needed) {
    refuse(NW_ERROR_WORKSPACE, "workspace_bytes must be at least {}; it is {}", needed, a.workspace_bytes);
  }
}

// --- A call ----------------------------------------------------------------------------------------------------------

// Memory of the device from here on in the stream, until it is destroyed.
class StreamMemory {
 public:
  StreamMemory(int64_t bytes, cudaStream_t stream) : stream_(stream) {
    const cudaError_t error = cudaMallocAsync(&data_, static_cast<size_t>(bytes), stream);
    if (error == cudaErrorNotSupported) {
      cudaGetLastError();
      refuse(NW_ERROR_WORKSPACE, "workspace must not be null on this device: it cannot allocate memory in a stream");
    }
    check_cuda(error, "allocating a workspace");
  }
  ~StreamMemory() { cudaFreeAsync(data_, stream_); }
  StreamMemory(const StreamMemory&) = delete;

  void* data() const { return data_; }

 private:
  cudaStream_t stream_;
  void* data_ = nullptr;
};

// What holds for the final kernels only is taken back, and the variant is asked whether it can do the shape.
template <class Args, size_t count>
void check_variant(const nw_kernel& kernel, const Args& a, std::array<Tensor, count>& tensors) {
  const Variant& variant = *kernel.variant;
  for (Tensor& output : tensors) {
    output.replaces = 0;
    for (const Variant::Overwrite& each : variant.overwritten()) {
      if (each.output != output.name) continue;
      for (size_t i = 0; i < count; ++i) {
        if (each.input == tensors[i].name) output.replaces |= 1u << i;
      }
    }
  }
  for (const Variant::Limit& limit : variant.limits()) {
    if (!limit.accepts(options_of(kernel.implementation->operation, a))) {
      refuse(NW_ERROR_UNSUPPORTED, "kernel {} of {} is limited: {}", variant.name(), kernel.program->stage(),
             limit.sentence);
    }
  }
}

// Nothing to normalize, and sums of nothing.
template <class Args>
void write_empty_sums(const Args& a, cudaStream_t stream) {
  const auto zeros = [&](void* data, int64_t count) {
    if (data) write_zeros(data, count * static_cast<int64_t>(size_of(static_cast<Dtype>(a.param_dtype))), stream);
  };
  if constexpr (requires { a.dq_gamma; }) {
    zeros(a.dq_gamma, a.head_dim);
    if (a.k_heads > 0) zeros(a.dk_gamma, a.head_dim);
  } else if constexpr (requires { a.dgamma; }) {
    const int64_t count = options_of(Operation{}, a).cols;
    zeros(a.dgamma, count);
    if constexpr (requires { a.dbeta; }) zeros(a.dbeta, count);
  }
}

template <class Args>
void call(const nw_kernel& kernel, const Args& a, cudaStream_t stream) {
  check_values(a);
  if (is_empty(a)) return write_empty_sums(a, stream);
  auto tensors = tensors_of(a);
  if (!kernel.is_final) check_variant(kernel, a, tensors);
  check_tensors(tensors);
  if constexpr (WithWorkspace<Args>) {
    check_workspace(a);
    if (a.workspace) return kernel.launch(kernel, &a, a.workspace, stream);
    const StreamMemory workspace(workspace_of(a), stream);
    return kernel.launch(kernel, &a, workspace.data(), stream);
  }
  kernel.launch(kernel, &a, nullptr, stream);
}

template <class Args>
nw_status call_final(const Args* args, void* stream) {
  return guarded([&] {
    const Args own = whole_struct(args);
    check_types(own.dtype, own.param_dtype);
    const bool zero_centered = gamma_offset_of(own) != 0.0f;
    call(Kernels::all().final_kernel(operation_of<Args>, own.dtype, own.param_dtype, zero_centered), own,
         static_cast<cudaStream_t>(stream));
  });
}

}  // namespace
}  // namespace worklog::library

using namespace worklog::library;

// --- Operations ------------------------------------------------------------------------------------------------------

nw_status nw_layernorm_forward(const nw_layernorm_forward_args* args, void* stream) {
  return call_final(args, stream);
}
nw_status nw_rmsnorm_forward(const nw_rmsnorm_forward_args* args, void* stream) {
  return call_final(args, stream);
}
nw_status nw_add_layernorm_forward(const nw_add_layernorm_forward_args* args, void* stream) {
  return call_final(args, stream);
}
nw_status nw_add_rmsnorm_forward(const nw_add_rmsnorm_forward_args* args, void* stream) {
  return call_final(args, stream);
}
nw_status nw_layernorm_backward(const nw_layernorm_backward_args* args, void* stream) {
  return call_final(args, stream);
}
nw_status nw_rmsnorm_backward(const nw_rmsnorm_backward_args* args, void* stream) {
  return call_final(args, stream);
}
nw_status nw_batchnorm_train(const nw_batchnorm_train_args* args, void* stream) {
  return call_final(args, stream);
}
nw_status nw_batchnorm_inference(const nw_batchnorm_inference_args* args, void* stream) {
  return call_final(args, stream);
}
nw_status nw_batchnorm_backward(const nw_batchnorm_backward_args* args, void* stream) {
  return call_final(args, stream);
}
nw_status nw_quantized_norm(const nw_quantized_norm_args* args, void* stream) {
  return call_final(args, stream);
}

nw_status nw_qk_norm(const nw_qk_norm_args* args, void* stream) {
  return call_final(args, stream);
}
nw_status nw_qk_norm_backward(const nw_qk_norm_backward_args* args, void* stream) {
  return call_final(args, stream);
}

nw_status nw_workspace_size(nw_operation operation, const void* args, size_t* bytes) {
  return guarded([&] {
    check_operation(operation);
    if (!bytes) refuse(NW_ERROR_NULL, "bytes must not be null");
    with_struct_of(operation, args, [&](auto* given) {
      const auto own = whole_struct(given);
      check_types(own.dtype, own.param_dtype);
      check_values(own);
      *bytes = static_cast<size_t>(workspace_of(own));
    });
  });
}

// --- Variants --------------------------------------------------------------------------------------------------------

size_t nw_kernel_count() {
  size_t count = 0;
  guarded([&] { count = Kernels::all().list().size(); });
  return count;
}

nw_status nw_kernel_at(size_t index, const nw_kernel** kernel) {
  return guarded([&] {
    if (!kernel) refuse(NW_ERROR_NULL, "kernel must not be null");
    const auto& list = Kernels::all().list();
    if (index >= list.size()) refuse(NW_ERROR_VALUE, "index must be less than {}; it is {}", list.size(), index);
    *kernel = &list[index];
  });
}

nw_status nw_find_kernel(const char* stage, const char* variant, nw_operation operation, nw_dtype dtype,
                         nw_dtype param_dtype, const nw_kernel** kernel) {
  return guarded([&] {
    check_operation(operation);
    check_types(dtype, param_dtype);
    if (!kernel) refuse(NW_ERROR_NULL, "kernel must not be null");
    const Kernels& all = Kernels::all();
    if (!stage) {
      *kernel = &all.final_kernel(operation, dtype, param_dtype);
      return;
    }
    if (!variant) refuse(NW_ERROR_NULL, "variant must not be null where stage is not");
    const char* missing = "stage";  // the first word that fits no kernel
    for (const nw_kernel& each : all.list()) {
      if (each.program->stage() != stage) continue;
      if (std::string_view(missing) == "stage") missing = "variant";
      if (each.variant->name() != variant) continue;
      if (std::string_view(missing) == "variant") missing = "operation";
      if (each.operation != operation) continue;
      missing = "dtype";
      if (static_cast<nw_dtype>(each.implementation->dtype) != dtype ||
          static_cast<nw_dtype>(each.implementation->param_dtype) != param_dtype) {
        continue;
      }
      *kernel = &each;
      return;
    }
    refuse(NW_ERROR_NO_SUCH_KERNEL, "{}: there is no kernel of stage {}, variant {}, operation {}, types {} and {}",
           missing, stage, variant, operation, dtype, param_dtype);
  });
}

nw_status nw_describe_kernel(const nw_kernel* kernel, nw_kernel_info* info) {
  return guarded([&] {
    if (!kernel) refuse(NW_ERROR_NULL, "kernel must not be null");
    if (!info) refuse(NW_ERROR_NULL, "info must not be null");
    const size_t size = info->size;
    if (size < offsetof(nw_kernel_info, gamma_offset)) {  // that of the first header
      refuse(NW_ERROR_STRUCT_SIZE, "size must be that of the struct, {}; it is {}", sizeof(nw_kernel_info), size);
    }
    const nw_kernel_info whole = {.size = size,
                                  .stage = kernel->program->stage().c_str(),
                                  .variant = kernel->variant->name().c_str(),
                                  .note = kernel->variant->note().c_str(),
                                  .operation = kernel->operation,
                                  .dtype = static_cast<nw_dtype>(kernel->implementation->dtype),
                                  .param_dtype = static_cast<nw_dtype>(kernel->implementation->param_dtype),
                                  .is_final = kernel->is_final,
                                  .gamma_offset = kernel->implementation->gamma_offset};
    std::memcpy(info, &whole, std::min(size, sizeof whole));
  });
}

nw_status nw_launch(const nw_kernel* kernel, const void* args, void* stream) {
  return guarded([&] {
    if (!kernel) refuse(NW_ERROR_NULL, "kernel must not be null");
    with_struct_of(kernel->operation, args, [&](auto* given) {
      const auto own = whole_struct(given);
      check_types(own.dtype, own.param_dtype);
      const auto dtype = static_cast<nw_dtype>(kernel->implementation->dtype);
      const auto param_dtype = static_cast<nw_dtype>(kernel->implementation->param_dtype);
      if (own.dtype != dtype) refuse(NW_ERROR_TYPE, "dtype must be the kernel's, {}; it is {}", dtype, own.dtype);
      if (own.param_dtype != param_dtype) {
        refuse(NW_ERROR_TYPE, "param_dtype must be the kernel's, {}; it is {}", param_dtype, own.param_dtype);
      }
      if constexpr (WithGammaOffset<std::remove_cvref_t<decltype(own)>>) {
        const float offset = kernel->implementation->gamma_offset;
        if (own.gamma && own.gamma_offset != offset) {
          refuse(NW_ERROR_VALUE, "gamma_offset must be the kernel's, {}; it is {}", offset, own.gamma_offset);
        }
      }
      call(*kernel, own, static_cast<cudaStream_t>(stream));
    });
  });
}

// --- Version and errors ----------------------------------------------------------------------------------------------

int32_t nw_abi_version() {
  return NW_ABI_VERSION;
}
const char* nw_version() {
  return WORKLOG_VERSION;
}
const char* nw_backend() {
#ifdef WORKLOG_BACKEND_CPU
  return "cpu";
#else
  return "cuda";
#endif
}

const char* nw_status_name(nw_status status) {
  static constexpr const char* names[] = {"NW_OK",
                                          "NW_ERROR_NULL",
                                          "NW_ERROR_STRUCT_SIZE",
                                          "NW_ERROR_TYPE",
                                          "NW_ERROR_SHAPE",
                                          "NW_ERROR_STRIDE",
                                          "NW_ERROR_VALUE",
                                          "NW_ERROR_ALIGNMENT",
                                          "NW_ERROR_OVERLAP",
                                          "NW_ERROR_WORKSPACE",
                                          "NW_ERROR_NO_SUCH_KERNEL",
                                          "NW_ERROR_UNSUPPORTED",
                                          "NW_ERROR_NO_DEVICE",
                                          "NW_ERROR_OUT_OF_MEMORY",
                                          "NW_ERROR_CUDA",
                                          "NW_ERROR_INTERNAL"};
  return status >= 0 && status < static_cast<nw_status>(std::size(names)) ? names[status] : "unknown status";
}
const char* nw_last_error() {
  return last_sentence();
}
