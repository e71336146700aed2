// The gradient by x of a depthwise convolution of any stride: a thread collects, for strips of a
// row of x, what the pixels of dy whose windows have them give. x of the parameters is dy, out dx.
#include "depthwise.cuh"

// The pixel of dy whose window has this one of x at element k of an axis; -1 if there is none.
inline int pixel(int i, int before, int k, int stride, int dilation, int extent) {
  int from = i + before - k * dilation;
  return from < 0 || from % stride || from / stride >= extent ? -1 : from / stride;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    depthwise_dx(const __grid_constant__ Parameters p) {
  __shared__ float weights[WINDOW][WIDTH];
  int lane = threadIdx.x % LANES, row = threadIdx.x / LANES;
  int tile = blockIdx.y * WIDTH, channel = tile + lane * VECTOR;
  for (int i = threadIdx.x; i < WINDOW * WIDTH; i += THREADS) {
    int k = i / WIDTH, c = i % WIDTH;
    weights[k][c] = tile + c < p.channels ? up(p.w[(long long)(tile + c) * WINDOW + k]) : 0.0f;
  }
  __syncthreads();
  if (channel >= p.channels) return;
  int strips = (p.width + STRIP - 1) / STRIP;
  long long step = (long long)gridDim.x * ROWS;
  for (long long item = (long long)blockIdx.x * ROWS + row; item < p.lines * strips; item += step) {
    long long line = item / strips;
    int first = (int)(item % strips) * STRIP;
    long long image = line / p.height;
    int y = (int)(line % p.height);
    float sums[STRIP][VECTOR] = {};
    UNROLL for (int ky = 0; ky < KERNEL_H; ++ky) {
      int oy = pixel(y, p.before_h, ky, STRIDE_H, DILATION_H, p.out_height);
      if (oy < 0) continue;
      const T* from = p.x + (image * p.out_height + oy) * p.out_width * p.channels + channel;
      UNROLL for (int t = 0; t < STRIP; ++t) {
        UNROLL for (int kx = 0; kx < KERNEL_W; ++kx) {
          int ox = pixel(first + t, p.before_w, kx, STRIDE_W, DILATION_W, p.out_width);
          if (ox < 0) continue;
          Packed<T> v = packed(from + (long long)ox * p.channels);
          UNROLL for (int e = 0; e < VECTOR; ++e) {
            sums[t][e] += element(v, e) * weights[ky * KERNEL_W + kx][lane * VECTOR + e];
          }
        }
      }
    }
    T* to = p.out + (line * p.width + first) * p.channels + channel;
    UNROLL for (int t = 0; t < STRIP; ++t) {
      if (first + t >= p.width) continue;
      Vector<T> result;
      UNROLL for (int e = 0; e < VECTOR; ++e) { down(result.at[e], sums[t][e]); }
      *(Vector<T>*)(to + (long long)t * p.channels) = result;
    }
  }
}
