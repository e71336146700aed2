// The gradient by the kernel of a convolution in groups: for each group the product of a matrix of
// the window's chunks by pixels and one of pixels by results.
//
// A warp has two chunks, 16 rows, to a matrix of its part of the sums, and goes through all pixels
// of the thread block. The first launch leaves one sum for each of its splits; the second one adds
// these up, in order. PARTS: warps that share a group's sums, each of PART matrices by all results.
// Matrices lie in shared memory by pixels, and are turned where they are read: rows of an odd
// number of chunks are in different banks. PITCH_Y: of y, which is dy. SLICES: threads of an
// element of the second launch.
#include "grouped.cuh"

#define ALL (WINDOW * CHUNKS)  // chunks of a window
#define MATRICES (GIVEN / 8)

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    sums(const __grid_constant__ Parameters p) {
  __shared__ uint4 patch[STAGES * GROUPS * PATCH * PITCH];
  __shared__ uint4 given[STAGES * GROUPS * PIXELS * PITCH_Y];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  int part = warp % PARTS, own = warp / PARTS;
  int group = blockIdx.y * GROUPS + own, tiles = p.images * p.tiles_h * p.tiles_w;
  int tile = blockIdx.x, stage = 0;
  Tile here = tile_of(p, tile);
  fill_patch(patch + 0, p, here);
  fill_given(given + 0, p, here);
  end_batch();

  int from[PART];
  EVERY(m, PART) {
    int chunk = (part * PART + m) * 2 + lane / 8 % 2, k = chunk / CHUNKS;
    int at = (k / KERNEL_W * DILATION_H * PATCH_W + k % KERNEL_W * DILATION_W) * PITCH;
    from[m] = chunk < ALL ? at + chunk % CHUNKS : 0;
  }
  float total[PART][MATRICES][4] = {};
  for (; tile < tiles; tile += gridDim.x) {
    int next = tile + gridDim.x;
    Tile then = tile_of(p, next);
#if STAGES == 2
    if (next < tiles) {
      fill_patch(patch + (1 - stage) * (GROUPS * PATCH * PITCH), p, then);
      fill_given(given + (1 - stage) * (GROUPS * PIXELS * PITCH_Y), p, then);
    }
    end_batch();
    await_copies<1>();
#else
    await_copies<0>();
#endif
    __syncthreads();
    int begin = (stage * GROUPS + own) * (PATCH * PITCH);
    int begin_y = (stage * GROUPS + own) * (PIXELS * PITCH_Y);
#pragma unroll 1
    for (int row = 0; row < ROWS; ++row) {
      unsigned dy[MATRICES][2];
      EVERY(j, MATRICES)
        load_turned(dy[j], given + (begin_y + (row * 16 + lane % 16) * PITCH_Y + j));
      int window = begin + window_of(row * 16 + lane % 8 + lane / 16 * 8);
      EVERY(m, PART) {
        unsigned x[4];
        load_turned(x, patch + (window + from[m]));
        EVERY(j, MATRICES) multiply_add(total[m][j], x, dy[j]);
      }
    }
    __syncthreads();
#if STAGES == 2
    stage = 1 - stage;
#else
    if (next < tiles) {
      fill_patch(patch + 0, p, then);
      fill_given(given + 0, p, then);
    }
    end_batch();
#endif
  }
  if (group >= p.groups) return;
  float* to = p.partial + ((long long)blockIdx.x * p.groups + group) * (GIVEN * WINDOW * READ);
  EVERY(m, PART) {
    EVERY(half, 2) {
      int chunk = (part * PART + m) * 2 + half;
      if (chunk >= ALL) continue;
      EVERY(j, MATRICES) {
        EVERY(e, 2) {
          int result = 8 * j + 2 * t + e;
          to[result * (WINDOW * READ) + chunk * 8 + g] = total[m][j][2 * half + e];
        }
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(256) finish(const __grid_constant__ Parameters p) {
  __shared__ float parts[SLICES][256 / SLICES];
  int own = threadIdx.x % (256 / SLICES), slice = threadIdx.x / (256 / SLICES);
  int each = p.groups * (GIVEN * WINDOW * READ), i = blockIdx.x * (256 / SLICES) + own;
  float sum = 0.0f;
  if (i < each) {
#pragma unroll 4
    for (int s = slice; s < p.splits; s += SLICES) sum += p.partial[(long long)s * each + i];
  }
  parts[slice][own] = sum;
  __syncthreads();
  if (slice > 0 || i >= each) return;
  for (int s = 1; s < SLICES; ++s) sum += parts[s][own];
  down(p.out[i], sum);
}
