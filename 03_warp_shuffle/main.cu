// Stage 03: sums that stay in registers.
#include "common/harness/program.h"

namespace worklog::warp_shuffle {
Program program();  // variants.cu
}

int main(int argc, char** argv) {
  return worklog::warp_shuffle::program().run(argc, argv);
}
