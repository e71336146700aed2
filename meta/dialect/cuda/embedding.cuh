// The gradient of an embedding's table.
//
// The rows of the table are divided into buckets, one for a thread block of embedding_dx(), which
// writes them. Before, arrange() sorts each chunk of indices by bucket, in the order in which they
// are within one; so a thread block finds its own with two numbers per chunk, in their order.
//
// Types: DATA of dy and the result, INDEX of the indices, ADDEND of what is added to the gradient.
// CHUNK: indices that are sorted together.
#pragma once
#include "scalars.cuh"

typedef DATA T;
typedef ADDEND A;
typedef INDEX I;

#define FULL 0xffffffffu

struct Parameters {
  const T* dy;
  const I* indices;
  const A* addend;
  T* out;
  unsigned short* entries;
  unsigned short* starts;
  long long count;
  long long width;
  long long rows;
  int rows_each;
  int chunks;
};

inline unsigned row_of(const Parameters& p, long long at) {
  long long row = (long long)p.indices[at];
  return (unsigned)(row < 0 ? 0 : row >= p.rows ? p.rows - 1 : row);
}
