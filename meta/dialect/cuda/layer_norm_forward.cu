// The normalised rows; mean and 1 / deviation of each, too, where they are wanted.
#include "layer_norm.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    forward(const __grid_constant__ Parameters p) {
  int lane = threadIdx.x % GROUP, group = threadIdx.x / GROUP;
  long long step = (long long)gridDim.x * GROUPS, row = (long long)blockIdx.x * GROUPS + group;
  Raw<T> next = {};
#if ADDS
  Raw<A> addend = {};
#endif
  if (row < p.rows) {
    fetch(next, p.x + row * WIDTH, lane);
#if ADDS
    fetch(addend, p.addend + row * WIDTH, lane);
#endif
  }
  for (; row - group < p.rows; row += step) {
    bool inside = row < p.rows;
    Row x = {};
    widen(x, next, lane);
#if ADDS
    FOR_EACH {
      Vector<A> sum;
      Vector<T> rounded;
      FOR_ELEMENTS {
        float both = x[i][j] + element(addend.at[i], j);
        down(sum.at[j], both);
        down(rounded.at[j], both);
        x[i][j] = ROUNDS ? up(rounded.at[j]) : up(sum.at[j]);
      }
      if (inside && p.wide) *(Vector<A>*)(p.wide + row * WIDTH + column) = sum;
      if (inside && p.added) *(Vector<T>*)(p.added + row * WIDTH + column) = rounded;
    }
#endif
    if (row + step < p.rows) {
      fetch(next, p.x + (row + step) * WIDTH, lane);
#if ADDS
      fetch(addend, p.addend + (row + step) * WIDTH, lane);
#endif
    }
    float mean, inv;
    statistics(x, lane, p.eps, mean, inv);
    if (!inside) continue;
    if (p.new_mean && lane == 0) {
      p.new_mean[row] = mean;
      p.new_inv[row] = inv;
    }
    FOR_EACH {
      FOR_ELEMENTS x[i][j] *= inv;
      if (p.scale) {
        Packed<P> scale = packed(p.scale + column);
        FOR_ELEMENTS x[i][j] *= element(scale, j);
      }
      if (p.bias) {
        Packed<P> bias = packed(p.bias + column);
        FOR_ELEMENTS x[i][j] += element(bias, j);
      }
      put(p, row * WIDTH + column, x[i]);
    }
  }
}
