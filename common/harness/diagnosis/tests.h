// The tests of a wrong output, each for one kind of cause. A test gives a sentence, or none ("") where it does not
// apply or does not explain what came out. diagnosis.cpp has their order.
#pragma once

#include <string>

#include "common/harness/diagnosis/evidence.h"

namespace worklog::diagnosis {

// values.cpp: from what the elements are.
std::string unwritten(const Evidence& evidence);
std::string not_finite(const Evidence& evidence);
std::string rounded_on_the_way(const Evidence& evidence);

// formulas.cpp: a formula that is wrong in a known way, and gives what came out.
std::string wrong_formula(const Evidence& evidence);

// statistics.cpp: y that was made with another mean and rstd than its row's or its channel's.
std::string wrong_statistics(const Evidence& evidence);

// sums.cpp: dgamma and dbeta that hold the sum of the first rows only, or one kept in too narrow a type.
std::string wrong_sum_over_rows(const Evidence& evidence);

// places.cpp: from where the elements are.
std::string displaced_rows(const Evidence& evidence);
std::string wrong_place(const Evidence& evidence);
std::string place_of(const Findings& found);  // as words that follow "wrong"; empty where it is all over the output

}  // namespace worklog::diagnosis
