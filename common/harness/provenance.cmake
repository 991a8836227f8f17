# Writes a C++ file that says where a program's results come from (provenance.h). Run at each build; the file is only
# touched where its text changed, so that an unchanged tree rebuilds nothing.
#
# -D stage= root= output= compiler= flags= python=
set(commit "unknown")
set(dirty "true")
find_program(git git)
if(git)
  execute_process(COMMAND ${git} -C ${root} rev-parse HEAD OUTPUT_VARIABLE head RESULT_VARIABLE failed ERROR_QUIET
                  OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT failed)
    set(commit ${head})
    # What is compiled or steers the compilation; prose, results and charts do not make a build dirty.
    execute_process(COMMAND ${git} -C ${root} status --porcelain -- *.cu *.cuh *.h *.cpp *.cmake CMakeLists.txt
                            CMakePresets.json OUTPUT_VARIABLE changes ERROR_QUIET)
    if(changes STREQUAL "")
      set(dirty "false")
    endif()
  endif()
endif()

execute_process(COMMAND ${python} ${root}/common/report/source_hash.py ${stage} OUTPUT_VARIABLE source_hash
                RESULT_VARIABLE failed OUTPUT_STRIP_TRAILING_WHITESPACE)
if(failed)
  message(FATAL_ERROR "common/report/source_hash.py could not hash the kernels of ${stage}.")
endif()

set(text "// Written by common/harness/provenance.cmake at build time.
#include \"common/harness/provenance.h\"

namespace worklog {
Provenance provenance() {
  return {.commit = \"${commit}\",
          .dirty = ${dirty},
          .source_hash = \"${source_hash}\",
          .flags = \"${flags}\",
          .compiler = \"${compiler}\"};
}
}  // namespace worklog
")
set(before "")
if(EXISTS ${output})
  file(READ ${output} before)
endif()
if(NOT text STREQUAL before)
  file(WRITE ${output} "${text}")
endif()
