// The element types of ops, and what converts between them on the CPU. Nothing here depends on
// torch.

#pragma once

#include <cstdint>

namespace deepspeed {

// f64 is for GPU ops only.
enum class FloatType { f32 = 0, bf16 = 1, f16 = 2, f64 = 3 };

// Conversions of `n` elements; `low` points to 16-bit elements and needs no alignment beyond 2.
struct Conversion {
  using Widen = void (*)(const uint16_t* low, float* wide, int64_t n);
  using Narrow = void (*)(const float* wide, uint16_t* low, int64_t n);
  Widen widen;
  Narrow narrow;
};

}  // namespace deepspeed
