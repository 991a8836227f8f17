// Which kernel takes which rows is data: an array of rules, of which the first that fits is taken. A stage's plan.h
// says what a rule is made of, and its tuning_sm_90.h has the rules. Nothing here needs CUDA.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

namespace worklog {

// [snippet: rules]
// The types that a rule is for, as a set.
enum Types : unsigned {
  fp32 = 1,
  bits16 = 2,  // with parameters of the same type
  mixed = 4,   // elements of 16 bits, parameters of 32
  uniform = fp32 | bits16,
  any_bits16 = bits16 | mixed,
  any_types = fp32 | bits16 | mixed,
};

// What rules call the types of elements T and parameters G.
template <class T, class G>
inline constexpr unsigned types_of = sizeof(T) == 4   ? fp32
                                     : sizeof(G) == 4 ? mixed
                                                      : bits16;

// The first rule from number `from` on that takes the rows; rules.size() where none does. takes() is the plan's.
template <class Rule, class Facts>
constexpr size_t rule_for(std::span<const Rule> rules, const Facts& facts, size_t from = 0) {
  while (from < rules.size() && !takes(rules[from], facts)) ++from;
  return from;
}

// Calls launch.operator()<number>() for the first of `count` rules that takes the rows, and for the next one where that
// returns false: the device has no room for it. False where none is left. All `count` calls are compiled.
template <size_t count, class Rule, class Facts, class Launch>
bool launch_first(std::span<const Rule> rules, const Facts& facts, Launch launch) {
  const auto launch_number = [&]<size_t... numbers>(size_t number, std::index_sequence<numbers...>) {
    return ((number == numbers && launch.template operator()<numbers>()) || ...);
  };
  for (size_t number = rule_for(rules, facts); number < count; number = rule_for(rules, facts, number + 1)) {
    if (launch_number(number, std::make_index_sequence<count>())) return true;
  }
  return false;
}
// [/snippet]

}  // namespace worklog
