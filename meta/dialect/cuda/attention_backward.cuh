// The gradients of attention in float32: scores and their gradients are computed twice, once by
// queries and once by keys, so that sums have one order.
//
// The first kernel leaves the product of each row of dy and y for the second.
//
// The probabilities of a query add up to 1, so what all values have in common cancels in
// dy value' - sum(dy * y), but takes digits of what they differ in with it. So the last row of y,
// which is near to it, is taken off both.
#pragma once
#include "attention.cuh"

#define PART 16  // rows of a tile whose scores a warp holds at a time

// Of y, of the first head that shares a key.
inline const float* last_row(const Parameters& p, int batch, int group) {
  long long head = batch * p.own.batch + group * p.share * p.own.head;
  return p.y + (head + (p.queries - 1) * p.own.step);
}
