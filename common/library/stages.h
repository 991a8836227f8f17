// The main functions of the stages' programs, whose objects the library is linked from. The build has given each a name
// of its own, and writes the list.
#pragma once

#include <span>

namespace worklog::library {

using StageMain = int (*)(int, char**);
std::span<const StageMain> stage_mains();  // in the order of the stages

}  // namespace worklog::library
