// Launches that begin while the kernels before them still run (EARLY): what those write is read,
// and what they read is written, behind `await_others` only.
#pragma once

#if EARLY
inline void await_others() { asm volatile("griddepcontrol.wait;" : : : "memory"); }
inline void let_others_begin() { asm volatile("griddepcontrol.launch_dependents;" : : : "memory"); }
// Lets what is at an address come to the L2 cache, whatever others may write there meanwhile.
template <class T> inline void prefetch(const T* at) {
  asm volatile("prefetch.global.L2 [%0];" : : "l"(at) : "memory");
}
#else
inline void await_others() {}
inline void let_others_begin() {}
#endif
