#include "common/harness/transcript.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/harness/device.h"

namespace worklog {
namespace {

// The longest of what `text_of` makes of the things.
template <class Things, class TextOf>
size_t longest(const Things& things, const TextOf& text_of) {
  size_t most = 0;
  for (const auto& thing : things) most = std::max(most, text_of(thing).size());
  return most;
}

size_t longest_variant(const Request& request) {
  return longest(request.variants, [](const Variant* variant) { return variant->name(); });
}

size_t longest_shape(const Request& request) {
  return longest(request.shapes, [](const Shape& shape) { return fmt::format("{} x {}", shape.rows, shape.cols); });
}

Table table_of_checks(const Request& request) {
  const size_t operation = longest(request.operations, [](Operation each) { return name_of(each); });
  const size_t input = longest(request.inputs, [](Input each) { return name_of(each); });
  return Table({{"variant", longest_variant(request)},
                {"operation", operation, false, request.operations.size() > 1},
                {"type"},
                {"rows x cols", longest_shape(request), true},
                {"input", input},
                {"blocks x threads", 0, true},
                {"max error", 12, true},
                {"verdict"}},
               request.talk());
}

std::string indented(const std::string& text) {
  std::string result = "      ";
  for (const char c : text) {
    result += c;
    if (c == '\n') result += "      ";
  }
  return result;
}

}  // namespace

Tally tally_of(const std::vector<Check>& checks) {
  Tally tally;
  for (const Check& check : checks) {
    ++(check.after_timing ? tally.again : tally.made);
    if (check.after_timing && is_accepted(check.verdict)) continue;
    switch (check.verdict) {
      case Verdict::passed:
        ++tally.passed;
        break;
      case Verdict::expected_failure:
        ++tally.failed_as_recorded;
        break;
      case Verdict::permitted_failure:
        ++tally.failed_as_permitted;
        break;
      case Verdict::failed:
      case Verdict::unexpected_pass:
        ++tally.failed;
        break;
    }
  }
  return tally;
}

Transcript::Transcript(const Request& request)
    : request_(request), out_(request.talk()), checks_(table_of_checks(request)) {}

void Transcript::print_left_out(const Runner& runner, const ProblemOptions& options) {
  checks_.print_row({runner.variant->name(), operation_name(options), std::string(name_of(options.dtype)),
                     shape_of(options), "", "", "", fmt::format("left out: {}", runner.left_out)});
}

void Transcript::print_check(const Check& check) {
  const ProblemOptions& o = check.options;
  const bool compared = check.error.empty() && check.comparison.compared > 0;
  std::string headline = check.headline();
  if (check.error.empty() && check.comparison.compared == 0) headline += " (the tensor is empty)";
  checks_.print_row({check.variant, operation_name(o), std::string(name_of(o.dtype)), shape_of(o),
                     std::string(name_of(o.input)), describe_launches(check.launches),
                     compared ? show_ulp(check.comparison.max_ulp_error) : "-", headline});
  if (const std::string why = check.explain(); !why.empty()) print(indented(why));
}

void Transcript::print_untimed(const Variant& variant, const char* why) {
  fmt::print(out_, "  {}: {}\n", variant.name(), why);
}

void Transcript::print_tally(const Tally& tally) {
  fmt::print(out_, "\n{} {}: {} passed", tally.made, tally.made == 1 ? "check" : "checks", tally.passed);
  const auto add = [this](int number, std::string_view what) {
    if (number > 0) fmt::print(out_, ", {} {}", number, what);
  };
  add(tally.failed_as_recorded, "fail, as recorded");
  add(tally.failed_as_permitted, "fail, and may");
  add(tally.failed, "FAILED");
  if (tally.again > 0) fmt::print(out_, "; {} results were compared again after timing", tally.again);
  fmt::print(out_, "\n");
}

void Transcript::print_resources(const std::vector<VariantResources>& resources) {
  const auto count = [](int64_t number) { return fmt::format("{}", number); };
  size_t longest_kernel = 0;
  for (const VariantResources& of : resources) {
    longest_kernel = std::max(longest_kernel, longest(of.kernels, [](const KernelResources& k) { return k.kernel; }));
  }
  fmt::print(out_,
             "\nwhat the kernels take: registers and spilled or local bytes of a thread, shared bytes of a block{}\n",
             on_cpu_layer() ? " (- is what the CPU layer cannot say)" : "");
  Table table({{"variant", longest_variant(request_)},
               {"type"},
               {"rows x cols", longest_shape(request_), true},
               {"kernel", longest_kernel},
               {"blocks x threads", 0, true},
               {"registers", 0, true},
               {"local", 0, true},
               {"shared", 6, true},
               {"dynamic", 0, true},
               {"blocks per SM", 0, true},
               {"occupancy", 0, true}},
              out_);
  for (const VariantResources& of : resources) {
    for (const KernelResources& k : of.kernels) {
      table.print_row({of.variant, std::string(name_of(of.options.dtype)), shape_of(of.options), k.kernel,
                       fmt::format("{} x {}", k.blocks, k.threads), on_cpu_layer() ? "-" : count(k.registers),
                       on_cpu_layer() ? "-" : count(k.local_bytes), count(k.static_shared_bytes),
                       count(k.dynamic_shared_bytes), on_cpu_layer() ? "-" : count(k.blocks_per_multiprocessor),
                       on_cpu_layer() ? "-" : fmt::format("{:.0f} %", 100 * k.occupancy)});
    }
  }
}

void Transcript::print(const std::string& sentence) {
  fmt::print(out_, "{}\n", sentence);
}

}  // namespace worklog
