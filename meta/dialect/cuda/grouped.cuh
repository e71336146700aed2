// What the kernels of convolutions in groups share. Arrays have the channels last, and all kernels
// of a group its channels in a row; accesses are of eight channels: a chunk.
//
// A thread block goes through tiles of pixels for GROUPS neighbouring groups. What the windows of a
// tile read is copied to shared memory, group by group, with zeros around images; the next tile's
// is on its way meanwhile if STAGES is 2.
//
// READ, GIVEN: channels of a group in what is read by windows, and on the other side. TILE_H,
// TILE_W: of pixels. STEP_H, STEP_W: from one's window to the next one's. PATCH_H, PATCH_W: pixels
// that a tile reads, ORIGIN_H, ORIGIN_W where they begin. PITCH: from one of them to the next, in
// chunks. KERNEL_H, KERNEL_W, DILATION_H, DILATION_W: the window.
#include "tensor_core.cuh"

#define CHUNKS (READ / 8)  // of a pixel
#define PATCH (PATCH_H * PATCH_W)
#define PIXELS (TILE_H * TILE_W)
#define WINDOW (KERNEL_H * KERNEL_W)
#define ROWS ((PIXELS + 15) / 16)  // of matrices

// x is what is read by windows; z is added, y of the gradient by the kernel, which leaves its sums
// in partial, one for each of the splits. Extents: of images as read, of them what any window has,
// and on the other side.
struct Parameters {
  const T* x;
  const T* w;
  const T* bias;
  const T* z;
  T* out;
  float* partial;
  int images, height, width, seen_h, seen_w, out_height, out_width, groups, tiles_h, tiles_w,
      splits;
};

struct Tile {
  int image, y, x;
};
inline Tile tile_of(const Parameters& p, int i) {
  int row = i / p.tiles_w;
  return {row / p.tiles_h, row % p.tiles_h * TILE_H, i % p.tiles_w * TILE_W};
}
inline bool within(int i, int extent) { return (unsigned)i < (unsigned)extent; }

// Begins to copy a rectangle of high x wide pixels of images, from y and x on, of `each` chunks in
// each group; pixels lie `pitch` chunks apart, groups `high` x `wide` pixels. Of pixels that are
// not seen there are zeros.
template <int high, int wide, int each, int pitch, class At>
inline void fill(At to, const T* from, int image, int y, int x, int height, int width, int seen_h,
                 int seen_w, int groups) {
  int first = blockIdx.y * GROUPS;
  for (int i = threadIdx.x; i < high * wide * GROUPS * each; i += THREADS) {
    int chunk = i % (GROUPS * each), pixel = i / (GROUPS * each), group = chunk / each;
    int at_y = y + pixel / wide, at_x = x + pixel % wide;
    bool there = within(at_y, seen_h) && within(at_x, seen_w) && first + group < groups;
    long long at = ((long long)image * height + at_y) * width + at_x;
    const T* source = from + (at * groups + first) * (each * 8) + chunk * 8;
    begin_copy(to + (group * (high * wide) + pixel) * pitch + chunk % each, there ? source : from,
               there);
  }
}

template <class At> inline void fill_patch(At to, const Parameters& p, Tile tile) {
  fill<PATCH_H, PATCH_W, CHUNKS, PITCH>(to, p.x, tile.image, tile.y * STEP_H + ORIGIN_H,
                                        tile.x * STEP_W + ORIGIN_W, p.height, p.width, p.seen_h,
                                        p.seen_w, p.groups);
}

#ifdef PITCH_Y
template <class At> inline void fill_given(At to, const Parameters& p, Tile tile) {
  int high = p.out_height, wide = p.out_width;
  fill<TILE_H, TILE_W, GIVEN / 8, PITCH_Y>(to, p.z, tile.image, tile.y, tile.x, high, wide, high,
                                           wide, p.groups);
}
#endif

// Where the window of a pixel of the tile begins in a group's patch, in chunks.
inline int window_of(int pixel) {
  return (pixel / TILE_W * STEP_H * PATCH_W + pixel % TILE_W * STEP_W) * PITCH;
}
