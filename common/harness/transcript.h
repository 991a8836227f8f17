// What a run tells on the terminal: a line for each check, why one is wrong, and what came of all at the end.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "common/harness/cases.h"
#include "common/harness/check.h"
#include "common/harness/flags.h"
#include "common/harness/report.h"

namespace worklog {

// How many checks came out how.
struct Tally {
  int made = 0;
  int passed = 0, failed_as_recorded = 0, failed_as_permitted = 0, failed = 0;
  int again = 0;  // results that were compared once more after timing; they count above only where they are wrong
};
Tally tally_of(const std::vector<Check>& checks);

class Transcript {
 public:
  // The request must outlive the transcript.
  explicit Transcript(const Request& request);

  void print_left_out(const Runner& runner, const ProblemOptions& options);
  void print_check(const Check& check);
  void print_untimed(const Variant& variant, const char* why);
  void print_tally(const Tally& tally);
  void print_resources(const std::vector<VariantResources>& resources);
  void print(const std::string& sentence);

 private:
  const Request& request_;
  std::FILE* const out_;
  Table checks_;
};

}  // namespace worklog
