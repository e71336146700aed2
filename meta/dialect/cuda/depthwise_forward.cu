// A depthwise convolution: a thread sums strips of a row for a few channels. With FLIPPED the
// window is turned round, which is the gradient by x where the stride is 1.
//
// BIASED, NORMALISED: a bias and a normalisation by given statistics follow, of which factors are
// the weights' and the rest is what sums begin with. An ACTIVATION is of that.
#include "depthwise.cuh"
#ifdef ACTIVATION
#include "activation.cuh"
#endif

inline float factor_of(const Parameters& p, int channel) {
  float found = 1.0f;
#ifdef NORMALISED
  found /= sqrtf((float)up(p.var[channel]) + p.eps);
  if (p.scale) found *= (float)up(p.scale[channel]);
#endif
  return found;
}
inline float offset_of(const Parameters& p, int channel) {
  float found = 0.0f;
#ifdef BIASED
  found = (float)up(p.bias[channel]);
#endif
#ifdef NORMALISED
  found = (found - (float)up(p.mean[channel])) * factor_of(p, channel);
  if (p.shift) found += (float)up(p.shift[channel]);
#endif
  return found;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    depthwise(const __grid_constant__ Parameters p) {
  __shared__ float weights[WINDOW][WIDTH];
  int lane = threadIdx.x % LANES, row = threadIdx.x / LANES;
  int tile = blockIdx.y * WIDTH, channel = tile + lane * VECTOR;
  for (int i = threadIdx.x; i < WINDOW * WIDTH; i += THREADS) {
    int k = i / WIDTH, c = i % WIDTH;
#ifdef FLIPPED
    int from = WINDOW - 1 - k;
#else
    int from = k;
#endif
    weights[k][c] = 0.0f;
    if (tile + c < p.channels)
      weights[k][c] = up(p.w[(long long)(tile + c) * WINDOW + from]) * factor_of(p, tile + c);
  }
  __syncthreads();
  if (channel >= p.channels) return;
  float offset[VECTOR];
  UNROLL for (int e = 0; e < VECTOR; ++e) { offset[e] = offset_of(p, channel + e); }
  int strips = (p.out_width + STRIP - 1) / STRIP;
  long long step = (long long)gridDim.x * ROWS;
  for (long long item = (long long)blockIdx.x * ROWS + row; item < p.lines * strips; item += step) {
    long long line = item / strips;
    int first = (int)(item % strips) * STRIP;
    long long image = line / p.out_height;
    int top = (int)(line % p.out_height) * STRIDE_H - p.before_h;
    int left = first * STRIDE_W - p.before_w;
    float sums[STRIP][VECTOR];
    UNROLL for (int t = 0; t < STRIP; ++t) {
      UNROLL for (int e = 0; e < VECTOR; ++e) { sums[t][e] = offset[e]; }
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
            sums[t][e] += element(v[j], e) * weights[ky * KERNEL_W + kx][lane * VECTOR + e];
          }
        }
      }
    }
    T* to = p.out + (line * p.out_width + first) * p.channels + channel;
    UNROLL for (int t = 0; t < STRIP; ++t) {
      if (first + t >= p.out_width) continue;
      Vector<T> result;
      UNROLL for (int e = 0; e < VECTOR; ++e) {
#ifdef ACTIVATION
        sums[t][e] = ACTIVATION::value(sums[t][e]);
#endif
        down(result.at[e], sums[t][e]);
      }
      *(Vector<T>*)(to + (long long)t * p.channels) = result;
    }
  }
}
