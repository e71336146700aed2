// Sorts each chunk of indices by bucket, by counting the smaller ones.
#include "embedding.cuh"

// entries: places in the chunk, with the row in its bucket above. starts: by chunk and bucket.
extern "C" __global__ void __launch_bounds__(CHUNK) arrange(const __grid_constant__ Parameters p) {
  __shared__ unsigned keys[CHUNK];  // bucket, place
  __shared__ unsigned sorted[CHUNK];
  long long base = (long long)blockIdx.x * CHUNK;
  int place = threadIdx.x;
  bool inside = base + place < p.count;
  unsigned row = inside ? row_of(p, base + place) : 0;
  unsigned key = inside ? row / p.rows_each * CHUNK + place : FULL - CHUNK + place;
  keys[place] = key;
  __syncthreads();
  int rank = 0;
#pragma unroll 32
  for (int k = 0; k < CHUNK; ++k) rank += keys[k] < key;
  sorted[rank] = key;
  if (inside) p.entries[base + rank] = (unsigned short)(row % p.rows_each * CHUNK + place);
  __syncthreads();
  int buckets = (int)((p.rows + p.rows_each - 1) / p.rows_each);
  unsigned short* starts = p.starts + blockIdx.x * (buckets + 1ll);
#pragma unroll 4
  for (int bucket = threadIdx.x; bucket <= buckets; bucket += CHUNK) {
    unsigned bound = (unsigned)bucket * CHUNK;
    int first = 0;  // how many keys are of the buckets before
#pragma unroll
    for (int half = CHUNK / 2; half > 0; half /= 2)
      if (sorted[first + half - 1] < bound) first += half;
    starts[bucket] = (unsigned short)(first + (sorted[first] < bound));
  }
}
