// Stage 06: residual add and norm in one trip through memory, and RMSNorm.
#include "common/harness/program.h"

namespace worklog::fused_residual {
Program program();  // variants.cu
}

int main(int argc, char** argv) {
  return worklog::fused_residual::program().run(argc, argv);
}
