// Exercise 06.1: add on the way in.
#include "common/harness/program.h"
#include "kernels.cuh"

int main(int argc, char** argv) {
  using namespace worklog;
  Program program("06.1", "add on the way in");
  program.add("held", "the sum in the load step", fused_residual::held_add_layer_norm<float, float>,
              fused_residual::held_add_layer_norm<__nv_bfloat16, __nv_bfloat16>);
  return program.run(argc, argv);
}
