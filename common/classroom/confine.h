// Takes from this process all that a kernel has no need of: system calls are filtered (seccomp). It needs no privilege
// and no other program, and holds with bubblewrap and without it.
//
// Two steps. The first comes before any code of a submission can run, initializers included: no other program, no other
// process, no network, no signal to others, and files can only be read. The second comes when all has been read: no
// file can be opened any more, and no memory becomes code.
#pragma once

namespace worklog {

// The files that the second and the third word of the command line name, opened to be written before the first step;
// -1 where there is none.
extern int outcomes_file, counts_file;

// The second step, for all threads; `memory`: the bytes, in digits, that may be allocated from now on, or null. What is
// reserved already (a counting build: 256 GiB of addresses) is beside that. Throws std::runtime_error where the kernel
// of this machine does not do it.
void close_the_door(const char* memory);

}  // namespace worklog
