// The short way from a PyTorch tensor to the library: what _functions.py does, in C++, for the calls that need no
// thought. Any other call (a layout to be copied, a wrong type, another device, BatchNorm's inference with a backward
// pass) is declined by returning None, and takes the way through Python, which copies or says what is wrong.
//
// It is optional, and built for the PyTorch that is installed: python -m normworklog.torch.build. It is not linked with
// the library, whose functions it is given as addresses, so that both of them and Python work on one copy of it.
#include <ATen/Functions.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>

#include "norm_worklog.h"

namespace {

using at::Tensor;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using MaybeTensor = std::optional<Tensor>;

struct Library {
  decltype(&nw_layernorm_forward) layernorm_forward;
  decltype(&nw_rmsnorm_forward) rmsnorm_forward;
  decltype(&nw_add_layernorm_forward) add_layernorm_forward;
  decltype(&nw_add_rmsnorm_forward) add_rmsnorm_forward;
  decltype(&nw_layernorm_backward) layernorm_backward;
  decltype(&nw_rmsnorm_backward) rmsnorm_backward;
  decltype(&nw_batchnorm_train) batchnorm_train;
  decltype(&nw_batchnorm_inference) batchnorm_inference;
  decltype(&nw_batchnorm_backward) batchnorm_backward;
  decltype(&nw_workspace_size) workspace_size;
  decltype(&nw_last_error) last_error;
  int32_t (*current_stream)(int32_t device, void** stream);  // PyTorch's; null where the library is a CPU build
  const int64_t* batch_invariant;                            // of _library.py
} library;

template <class Function>
void take(Function& function, const std::map<std::string, uintptr_t>& addresses, const char* name) {
  const auto found = addresses.find(name);
  function = found == addresses.end() ? nullptr : reinterpret_cast<Function>(found->second);
}

void use(const std::map<std::string, uintptr_t>& addresses) {
  take(library.layernorm_forward, addresses, "nw_layernorm_forward");
  take(library.rmsnorm_forward, addresses, "nw_rmsnorm_forward");
  take(library.add_layernorm_forward, addresses, "nw_add_layernorm_forward");
  take(library.add_rmsnorm_forward, addresses, "nw_add_rmsnorm_forward");
  take(library.layernorm_backward, addresses, "nw_layernorm_backward");
  take(library.rmsnorm_backward, addresses, "nw_rmsnorm_backward");
  take(library.batchnorm_train, addresses, "nw_batchnorm_train");
  take(library.batchnorm_inference, addresses, "nw_batchnorm_inference");
  take(library.batchnorm_backward, addresses, "nw_batchnorm_backward");
  take(library.workspace_size, addresses, "nw_workspace_size");
  take(library.last_error, addresses, "nw_last_error");
  take(library.current_stream, addresses, "current_stream");
  take(library.batch_invariant, addresses, "batch_invariant");
}

nw_dtype type_of(at::ScalarType type) {
  return type == at::kFloat ? NW_FP32 : type == at::kHalf ? NW_FP16 : NW_BF16;
}

void succeeded(nw_status status) {
  if (status == NW_OK) return;
  TORCH_CHECK_TYPE(status != NW_ERROR_TYPE, library.last_error());
  TORCH_CHECK_VALUE(status > NW_ERROR_UNSUPPORTED, library.last_error());
  TORCH_CHECK(false, library.last_error());
}

void* stream_of(const Tensor& x) {
  void* stream = nullptr;
  if (library.current_stream)
    TORCH_CHECK(library.current_stream(x.get_device(), &stream) == 0, "there is no current stream");
  return stream;
}

// --- What is taken on ------------------------------------------------------------------------------------------------

// Of a known type, where the library works.
bool is_known(const Tensor& tensor) {
  const auto type = tensor.scalar_type();
  return (type == at::kFloat || type == at::kHalf || type == at::kBFloat16) &&
         (library.current_stream ? tensor.is_cuda() : tensor.is_cpu());
}

bool is_plain(const Tensor& tensor) {
  return is_known(tensor) && tensor.is_contiguous();
}

bool is_plain_vector(const MaybeTensor& vector, int64_t size, const Tensor& x) {
  if (!vector) return true;
  return is_plain(*vector) && vector->dim() == 1 && vector->size(0) == size && vector->device() == x.device() &&
         (vector->scalar_type() == x.scalar_type() || vector->scalar_type() == at::kFloat);
}

bool are_plain_parameters(const MaybeTensor& gamma, const MaybeTensor& beta, int64_t size, const Tensor& x) {
  return is_plain_vector(gamma, size, x) && is_plain_vector(beta, size, x) &&
         (!gamma || !beta || gamma->scalar_type() == beta->scalar_type());
}

bool is_plain_call(const Tensor& x, const MaybeTensor& residual, const MaybeTensor& gamma, const MaybeTensor& beta) {
  if (!is_plain(x) || x.dim() == 0 || x.size(-1) == 0 || !are_plain_parameters(gamma, beta, x.size(-1), x))
    return false;
  return !residual || (is_plain(*residual) && residual->scalar_type() == x.scalar_type() &&
                       residual->device() == x.device() && residual->sizes() == x.sizes());
}

// --- Arguments -------------------------------------------------------------------------------------------------------

at::ScalarType parameter_type_of(const Tensor& x, const MaybeTensor& gamma, const MaybeTensor& beta) {
  return (gamma ? *gamma : beta ? *beta : x).scalar_type();
}

const void* read(const Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr() : nullptr;
}
const void* read(const MaybeTensor& tensor) {
  return tensor ? tensor->const_data_ptr() : nullptr;
}
void* written(const Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr() : nullptr;
}

// Memory for the call to work in, for as long as the tensor lives; undefined where it needs none.
template <class Args>
Tensor room_for(nw_operation operation, Args& args, const Tensor& x) {
  succeeded(library.workspace_size(operation, &args, &args.workspace_bytes));
  if (!args.workspace_bytes) return {};
  const Tensor room = at::empty({static_cast<int64_t>(args.workspace_bytes)}, x.options().dtype(at::kByte));
  args.workspace = written(room);
  return room;
}

struct Gradients {
  Tensor dx, dgamma, dbeta;

  // Room for those that are `wanted`. dx is laid out as x.
  Gradients(const Tensor& x, int64_t parameters, at::ScalarType parameter_type, const std::array<bool, 3>& wanted) {
    const auto options = x.options().dtype(parameter_type);
    if (wanted[0]) dx = at::empty_like(x);
    if (wanted[1]) dgamma = at::empty({parameters}, options);
    if (wanted[2]) dbeta = at::empty({parameters}, options);
  }
};

// --- Norms over rows -------------------------------------------------------------------------------------------------

// What distinguishes the four norms.
struct Norm {
  double eps;
  bool centered, round_before_gamma;
  double offset;  // of gamma
};

// y, and h where there is a residual. `statistics` is [2, rows], mean and rstd; of an RMSNorm [rows]; undefined: not
// wanted.
std::tuple<Tensor, Tensor> forward(const Tensor& x, const MaybeTensor& residual, const MaybeTensor& gamma,
                                   const MaybeTensor& beta, const Norm& norm, const Tensor& statistics) {
  const c10::OptionalDeviceGuard guard(x.device());
  const int64_t cols = x.size(-1), rows = x.numel() / cols;
  Tensor y = at::empty_like(x), h;
  float* mean = statistics.defined() ? statistics.mutable_data_ptr<float>() : nullptr;
  float* rstd = mean && norm.centered ? mean + rows : mean;
  const auto shared = [&](auto& args) {
    args.size = sizeof args;
    args.dtype = type_of(x.scalar_type());
    args.param_dtype = type_of(parameter_type_of(x, gamma, beta));
    args.x = x.const_data_ptr();
    args.gamma = read(gamma);
    args.y = written(y);
    args.rstd = rstd;
    args.rows = rows;
    args.cols = args.x_stride = args.y_stride = cols;
    args.eps = static_cast<float>(norm.eps);
    args.batch_invariant = *library.batch_invariant;
    args.gamma_offset = static_cast<float>(norm.offset);
    if constexpr (requires { args.beta; }) {
      args.beta = read(beta);
      args.mean = mean;
    } else {
      args.round_before_gamma = norm.round_before_gamma;
    }
    if constexpr (requires { args.residual; }) {
      args.residual = read(residual);
      args.h = written(h);
      args.residual_stride = args.h_stride = cols;
    }
  };
  void* const stream = stream_of(x);
  if (residual) h = at::empty_like(x);
  if (residual && norm.centered) {
    nw_add_layernorm_forward_args args{};
    shared(args);
    succeeded(library.add_layernorm_forward(&args, stream));
  } else if (residual) {
    nw_add_rmsnorm_forward_args args{};
    shared(args);
    succeeded(library.add_rmsnorm_forward(&args, stream));
  } else if (norm.centered) {
    nw_layernorm_forward_args args{};
    shared(args);
    succeeded(library.layernorm_forward(&args, stream));
  } else {
    nw_rmsnorm_forward_args args{};
    shared(args);
    succeeded(library.rmsnorm_forward(&args, stream));
  }
  return {y, h};
}

// Those that are `wanted`. `x` is what was normalized; all tensors are without gaps.
Gradients backward(const Tensor& dy, const Tensor& x, const Tensor& dh, const Tensor& gamma, const Tensor& statistics,
                   bool centered, double offset, at::ScalarType parameter_type, const std::array<bool, 3>& wanted) {
  const c10::OptionalDeviceGuard guard(x.device());
  const int64_t cols = x.size(-1), rows = x.numel() / cols;
  Gradients found(x, cols, parameter_type, wanted);
  const float* mean = statistics.const_data_ptr<float>();
  Tensor room;
  const auto shared = [&](auto& args, nw_operation operation) {
    args.size = sizeof args;
    args.dtype = type_of(x.scalar_type());
    args.param_dtype = type_of(parameter_type);
    args.rows = rows;
    args.cols = args.dy_stride = args.x_stride = args.dh_stride = args.dx_stride = cols;
    room = room_for(operation, args, x);
    args.dy = dy.const_data_ptr();
    args.x = x.const_data_ptr();
    args.dh = read(dh);
    args.gamma = read(gamma);
    args.rstd = centered ? mean + rows : mean;
    args.batch_invariant = *library.batch_invariant;
    args.gamma_offset = static_cast<float>(offset);
    args.dx = written(found.dx);
    args.dgamma = written(found.dgamma);
    if constexpr (requires { args.dbeta; }) {
      args.mean = mean;
      args.dbeta = written(found.dbeta);
    }
  };
  void* const stream = stream_of(x);
  if (centered) {
    nw_layernorm_backward_args args{};
    shared(args, NW_LAYERNORM_BACKWARD);
    succeeded(library.layernorm_backward(&args, stream));
  } else {
    nw_rmsnorm_backward_args args{};
    shared(args, NW_RMSNORM_BACKWARD);
    succeeded(library.rmsnorm_backward(&args, stream));
  }
  return found;
}

// --- Autograd --------------------------------------------------------------------------------------------------------

// A node as this PyTorch counts its references: in a std::shared_ptr, from 2.13 on in the node itself.
template <class Kind>
auto make_node() {
  if constexpr (std::is_same_v<decltype(torch::autograd::Edge::function), std::shared_ptr<torch::autograd::Node>>) {
    return std::shared_ptr<Kind>(new Kind, [](auto* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<Kind>();
  }
}

// What a backward pass has from its forward pass. torch::autograd::Function would keep it in a dictionary, and costs a
// step two microseconds more than a node of one's own.
struct Backward : torch::autograd::Node {
  SavedVariable normalized, gamma, statistics;
  at::ScalarType parameter_type{};

  void save(const Tensor& what_is_normalized, bool is_output, const MaybeTensor& given_gamma, const Tensor& found) {
    normalized = SavedVariable(what_is_normalized, is_output);
    if (given_gamma) gamma = SavedVariable(*given_gamma, false);
    statistics = SavedVariable(found, false);
  }

  variable_list apply(variable_list&& gradients) final {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "normworklog's backward passes are not differentiable: there is no second derivative");
    const std::lock_guard lock(mutex_);  // another thread may run the same graph
    return of(gradients);
  }
  // Of each input, from those of the outputs.
  virtual variable_list of(const variable_list& gradients) = 0;

  void release_variables() final {
    const std::lock_guard lock(mutex_);
    normalized.reset_data();
    gamma.reset_data();
    statistics.reset_data();
  }
};

// Makes `output` one whose gradient comes to `node`.
template <class Pointer>
void set_history(const Tensor& output, const Pointer& node) {
  torch::autograd::impl::set_gradient_edge(output, {node, node->add_input_metadata(output)});
}

bool requires_grad(const MaybeTensor& tensor) {
  return tensor && tensor->requires_grad();
}

template <class... Tensors>
bool is_tracked(const Tensors&... inputs) {
  return at::GradMode::is_enabled() && (requires_grad(inputs) || ...);
}

// Forward-mode derivatives, which there are none of: the way through Python says so.
bool has_tangent(const MaybeTensor& tensor) {
  return tensor && tensor->_fw_grad(0).defined();
}

struct NormBackward final : Backward {
  bool centered = false;
  double offset = 0;  // of gamma

  std::string name() const override { return "NormBackward"; }

  variable_list of(const variable_list& gradients) override {
    const bool want_x = task_should_compute_output(0), want_residual = task_should_compute_output(1);
    const Tensor& dy = gradients[0];
    const Tensor dh = gradients.size() > 1 ? gradients[1] : Tensor();
    // Nothing depends on y: h = x + residual alone is left.
    if (!dy.defined()) return {want_x ? dh : Tensor(), want_residual ? dh : Tensor(), Tensor(), Tensor()};
    const auto found =
        backward(dy.contiguous(), normalized.unpack(getptr()), dh.defined() ? dh.contiguous() : dh, gamma.unpack(),
                 statistics.unpack(), centered, offset, parameter_type,
                 {want_x || want_residual, task_should_compute_output(2), task_should_compute_output(3)});
    return {want_x ? found.dx : Tensor(), want_residual ? found.dx : Tensor(), found.dgamma, found.dbeta};
  }
};

// (y, h), h undefined where there is no residual; nothing where the call is declined.
std::optional<std::tuple<Tensor, Tensor>> call(const Tensor& x, const MaybeTensor& residual, const MaybeTensor& gamma,
                                               const MaybeTensor& beta, const Norm& norm) {
  if (!is_plain_call(x, residual, gamma, beta)) return std::nullopt;
  if (!is_tracked(x, residual, gamma, beta)) return forward(x, residual, gamma, beta, norm, Tensor());
  if (has_tangent(x) || has_tangent(residual) || has_tangent(gamma) || has_tangent(beta)) return std::nullopt;
  const auto node = make_node<NormBackward>();
  node->set_next_edges(torch::autograd::collect_next_edges(x, residual, gamma, beta));
  const int64_t rows = x.numel() / x.size(-1);
  const Tensor statistics = at::empty({norm.centered ? 2 * rows : rows}, x.options().dtype(at::kFloat));
  const auto outputs = forward(x, residual, gamma, beta, norm, statistics);
  const auto& [y, h] = outputs;
  set_history(y, node);
  if (residual) set_history(h, node);
  node->save(residual ? h : x, residual.has_value(), gamma, statistics);
  node->parameter_type = parameter_type_of(x, gamma, beta);
  node->centered = norm.centered;
  node->offset = norm.offset;
  return outputs;
}

MaybeTensor first(const std::optional<std::tuple<Tensor, Tensor>>& outputs) {
  return outputs ? MaybeTensor(std::get<0>(*outputs)) : std::nullopt;
}

// --- BatchNorm -------------------------------------------------------------------------------------------------------

// Whether the channels of [N, C, ...] lie side by side, and what they are of in order: PyTorch's channels_last, for any
// number of axes.
bool has_channels_last(const Tensor& x) {
  int64_t step = 1;
  const auto is_next = [&](int64_t axis) {
    const bool found = x.size(axis) == 1 || x.stride(axis) == step;
    step *= x.size(axis);
    return found;
  };
  if (!is_next(1)) return false;
  for (int64_t axis = x.dim() - 1; axis > 1; --axis) {
    if (!is_next(axis)) return false;
  }
  return is_next(0);
}

struct Channels {
  int64_t samples, channels, pixels;
  nw_layout layout;

  // x, of which this is the shape, or what has the shape of x: as it is or as a copy that lies as x does.
  Tensor laid_out(const Tensor& tensor, const Tensor& x) const {
    if (layout == NW_CHANNELS_LAST ? has_channels_last(tensor) : tensor.is_contiguous()) return tensor;
    return at::empty_like(x).copy_(tensor);
  }
};

// Nothing where it has gaps or no values.
std::optional<Channels> channels_of(const Tensor& x) {
  if (x.dim() < 2 || x.size(1) == 0) return std::nullopt;
  Channels at{x.size(0), x.size(1), 1, NW_CHANNELS_FIRST};
  for (int64_t axis = 2; axis < x.dim(); ++axis) at.pixels *= x.size(axis);
  if (at.pixels == 0) return std::nullopt;
  if (x.is_contiguous()) return at;
  at.layout = NW_CHANNELS_LAST;
  return has_channels_last(x) ? std::optional(at) : std::nullopt;
}

bool is_plain_statistic(const Tensor& vector, int64_t channels, const Tensor& x) {
  return vector.scalar_type() == at::kFloat && is_plain_vector(vector, channels, x);
}

// What the three operations have in common.
template <class Args>
Args over_channels(const Tensor& x, const Channels& at, at::ScalarType parameter_type) {
  Args args{};
  args.size = sizeof args;
  args.dtype = type_of(x.scalar_type());
  args.param_dtype = type_of(parameter_type);
  args.x = x.const_data_ptr();
  args.samples = at.samples;
  args.channels = at.channels;
  args.pixels = at.pixels;
  args.layout = at.layout;
  return args;
}

struct BatchNormBackward final : Backward {
  std::string name() const override { return "BatchNormBackward"; }

  variable_list of(const variable_list& gradients) override {
    if (!gradients[0].defined()) return variable_list(3);
    const Tensor x = normalized.unpack(), saved = statistics.unpack();
    const c10::OptionalDeviceGuard guard(x.device());
    const Channels at = channels_of(x).value();
    const Tensor dy = at.laid_out(gradients[0], x);
    const Gradients found(
        x, at.channels, parameter_type,
        {task_should_compute_output(0), task_should_compute_output(1), task_should_compute_output(2)});
    auto args = over_channels<nw_batchnorm_backward_args>(x, at, parameter_type);
    args.dy = dy.const_data_ptr();
    args.gamma = read(gamma.unpack());
    args.save_mean = saved.const_data_ptr<float>();
    args.save_invstd = args.save_mean + at.channels;
    args.dx = written(found.dx);
    args.dgamma = written(found.dgamma);
    args.dbeta = written(found.dbeta);
    const Tensor room = room_for(NW_BATCHNORM_BACKWARD, args, x);
    succeeded(library.batchnorm_backward(&args, stream_of(x)));
    return {found.dx, found.dgamma, found.dbeta};
  }
};

// y, with the running statistics updated; nothing where the call is declined.
MaybeTensor batch_norm_train(const Tensor& x, const MaybeTensor& running_mean, const MaybeTensor& running_var,
                             const MaybeTensor& gamma, const MaybeTensor& beta, double momentum, double eps) {
  if (!is_known(x)) return std::nullopt;
  const auto at = channels_of(x);
  if (!at || at->samples * at->pixels == 1 || !are_plain_parameters(gamma, beta, at->channels, x)) return std::nullopt;
  if (running_mean.has_value() != running_var.has_value()) return std::nullopt;
  for (const auto& vector : {running_mean, running_var}) {
    if (vector && !is_plain_statistic(*vector, at->channels, x)) return std::nullopt;
  }
  const bool tracked = is_tracked(x, gamma, beta);
  if (tracked && (has_tangent(x) || has_tangent(gamma) || has_tangent(beta))) return std::nullopt;

  const c10::OptionalDeviceGuard guard(x.device());
  const Tensor y = at::empty_like(x);
  const Tensor statistics = at::empty({2 * at->channels}, x.options().dtype(at::kFloat));  // mean and 1 / deviation
  auto args = over_channels<nw_batchnorm_train_args>(x, *at, parameter_type_of(x, gamma, beta));
  args.gamma = read(gamma);
  args.beta = read(beta);
  args.y = written(y);
  args.running_mean = running_mean ? running_mean->mutable_data_ptr<float>() : nullptr;
  args.running_var = running_var ? running_var->mutable_data_ptr<float>() : nullptr;
  args.save_mean = statistics.mutable_data_ptr<float>();
  args.save_invstd = args.save_mean + at->channels;
  args.momentum = static_cast<float>(momentum);
  args.eps = static_cast<float>(eps);
  const Tensor room = room_for(NW_BATCHNORM_TRAIN, args, x);
  succeeded(library.batchnorm_train(&args, stream_of(x)));
  for (const auto& vector : {running_mean, running_var}) {
    if (vector) torch::autograd::impl::bump_version(*vector);
  }
  if (tracked) {
    const auto node = make_node<BatchNormBackward>();
    node->set_next_edges(torch::autograd::collect_next_edges(x, gamma, beta));
    node->save(x, false, gamma, statistics);
    node->parameter_type = parameter_type_of(x, gamma, beta);
    set_history(y, node);
  }
  return y;
}

// y; nothing where the call is declined, as it is where there is to be a backward pass, which is no kernel of ours.
MaybeTensor batch_norm_inference(const Tensor& x, const Tensor& running_mean, const Tensor& running_var,
                                 const MaybeTensor& gamma, const MaybeTensor& beta, double eps) {
  if (!is_known(x) || is_tracked(x, gamma, beta)) return std::nullopt;
  const auto at = channels_of(x);
  if (!at || !are_plain_parameters(gamma, beta, at->channels, x)) return std::nullopt;
  if (!is_plain_statistic(running_mean, at->channels, x) || !is_plain_statistic(running_var, at->channels, x))
    return std::nullopt;
  const c10::OptionalDeviceGuard guard(x.device());
  const Tensor y = at::empty_like(x);
  auto args = over_channels<nw_batchnorm_inference_args>(x, *at, parameter_type_of(x, gamma, beta));
  args.gamma = read(gamma);
  args.beta = read(beta);
  args.running_mean = running_mean.const_data_ptr<float>();
  args.running_var = running_var.const_data_ptr<float>();
  args.y = written(y);
  args.eps = static_cast<float>(eps);
  succeeded(library.batchnorm_inference(&args, stream_of(x)));
  return y;
}

}  // namespace

PYBIND11_MODULE(_native, module) {
  const py::call_guard<py::gil_scoped_release> unlocked;
  module.def("use", &use);
  module.def(
      "layer_norm",
      [](const Tensor& x, const MaybeTensor& gamma, const MaybeTensor& beta, double eps, double offset) {
        return first(call(x, std::nullopt, gamma, beta, {eps, true, false, offset}));
      },
      unlocked);
  module.def(
      "rms_norm",
      [](const Tensor& x, const MaybeTensor& gamma, double eps, bool round_before_gamma, double offset) {
        return first(call(x, std::nullopt, gamma, std::nullopt, {eps, false, round_before_gamma, offset}));
      },
      unlocked);
  module.def(
      "add_layer_norm",
      [](const Tensor& x, const MaybeTensor& residual, const MaybeTensor& gamma, const MaybeTensor& beta, double eps,
         double offset) {
        return call(x, residual, gamma, beta, {eps, true, false, offset});
      },
      unlocked);
  module.def(
      "add_rms_norm",
      [](const Tensor& x, const MaybeTensor& residual, const MaybeTensor& gamma, double eps, bool round_before_gamma,
         double offset) {
        return call(x, residual, gamma, std::nullopt, {eps, false, round_before_gamma, offset});
      },
      unlocked);
  module.def("batch_norm_train", &batch_norm_train, unlocked);
  module.def("batch_norm_inference", &batch_norm_inference, unlocked);
}
