// Arithmetic that wraps around: in unsigned numbers, whose overflow is defined.

// clang-format off: an operator that is an argument
#define META_WRAPPING(name, infix, kind, T, U)                                  \
  static __device__ __forceinline__ T meta_wrapping_##name##_##kind(T a, T b) { \
    return (T)((U)a infix (U)b);                                                \
  }
#define META_INTEGER(kind, T, U)     \
  META_WRAPPING(add, +, kind, T, U)  \
  META_WRAPPING(sub, -, kind, T, U)  \
  META_WRAPPING(mul, *, kind, T, U)  \
  META_WRAPPING(shl, <<, kind, T, U) \
  static __device__ __forceinline__ T meta_wrapping_not_##kind(T a) { return (T)~(U)a; }
// clang-format on
META_INTEGER(int8, signed char, unsigned)
META_INTEGER(uint8, unsigned char, unsigned)
META_INTEGER(int16, short, unsigned)
META_INTEGER(uint16, unsigned short, unsigned)
META_INTEGER(int32, int, unsigned)
META_INTEGER(uint32, unsigned, unsigned)
META_INTEGER(int64, long, unsigned long)
META_INTEGER(uint64, unsigned long, unsigned long)
