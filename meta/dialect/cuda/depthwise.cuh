// What the kernels of depthwise convolutions share: arrays have the channels last, and a kernel has
// its window's elements of one channel in a row.
//
// DATA: the dtype; BIAS, STATISTIC and PARAMETER: those of what follows a convolution. KERNEL_H,
// KERNEL_W, STRIDE_H, STRIDE_W, DILATION_H, DILATION_W: the window. STRIP: pixels of a row that a
// thread has at a time. VECTOR: channels of an access. LANES: threads beside one another along the
// channels; ROWS: strips of a thread block.
#include "packed.cuh"

typedef DATA T;
#define THREADS (LANES * ROWS)
#define WINDOW (KERNEL_H * KERNEL_W)
#define WIDTH (LANES * VECTOR)  // channels of a thread block
// Columns of x that a strip of the result reads.
#define SPAN ((STRIP - 1) * STRIDE_W + (KERNEL_W - 1) * DILATION_W + 1)
#define UNROLL _Pragma("unroll")

// x is read and out written by the forward kernel; of the gradients, see there. Extents and padding
// are those of the convolution, lines the rows of all images.
struct Parameters {
  const T* x;
  const T* w;
  T* out;
  float* partial;
  const BIAS* bias;
  const STATISTIC* mean;
  const STATISTIC* var;
  const PARAMETER* scale;
  const PARAMETER* shift;
  long long lines;
  int height, width, out_height, out_width, channels, before_h, before_w, splits;
  float eps;
};

// The column of the window that reads column j of a span for pixel t of the strip; -1 if none does.
constexpr int column_of(int j, int t) {
  return j < t * STRIDE_W || (j - t * STRIDE_W) % DILATION_W ||
                 (j - t * STRIDE_W) / DILATION_W >= KERNEL_W
             ? -1
             : (j - t * STRIDE_W) / DILATION_W;
}

inline bool within(int i, int extent) { return (unsigned)i < (unsigned)extent; }
