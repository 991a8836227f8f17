// Stage 07: the backward pass.
#include "common/harness/program.h"

namespace worklog::backward {
Program program();  // variants.cu
}

int main(int argc, char** argv) {
  return worklog::backward::program().run(argc, argv);
}
