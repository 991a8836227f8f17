#include "common/harness/cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "common/harness/report.h"

namespace worklog {
namespace {

std::string refusal(const Variant& variant, const ProblemOptions& options) {
  for (const Variant::Limit& limit : variant.limits()) {
    if (!limit.accepts(options)) return limit.sentence;
  }
  if (!options.uneven.empty() && !variant.overwritten().empty()) {
    return "its outputs take the place of inputs, and --uneven gives them other strides";
  }
  if (options.packed_results && !variant.overwritten().empty()) {
    return "its outputs take the place of inputs, and --packed-results gives them other strides";
  }
  return "";
}

// What a function works on beside the shape: another type of gamma, or another offset, is another problem.
using Weights = std::pair<Dtype, float>;

ProblemOptions options_of(const Request& request, Operation operation, Dtype dtype, Weights weights, Shape shape) {
  ProblemOptions options;
  options.operation = operation;
  options.dtype = dtype;
  options.param_dtype = weights.first;
  options.rows = shape.rows;
  options.cols = shape.cols;
  options.pixels = request.pixels;
  if (is_of_heads(operation)) {
    options.q_heads = request.q_heads;
    options.k_heads = request.k_heads;
    options.packed_results = request.packed_results;
  }
  options.layout = request.layout;
  options.row_padding = request.row_padding;
  options.uneven = request.uneven;
  options.uneven_by = request.uneven_by;
  options.input = request.inputs.front();
  options.seed = request.seed;
  options.eps = request.eps;
  options.momentum = request.momentum;
  options.max_ulp = request.max_ulp;
  options.round_before_gamma = request.round_before_gamma;
  options.batch_invariant = request.batch_invariant;
  options.gamma_offset = is_of_heads(operation) ? request.gamma_offset.value_or(0.0f) : weights.second;
  options.format = request.format;
  options.scaling = request.scaling;
  for (const TensorSpec& spec : tensors_of(operation)) {
    const bool unwanted = std::find(request.without.begin(), request.without.end(), spec.name) != request.without.end();
    if (spec.optional && unwanted) options.absent.emplace_back(spec.name);
  }
  return options;
}

}  // namespace

void refuse(const OutOfDeviceMemory& error, const ProblemOptions& options) {
  throw RequestError(fmt::format("rows x cols = {} in {} does not fit the device: {}", shape_of(options),
                                 name_of(options.dtype), error.what()));
}

const Variant::Implementation* find_implementation(const Variant& variant, Operation operation, Dtype dtype,
                                                   const Request& request) {
  const Variant::Implementation* other = nullptr;
  for (const Variant::Implementation& each : variant.implementations()) {
    if (each.operation != operation || each.dtype != dtype) continue;
    // The kernels on heads take either.
    if (request.gamma_offset && !is_of_heads(operation) && *request.gamma_offset != each.gamma_offset) continue;
    if (each.param_dtype == request.param_dtype.value_or(dtype)) return &each;
    other = &each;
  }
  return request.param_dtype || request.param_dtype_same ? nullptr : other;
}

std::vector<Case> plan(const Program& program, const Request& request) {
  std::vector<Case> cases;
  for (const Operation operation : request.operations) {
    for (const Dtype dtype : request.dtypes) {
      std::map<Weights, std::vector<Runner>> by_weights;
      for (const Variant* variant : request.variants) {
        const Variant::Implementation* found = find_implementation(*variant, operation, dtype, request);
        if (found) by_weights[{found->param_dtype, found->gamma_offset}].push_back({variant, found, ""});
      }
      for (const auto& [weights, runners] : by_weights) {
        for (const Shape shape : request.shapes) {
          Case& each = cases.emplace_back(Case{options_of(request, operation, dtype, weights, shape), runners});
          check_options(each.options);
          for (Runner& runner : each.runners) {
            runner.left_out = refusal(*runner.variant, each.options);
            if (request.variants_by_name && !runner.left_out.empty()) {
              throw RequestError(fmt::format("--variant {} cannot do {}: {}", runner.variant->name(),
                                             shape_of(each.options), runner.left_out));
            }
          }
        }
      }
    }
  }
  if (cases.empty()) {
    throw RequestError(fmt::format(
        "no variant of {} does what --operation, --dtype, --param-dtype and --gamma-offset ask for together "
        "(--list shows what each does)",
        program.stage()));
  }
  return cases;
}

}  // namespace worklog
