// Stage 04: 16 bytes at a time, and the row read once.
#include "common/harness/program.h"

namespace worklog::vectorized {
Program program();  // variants.cu
}

int main(int argc, char** argv) {
  return worklog::vectorized::program().run(argc, argv);
}
