// Launches that begin while the kernels before them still run (EARLY): what those write is read, and
// what they read is written, behind `await_others` only.
#pragma once

#if EARLY
inline void await_others() { asm volatile("griddepcontrol.wait;" : : : "memory"); }
inline void let_others_begin() { asm volatile("griddepcontrol.launch_dependents;" : : : "memory"); }
#else
inline void await_others() {}
inline void let_others_begin() {}
#endif
