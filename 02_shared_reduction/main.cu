// Stage 02: one block per row, a tree in shared memory.
#include "common/harness/program.h"

namespace worklog::shared_reduction {
Program program();  // variants.cu
}

int main(int argc, char** argv) {
  return worklog::shared_reduction::program().run(argc, argv);
}
