// Switching from one stack to another.
//
// On x86-64 a switch of our own, compiled into the function that waits: the processor's prediction of return addresses
// stays in step, because the thread that goes on returns to where the one that stopped was called from. With
// Boost.Context, whose switch is a function, each return on the way back to the kernel is mispredicted; simt_benchmark
// measures both (build with SIMT_USE_BOOST_CONTEXT to see the other one). Everywhere else it is Boost.Context.
#pragma once

#include <cstddef>

#if !defined(__x86_64__) && !defined(SIMT_USE_BOOST_CONTEXT)
#define SIMT_USE_BOOST_CONTEXT
#endif

#ifdef SIMT_USE_BOOST_CONTEXT
#include <boost/context/detail/fcontext.hpp>
#endif

namespace simt::detail {

#ifdef SIMT_USE_BOOST_CONTEXT

// A suspended stack.
using Context = boost::context::detail::fcontext_t;

// Suspends the running stack as *save_at and goes on with `target`.
inline void switch_stack(Context target, Context* save_at) {
  const auto from = boost::context::detail::jump_fcontext(target, save_at);
  *static_cast<Context*>(from.data) = from.fctx;
}

// A stack of `bytes` below `top` that begins with `entry`, which must not return.
template <void (*entry)()>
Context make_context(char* top, size_t bytes) {
  return boost::context::detail::make_fcontext(top, bytes, [](boost::context::detail::transfer_t from) {
    *static_cast<Context*>(from.data) = from.fctx;
    entry();
  });
}

#else

// A suspended stack: its stack pointer. On the stack, from there up: rbx, rbp, where to go on.
using Context = void*;

[[gnu::always_inline]] inline void switch_stack(Context target, Context* save_at) {
  // rbx and rbp cannot be named as overwritten in every function, so they go onto the stack; the compiler saves what
  // else it needs. It must be built with -mno-red-zone, so that nothing lies below the stack pointer.
  asm volatile(
      "leaq 1f(%%rip), %%rax\n\t"
      "pushq %%rax\n\t"
      "pushq %%rbp\n\t"
      "pushq %%rbx\n\t"
      "movq %%rsp, (%[save_at])\n\t"
      "movq %[target], %%rsp\n\t"
      "popq %%rbx\n\t"
      "popq %%rbp\n\t"
      "popq %%rax\n\t"
      "jmpq *%%rax\n"
      "1:"
      : [target] "+D"(target), [save_at] "+S"(save_at)
      :
      : "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1", "xmm2", "xmm3",
        "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15",
#ifdef __AVX512F__
        "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27",
        "xmm28", "xmm29", "xmm30", "xmm31", "k1", "k2", "k3", "k4", "k5", "k6", "k7",
#endif
        "memory", "cc");
}

template <void (*entry)()>
Context make_context(char* top, size_t) {
  // A function finds the stack 8 bytes off a multiple of 16, as after a call; the return address is null, where
  // backtraces end.
  void** stack = reinterpret_cast<void**>(reinterpret_cast<size_t>(top) & ~size_t{15}) - 1;
  *stack = nullptr;
  *--stack = reinterpret_cast<void*>(entry);
  *--stack = nullptr;  // rbp
  *--stack = nullptr;  // rbx
  return stack;
}

#endif

}  // namespace simt::detail
