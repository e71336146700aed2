// Adds elements to those of a row that indices name: a warp has a row in shared memory, in float32.
//
// DATA: the dtype of rows and elements. INDEX: that of the indices. WIDTH: elements of a row,
// COUNT: indices of a row, GIVEN: elements that there are for them, COUNT at least. VECTOR: of an
// access.
#include "packed.cuh"

const int LANES = 32;
const unsigned FULL = 0xffffffffu;

struct Parameters {
  const DATA* x;
  const INDEX* index;
  const DATA* added;
  DATA* out;
};

extern "C" __global__ void __launch_bounds__(LANES)
    scatter_add(const __grid_constant__ Parameters p) {
  __shared__ float sums[WIDTH];
  int lane = threadIdx.x;
  long long row = blockIdx.x;
  const DATA* x = p.x + row * WIDTH;
  for (int i = lane * VECTOR; i < WIDTH; i += LANES * VECTOR) {
    Packed<DATA> some = packed(x + i);
    FOR_ELEMENTS sums[i + j] = element(some, j);
  }
  for (int start = 0; start < COUNT; start += LANES) {
    int k = start + lane, at = -1;
    float value = 0;
    if (k < COUNT) {
      INDEX index = p.index[row * COUNT + k];
      // Outside of the row the nearest element is meant.
      at = index < 0 ? 0 : index >= WIDTH ? WIDTH - 1 : (int)index;
      value = up(p.added[row * GIVEN + k]);
    }
    // Equal indices take turns in the order of their lanes, so that a sum has one order.
    unsigned before = __match_any_sync(FULL, (unsigned)at) & ((1u << lane) - 1);
    int turn = __popc(before);
    for (int now = 0; __ballot_sync(FULL, at >= 0 && turn >= now); ++now) {
      __syncthreads();
      if (at >= 0 && turn == now) sums[at] += value;
    }
  }
  __syncthreads();
  for (int i = lane * VECTOR; i < WIDTH; i += LANES * VECTOR) {
    Vector<DATA> some;
    FOR_ELEMENTS down(some.at[j], sums[i + j]);
    *(Vector<DATA>*)(p.out + row * WIDTH + i) = some;
  }
}
