// Products of half precision on tensor cores, and what feeds them, in shared memory.
//
// A product of 16 x 16 by 16 x 8 numbers is one instruction. Lane 4 g + t holds of its first factor
// the rows g and g + 8 by turns, columns 2 t and 2 t + 1, then 2 t + 8 and 2 t + 9; of the second
// the same rows of column g; of the sum the rows g and g + 8, columns 2 t and 2 t + 1.
//
// DATA: the dtype, HALF as its instruction names it. COPIES: of sixteen bytes, which are on their
// way while threads go on.
#pragma once
#include "scalars.cuh"

typedef DATA T;
#define EVERY(i, n) _Pragma("unroll") for (int i = 0; i < (n); ++i)

inline void multiply_add(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32." HALF "." HALF
      ".f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <class At> inline unsigned shared_address(At at) {
  unsigned long long found;
  asm("cvta.to.shared.u64 %0, %1;" : "=l"(found) : "l"(at));
  return (unsigned)found;
}

// Starts to copy 16 bytes to shared memory, or to fill them with zeros.
template <class At> inline void begin_copy(At to, const T* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0)
               : "memory");
}
// Starts to copy 4, 8 or 16 bytes to shared memory.
template <int bytes, class At, class From> inline void begin_small_copy(At to, From from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
               :
               : "r"(shared_address(to)), "l"(from), "n"(bytes)
               : "memory");
}
// The copies up to here are one batch.
inline void end_batch() { asm volatile("cp.async.commit_group;" : : : "memory"); }
// Waits until this thread's copies are done, but for the last batch if `pending` is 1.
template <int pending> inline void await_copies() {
  asm volatile("cp.async.wait_group %0;" : : "n"(pending) : "memory");
}

// Four matrices of 8 x 8 numbers: lane 8 i + r gives the address of row r of the i-th one, lane
// 4 g + t gets the columns 2 t and 2 t + 1 of row g.
template <class At> inline void load_matrices(unsigned (&to)[4], At row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}
// Matrices of 8 x 8 numbers, turned: lane 8 i + r gives the address of row r of the i-th one, lane
// 4 g + t gets the rows 2 t and 2 t + 1 of column g.
template <class At> inline void load_turned(unsigned (&to)[4], At row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}
template <class At> inline void load_turned(unsigned (&to)[2], At row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(to[0]), "=r"(to[1])
               : "r"(shared_address(row))
               : "memory");
}
