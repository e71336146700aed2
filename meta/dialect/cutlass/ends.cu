// Ends of groups as CUTLASS takes them, and zeros in the rows after the last group.
// INDEX: the type of the ends.

struct Parameters {
  const INDEX* offs;  // groups of them
  int* starts;        // groups + 1: where each begins, and where the last one ends
  uint4* out;         // rows of `row` pieces of 16 bytes
  int groups;
  int row;
  long long rows;
};

extern "C" __global__ void __launch_bounds__(256) ends(const __grid_constant__ Parameters p) {
  long long place = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  long long threads = (long long)gridDim.x * blockDim.x;
  for (long long i = place; i <= p.groups; i += threads) p.starts[i] = i ? (int)p.offs[i - 1] : 0;
  long long first = (long long)p.offs[p.groups - 1] * p.row;
  for (long long i = first + place; i < p.rows * p.row; i += threads)
    p.out[i] = make_uint4(0, 0, 0, 0);
}
