// Stage 08: BatchNorm, whose statistics are over the columns.
#include "common/harness/program.h"

namespace worklog::batchnorm {
Program program();  // variants.cu
}

int main(int argc, char** argv) {
  return worklog::batchnorm::program().run(argc, argv);
}
