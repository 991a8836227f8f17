// Stage 01: one thread per row.
#include "common/harness/program.h"

namespace worklog::naive {
Program program();  // variants.cu
}

int main(int argc, char** argv) {
  return worklog::naive::program().run(argc, argv);
}
