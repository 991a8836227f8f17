#include "common/harness/flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string_view>

#include "common/harness/device.h"
#include "common/harness/words.h"

namespace worklog {
namespace {

constexpr int64_t max_misalign = 1024;

std::vector<int64_t> numbers(std::string_view flag, const std::string& list, int64_t least, int64_t most) {
  std::vector<int64_t> values;
  for (const std::string& word : split(list, ',')) {
    const std::optional<int64_t> value = whole_number(word);
    if (!value || *value < least || *value > most) {
      throw RequestError(
          fmt::format("{} takes whole numbers from {} to {}, one or a list such as 1,2,31; it was given '{}'", flag,
                      least, most, word));
    }
    values.push_back(*value);
  }
  return values;
}

double real_number(std::string_view flag, const std::string& word, double least, double most) {
  const std::optional<double> value = worklog::real_number(word);
  if (!value || !(*value >= least && *value <= most)) {
    throw RequestError(fmt::format("{} takes a number from {} to {}; it was given '{}'", flag, least, most, word));
  }
  return *value;
}

std::vector<Shape> shapes_of(std::string_view flag, const std::string& list) {
  std::vector<Shape> shapes;
  for (const std::string& word : split(list, ',')) {
    const size_t cross = std::min(word.find('x'), word.size());
    const std::optional<int64_t> rows = whole_number(std::string_view(word).substr(0, cross));
    const std::optional<int64_t> cols = whole_number(std::string_view(word).substr(std::min(cross + 1, word.size())));
    if (!rows || !cols || *rows < 0 || *rows > max_rows || *cols < 1 || *cols > max_cols) {
      throw RequestError(
          fmt::format("{} takes ROWSxCOLS, such as 1024x1024,4096x256, with rows from 0 to {} and cols from 1 to {}; "
                      "it was given '{}'",
                      flag, max_rows, max_cols, word));
    }
    shapes.push_back({*rows, *cols});
  }
  return shapes;
}

// The things whose names are in the list, in the list's order; all of them for "all".
template <class Thing, class NameOf>
std::vector<Thing> named(std::string_view flag, const std::string& list, const std::vector<Thing>& all,
                         const NameOf& name_of_thing) {
  if (list == "all") return all;
  std::vector<Thing> found;
  for (const std::string& word : split(list, ',')) {
    const auto match = std::find_if(all.begin(), all.end(), [&](const Thing& t) { return name_of_thing(t) == word; });
    if (match == all.end()) {
      std::vector<std::string> names;
      for (const Thing& thing : all) names.emplace_back(name_of_thing(thing));
      throw RequestError(
          fmt::format("{} takes all, or one or more of: {}; it was given '{}'", flag, fmt::join(names, ", "), word));
    }
    if (std::find(found.begin(), found.end(), *match) == found.end()) found.push_back(*match);
  }
  return found;
}

// What any of the variants has, in the order in which the enumeration has it.
template <class Thing, class Of>
std::vector<Thing> in_variants(const std::vector<const Variant*>& variants, const Of& of) {
  std::vector<Thing> things;
  for (const Variant* variant : variants) {
    for (const Variant::Implementation& implementation : variant->implementations()) {
      const Thing thing = of(implementation);
      if (std::find(things.begin(), things.end(), thing) == things.end()) things.push_back(thing);
    }
  }
  std::sort(things.begin(), things.end());
  return things;
}

// What the choice of kernels is to do without: words, and numbers after an equals sign.
Denied denied_by(const std::vector<std::string>& words) {
  Denied deny;
  const auto limit = [](std::string_view word, std::string_view name, int64_t most) -> std::optional<int> {
    if (!word.starts_with(name) || !word.substr(name.size()).starts_with("=")) return std::nullopt;
    const std::optional<int64_t> value = whole_number(word.substr(name.size() + 1));
    if (!value || *value < 1 || *value > most) return std::nullopt;
    return static_cast<int>(*value);
  };
  for (const std::string& word : words) {
    if (word == "clusters") {
      deny.clusters = true;
    } else if (word == "dependent_launch") {
      deny.dependent_launch = true;
    } else if (word == "cooperative_launch") {
      deny.cooperative_launch = true;
    } else if (const std::optional<int> kibibytes = limit(word, "shared", 1024); kibibytes && *kibibytes >= 48) {
      deny.shared_bytes = *kibibytes * 1024;
    } else if (const std::optional<int> count = limit(word, "multiprocessors", 1024)) {
      deny.multiprocessors = *count;
    } else {
      throw RequestError(fmt::format(
          "--deny takes one or more of: clusters, dependent_launch, cooperative_launch, shared=KIB (from 48 "
          "to 1024), multiprocessors=N (from 1 to 1024); it was given '{}'",
          word));
    }
  }
  return deny;
}

// A name must be an optional tensor of some operation; one that needs the tensor is still given it.
void check_without(const Request& request) {
  for (const std::string& name : request.without) {
    std::vector<std::string_view> allowed;
    for (const Operation operation : all_operations) {
      for (const TensorSpec& spec : tensors_of(operation)) {
        if (spec.optional && std::find(allowed.begin(), allowed.end(), spec.name) == allowed.end()) {
          allowed.push_back(spec.name);
        }
      }
    }
    if (std::find(allowed.begin(), allowed.end(), name) == allowed.end()) {
      throw RequestError(
          fmt::format("--without takes one or more of: {}; it was given '{}'", fmt::join(allowed, ", "), name));
    }
  }
}

// A tensor, or all; behind a colon the elements more, where it is not one.
void read_uneven(Request& request) {
  if (request.uneven.empty()) return;
  const size_t colon = request.uneven.find(':');
  if (colon != std::string::npos) {
    request.uneven_by = numbers("--uneven", request.uneven.substr(colon + 1), 1, max_misalign).front();
    request.uneven.resize(colon);
  }
  std::vector<std::string_view> allowed = {"all"};
  for (const Operation operation : all_operations) {
    for (const TensorSpec& spec : tensors_of(operation)) {
      if (std::find(allowed.begin(), allowed.end(), spec.name) == allowed.end()) allowed.push_back(spec.name);
    }
  }
  if (std::find(allowed.begin(), allowed.end(), request.uneven) == allowed.end()) {
    throw RequestError(
        fmt::format("--uneven takes one of: {}, and :N behind it for N elements instead of one; it was given '{}'",
                    fmt::join(allowed, ", "), request.uneven));
  }
}

// 16+4 heads, or 16 where there is no k. Operations on heads are done where it is said how many there are, and then no
// others are.
void read_heads(Request& request, const std::string& heads, bool all_operations_asked) {
  if (!heads.empty()) {
    const std::vector<std::string> words = split(heads, '+');
    const std::optional<int64_t> q = whole_number(words.front());
    const std::optional<int64_t> k = words.size() > 1 ? whole_number(words[1]) : int64_t{0};
    if (words.size() > 2 || !q || !k || *q < 1 || *k < 0 || *q > max_heads || *k > max_heads) {
      throw RequestError(
          fmt::format("--heads takes the heads of q and of k, such as 16+4, from 1+0 to {0}+{0}; it was given '{1}'",
                      max_heads, heads));
    }
    request.q_heads = *q;
    request.k_heads = *k;
  }
  const auto fits = [&](Operation operation) { return is_of_heads(operation) == !heads.empty(); };
  if (all_operations_asked) std::erase_if(request.operations, [&](Operation o) { return !fits(o); });
  for (const Operation operation : request.operations) {
    if (fits(operation)) continue;
    throw RequestError(fmt::format("--heads goes with operations on heads, and with all of them: {} {}",
                                   name_of(operation), heads.empty() ? "is one, and it was not given" : "is none"));
  }
  if (request.operations.empty()) throw RequestError("--heads: nothing of this stage is an operation on heads");
  if (request.packed_results && heads.empty()) {
    throw RequestError("--packed-results is of the operations on heads, and --heads was not given");
  }
}

// e4m3:row: the format of y in eight bits, and what has a scale.
void read_quantize(Request& request, const std::string& text) {
  for (const ByteFormat format : {ByteFormat::e4m3, ByteFormat::int8}) {
    for (const Scaling scaling : {Scaling::row, Scaling::block, Scaling::tensor}) {
      if (text != fmt::format("{}:{}", name_of(format), name_of(scaling))) continue;
      request.format = format;
      request.scaling = scaling;
      return;
    }
  }
  throw RequestError(fmt::format(
      "--quantize takes e4m3 or int8, a colon, and row, block or tensor, such as e4m3:row; it was given '{}'", text));
}

// What our own output depends on is looked at here; the rest of Google Benchmark's flags is its own affair.
void read_benchmark_flags(Request& request) {
  const auto format = [&](std::string_view name, std::string& value) {
    value = request.benchmark_flag(name).value_or(value);
    if (value != "console" && value != "json" && value != "csv") {
      throw RequestError(fmt::format("--benchmark_{} takes console, json or csv; it was given '{}'", name, value));
    }
  };
  format("format", request.benchmark_format);
  format("out_format", request.benchmark_out_format);
  request.benchmark_out = request.benchmark_flag("out").value_or("");
  const std::string interleaving = request.benchmark_flag("enable_random_interleaving").value_or("false");
  if (interleaving != "false" && interleaving != "0") {
    throw RequestError(
        "--benchmark_enable_random_interleaving is not taken: the tensors of all benchmarks would have to be on the "
        "device at once");
  }
}

}  // namespace

std::optional<std::string> Request::benchmark_flag(std::string_view name) const {
  const std::string flag = fmt::format("--benchmark_{}", name);
  std::optional<std::string> value;
  for (const std::string& word : benchmark_flags) {  // the last one counts
    if (word == flag) value = "";
    if (word.starts_with(flag + "=")) value = word.substr(flag.size() + 1);
  }
  if (value) return value;
  std::string variable = flag.substr(2);
  std::transform(variable.begin(), variable.end(), variable.begin(), [](char c) { return std::toupper(c); });
  const char* const set = std::getenv(variable.c_str());
  return set ? std::optional<std::string>(set) : std::nullopt;
}

Request parse_flags(const Program& program, int argc, char** argv) {
  Request request;
  request.bare = argc <= 1;
  std::vector<std::string> arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    (argument.starts_with("--benchmark_") ? request.benchmark_flags : arguments).emplace_back(argument);
  }
  read_benchmark_flags(request);
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back

  std::string rows = "1024", cols = "1024", shapes, plan, deny, dtype = "all", param_dtype, gamma_offset,
              input = "arange,normal", variant = "all", operation = "all", norm = "all", without, heads,
              layout = "channels_last", modes = "cold,warm,graph", row_padding = "0", misalign = "0", pixels = "1",
              eps = "1e-6", momentum = "0.1", max_ulp = "inf", seed = "1", max_seconds = "0.5", quantize = "e4m3:row";

  CLI::App app(
      fmt::format("{}: {}. Checks its kernels against a reference in double precision, and times them on a GPU.",
                  program.stage(), program.summary()));
  app.set_help_flag("--help,-h", "print this text and exit");
  const auto what = [](CLI::Option* option, const char* group) { return option->group(group); };
  constexpr const char* problem = "Problem";
  CLI::Option* rows_flag = what(app.add_option("--rows", rows, "rows, one number or a list: 1,2,31"), problem);
  CLI::Option* cols_flag = what(app.add_option("--cols", cols, "cols, likewise; all combinations are taken"), problem);
  CLI::Option* shapes_flag = what(app.add_option("--shapes", shapes, "shapes: 1024x1024,4096x256"), problem)
                                 ->excludes(rows_flag)
                                 ->excludes(cols_flag);
  what(app.add_option("--dtype", dtype, "element types: all, or of fp32,fp16,bf16"), problem);
  what(app.add_option("--param-dtype", param_dtype,
                      "type of gamma and beta: same (as the elements), fp32, fp16 or bf16"),
       problem);
  what(app.add_option("--input", input, "inputs: all, or a list (--list names them)"), problem);
  what(app.add_option("--operation", operation, "operations: all, or a list (--list names them)"), problem);
  what(app.add_option("--norm", norm, "of these the ones with: all, layer or rms"), problem);
  what(app.add_flag("--round-before-gamma", request.round_before_gamma,
                    "RMSNorm: round to the element's type before the multiplication by gamma, as LLaMA's code does"),
       problem);
  what(app.add_option("--quantize", quantize,
                      "y in eight bits: e4m3 or int8, and what has a scale: row, block (128 columns) or tensor (it is "
                      "given): e4m3:row"),
       problem);
  what(app.add_flag("--batch-invariant", request.batch_invariant,
                    "final kernels of stages 05 to 07: a row's bits are the same whatever the batch"),
       problem);
  what(app.add_option("--gamma-offset", gamma_offset,
                      "of the variants those that multiply by gamma, 0, or by 1 + gamma, 1 (stages 06 and 07)"),
       problem);
  what(app.add_option("--heads", heads,
                      "the operations on heads, with so many of q and of k: 16+4 (rows are tokens, cols a head's)"),
       problem);
  what(app.add_flag("--packed-results", request.packed_results,
                    "with --heads: the results have no gaps between tokens, as q and k have"),
       problem);
  what(app.add_option("--variant", variant, "variants: all, or a list (--list names them)"), problem);
  what(app.add_option("--row-padding", row_padding, "elements between the end of a row and the start of the next"),
       problem);
  what(app.add_option("--misalign", misalign, "elements by which every tensor's start is moved off its alignment"),
       problem);
  what(app.add_option("--uneven", request.uneven,
                      "a tensor that has an element more of both than the others; all: each than the one before it; "
                      "y:8: 8 elements"),
       problem);
  what(app.add_option("--without", without, "tensors to pass as null where they are optional: gamma,beta,mean,rstd"),
       problem);
  what(app.add_option("--pixels", pixels, "BatchNorm: height times width"), problem);
  what(app.add_option("--layout", layout, "BatchNorm: channels_last or channels_first"), problem);
  what(app.add_option("--eps", eps, "added to the variance, inside the root"), problem);
  what(app.add_option("--momentum", momentum, "BatchNorm: weight of the new running statistics"), problem);
  what(app.add_option("--max-ulp", max_ulp,
                      "last places that results may be off, beside the tolerance: 0.6 is rounding"),
       problem);
  what(app.add_option("--seed", seed, "of the inputs"), problem);

  constexpr const char* run = "Run";
  what(app.add_flag("--list", request.list,
                    "list variants, operations, types, limits, expectations and inputs, and exit"),
       run);
  what(app.add_flag("--check-only", request.check_only, "check, do not time"), run);
  what(app.add_flag("--resources", request.resources,
                    "show each kernel's registers, shared memory, spills and occupancy"),
       run);
  CLI::Option* time_flag = what(app.add_option("--time", modes, "how to time: of cold,warm,graph"), run);
  what(app.add_option("--max-seconds-per-timing", max_seconds, "samples are taken for about so long"), run);
  what(app.add_option("--json", request.json, "write the results to this file, as Google Benchmark does"), run);
  what(app.add_flag("--count", request.count,
                    "count what the kernels do to memory, and look for races and the like (CPU layer only)"),
       run);
  what(app.add_flag("--lines", request.lines, "with --count: for each line of the source too"), run);
  what(app.add_option("--trace", request.trace, "write the steps of one block to this file, as JSON (CPU layer only)"),
       run);
  what(app.add_option("--row", request.row, "with --trace: the block is one that works on this row"), run);
  what(app.add_option("--order", request.order,
                      "whose turn is first among blocks, warps and lanes: forward, reverse or shuffle:SEED (CPU layer "
                      "only)"),
       run);
  what(app.add_option("--launches", request.launches,
                      "tell what each case named in this file would launch (variant/operation/type/shape), and exit"),
       run);
  what(app.add_option(
           "--deny", deny,
           "choose kernels as on a device without: clusters, dependent_launch, cooperative_launch, shared=KIB "
           "(more for a block), multiprocessors=N (more)"),
       run);
  what(app.add_option("--plan", plan, "tell which kernels these shapes get, and why, and exit: 65536x4096"), run)
      ->excludes(rows_flag)
      ->excludes(cols_flag)
      ->excludes(shapes_flag);
  what(app.add_option("--save-tensors", request.save_tensors, "write inputs and outputs to this folder, as .npy"), run);
  app.footer(
      "Google Benchmark's own flags are taken as well: --benchmark_filter=REGEX, --benchmark_repetitions=N,\n"
      "--benchmark_min_time=SECONDS, --benchmark_format=json, --benchmark_out=FILE and the others. A repetition is "
      "one\n"
      "sample; with --benchmark_min_time it is the mean of as many as take so long.\n"
      "Exit code: 0; 1 where a result was wrong; 2 where the request was.");

  try {
    app.parse(arguments);
  } catch (const CLI::CallForHelp&) {
    request.help = app.help();
    return request;
  } catch (const CLI::ParseError& error) {
    throw RequestError(fmt::format("{} (--help lists the flags)", error.what()));
  }

  std::vector<const Variant*> variants;
  for (const Variant& v : program.variants()) variants.push_back(&v);
  request.variants_by_name = variant != "all";
  request.variants = named("--variant", variant, variants, [](const Variant* v) { return v->name(); });
  request.operations = named("--operation", operation,
                             in_variants<Operation>(request.variants, [](const auto& i) { return i.operation; }),
                             [](Operation o) { return name_of(o); });
  read_heads(request, heads, operation == "all");
  if (norm != "all" && norm != "layer" && norm != "rms") {
    throw RequestError(fmt::format("--norm takes all, layer or rms; it was given '{}'", norm));
  }
  if (norm != "all") {
    const std::string_view part = norm == "rms" ? "rmsnorm" : "layernorm";
    std::erase_if(request.operations, [&](Operation o) { return name_of(o).find(part) == std::string_view::npos; });
    if (request.operations.empty()) {
      throw RequestError(fmt::format("--norm {} leaves no operation that {} does", norm, program.stage()));
    }
  }
  // An element type that exists, but not here, is refused by naming those that do.
  request.dtypes = named("--dtype", dtype, in_variants<Dtype>(request.variants, [](const auto& i) { return i.dtype; }),
                         [](Dtype d) { return name_of(d); });
  if (param_dtype == "same") {
    request.param_dtype_same = true;
  } else if (!param_dtype.empty()) {
    const std::vector<Dtype> found =
        named("--param-dtype", param_dtype, std::vector{Dtype::fp32, Dtype::fp16, Dtype::bf16},
              [](Dtype d) { return name_of(d); });
    if (found.size() != 1) throw RequestError("--param-dtype takes one of: same, fp32, fp16, bf16");
    request.param_dtype = found.front();
  }
  if (!gamma_offset.empty()) {
    if (gamma_offset != "0" && gamma_offset != "1") {
      throw RequestError(fmt::format("--gamma-offset takes 0 or 1; it was given '{}'", gamma_offset));
    }
    request.gamma_offset = gamma_offset == "1" ? 1.0f : 0.0f;
  }
  request.inputs = named("--input", input, all_inputs(), [](Input i) { return name_of(i); });
  if (!deny.empty()) request.deny_words = split(deny, ',');
  request.deny = denied_by(request.deny_words);
  request.modes_by_name = !time_flag->empty();
  if (on_cpu_layer() && request.modes_by_name) {
    throw RequestError("--time needs a GPU: this is the CPU layer, and a time taken here says nothing about one");
  }
  if (!on_cpu_layer() && (request.count || !request.trace.empty())) {
    throw RequestError("--count and --trace need the CPU layer (./worklog build --preset cpu)");
  }
  if (!on_cpu_layer() && !request.order.empty()) {
    throw RequestError("--order needs the CPU layer: nobody chooses the order of a GPU's threads and blocks");
  }
  if (request.lines && !request.count) throw RequestError("--lines goes with --count");
  request.modes = named("--time", modes, std::vector(all_timing_modes.begin(), all_timing_modes.end()),
                        [](TimingMode mode) { return name_of(mode); });

  request.plan = !plan.empty();
  if (request.plan) {
    request.shapes = shapes_of("--plan", plan);
  } else if (shapes.empty()) {
    const std::vector<int64_t> all_cols = numbers("--cols", cols, 1, max_cols);
    for (const int64_t r : numbers("--rows", rows, 0, max_rows)) {
      for (const int64_t c : all_cols) request.shapes.push_back({r, c});
    }
  } else {
    request.shapes = shapes_of("--shapes", shapes);
  }
  const auto one = [](std::string_view flag, const std::string& word, int64_t least, int64_t most) {
    const std::optional<int64_t> value = whole_number(word);
    if (!value || *value < least || *value > most) {
      throw RequestError(
          fmt::format("{} takes a whole number from {} to {}; it was given '{}'", flag, least, most, word));
    }
    return *value;
  };
  request.row_padding = one("--row-padding", row_padding, 0, max_cols);
  request.misalign = one("--misalign", misalign, 0, max_misalign);
  request.pixels = one("--pixels", pixels, 1, max_rows);
  if (layout != "channels_last" && layout != "channels_first") {
    throw RequestError(fmt::format("--layout takes channels_last or channels_first; it was given '{}'", layout));
  }
  request.layout = layout == "channels_last" ? ChannelLayout::channels_last : ChannelLayout::channels_first;
  if (!without.empty()) request.without = split(without, ',');
  check_without(request);
  read_uneven(request);
  read_quantize(request, quantize);
  request.eps = static_cast<float>(real_number("--eps", eps, 0, 1e30));
  request.momentum = static_cast<float>(real_number("--momentum", momentum, 0, 1));
  if (max_ulp != "inf") request.max_ulp = real_number("--max-ulp", max_ulp, 0, 1e30);
  request.seed = static_cast<uint64_t>(one("--seed", seed, 0, std::numeric_limits<int64_t>::max()));
  request.max_seconds_per_timing = real_number("--max-seconds-per-timing", max_seconds, 1e-3, 3600);
  return request;
}

}  // namespace worklog
