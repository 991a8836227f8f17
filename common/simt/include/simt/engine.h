// What the CUDA headers of this layer ask of the engine that runs the blocks. Not for use in kernels.
#pragma once

#include <cstddef>
#include <cstdint>

namespace simt::detail {

// The line of a kernel that an operation stands on, from the default arguments of the CUDA function that it calls.
struct Site {
  const char* file;
  int line;
};

// What the lanes of a warp do together. Each lane posts an operand; the last lane to arrive works out every result.
enum class Collective : uint8_t {
  sync,
  shuffle,  // result: the operand of lane `source`
  ballot,   // result: the lanes whose operand is not zero
  match_any,
  match_all,
  add,
  bitwise_and,
  bitwise_or,
  bitwise_xor,
  min,  // as signed 64-bit values
  max,
};

uint64_t warp_collective(Collective kind, unsigned mask, uint64_t operand, unsigned source, const char* name,
                         Site site);

// The lanes of this warp that reach `site` together: all that get there before the warp can go no further.
unsigned converged_lanes(const char* name, Site site);

unsigned lane_id();

enum class BarrierKind : uint8_t { sync, count, all, any };
int block_barrier(BarrierKind kind, int predicate, const char* name, Site site);

// Barriers over the blocks of a cluster and of the whole grid (a cooperative launch).
enum class Group : uint8_t { cluster, grid };
void group_arrive(Group group, const char* name, Site site);
void group_wait(Group group, const char* name, Site site);

struct ClusterShape {
  unsigned blocks;  // in the cluster
  unsigned rank;    // of this block
};
ClusterShape cluster_shape();
bool launched_cooperatively();
// The address in block `rank` of this cluster that `shared` is in this block.
void* map_to_rank(const void* shared, unsigned rank, const char* name, Site site);
int rank_of_shared(const void* shared);  // -1: in no block of this cluster

// Asynchronous copies of the running thread; they are carried out when it waits for them.
void copy_later(void* to, const void* from, size_t bytes, size_t zero_bytes, Site site);
void commit_copies();
void wait_for_copies(size_t batches_left);

// An atomic operation left memory as it was: the thread may be spinning, so others get a turn.
void atomic_changed_nothing(const volatile void* address, Site site);
// An atomic operation changed memory, so nobody can say that nothing moves.
extern constinit thread_local unsigned turns_without_change;
inline void atomic_changed_memory() {
  turns_without_change = 0;
}

// Gives the other threads a turn.
void yield(Site site);

// Ends the launch with this error (a cudaError_t).
[[noreturn]] void trap(const char* what, Site site, int error);

}  // namespace simt::detail
