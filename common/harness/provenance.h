// Where a program's results come from. The build writes the definition, one for each program (provenance.cmake).
#pragma once

#include <string>
#include <string_view>

namespace worklog {

struct Provenance {
  std::string commit;       // of the sources, 40 hexadecimal digits
  bool dirty;               // whether sources differ from that commit
  std::string source_hash;  // of the stage's kernels, comments and white space aside (common/report/source_hash.py)
  std::string flags;        // what the kernels were compiled with
  std::string compiler;     // and by which compiler
};

Provenance provenance();

// The hash of a kernel's machine code (common/report/machine_code.py), of the kernel with this symbol as it was
// compiled for this architecture (90: sm_90). Empty where the build has noted none, as on the CPU layer.
std::string_view code_of(std::string_view symbol, int architecture);

}  // namespace worklog
