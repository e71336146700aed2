// The gradient by the kernel of a depthwise convolution. A thread adds up all elements of the
// window for a few channels, over some strips; the first launch leaves one sum for each of its
// splits, the second one adds these up, in order. w of the parameters is dy, out is dw.
#include "depthwise.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) sums(const __grid_constant__ Parameters p) {
  __shared__ float parts[ROWS][WIDTH];
  int lane = threadIdx.x % LANES, row = threadIdx.x / LANES;
  int channel = blockIdx.y * WIDTH + lane * VECTOR;
  bool inside = channel < p.channels;
  int strips = (p.out_width + STRIP - 1) / STRIP;
  long long step = (long long)gridDim.x * ROWS, items = inside ? p.lines * strips : 0;
  float total[WINDOW][VECTOR] = {};
  for (long long item = (long long)blockIdx.x * ROWS + row; item < items; item += step) {
    long long line = item / strips;
    int first = (int)(item % strips) * STRIP;
    long long image = line / p.out_height;
    int top = (int)(line % p.out_height) * STRIDE_H - p.before_h;
    int left = first * STRIDE_W - p.before_w;
    const T* given = p.w + (line * p.out_width + first) * p.channels + channel;
    Packed<T> dy[STRIP] = {};
    UNROLL for (int t = 0; t < STRIP; ++t) {
      if (first + t < p.out_width) dy[t] = packed(given + (long long)t * p.channels);
    }
    UNROLL for (int ky = 0; ky < KERNEL_H; ++ky) {
      int y = top + ky * DILATION_H;
      if (!within(y, p.height)) continue;
      const T* from = p.x + (image * p.height + y) * p.width * p.channels + channel;
      Packed<T> v[SPAN] = {};
      UNROLL for (int j = 0; j < SPAN; ++j) {
        if (within(left + j, p.width)) v[j] = packed(from + (long long)(left + j) * p.channels);
      }
      UNROLL for (int j = 0; j < SPAN; ++j) {
        UNROLL for (int t = 0; t < STRIP; ++t) {
          int kx = column_of(j, t);
          if (kx < 0) continue;
          UNROLL for (int e = 0; e < VECTOR; ++e) {
            total[ky * KERNEL_W + kx][e] += element(v[j], e) * element(dy[t], e);
          }
        }
      }
    }
  }
  UNROLL for (int k = 0; k < WINDOW; ++k) {
    __syncthreads();
    UNROLL for (int e = 0; e < VECTOR; ++e) { parts[row][lane * VECTOR + e] = total[k][e]; }
    __syncthreads();
    for (int c = threadIdx.x; c < WIDTH; c += THREADS) {
      int to = blockIdx.y * WIDTH + c;
      if (to >= p.channels) continue;
      float sum = 0.0f;
      for (int r = 0; r < ROWS; ++r) sum += parts[r][c];
      p.partial[((long long)blockIdx.x * WINDOW + k) * p.channels + to] = sum;
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) finish(const __grid_constant__ Parameters p) {
  int i = blockIdx.x * THREADS + threadIdx.x;
  if (i >= WINDOW * p.channels) return;
  int k = i / p.channels, channel = i % p.channels;
  float sum = 0.0f;
  for (int s = 0; s < p.splits; ++s)
    sum += p.partial[((long long)s * WINDOW + k) * p.channels + channel];
  down(p.out[(long long)channel * WINDOW + k], sum);
}
