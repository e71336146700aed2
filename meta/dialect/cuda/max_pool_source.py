"""CUDA source of the gradient of the maximum over windows, channels last.

A thread block takes a tile of the input and 16 bytes times `LANES` of its channels. It finds the
first maximum of every window that reaches into the tile, and keeps which tap that is in shared
memory; then each element of the tile adds up dy of the windows that it has won.
"""

from __future__ import annotations

from meta.dialect.cuda.scalars import C_TYPES, CONVERSIONS

THREADS, LANES, TILE = 256, 8, 16
SHARED = 48 * 1024
"""Bytes that every thread block may have."""

SOURCE = r"""
struct Parameters {
  const T* x; const T* dy; T* dx;
  int height, width, channels, out_height, out_width;
  int tiles_down, tiles_across, chunks;
};
struct __align__(sizeof(T) * VECTOR) Vector { T at[VECTOR]; };
struct Winners { unsigned char at[VECTOR]; };
#define FOR_ELEMENTS _Pragma("unroll") for (int j = 0; j < VECTOR; ++j)

// The first window that reaches ``place`` or what is behind it.
inline int first_window(int place, int before, int extent, int stride) {
  int from = place + before - extent + 1;
  return from <= 0 ? 0 : (from + stride - 1) / stride;
}

extern "C" __global__ void __launch_bounds__(THREADS)
scatter(const __grid_constant__ Parameters p) {
  __shared__ Winners winners[WINDOWS_DOWN * WINDOWS_ACROSS][LANES];
  int block = blockIdx.x;
  int chunk = block % p.chunks;
  block /= p.chunks;
  int left = block % p.tiles_across * TILE;
  block /= p.tiles_across;
  int top = block % p.tiles_down * TILE, image = block / p.tiles_down;
  int lane = threadIdx.x % LANES, part = threadIdx.x / LANES;
  int column = (chunk * LANES + lane) * VECTOR;
  bool inside = column < p.channels;
  const T* x = p.x + (long long)image * p.height * p.width * p.channels + column;
  T* dx = p.dx + (long long)image * p.height * p.width * p.channels + column;
  const T* dy = p.dy + (long long)image * p.out_height * p.out_width * p.channels + column;
  int upper = first_window(top, BEFORE_DOWN, EXTENT_DOWN, STRIDE_DOWN);
  int first = first_window(left, BEFORE_ACROSS, EXTENT_ACROSS, STRIDE_ACROSS);

  for (int w = part; w < WINDOWS_DOWN * WINDOWS_ACROSS; w += THREADS / LANES) {
    int row = upper + w / WINDOWS_ACROSS, col = first + w % WINDOWS_ACROSS;
    if (!inside || row >= p.out_height || col >= p.out_width) continue;
    float best[VECTOR];
    Winners won;
    bool none = true;
#pragma unroll
    for (int a = 0; a < KERNEL_DOWN; ++a) {
#pragma unroll
      for (int b = 0; b < KERNEL_ACROSS; ++b) {
        int h = row * STRIDE_DOWN - BEFORE_DOWN + a * DILATION_DOWN;
        int v = col * STRIDE_ACROSS - BEFORE_ACROSS + b * DILATION_ACROSS;
        if (h < 0 || h >= p.height || v < 0 || v >= p.width) continue;
        Vector found = *(const Vector*)(x + ((long long)h * p.width + v) * p.channels);
        FOR_ELEMENTS {
          float value = up(found.at[j]);
          bool nan = value != value && best[j] == best[j];
          if (none || value > best[j] || nan) {
            best[j] = value;
            won.at[j] = a * KERNEL_ACROSS + b;
          }
        }
        none = false;
      }
    }
    winners[w][lane] = won;
  }
  __syncthreads();
  if (!inside) return;

  for (int i = part; i < TILE * TILE; i += THREADS / LANES) {
    int h = top + i / TILE, v = left + i % TILE;
    if (h >= p.height || v >= p.width) continue;
    float sum[VECTOR] = {};
    int row = first_window(h, BEFORE_DOWN, EXTENT_DOWN, STRIDE_DOWN);
    int start = first_window(v, BEFORE_ACROSS, EXTENT_ACROSS, STRIDE_ACROSS);
    for (; row < p.out_height && row * STRIDE_DOWN <= h + BEFORE_DOWN; ++row) {
      int a = h + BEFORE_DOWN - row * STRIDE_DOWN;
      if (a % DILATION_DOWN) continue;
      for (int col = start; col < p.out_width && col * STRIDE_ACROSS <= v + BEFORE_ACROSS; ++col) {
        int b = v + BEFORE_ACROSS - col * STRIDE_ACROSS;
        if (b % DILATION_ACROSS) continue;
        int tap = a / DILATION_DOWN * KERNEL_ACROSS + b / DILATION_ACROSS;
        Winners won = winners[(row - upper) * WINDOWS_ACROSS + col - first][lane];
        Vector g = *(const Vector*)(dy + ((long long)row * p.out_width + col) * p.channels);
        FOR_ELEMENTS sum[j] += won.at[j] == tap ? (float)up(g.at[j]) : 0.0f;
      }
    }
    Vector result;
    FOR_ELEMENTS down(result.at[j], sum[j]);
    *(Vector*)(dx + ((long long)h * p.width + v) * p.channels) = result;
  }
}
"""


def windows(tile: int, extent: int, stride: int) -> int:
    """Return how many windows may reach into ``tile`` places, at most."""
    return (tile + extent - 2) // stride + 1


def source(dtype: str, vector: int, axes: dict[str, tuple[int, int, int, int]]) -> str:
    """Return the source for accesses of ``vector`` elements.

    axes: kernel, stride, padding before and dilation, "DOWN" and "ACROSS".
    """
    sizes = {"VECTOR": vector, "THREADS": THREADS, "LANES": LANES, "TILE": TILE}
    for name, (kernel, stride, before, dilation) in axes.items():
        extent = dilation * (kernel - 1) + 1
        sizes |= {
            f"KERNEL_{name}": kernel,
            f"STRIDE_{name}": stride,
            f"BEFORE_{name}": before,
            f"DILATION_{name}": dilation,
            f"EXTENT_{name}": extent,
            f"WINDOWS_{name}": windows(TILE, extent, stride),
        }
    defines = "".join(f"#define {name} {value}\n" for name, value in sizes.items())
    return f"typedef float W;\n{CONVERSIONS}typedef {C_TYPES[dtype]} T;\n{defines}{SOURCE}"
