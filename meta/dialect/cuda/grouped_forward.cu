// A convolution in groups, with what follows it, and its gradient by x: products of a matrix of
// pixels by the window's chunks, and one of these by the group's results.
//
// A warp has a group's weights, or some columns of them, in registers, and goes through pixels, 16
// at a time. Any order of the sum will do if both factors have it: in a step, which is two
// products, lane t has all numbers of chunk t of four. So both factors are read in accesses of a
// chunk, weights as they lie in memory.
//
// With GRADIENT, x is dy and out is dx. By stride, pixels of dx fall in OVER_H x OVER_W phases,
// each of which is a convolution by some elements of the window; one pixel of a tile is one of
// each. Otherwise there is one phase. BIASED, ADDED, RECTIFIED: what follows a convolution. SHARES:
// warps that share the pixels of a group; PARTS: of its columns, each of COLUMNS / 8 matrices.
#include "grouped.cuh"

#define PHASES (OVER_H * OVER_W)
#define MATRICES (COLUMNS / 8)

// Elements of the window that a phase of an axis has, from the first on; where the i-th one reads,
// from where windows begin.
struct Axis {
  int kernel, before, over, dilation, origin;
};
#ifdef GRADIENT
inline constexpr bool has(Axis a, int phase, int k) {
  return (phase + a.before - k * a.dilation) % a.over == 0;
}
inline constexpr int reads(Axis a, int phase, int k) {
  return (phase + a.before - k * a.dilation) / a.over - a.origin;
}
#else
inline constexpr bool has(Axis a, int phase, int k) { return true; }
inline constexpr int reads(Axis a, int phase, int k) { return k * a.dilation; }
#endif
inline constexpr int count(Axis a, int phase) {
  int found = 0;
  for (int k = 0; k < a.kernel; ++k) found += has(a, phase, k);
  return found;
}
inline constexpr int element_of(Axis a, int phase, int i) {
  int found = 0;
  for (int k = 0; k < a.kernel; ++k) {
    if (has(a, phase, k) && i-- == 0) found = k;
  }
  return found;
}
#define HIGH (Axis{KERNEL_H, BEFORE_H, OVER_H, DILATION_H, ORIGIN_H})
#define WIDE (Axis{KERNEL_W, BEFORE_W, OVER_W, DILATION_W, ORIGIN_W})
// Chunks of a phase, steps to sum them, and those of all phases before.
inline constexpr int chunks(int phase) {
  return count(HIGH, phase / OVER_W) * count(WIDE, phase % OVER_W) * CHUNKS;
}
inline constexpr int steps(int phase) { return (chunks(phase) + 3) / 4; }
inline constexpr int before(int phase) {
  int found = 0;
  for (int i = 0; i < phase; ++i) found += steps(i);
  return found;
}
constexpr int STEPS = before(PHASES);

// All that, once: calls with numbers of unrolled loops would be made by threads. A chunk has its
// element of the window, or -1 if it is none, its channel of x and where in a patch it is.
struct Chunk {
  int element, channel, from;
};
struct Sum {
  int phase[STEPS], left[STEPS];  // of a step: its phase, and how many chunks it has from here on
  Chunk chunks[4 * STEPS];
};
inline constexpr Sum in_steps() {
  Sum found = {};
  for (int phase = 0, s = 0; phase < PHASES; ++phase) {
    int wide = count(WIDE, phase % OVER_W);
    for (int first = 0; first < chunks(phase); first += 4, ++s) {
      found.phase[s] = phase;
      found.left[s] = chunks(phase) - first;
      for (int t = 0; t < 4; ++t) {
        int i = (first + t) / CHUNKS, c = (first + t) % CHUNKS;
        found.chunks[4 * s + t] = {-1, 0, 0};
        if (t >= found.left[s]) continue;
        int ky = element_of(HIGH, phase / OVER_W, i / wide);
        int kx = element_of(WIDE, phase % OVER_W, i % wide);
        int y = reads(HIGH, phase / OVER_W, ky), x = reads(WIDE, phase % OVER_W, kx);
        found.chunks[4 * s + t] = {ky * KERNEL_W + kx, c * 8, (y * PATCH_W + x) * PITCH + c};
      }
    }
  }
  return found;
}
__device__ constexpr Sum SUM = in_steps();

// Eight weights of a group for one result, by channels of x from c on, at element k of the window.
inline uint4 weights(const T* w, int group, int result, int k, int c) {
#ifdef GRADIENT
  unsigned found[4];
  const T* from = w + (((long long)group * READ + c) * WINDOW + k) * GIVEN + result;
  EVERY(i, 4) {
    unsigned even = from[2 * i * WINDOW * GIVEN].bits,
             odd = from[(2 * i + 1) * WINDOW * GIVEN].bits;
    found[i] = even | odd << 16;
  }
  return make_uint4(found[0], found[1], found[2], found[3]);
#else
  return *(const uint4*)(w + (((long long)group * GIVEN + result) * WINDOW + k) * READ + c);
#endif
}

struct Two {
  unsigned bits;
};
inline Two rounded(float first, float second) {
  T low, high;
  down(low, first);
  down(high, second);
  return {low.bits | (unsigned)high.bits << 16};
}
inline float low(unsigned both) { return up(T{(unsigned short)both}); }
inline float high(unsigned both) { return up(T{(unsigned short)(both >> 16)}); }

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    grouped(const __grid_constant__ Parameters p) {
  __shared__ uint4 patch[STAGES * GROUPS * PATCH * PITCH];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  int share = warp % SHARES, part = warp / SHARES % PARTS, own = warp / (SHARES * PARTS);
  int group = blockIdx.y * GROUPS + own, tiles = p.images * p.tiles_h * p.tiles_w;
  int tile = blockIdx.x, stage = 0;
  fill_patch(patch + 0, p, tile_of(p, tile));
  end_batch();

  uint4 w[STEPS][MATRICES];
  int from[STEPS];
  bool present = group < p.groups;
  EVERY(s, STEPS) {
    Chunk chunk = SUM.chunks[4 * s + t];
    from[s] = chunk.from;
    EVERY(j, MATRICES) {
      int result = (part * MATRICES + j) * 8 + g;
      w[s][j] = make_uint4(0, 0, 0, 0);
      if (chunk.element >= 0 && present)
        w[s][j] = weights(p.w, group, result, chunk.element, chunk.channel);
    }
  }
  int channel = group * GIVEN + part * COLUMNS + 2 * t;
#ifdef BIASED
  unsigned bias[MATRICES];
  EVERY(j, MATRICES) bias[j] = present ? *(const unsigned*)(p.bias + channel + 8 * j) : 0;
#endif

  for (; tile < tiles; tile += gridDim.x) {
    int next = tile + gridDim.x;
#if STAGES == 2
    if (next < tiles)
      fill_patch(patch + (1 - stage) * (GROUPS * PATCH * PITCH), p, tile_of(p, next));
    end_batch();
    await_copies<1>();
#else
    await_copies<0>();
#endif
    __syncthreads();
    Tile here = tile_of(p, tile);
    int begin = (stage * GROUPS + own) * (PATCH * PITCH);
#pragma unroll 1
    for (int row = share; row < ROWS; row += SHARES) {
      int pixel = row * 16 + g, after = pixel + 8;
      int one = begin + window_of(pixel < PIXELS ? pixel : 0);
      int two = begin + window_of(after < PIXELS ? after : 0);
      EVERY(phase, PHASES) {
        float sums[MATRICES][4] = {};
        EVERY(s, STEPS) {
          if (SUM.phase[s] != phase) continue;
          uint4 a = make_uint4(0, 0, 0, 0), b = a;  // of no chunk: its numbers may be infinite
          if (SUM.left[s] >= 4 || t < SUM.left[s]) {
            a = patch[one + from[s]];
            b = patch[two + from[s]];
          }
          unsigned early[4] = {a.x, b.x, a.y, b.y}, late[4] = {a.z, b.z, a.w, b.w};
          EVERY(j, MATRICES) {
            unsigned first[2] = {w[s][j].x, w[s][j].y}, second[2] = {w[s][j].z, w[s][j].w};
            multiply_add(sums[j], early, first);
            multiply_add(sums[j], late, second);
          }
        }
        EVERY(half, 2) {
          int i = pixel + 8 * half;
          int y = (here.y + i / TILE_W) * OVER_H + phase / OVER_W;
          int x = (here.x + i % TILE_W) * OVER_W + phase % OVER_W;
          if (i >= PIXELS || !present || y >= p.out_height || x >= p.out_width) continue;
          long long at = ((long long)here.image * p.out_height + y) * p.out_width + x;
          at = at * p.groups * GIVEN + channel;
          EVERY(j, MATRICES) {
            float a = sums[j][2 * half], b = sums[j][2 * half + 1];
#ifdef BIASED
            a += low(bias[j]), b += high(bias[j]);
#endif
#ifdef ADDED
            unsigned z = *(const unsigned*)(p.z + at + 8 * j);
            a += low(z), b += high(z);
#endif
#ifdef RECTIFIED
            a = a < 0.0f ? 0.0f : a, b = b < 0.0f ? 0.0f : b;  // keeps what is no number
#endif
            *(Two*)(p.out + at + 8 * j) = rounded(a, b);
          }
        }
      }
    }
    __syncthreads();
#if STAGES == 2
    stage = 1 - stage;
#else
    if (next < tiles) fill_patch(patch + 0, p, tile_of(p, next));
    end_batch();
#endif
  }
}
