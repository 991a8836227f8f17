// The kernels of this repository behind a C interface: libnormworklog.
//
// The operations below run their final kernels. Each takes a struct of arguments and a stream, launches, and
// returns without waiting: the result is there when the stream has come to it. Every stage's variants can be had by
// name as well (nw_find_kernel, nw_launch).
//
//   nw_layernorm_forward_args args = {0};
//   args.size = sizeof args;
//   args.dtype = NW_BF16;       args.param_dtype = NW_FP32;
//   args.x = x;                 args.y = y;
//   args.gamma = gamma;         args.beta = beta;
//   args.rows = 8192;           args.cols = 4096;
//   args.x_stride = 4096;       args.y_stride = 4096;
//   args.eps = 1e-5f;
//   if (nw_layernorm_forward(&args, stream) != NW_OK) fprintf(stderr, "%s\n", nw_last_error());
//
// Memory. Pointers are to memory of the calling thread's current CUDA device; where the library is the CPU build
// (nw_backend() is "cpu"), to any memory of the process. A pointer that is marked optional may be null. Every other one
// must not be, unless the tensor has no elements. Tensors are aligned to their elements; more is not needed, but
// kernels are fastest where all tensors start on 16-byte boundaries and all strides are multiples of 16 bytes.
//
// Shapes. A tensor of rows x cols has its element (i, j) at pointer + i * stride + j. Sizes and strides count elements,
// never bytes. rows is from 0 to 2^31, cols from 1 to 2^20, a stride is at least cols; with fewer than two rows it is
// not looked at. With no rows there is nothing to do: nothing is launched but what writes zeros to dgamma and dbeta.
//
// Types. dtype is that of the tensors, param_dtype that of gamma, beta, dgamma and dbeta: the same, or NW_FP32. Means,
// reciprocal deviations and running statistics are floats, whatever the types; so is all arithmetic.
//
// Overlap. No output may overlap another tensor of its call, but where its comment says so. Where it does, the output
// has the pointer and the stride of the tensor whose place it takes. Overlap is looked for in what elements lie where:
// columns of one matrix that have the same stride may be two tensors. Two tensors with different strides are taken to
// overlap where the memory from their first to their last element does.
//
// The same row, whatever the batch. Which kernel takes a row depends on how many there are, and so do the last bits of
// its result. With batch_invariant they depend on the row alone, on cols, the types, which of gamma and beta there are,
// and on whether all rows start on 16-byte boundaries (pointers, and with two rows or more strides): not on the other
// rows, nor on its place among them. That holds for y, h, mean, rstd and dx, on GPUs of one model. dgamma and dbeta are
// sums over the batch, and another batch has another sum: what holds for them, with the flag or without, is that one
// call gives the same bits each time on GPUs of one model. nw_batchnorm_inference has no flag and needs none. The flag
// may cost time: 05_welford/notes/batch_invariance.md has how much.
//
// Weights about zero. With gamma_offset 1 the norms over rows multiply by 1 + gamma instead of gamma, a sum in fp32, as
// Gemma's code has it; beta is as it is. The backward passes take the same offset; dgamma is the gradient of gamma and
// of 1 + gamma alike. 0 and 1 are what there is. Where gamma is null there are ones, whatever the offset.
//
// Streams. `stream` is a cudaStream_t, null for the default stream. All calls may be captured into a CUDA graph,
// provided that a workspace is given to those that need one.
//
// Errors. Each function that returns nw_status returns NW_OK, or what is wrong, and leaves a sentence about it that
// names the argument for nw_last_error(). Then nothing has been launched, except with NW_ERROR_CUDA. What goes wrong in
// a kernel after its launch comes out of a later CUDA call, as always. Nothing is thrown, printed or aborted.
//
// Threads. All functions may be called from any number of threads at the same time. A workspace belongs to one call
// until that call's kernels have run: two that share it may give wrong sums, or wait for each other for ever.
//
// Versions. A struct begins with its size, so that it can grow at its end: a library takes the smaller structs of the
// headers before it, for which what they lack is zero. A change of any other kind raises NW_ABI_VERSION.
#ifndef NORM_WORKLOG_H
#define NORM_WORKLOG_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define NW_API __attribute__((visibility("default")))
#else
#define NW_API
#endif

// --- Version -------------------------------------------------------------------------------------------------------

#define NW_ABI_VERSION 1

// The NW_ABI_VERSION that the library was built with. A program and a library belong together where it is the same.
NW_API int32_t nw_abi_version(void);
// The version of the project, as "1.2.3".
NW_API const char* nw_version(void);
// What the kernels run on: "cuda", or "cpu" where the library was built on the CPU layer.
NW_API const char* nw_backend(void);

// --- Errors --------------------------------------------------------------------------------------------------------

typedef int32_t nw_status;
enum {
  NW_OK = 0,
  NW_ERROR_NULL = 1,             // a pointer is null that must not be
  NW_ERROR_STRUCT_SIZE = 2,      // args->size is that of no version of the struct, or of one that is not known yet
  NW_ERROR_TYPE = 3,             // a type is none of nw_dtype, or param_dtype is neither dtype nor NW_FP32
  NW_ERROR_SHAPE = 4,            // a size is out of range, or there are too many elements for memory to hold
  NW_ERROR_STRIDE = 5,           // a stride is smaller than a row, or too large for memory to hold the rows
  NW_ERROR_VALUE = 6,            // eps, momentum, layout, operation or an index is out of range
  NW_ERROR_ALIGNMENT = 7,        // a pointer is not aligned to its elements, or a workspace not to 16 bytes
  NW_ERROR_OVERLAP = 8,          // an output overlaps another tensor
  NW_ERROR_WORKSPACE = 9,        // the workspace is too small
  NW_ERROR_NO_SUCH_KERNEL = 10,  // no kernel has this stage, variant, operation and types
  NW_ERROR_UNSUPPORTED = 11,     // the variant cannot do this shape: see its limits in the sentence
  NW_ERROR_NO_DEVICE = 12,       // there is no CUDA device, or no driver for it
  NW_ERROR_OUT_OF_MEMORY = 13,   // device memory for a workspace, or host memory
  NW_ERROR_CUDA = 14,            // any other error of a CUDA call or a launch; the sentence has its name
  NW_ERROR_INTERNAL = 15         // a defect of this library
};

// The name of a status, "NW_ERROR_STRIDE"; of another number, "unknown status".
NW_API const char* nw_status_name(nw_status status);
// One sentence about the last error of a call by this thread: "x_stride must be at least 4096, the elements of a row;
// it is 4000". Empty where there was none. It stays until the thread's next error.
NW_API const char* nw_last_error(void);

// --- Types and operations ------------------------------------------------------------------------------------------

typedef int32_t nw_dtype;
enum { NW_FP32 = 0, NW_FP16 = 1, NW_BF16 = 2 };

// An operation, and the struct that its functions take.
typedef int32_t nw_operation;
enum {
  NW_LAYERNORM_FORWARD = 0,      // nw_layernorm_forward_args
  NW_RMSNORM_FORWARD = 1,        // nw_rmsnorm_forward_args
  NW_ADD_LAYERNORM_FORWARD = 2,  // nw_add_layernorm_forward_args
  NW_ADD_RMSNORM_FORWARD = 3,    // nw_add_rmsnorm_forward_args
  NW_LAYERNORM_BACKWARD = 4,     // nw_layernorm_backward_args
  NW_RMSNORM_BACKWARD = 5,       // nw_rmsnorm_backward_args
  NW_BATCHNORM_TRAIN = 6,        // nw_batchnorm_train_args
  NW_BATCHNORM_INFERENCE = 7,    // nw_batchnorm_inference_args
  NW_BATCHNORM_BACKWARD = 8,     // nw_batchnorm_backward_args
  NW_QK_NORM = 9,                // nw_qk_norm_args
  NW_QK_NORM_BACKWARD = 10,      // nw_qk_norm_backward_args
  NW_QUANTIZED_NORM = 11         // nw_quantized_norm_args
};

// --- Norms over rows -----------------------------------------------------------------------------------------------

// y = (x - mean) * rstd * gamma + beta, for each row:
// mean = sum(x) / cols, rstd = 1 / sqrt(sum((x - mean)^2) / cols + eps).   [Ba, Kiros, Hinton 2016, eq. 4]
typedef struct nw_layernorm_forward_args {
  size_t size;           // sizeof(nw_layernorm_forward_args)
  nw_dtype dtype;        // of x and y
  nw_dtype param_dtype;  // of gamma and beta
  const void* x;         // [rows, cols]
  const void* gamma;     // [cols], optional: ones
  const void* beta;      // [cols], optional: zeros
  void* y;               // [rows, cols]; may take the place of x
  float* mean;           // [rows], optional: not written
  float* rstd;           // [rows], optional: not written
  int64_t rows, cols;
  int64_t x_stride, y_stride;
  float eps;                // finite, 0 or more
  int64_t batch_invariant;  // 1: see "The same row, whatever the batch"; else 0
  float gamma_offset;       // 1: 1 + gamma takes gamma's place, see "Weights about zero"; else 0
} nw_layernorm_forward_args;
NW_API nw_status nw_layernorm_forward(const nw_layernorm_forward_args* args, void* stream);

// y = x * rstd * gamma, rstd = 1 / sqrt(sum(x^2) / cols + eps).   [Zhang, Sennrich 2019, eq. 4]
typedef struct nw_rmsnorm_forward_args {
  size_t size;           // sizeof(nw_rmsnorm_forward_args)
  nw_dtype dtype;        // of x and y
  nw_dtype param_dtype;  // of gamma
  const void* x;         // [rows, cols]
  const void* gamma;     // [cols], optional: ones
  void* y;               // [rows, cols]; may take the place of x
  float* rstd;           // [rows], optional: not written
  int64_t rows, cols;
  int64_t x_stride, y_stride;
  float eps;                   // finite, 0 or more
  int32_t round_before_gamma;  // 1: y = round(x * rstd) * gamma, as LLaMA's code has it; else 0
  int64_t batch_invariant;     // 1: see "The same row, whatever the batch"; else 0
  float gamma_offset;          // 1: 1 + gamma takes gamma's place, see "Weights about zero"; else 0
} nw_rmsnorm_forward_args;
NW_API nw_status nw_rmsnorm_forward(const nw_rmsnorm_forward_args* args, void* stream);

// h = x + residual, rounded to dtype; y = layernorm(h).
typedef struct nw_add_layernorm_forward_args {
  size_t size;           // sizeof(nw_add_layernorm_forward_args)
  nw_dtype dtype;        // of x, residual, h and y
  nw_dtype param_dtype;  // of gamma and beta
  const void* x;         // [rows, cols]
  const void* residual;  // [rows, cols]
  const void* gamma;     // [cols], optional: ones
  const void* beta;      // [cols], optional: zeros
  void* h;               // [rows, cols]; may take the place of x or residual
  void* y;               // [rows, cols]; may take the place of x, residual or h (which is lost then)
  float* mean;           // [rows], optional: not written
  float* rstd;           // [rows], optional: not written
  int64_t rows, cols;
  int64_t x_stride, residual_stride, h_stride, y_stride;
  float eps;                // finite, 0 or more
  int64_t batch_invariant;  // 1: see "The same row, whatever the batch"; else 0
  float gamma_offset;       // 1: 1 + gamma takes gamma's place, see "Weights about zero"; else 0
} nw_add_layernorm_forward_args;
NW_API nw_status nw_add_layernorm_forward(const nw_add_layernorm_forward_args* args, void* stream);

// h = x + residual, rounded to dtype; y = rmsnorm(h).
typedef struct nw_add_rmsnorm_forward_args {
  size_t size;           // sizeof(nw_add_rmsnorm_forward_args)
  nw_dtype dtype;        // of x, residual, h and y
  nw_dtype param_dtype;  // of gamma
  const void* x;         // [rows, cols]
  const void* residual;  // [rows, cols]
  const void* gamma;     // [cols], optional: ones
  void* h;               // [rows, cols]; may take the place of x or residual
  void* y;               // [rows, cols]; may take the place of x, residual or h (which is lost then)
  float* rstd;           // [rows], optional: not written
  int64_t rows, cols;
  int64_t x_stride, residual_stride, h_stride, y_stride;
  float eps;                   // finite, 0 or more
  int32_t round_before_gamma;  // 1: y = round(h * rstd) * gamma, as LLaMA's code has it; else 0
  int64_t batch_invariant;     // 1: see "The same row, whatever the batch"; else 0
  float gamma_offset;          // 1: 1 + gamma takes gamma's place, see "Weights about zero"; else 0
} nw_add_rmsnorm_forward_args;
NW_API nw_status nw_add_rmsnorm_forward(const nw_add_rmsnorm_forward_args* args, void* stream);

// With xhat = (x - mean) * rstd and wdy = dy * gamma, for each row:
// dx = rstd * (wdy - xhat * sum(wdy * xhat) / cols - sum(wdy) / cols), and over all rows
// dgamma = sum(dy * xhat), dbeta = sum(dy).
//
// The backward pass of add + norm is the same call: x is the h that the forward pass wrote, dh the gradient that
// reaches h past the norm, and dx = dh + the above is the gradient of both x and residual.
typedef struct nw_layernorm_backward_args {
  size_t size;             // sizeof(nw_layernorm_backward_args)
  nw_dtype dtype;          // of dy, x, dh and dx
  nw_dtype param_dtype;    // of gamma, dgamma and dbeta
  const void* dy;          // [rows, cols]
  const void* x;           // [rows, cols]
  const void* dh;          // [rows, cols], optional: zeros
  const void* gamma;       // [cols], optional: ones
  const float* mean;       // [rows], as the forward pass wrote it
  const float* rstd;       // [rows], as the forward pass wrote it
  void* dx;                // [rows, cols], optional: not written
  void* dgamma;            // [cols], optional: not written
  void* dbeta;             // [cols], optional: not written
  void* workspace;         // 16-byte aligned, optional: see nw_workspace_size
  size_t workspace_bytes;  // what is there, where there is a workspace
  int64_t rows, cols;
  int64_t dy_stride, x_stride, dh_stride, dx_stride;
  int64_t batch_invariant;  // 1: see "The same row, whatever the batch"; else 0
  float gamma_offset;       // 1: 1 + gamma takes gamma's place, see "Weights about zero"; else 0
} nw_layernorm_backward_args;
NW_API nw_status nw_layernorm_backward(const nw_layernorm_backward_args* args, void* stream);

// With xhat = x * rstd: dx = rstd * (wdy - xhat * sum(wdy * xhat) / cols), dgamma = sum over rows of dy * xhat.
// dh as in nw_layernorm_backward.
typedef struct nw_rmsnorm_backward_args {
  size_t size;             // sizeof(nw_rmsnorm_backward_args)
  nw_dtype dtype;          // of dy, x, dh and dx
  nw_dtype param_dtype;    // of gamma and dgamma
  const void* dy;          // [rows, cols]
  const void* x;           // [rows, cols]
  const void* dh;          // [rows, cols], optional: zeros
  const void* gamma;       // [cols], optional: ones
  const float* rstd;       // [rows], as the forward pass wrote it
  void* dx;                // [rows, cols], optional: not written
  void* dgamma;            // [cols], optional: not written
  void* workspace;         // 16-byte aligned, optional: see nw_workspace_size
  size_t workspace_bytes;  // what is there, where there is a workspace
  int64_t rows, cols;
  int64_t dy_stride, x_stride, dh_stride, dx_stride;
  int64_t batch_invariant;  // 1: see "The same row, whatever the batch"; else 0
  float gamma_offset;       // 1: 1 + gamma takes gamma's place, see "Weights about zero"; else 0
} nw_rmsnorm_backward_args;
NW_API nw_status nw_rmsnorm_backward(const nw_rmsnorm_backward_args* args, void* stream);

// --- Heads of q and k ----------------------------------------------------------------------------------------------
//
// A tensor of heads has element j of head h of token t at pointer + t * token_stride + h * head_stride + j: a view of
// the projection that q, k and v come out of, of which v is not touched. tokens is from 0 to 2^31, q_heads from 1 to
// 65536, k_heads from 0 to 65536, head_dim from 1 to 2^20. Heads that are neighbours come first in either order: a
// head_stride is at least head_dim and a token_stride at least what a token's heads take, or the other way round. With
// one token, or one head, that stride is not looked at. Where k_heads is 0 there is no k, and nothing of it is looked
// at. Which kernel takes a row depends on head_dim, the types, strides and alignment: its result depends on the row
// alone.

// RMSNorm of each head's row: y = x * rstd * (gamma + gamma_offset), rstd = 1 / sqrt(sum(x^2) / head_dim + eps).
typedef struct nw_qk_norm_args {
  size_t size;           // sizeof(nw_qk_norm_args)
  nw_dtype dtype;        // of q, k, q_out and k_out
  nw_dtype param_dtype;  // of q_gamma and k_gamma
  const void* q;         // [tokens, q_heads, head_dim]
  const void* k;         // [tokens, k_heads, head_dim]
  const void* q_gamma;   // [head_dim], optional: ones, whatever gamma_offset is
  const void* k_gamma;   // [head_dim], optional: ones, whatever gamma_offset is
  void* q_out;           // as q; may take its place
  void* k_out;           // as k; may take its place
  float* q_rstd;         // [tokens, q_heads], optional: not written
  float* k_rstd;         // [tokens, k_heads], optional: not written
  int64_t tokens, q_heads, k_heads, head_dim;
  int64_t q_token_stride, q_head_stride, k_token_stride, k_head_stride;
  int64_t q_out_token_stride, q_out_head_stride, k_out_token_stride, k_out_head_stride;
  float eps;                   // finite, 0 or more
  float gamma_offset;          // 0, or 1 where gamma is stored about zero, as Gemma's code has it
  int64_t round_before_gamma;  // 1: y = round(x * rstd) * gamma, as LLaMA's and Qwen's code has it; else 0
} nw_qk_norm_args;
NW_API nw_status nw_qk_norm(const nw_qk_norm_args* args, void* stream);

// For q, and for k likewise, with xhat = q * rstd and wdy = dq_out * (gamma + gamma_offset), for each head's row:
// dq = rstd * (wdy - xhat * sum(wdy * xhat) / head_dim), and over all tokens and heads dq_gamma = sum(dq_out * xhat).
typedef struct nw_qk_norm_backward_args {
  size_t size;             // sizeof(nw_qk_norm_backward_args)
  nw_dtype dtype;          // of dq_out, dk_out, q, k, dq and dk
  nw_dtype param_dtype;    // of q_gamma, k_gamma, dq_gamma and dk_gamma
  const void* dq_out;      // [tokens, q_heads, head_dim]
  const void* dk_out;      // [tokens, k_heads, head_dim]
  const void* q;           // as dq_out
  const void* k;           // as dk_out
  const void* q_gamma;     // [head_dim], optional: ones
  const void* k_gamma;     // [head_dim], optional: ones
  const float* q_rstd;     // [tokens, q_heads], as the forward pass wrote it
  const float* k_rstd;     // [tokens, k_heads], as the forward pass wrote it
  void* dq;                // as q, optional: not written
  void* dk;                // as k, optional: not written
  void* dq_gamma;          // [head_dim], optional: not written
  void* dk_gamma;          // [head_dim], optional: not written
  void* workspace;         // 16-byte aligned, optional: see nw_workspace_size
  size_t workspace_bytes;  // what is there, where there is a workspace
  int64_t tokens, q_heads, k_heads, head_dim;
  int64_t dq_out_token_stride, dq_out_head_stride, dk_out_token_stride, dk_out_head_stride;
  int64_t q_token_stride, q_head_stride, k_token_stride, k_head_stride;
  int64_t dq_token_stride, dq_head_stride, dk_token_stride, dk_head_stride;
  float gamma_offset;  // as the forward pass had it
} nw_qk_norm_backward_args;
NW_API nw_status nw_qk_norm_backward(const nw_qk_norm_backward_args* args, void* stream);

// --- Eight bits out ------------------------------------------------------------------------------------------------

typedef int32_t nw_norm;
enum { NW_RMS_NORM = 0, NW_LAYER_NORM = 1 };
typedef int32_t nw_byte_format;
enum {
  NW_E4M3 = 0,  // as __nv_fp8_e4m3 and torch.float8_e4m3fn: no infinity, 448 at most, NaN is 0x7f
  NW_INT8 = 1   // -128 to 127; NaN becomes 0
};
typedef int32_t nw_scaling;
enum {
  NW_SCALE_OF_ROW = 0,    // one of each row: its largest |y| over 448, or over 127
  NW_SCALE_OF_BLOCK = 1,  // the same of each 128 columns of a row, the last ones of a row together
  NW_SCALE_GIVEN = 2      // one for all
};

// A norm for inference, whose y is stored in eight bits: y = round(norm(x) / scale), or with a residual
// h = x + residual, rounded to dtype, and y = round(norm(h) / scale). What norm(x) is, is not rounded to dtype before.
// It is rounded to nearest even, and what is past the format's range to its largest or smallest value.
//
// A scale that is made is at least 2^-126, also that of a row of zeros, so that nothing is divided by zero. Where there
// is a NaN in what it is made of, it is a NaN. The scale that is given lies in device memory: it may be the result of
// another kernel, and a graph that was captured takes a new value without being captured again. It must be a positive
// normal number, which is not looked at.
//
// A row has the same bits whatever the batch: this operation has no flag for that.
typedef struct nw_quantized_norm_args {
  size_t size;           // sizeof(nw_quantized_norm_args)
  nw_dtype dtype;        // of x, residual and h
  nw_dtype param_dtype;  // of gamma and beta
  const void* x;         // [rows, cols]
  const void* residual;  // [rows, cols], optional: nothing is added
  const void* gamma;     // [cols], optional: ones
  const void* beta;      // [cols], optional: zeros; null with NW_RMS_NORM
  void* h;               // [rows, cols], with a residual, else null; may take the place of x or residual
  void* y;               // [rows, cols], a byte for each element
  const float* scale;    // [1], with NW_SCALE_GIVEN, else null
  float* scales;         // [rows] (NW_SCALE_OF_ROW) or [rows, ceil(cols / 128)] (NW_SCALE_OF_BLOCK), else null
  int64_t rows, cols;
  int64_t x_stride, residual_stride, h_stride;  // those of residual and h are not looked at without a residual
  int64_t y_stride;                             // bytes
  int64_t scales_stride;                        // floats from one row's first scale to the next one's
  float eps;                                    // finite, 0 or more
  nw_norm norm;
  nw_byte_format format;
  nw_scaling scaling;
} nw_quantized_norm_args;
NW_API nw_status nw_quantized_norm(const nw_quantized_norm_args* args, void* stream);

// --- BatchNorm -----------------------------------------------------------------------------------------------------
//
// A tensor has samples * pixels * channels elements without gaps: samples is from 0 to 2^31, pixels (height * width; 1
// for a tensor of [samples, channels]) from 1 to 2^31, samples * pixels at most 2^31, channels from 1 to 2^20.

typedef int32_t nw_layout;
enum {
  NW_CHANNELS_LAST = 0,  // [samples, pixels, channels]: NHWC, and [samples, channels]
  NW_CHANNELS_FIRST = 1  // [samples, channels, pixels]: NCHW
};

// For each channel, over its n = samples * pixels values, of which there are at least 2 (or none):
// mean = sum(x) / n, var = sum((x - mean)^2) / n, invstd = 1 / sqrt(var + eps), y = (x - mean) * invstd * gamma + beta,
// running_mean += momentum * (mean - running_mean), running_var += momentum * (var * n / (n - 1) - running_var).
// [Ioffe, Szegedy 2015, algorithm 1; running statistics as torch.nn.BatchNorm defines them]
typedef struct nw_batchnorm_train_args {
  size_t size;             // sizeof(nw_batchnorm_train_args)
  nw_dtype dtype;          // of x and y
  nw_dtype param_dtype;    // of gamma and beta
  const void* x;           // in `layout`
  const void* gamma;       // [channels], optional: ones
  const void* beta;        // [channels], optional: zeros
  void* y;                 // as x
  float* running_mean;     // [channels], optional, read and written
  float* running_var;      // [channels], optional, read and written
  float* save_mean;        // [channels]
  float* save_invstd;      // [channels]
  void* workspace;         // 16-byte aligned, optional: see nw_workspace_size
  size_t workspace_bytes;  // what is there, where there is a workspace
  int64_t samples, channels, pixels;
  nw_layout layout;
  float momentum;  // 0 to 1: weight of the new value; for a cumulative average, 1 / batches seen with this one
  float eps;       // finite, 0 or more
} nw_batchnorm_train_args;
NW_API nw_status nw_batchnorm_train(const nw_batchnorm_train_args* args, void* stream);

// y = (x - running_mean) / sqrt(running_var + eps) * gamma + beta.
typedef struct nw_batchnorm_inference_args {
  size_t size;                // sizeof(nw_batchnorm_inference_args)
  nw_dtype dtype;             // of x and y
  nw_dtype param_dtype;       // of gamma and beta
  const void* x;              // in `layout`
  const void* gamma;          // [channels], optional: ones
  const void* beta;           // [channels], optional: zeros
  const float* running_mean;  // [channels]
  const float* running_var;   // [channels]
  void* y;                    // as x; may take its place
  int64_t samples, channels, pixels;
  nw_layout layout;
  float eps;  // finite, 0 or more
} nw_batchnorm_inference_args;
NW_API nw_status nw_batchnorm_inference(const nw_batchnorm_inference_args* args, void* stream);

// With n = samples * pixels and xhat = (x - save_mean) * save_invstd, for each channel:
// dx = gamma * save_invstd * (dy - sum(dy) / n - xhat * sum(dy * xhat) / n), dgamma = sum(dy * xhat), dbeta = sum(dy).
typedef struct nw_batchnorm_backward_args {
  size_t size;               // sizeof(nw_batchnorm_backward_args)
  nw_dtype dtype;            // of dy, x and dx
  nw_dtype param_dtype;      // of gamma, dgamma and dbeta
  const void* dy;            // in `layout`
  const void* x;             // in `layout`
  const void* gamma;         // [channels], optional: ones
  const float* save_mean;    // [channels], as the forward pass wrote it
  const float* save_invstd;  // [channels], as the forward pass wrote it
  void* dx;                  // as x, optional: not written
  void* dgamma;              // [channels], optional: not written
  void* dbeta;               // [channels], optional: not written
  void* workspace;           // 16-byte aligned, optional: see nw_workspace_size
  size_t workspace_bytes;    // what is there, where there is a workspace
  int64_t samples, channels, pixels;
  nw_layout layout;
} nw_batchnorm_backward_args;
NW_API nw_status nw_batchnorm_backward(const nw_batchnorm_backward_args* args, void* stream);

// --- Workspace -----------------------------------------------------------------------------------------------------

// Writes to *bytes how much memory a call with these arguments needs to work in: 0 where none. `args` points to the
// operation's struct, of which the size, the types and the shape are looked at and no pointer. For one type the size
// depends on cols alone (norms) or is always the same (BatchNorm), so that it need not be asked for at each call.
//
// The contents do not matter, before or after. A workspace that is given must be large enough; then nothing is
// allocated, and the call can be captured into a graph. Without one (null), a call allocates it in its stream and gives
// it back there (cudaMallocAsync).
NW_API nw_status nw_workspace_size(nw_operation operation, const void* args, size_t* bytes);

// --- Stages and their variants -------------------------------------------------------------------------------------

// A variant of a stage, for one operation and its types. It lives as long as the library is loaded.
typedef struct nw_kernel nw_kernel;

typedef struct nw_kernel_info {
  size_t size;          // sizeof(nw_kernel_info), set by the caller
  const char* stage;    // "03_warp_shuffle"
  const char* variant;  // "warp_per_row"
  const char* note;     // what it is, in a few words
  nw_operation operation;
  nw_dtype dtype;
  nw_dtype param_dtype;
  int32_t is_final;    // 1: what the operation's own function runs, where its args have this gamma_offset
  float gamma_offset;  // the one that the kernel is for: 1 or, of BatchNorm too, 0
} nw_kernel_info;

// How many kernels there are, and kernel `index` of them, in the order of the stages.
NW_API size_t nw_kernel_count(void);
NW_API nw_status nw_kernel_at(size_t index, const nw_kernel** kernel);
// The kernel of this name. Where `stage` is null, the final kernel of the operation, for a gamma_offset of 0; `variant`
// is not looked at then. The variants `zero_centered` of stages 06 and 07 are those for 1.
NW_API nw_status nw_find_kernel(const char* stage, const char* variant, nw_operation operation, nw_dtype dtype,
                                nw_dtype param_dtype, const nw_kernel** kernel);
NW_API nw_status nw_describe_kernel(const nw_kernel* kernel, nw_kernel_info* info);
// Runs the kernel. `args` points to its operation's struct, whose types must be the kernel's. A variant that is not
// final writes in place only where that is what it is there for; what else it cannot do is said with
// NW_ERROR_UNSUPPORTED. Where the library is the CPU build, stage 07's variants that clear their workspace want none to
// be given, and have their own.
NW_API nw_status nw_launch(const nw_kernel* kernel, const void* args, void* stream);

#ifdef __cplusplus
}
#endif

#endif
