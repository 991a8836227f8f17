// Bug hunt 8: right in one type.
#include "common/harness/program.h"
#include "kernels.cuh"

int main(int argc, char** argv) {
  using namespace worklog;
  Program program("bugs.8", "right in one type");
  program.add("backward", "dgamma and dbeta, a thread to a column", bug_hunt::backward<float, float>,
              bug_hunt::backward<__nv_bfloat16, __nv_bfloat16>);
  return program.run(argc, argv);
}
