// What an operation of the family is called with: plain structs of device pointers, shapes and strides.
//
// T is the element type of the tensors (float, __half, __nv_bfloat16), G that of gamma and beta, which a
// mixed-precision model keeps in fp32. Statistics are always fp32. Row i of a tensor starts at
// pointer + i * stride; strides are in elements. A pointer that is documented as optional may be null.
//
// batch_invariant: a row comes out the same, bit for bit, however many others come with it, and wherever among them it
// is. Only the final kernels know of it. What it depends on then is cols, the types, which parameters there are, and
// whether all rows start on 16-byte boundaries. Sums over rows, dgamma and dbeta, are of the batch by what they are.
#pragma once

#include <cstdint>
#include <stdexcept>

namespace worklog {

// y = (x - mean) * rstd * gamma + beta, one mean and one rstd per row.
// mean = sum(x) / cols, rstd = 1 / sqrt(sum((x - mean)^2) / cols + eps)   [Ba, Kiros, Hinton 2016, eq. 4]
template <class T, class G = T>
struct LayerNormForward {
  const T* x;      // [rows, cols]
  const G* gamma;  // [cols], optional: ones
  const G* beta;   // [cols], optional: zeros
  T* y;            // [rows, cols]
  float* mean;     // [rows], optional: not written
  float* rstd;     // [rows], optional: not written
  int64_t rows, cols;
  int64_t x_stride, y_stride;
  float eps;
  bool batch_invariant = false;
};

// y = x * rstd * gamma, rstd = 1 / sqrt(sum(x^2) / cols + eps)   [Zhang, Sennrich 2019, eq. 4]
template <class T, class G = T>
struct RmsNormForward {
  const T* x;      // [rows, cols]
  const G* gamma;  // [cols], optional: ones
  T* y;            // [rows, cols]
  float* rstd;     // [rows], optional: not written
  int64_t rows, cols;
  int64_t x_stride, y_stride;
  float eps;
  bool round_before_gamma = false;  // y = round(x * rstd) * gamma, as LLaMA's code has it
  bool batch_invariant = false;
};

// h = x + residual, rounded to T; y = layer_norm(h).
template <class T, class G = T>
struct AddLayerNormForward {
  const T* x;         // [rows, cols]
  const T* residual;  // [rows, cols]
  const G* gamma;     // [cols], optional: ones
  const G* beta;      // [cols], optional: zeros
  T* h;               // [rows, cols]
  T* y;               // [rows, cols]
  float* mean;        // [rows], optional: not written
  float* rstd;        // [rows], optional: not written
  int64_t rows, cols;
  int64_t x_stride, residual_stride, h_stride, y_stride;
  float eps;
  bool batch_invariant = false;
};

// h = x + residual, rounded to T; y = rms_norm(h).
template <class T, class G = T>
struct AddRmsNormForward {
  const T* x;         // [rows, cols]
  const T* residual;  // [rows, cols]
  const G* gamma;     // [cols], optional: ones
  T* h;               // [rows, cols]
  T* y;               // [rows, cols]
  float* rstd;        // [rows], optional: not written
  int64_t rows, cols;
  int64_t x_stride, residual_stride, h_stride, y_stride;
  float eps;
  bool round_before_gamma = false;  // y = round(x * rstd) * gamma, as LLaMA's code has it
  bool batch_invariant = false;
};

// y in eight bits. e4m3 is __nv_fp8_e4m3: 1 sign bit, 4 of exponent, 3 of mantissa; no infinity, 448 at most.
enum class ByteFormat { e4m3, int8 };

// What y is divided by before it is rounded to eight bits, and multiplied by when it is used.
enum class Scaling {
  row,     // one scale a row: its largest |y| over the largest value of the format
  block,   // the same of each 128 columns of a row
  tensor,  // one scale for all, given by the caller
};
inline constexpr int64_t columns_of_block = 128;

// How many scales belong to a row of so many columns.
constexpr int64_t scales_of_row(Scaling scaling, int64_t cols) {
  return scaling == Scaling::block ? (cols + columns_of_block - 1) / columns_of_block : 1;
}

// y = norm(x) / scale, or with a residual h = x + residual, rounded to T, and y = norm(h) / scale. Rounded once, from
// fp32 to nearest even; what is past the format's range becomes its largest value, of e4m3 448, of int8 127 or -128.
// A NaN stays one in e4m3 (0x7f), and is 0 in int8, which has none: the NaN is in its scale then.
//
// scale = max|y| / 448, or 127; at least 2^-126, so that a row of zeros divides by no zero and a small one by no number
// that has lost digits. A row with a NaN has the scale NaN, as torch.amax would give it. A scale that is given must be
// a positive normal number: it lies on the device, where it can follow from another kernel, and is not looked at
// before.
template <class T, class G = T>
struct QuantizedNorm {
  const T* x;          // [rows, cols]
  const T* residual;   // [rows, cols], optional: nothing is added
  const G* gamma;      // [cols], optional: ones
  const G* beta;       // [cols], optional: zeros
  T* h;                // [rows, cols], with a residual
  uint8_t* y;          // [rows, cols], the bits of e4m3 or int8
  const float* scale;  // [1], with Scaling::tensor
  float* scales;       // [rows, scales_of_row], with the others
  T* unrounded;        // [rows, cols], what a norm and a quantization in two kernels go through; `quantized` does not
  int64_t rows, cols;
  int64_t x_stride, residual_stride, h_stride, y_stride, scales_stride;
  float eps;
  bool subtracts_mean;  // LayerNorm; otherwise RMSNorm
  ByteFormat format;
  Scaling scaling;
};

// The sums over columns of a backward pass go through memory that the caller provides: so many floats for rows of
// `cols`. It starts on a 16-byte boundary. Its contents do not matter, before or after; launches that may run at the
// same time need one each.
constexpr int64_t backward_partial_rows(int64_t cols) {
  const int64_t wished = (int64_t{4} << 20) / (cols < 1 ? 1 : cols);
  return wished < 16 ? 16 : wished > 1024 ? 1024 : wished;
}
constexpr int64_t backward_workspace(int64_t cols) {
  return 2 * backward_partial_rows(cols) * cols;
}

// With xhat = (x - mean) * rstd and wdy = dy * gamma:
// dx = rstd * (wdy - xhat * sum(wdy * xhat) / cols - sum(wdy) / cols), dgamma = sum over rows of dy * xhat,
// dbeta = sum over rows of dy. With dh, the gradient that reaches x past the norm, dx = dh + the above.
template <class T, class G = T>
struct LayerNormBackward {
  const T* dy;        // [rows, cols]
  const T* x;         // [rows, cols]
  const T* dh;        // [rows, cols], optional: zeros
  const G* gamma;     // [cols], optional: ones
  const float* mean;  // [rows], as the forward pass wrote it
  const float* rstd;  // [rows], as the forward pass wrote it
  T* dx;              // [rows, cols], optional: not written
  G* dgamma;          // [cols], optional: not written
  G* dbeta;           // [cols], optional: not written
  float* workspace;   // [backward_workspace(cols)]
  int64_t rows, cols;
  int64_t dy_stride, x_stride, dh_stride, dx_stride;
  bool batch_invariant = false;
};

// dx = rstd * (wdy - xhat * sum(wdy * xhat) / cols) with xhat = x * rstd; dgamma = sum over rows of dy * xhat.
template <class T, class G = T>
struct RmsNormBackward {
  const T* dy;        // [rows, cols]
  const T* x;         // [rows, cols]
  const T* dh;        // [rows, cols], optional: zeros
  const G* gamma;     // [cols], optional: ones
  const float* rstd;  // [rows], as the forward pass wrote it
  T* dx;              // [rows, cols], optional: not written
  G* dgamma;          // [cols], optional: not written
  float* workspace;   // [backward_workspace(cols)]
  int64_t rows, cols;
  int64_t dy_stride, x_stride, dh_stride, dx_stride;
  bool batch_invariant = false;
};

// How a BatchNorm tensor of `samples` x `channels` x `pixels` values lies in memory. With pixels = 1 (the [N, C]
// case) both are the same.
enum class ChannelLayout {
  channels_last,   // [samples, pixels, channels]: a channel's values are `channels` apart
  channels_first,  // [samples, channels, pixels]: a channel's values come in runs of `pixels`
};

// What the blocks of a BatchNorm kernel tell each other goes through memory that the caller provides. Its contents do
// not matter, before or after; launches that may run at the same time need one each.
inline constexpr int64_t batchnorm_workspace = int64_t{2} << 20;  // floats

// Batch statistics per channel over samples * pixels values; y = (x - mean) * invstd * gamma + beta.
// running_mean += momentum * (mean - running_mean); running_var likewise with the unbiased variance, M2 / (n - 1).
// [Ioffe, Szegedy 2015, algorithm 1; running statistics as torch.nn.BatchNorm defines them]
template <class T, class G = float>
struct BatchNormTrain {
  const T* x;           // [samples * pixels * channels] in `layout`
  const G* gamma;       // [channels], optional: ones
  const G* beta;        // [channels], optional: zeros
  T* y;                 // as x
  float* running_mean;  // [channels], optional, read and written
  float* running_var;   // [channels], optional, read and written
  float* save_mean;     // [channels]
  float* save_invstd;   // [channels]
  float* workspace;     // [batchnorm_workspace]
  int64_t samples, channels, pixels;
  ChannelLayout layout;
  float momentum;  // weight of the new value; for a cumulative average the caller passes 1 / batches seen
  float eps;
};

// Throws where the batch variance does not exist, as PyTorch does.
template <class T, class G>
void check_batch(const BatchNormTrain<T, G>& p) {
  if (p.samples * p.pixels == 1) {
    throw std::invalid_argument("training needs more than one value per channel: the variance of one is not defined");
  }
}

// y = (x - running_mean) / sqrt(running_var + eps) * gamma + beta.
template <class T, class G = float>
struct BatchNormInference {
  const T* x;                 // [samples * pixels * channels] in `layout`
  const G* gamma;             // [channels], optional: ones
  const G* beta;              // [channels], optional: zeros
  const float* running_mean;  // [channels]
  const float* running_var;   // [channels]
  T* y;                       // as x
  int64_t samples, channels, pixels;
  ChannelLayout layout;
  float eps;
};

// With n = samples * pixels and xhat = (x - save_mean) * save_invstd:
// dx = gamma * save_invstd * (dy - sum(dy) / n - xhat * sum(dy * xhat) / n), dgamma = sum(dy * xhat), dbeta = sum(dy).
template <class T, class G = float>
struct BatchNormBackward {
  const T* dy;               // [samples * pixels * channels] in `layout`
  const T* x;                // as dy
  const G* gamma;            // [channels], optional: ones
  const float* save_mean;    // [channels], as the forward pass wrote it
  const float* save_invstd;  // [channels], as the forward pass wrote it
  T* dx;                     // as dy, optional: not written
  G* dgamma;                 // [channels], optional: not written
  G* dbeta;                  // [channels], optional: not written
  float* workspace;          // [batchnorm_workspace]
  int64_t samples, channels, pixels;
  ChannelLayout layout;
};

// The same call with weights about zero: 1 + gamma, summed in fp32, where the formula has gamma [Gemma's code]. Where
// gamma is null there are ones, as without. The gradients are the same formulas: that of 1 + gamma is that of gamma.
template <class Arguments>
struct ZeroCentered : Arguments {};

// How the heads of a projection lie in memory: element j of head h of token t is at pointer + t * token + h * head + j.
// In a projection of q, k and v side by side, [tokens, (q_heads + 2 k_heads) * head_dim], token is the length of such a
// row, and head is head_dim.
struct HeadStrides {
  int64_t token, head;  // elements
};

// RMSNorm of each head's row of q, and of k: y = x * rstd * (gamma + gamma_offset). A row's result depends on the row
// alone. The norm of q alone has no k_heads.
template <class T, class G = T>
struct QkNormForward {
  const T* q;        // [tokens, q_heads, head_dim]
  const T* k;        // [tokens, k_heads, head_dim]
  const G* q_gamma;  // [head_dim], optional: q is not scaled
  const G* k_gamma;  // [head_dim], optional: k is not scaled
  T* q_out;          // as q
  T* k_out;          // as k
  float* q_rstd;     // [tokens, q_heads], optional: not written
  float* k_rstd;     // [tokens, k_heads], optional: not written
  int64_t tokens, q_heads, k_heads, head_dim;
  HeadStrides q_stride, k_stride, q_out_stride, k_out_stride;
  float eps;
  float gamma_offset = 0.0f;        // 1 where gamma is stored about zero, as Gemma's code has it
  bool round_before_gamma = false;  // y = round(x * rstd) * gamma, as Qwen's code has it
};

// For each of q and k, with xhat = q * rstd and wdy = dq_out * (gamma + gamma_offset):
// dq = rstd * (wdy - xhat * sum(wdy * xhat) / head_dim), dq_gamma = sum over tokens and heads of dq_out * xhat.
template <class T, class G = T>
struct QkNormBackward {
  const T* dq_out;      // [tokens, q_heads, head_dim]
  const T* dk_out;      // [tokens, k_heads, head_dim]
  const T* q;           // as dq_out
  const T* k;           // as dk_out
  const G* q_gamma;     // [head_dim], optional: q is not scaled
  const G* k_gamma;     // [head_dim], optional: k is not scaled
  const float* q_rstd;  // [tokens, q_heads], as the forward pass wrote it
  const float* k_rstd;  // [tokens, k_heads], as the forward pass wrote it
  T* dq;                // as q, optional: not written
  T* dk;                // as k, optional: not written
  G* dq_gamma;          // [head_dim], optional: not written
  G* dk_gamma;          // [head_dim], optional: not written
  float* workspace;     // [backward_workspace(head_dim)]
  int64_t tokens, q_heads, k_heads, head_dim;
  HeadStrides dq_out_stride, dk_out_stride, q_stride, k_stride, dq_stride, dk_stride;
  float gamma_offset = 0.0f;
};

}  // namespace worklog
