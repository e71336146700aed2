// Weights times a factor of their channel, and the biases beside them: batch normalisation by given
// statistics, folded into the weights of several layers.
//
// A kernel takes one struct by value: the addresses of all tensors, and their sizes. A thread block
// takes one chunk of the weights of one layer, [O, row], in vectors where addresses and rows allow,
// so that a vector is of one channel; and the biases of the channels that begin in the chunk.
//
// COMPUTE: the type to compute in. WEIGHT, MEAN, VAR, SCALE, SHIFT, B, RESULT: the types of the
// tensors. VECTOR: the elements of an access. AHEAD: accesses of a thread under way together.
// THREADS: of a block. CHUNK: the elements that it takes. TENSORS: for how many there is room.
#include "packed.cuh"

enum { OF_WEIGHT, OF_MEAN, OF_VAR, OF_SCALE, OF_SHIFT, OF_B, OF_RESULT, OF_BIAS, LISTS };

struct Parameters {
  double eps;
  int count;  // layers of the launch
  int spare;
  void* at[LISTS][TENSORS];  // those of scale, shift and b may be null
  unsigned size[TENSORS];
  unsigned row[TENSORS];   // elements of a channel
  int chunk[TENSORS + 1];  // the first chunk of each layer
};
#if __CUDA_ARCH__ >= 700
#define GRID_CONSTANT __grid_constant__
#else
#define GRID_CONSTANT
#endif

inline float inverse_root(float x) { return rsqrtf(x); }
inline double inverse_root(double x) { return rsqrt(x); }
template <class E> inline bool aligned(const E* at) {
  return (unsigned long long)at % ALIGNMENT(E) == 0;
}

struct Channels {
  const MEAN* mean;
  const VAR* var;
  const SCALE* scale;
  const SHIFT* shift;
  const B* b;
  W eps;

  inline W factor(unsigned channel) const {
    W found = inverse_root((W)up(var[channel]) + eps);
    return scale ? found * (W)up(scale[channel]) : found;
  }
  inline W bias(unsigned channel) const {
    W found = ((b ? (W)up(b[channel]) : (W)0) - (W)up(mean[channel])) * factor(channel);
    return shift ? found + (W)up(shift[channel]) : found;
  }
};

extern "C" __global__ void __launch_bounds__(THREADS) fold(const GRID_CONSTANT Parameters p) {
  int layer = 0, above = p.count;
  while (above - layer > 1) {
    int middle = (layer + above) / 2;
    if (p.chunk[middle] <= (int)blockIdx.x)
      layer = middle;
    else
      above = middle;
  }
  const Channels channels = {
      (const MEAN*)p.at[OF_MEAN][layer],   (const VAR*)p.at[OF_VAR][layer],
      (const SCALE*)p.at[OF_SCALE][layer], (const SHIFT*)p.at[OF_SHIFT][layer],
      (const B*)p.at[OF_B][layer],         (W)p.eps,
  };
  const WEIGHT* weight = (const WEIGHT*)p.at[OF_WEIGHT][layer];
  RESULT* result = (RESULT*)p.at[OF_RESULT][layer];
  RESULT* bias = (RESULT*)p.at[OF_BIAS][layer];
  const unsigned row = p.row[layer], size = p.size[layer];
  const unsigned begin = (blockIdx.x - p.chunk[layer]) * CHUNK;
  const unsigned end = size - begin < CHUNK ? size : begin + CHUNK;
  if (row % VECTOR == 0 && aligned(weight) && aligned(result)) {
    // The size is a multiple of a row, and a chunk of a vector: no vector is cut.
    for (unsigned first = begin + threadIdx.x * VECTOR; first < end;
         first += THREADS * VECTOR * AHEAD) {
      Packed<WEIGHT> found[AHEAD];
      W factor[AHEAD];
#pragma unroll
      for (int k = 0; k < AHEAD; ++k) {
        unsigned i = first + k * THREADS * VECTOR;
        if (i < end) found[k] = packed(weight + i);
      }
#pragma unroll
      for (int k = 0; k < AHEAD; ++k) {
        unsigned i = first + k * THREADS * VECTOR;
        // Without a branch, so that all are under way together.
        factor[k] = channels.factor((i < end ? i : first) / row);
      }
#pragma unroll
      for (int k = 0; k < AHEAD; ++k) {
        unsigned i = first + k * THREADS * VECTOR;
        if (i < end) {
          Vector<RESULT> made;
          FOR_ELEMENTS down(made.at[j], (W)element(found[k], j) * factor[k]);
          *(Vector<RESULT>*)(result + i) = made;
        }
      }
    }
  } else {
    for (unsigned i = begin + threadIdx.x; i < end; i += THREADS)
      down(result[i], (W)up(weight[i]) * channels.factor(i / row));
  }
  const unsigned last = (end + row - 1) / row;
  for (unsigned c = (begin + row - 1) / row + threadIdx.x; c < last; c += THREADS)
    down(bias[c], channels.bias(c));
}
