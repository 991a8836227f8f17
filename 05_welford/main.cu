// Stage 05: statistics that hold on every input, and the final forward kernel.
#include "common/harness/program.h"

namespace worklog::welford {
Program program();  // variants.cu
}

int main(int argc, char** argv) {
  return worklog::welford::program().run(argc, argv);
}
