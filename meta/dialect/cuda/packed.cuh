// Vectors that stay as they are read, in 32-bit words, until they are used.
//
// A vector of 16-bit numbers is taken apart where it is loaded, which waits for it: what is read
// ahead is a Packed. VECTOR: the elements of an access.
#pragma once
#include "scalars.cuh"

#define FOR_ELEMENTS _Pragma("unroll") for (int j = 0; j < VECTOR; ++j)
#define ALIGNMENT(E) (sizeof(E) * VECTOR > 16 ? 16 : sizeof(E) * VECTOR)

template <class E> struct alignas(ALIGNMENT(E)) Vector {
  E at[VECTOR];
};
template <class E> struct alignas(ALIGNMENT(E) < 4 ? 4 : ALIGNMENT(E)) Packed {
  unsigned words[(sizeof(E) * VECTOR + 3) / 4];
};

template <class E> inline Packed<E> packed(const E* from) {
  Packed<E> found;
  if constexpr (sizeof(E) * VECTOR < 4)
    found.words[0] = from->bits;
  else
    found = *(const Packed<E>*)from;
  return found;
}

// Element j as a float, or as a double of doubles.
inline float element(const Packed<float>& v, int j) { return __uint_as_float(v.words[j]); }
inline double element(const Packed<double>& v, int j) {
  return __longlong_as_double((unsigned long long)v.words[2 * j + 1] << 32 | v.words[2 * j]);
}
template <class E> inline float element(const Packed<E>& v, int j) {
  E one;
  one.bits = (unsigned short)(v.words[j / 2] >> j % 2 * 16);
  return up(one);
}
