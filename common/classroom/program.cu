// Stands where an exercise's main.cu does: its build says how one is compiled and linked.
#include "common/harness/program.h"

int main(int argc, char** argv) {
  return worklog::Program("exercise", "a program without kernels").run(argc, argv);
}
