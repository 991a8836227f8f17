// Where a program's results come from. The build writes the definition, one for each program (provenance.cmake).
#pragma once

#include <string>

namespace worklog {

struct Provenance {
  std::string commit;       // of the sources, 40 hexadecimal digits
  bool dirty;               // whether sources differ from that commit
  std::string source_hash;  // of the stage's kernels, comments and white space aside (common/report/source_hash.py)
  std::string flags;        // what the kernels were compiled with
  std::string compiler;     // and by which compiler
};

Provenance provenance();

}  // namespace worklog
