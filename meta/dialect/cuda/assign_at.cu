// Writes slices at coordinates, in place: each thread moves a word.
//
// WORD: what is moved. INDEX: the dtype of the indices. INNER: words behind the indexed axes; REST:
// coordinates of each; PLACES: slices that the indexed axes have, EXTENTS those of each axis.
#include "scalars.cuh"

struct Parameters {
  WORD* x;
  const INDEX* indices;
  const WORD* value;
  long long count;
};

extern "C" __global__ void __launch_bounds__(BLOCK)
    assign_at(const __grid_constant__ Parameters p) {
  const long long extents[] = {EXTENTS};
  long long at = (long long)blockIdx.x * BLOCK + threadIdx.x;
  if (at >= p.count) return;
  long long row = at / INNER, outer = row / REST, place = 0;
  for (int axis = 0; axis < DEPTH; ++axis) {
    long long index = (long long)p.indices[axis * REST + row % REST], extent = extents[axis];
    // Outside of the axis the nearest place is meant.
    place = place * extent + (index < 0 ? 0 : index >= extent ? extent - 1 : index);
  }
  p.x[(outer * PLACES + place) * INNER + at % INNER] = p.value[at];
}
