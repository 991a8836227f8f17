// The short way from a PyTorch tensor to the library: what _functions.py does for the norms over rows, in C++, for the
// calls that need no thought. Any other call (a layout to be copied, a wrong type, another device) is declined by
// returning None, and takes the way through Python, which copies or says what is wrong.
//
// It is optional, and built for the PyTorch that is installed: python -m normworklog.torch.build. It is not linked with
// the library, whose functions it is given as addresses, so that both of them and Python work on one copy of it.
#include <ATen/Functions.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "norm_worklog.h"

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using MaybeTensor = std::optional<Tensor>;

struct Library {
  decltype(&nw_layernorm_forward) layernorm_forward;
  decltype(&nw_rmsnorm_forward) rmsnorm_forward;
  decltype(&nw_add_layernorm_forward) add_layernorm_forward;
  decltype(&nw_add_rmsnorm_forward) add_rmsnorm_forward;
  decltype(&nw_layernorm_backward) layernorm_backward;
  decltype(&nw_rmsnorm_backward) rmsnorm_backward;
  decltype(&nw_workspace_size) workspace_size;
  decltype(&nw_last_error) last_error;
  int32_t (*current_stream)(int32_t device, void** stream);  // PyTorch's; null where the library is a CPU build
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
  take(library.workspace_size, addresses, "nw_workspace_size");
  take(library.last_error, addresses, "nw_last_error");
  take(library.current_stream, addresses, "current_stream");
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

// The tensors that this file takes on: of a known type, without gaps, where the library works.
bool is_plain(const Tensor& tensor) {
  const auto type = tensor.scalar_type();
  return (type == at::kFloat || type == at::kHalf || type == at::kBFloat16) && tensor.is_contiguous() &&
         (library.current_stream ? tensor.is_cuda() : tensor.is_cpu());
}

bool is_plain_vector(const MaybeTensor& vector, const Tensor& x) {
  if (!vector) return true;
  return is_plain(*vector) && vector->dim() == 1 && vector->size(0) == x.size(-1) && vector->device() == x.device() &&
         (vector->scalar_type() == x.scalar_type() || vector->scalar_type() == at::kFloat);
}

bool is_plain_call(const Tensor& x, const MaybeTensor& residual, const MaybeTensor& gamma, const MaybeTensor& beta) {
  if (!is_plain(x) || x.dim() == 0 || x.size(-1) == 0 || !is_plain_vector(gamma, x) || !is_plain_vector(beta, x))
    return false;
  if (gamma && beta && gamma->scalar_type() != beta->scalar_type()) return false;
  return !residual || (is_plain(*residual) && residual->scalar_type() == x.scalar_type() &&
                       residual->device() == x.device() && residual->sizes() == x.sizes());
}

const void* read(const MaybeTensor& tensor) {
  return tensor ? tensor->const_data_ptr() : nullptr;
}
void* written(const Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr() : nullptr;
}

// What distinguishes the four norms.
struct Norm {
  double eps;
  bool centered, round_before_gamma;
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
    args.param_dtype = type_of(gamma ? gamma->scalar_type() : beta ? beta->scalar_type() : x.scalar_type());
    args.x = x.const_data_ptr();
    args.gamma = read(gamma);
    args.y = written(y);
    args.rstd = rstd;
    args.rows = rows;
    args.cols = args.x_stride = args.y_stride = cols;
    args.eps = static_cast<float>(norm.eps);
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

struct Gradients {
  Tensor dx, dgamma, dbeta;
};

// Those that are `wanted`. `x` is what was normalized; all tensors are without gaps.
Gradients backward(const Tensor& dy, const Tensor& x, const Tensor& dh, const Tensor& gamma, const Tensor& statistics,
                   bool centered, at::ScalarType parameter_type, const std::array<bool, 3>& wanted) {
  const c10::OptionalDeviceGuard guard(x.device());
  const int64_t cols = x.size(-1), rows = x.numel() / cols;
  const auto vector = [&](bool is_wanted) {
    return is_wanted ? at::empty({cols}, x.options().dtype(parameter_type)) : Tensor();
  };
  Gradients found{wanted[0] ? at::empty_like(x) : Tensor(), vector(wanted[1]), vector(wanted[2])};
  const float* mean = statistics.const_data_ptr<float>();
  Tensor room;
  const auto shared = [&](auto& args, nw_operation operation) {
    args.size = sizeof args;
    args.dtype = type_of(x.scalar_type());
    args.param_dtype = type_of(parameter_type);
    args.rows = rows;
    args.cols = args.dy_stride = args.x_stride = args.dh_stride = args.dx_stride = cols;
    succeeded(library.workspace_size(operation, &args, &args.workspace_bytes));
    if (args.workspace_bytes)
      room = at::empty({static_cast<int64_t>(args.workspace_bytes)}, x.options().dtype(at::kByte));
    args.workspace = written(room);
    args.dy = dy.const_data_ptr();
    args.x = x.const_data_ptr();
    args.dh = dh.defined() ? dh.const_data_ptr() : nullptr;
    args.gamma = gamma.defined() ? gamma.const_data_ptr() : nullptr;
    args.rstd = centered ? mean + rows : mean;
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

struct Differentiable : torch::autograd::Function<Differentiable> {
  // y, or y and h.
  static variable_list forward(AutogradContext* context, const Tensor& x, const MaybeTensor& residual,
                               const MaybeTensor& gamma, const MaybeTensor& beta, const Norm& norm) {
    const int64_t rows = x.numel() / x.size(-1);
    const Tensor statistics = at::empty({norm.centered ? 2 * rows : rows}, x.options().dtype(at::kFloat));
    auto [y, h] = ::forward(x, residual, gamma, beta, norm, statistics);
    context->save_for_backward({residual ? h : x, gamma.value_or(Tensor()), statistics});
    const Tensor& like = gamma ? *gamma : beta ? *beta : x;
    context->saved_data["parameter_type"] = static_cast<int64_t>(like.scalar_type());
    context->saved_data["centered"] = norm.centered;
    context->saved_data["has_residual"] = residual.has_value();
    context->saved_data["has_beta"] = beta.has_value();
    context->set_materialize_grads(false);
    return residual ? variable_list{y, h} : variable_list{y};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "normworklog's backward passes are not differentiable: there is no second derivative");
    const variable_list saved = context->get_saved_variables();
    const Tensor dy = gradients[0], dh = gradients.size() > 1 ? gradients[1] : Tensor();
    size_t edge = 0;  // of those inputs that were there
    const auto wanted = [&](bool was_there) { return was_there && context->needs_input_grad(edge++); };
    const bool want_x = wanted(true), want_residual = wanted(context->saved_data["has_residual"].toBool());
    const bool want_gamma = wanted(saved[1].defined()), want_beta = wanted(context->saved_data["has_beta"].toBool());
    if (!dy.defined()) return {want_x ? dh : Tensor(), want_residual ? dh : Tensor(), Tensor(), Tensor(), Tensor()};
    const auto found = ::backward(dy.contiguous(), saved[0], dh.defined() ? dh.contiguous() : dh, saved[1], saved[2],
                                  context->saved_data["centered"].toBool(),
                                  static_cast<at::ScalarType>(context->saved_data["parameter_type"].toInt()),
                                  {want_x || want_residual, want_gamma, want_beta});
    return {want_x ? found.dx : Tensor(), want_residual ? found.dx : Tensor(), found.dgamma, found.dbeta, Tensor()};
  }
};

bool requires_grad(const MaybeTensor& tensor) {
  return tensor && tensor->requires_grad();
}

// (y, h), h undefined where there is no residual; nothing where the call is declined.
std::optional<std::tuple<Tensor, Tensor>> call(const Tensor& x, const MaybeTensor& residual, const MaybeTensor& gamma,
                                               const MaybeTensor& beta, const Norm& norm) {
  if (!is_plain_call(x, residual, gamma, beta)) return std::nullopt;
  if (at::GradMode::is_enabled() &&
      (x.requires_grad() || requires_grad(residual) || requires_grad(gamma) || requires_grad(beta))) {
    const variable_list outputs = Differentiable::apply(x, residual, gamma, beta, norm);
    return std::tuple(outputs[0], outputs.size() > 1 ? outputs[1] : Tensor());
  }
  return forward(x, residual, gamma, beta, norm, Tensor());
}

MaybeTensor first(const std::optional<std::tuple<Tensor, Tensor>>& outputs) {
  return outputs ? MaybeTensor(std::get<0>(*outputs)) : std::nullopt;
}

}  // namespace

PYBIND11_MODULE(_native, module) {
  const py::call_guard<py::gil_scoped_release> unlocked;
  module.def("use", &use);
  module.def(
      "layer_norm",
      [](const Tensor& x, const MaybeTensor& gamma, const MaybeTensor& beta, double eps) {
        return first(call(x, std::nullopt, gamma, beta, {eps, true, false}));
      },
      unlocked);
  module.def(
      "rms_norm",
      [](const Tensor& x, const MaybeTensor& gamma, double eps, bool round_before_gamma) {
        return first(call(x, std::nullopt, gamma, std::nullopt, {eps, false, round_before_gamma}));
      },
      unlocked);
  module.def(
      "add_layer_norm",
      [](const Tensor& x, const MaybeTensor& residual, const MaybeTensor& gamma, const MaybeTensor& beta, double eps) {
        return call(x, residual, gamma, beta, {eps, true, false});
      },
      unlocked);
  module.def(
      "add_rms_norm",
      [](const Tensor& x, const MaybeTensor& residual, const MaybeTensor& gamma, double eps, bool round_before_gamma) {
        return call(x, residual, gamma, std::nullopt, {eps, false, round_before_gamma});
      },
      unlocked);
}
