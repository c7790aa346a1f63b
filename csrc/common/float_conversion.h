// bfloat16 and float16 to and from float32, for blocks of elements that stay in the L1 cache.
//
// Memory traffic: 2 bytes + 4 bytes per element.
//
// Rounding is to nearest, ties to even. A NaN stays a NaN (made quiet), infinities and signed zeros
// are kept, float16 subnormals are exact in both directions. The arithmetic never touches a
// subnormal float32 that matters, so the result doesn't depend on the thread's flush-to-zero mode.
// The code is branch-free integer and float arithmetic, so that compilers vectorize it at each SIMD
// level; float16 uses the CPU's own instructions where the level has them, as they are three times
// as fast. Nothing here depends on torch.

#pragma once

#include <cstdint>

#include "float_type.h"
#include "simd.h"

namespace deepspeed {

namespace {

// The compiler turns this into a register move; std::memcpy would be a library call in its eyes.
template <class To, class From>
[[gnu::always_inline]] inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "bit patterns of equal size only");
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

struct WidenBf16 {
  [[gnu::always_inline]] static inline void run(const uint16_t* __restrict low,
                                                float* __restrict wide, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      wide[i] = bits_as<float>(static_cast<uint32_t>(low[i]) << 16);
    }
  }
};

struct NarrowBf16 {
  [[gnu::always_inline]] static inline void run(const float* __restrict wide,
                                                uint16_t* __restrict low, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t x = bits_as<uint32_t>(wide[i]);
      const uint32_t rounded = x + 0x7fffu + ((x >> 16) & 1u);
      const uint32_t quiet_nan = x | 0x00400000u;
      const bool is_nan = (x & 0x7fffffffu) > 0x7f800000u;
      low[i] = static_cast<uint16_t>((is_nan ? quiet_nan : rounded) >> 16);
    }
  }
};

struct WidenF16 {
  [[gnu::always_inline]] static inline void run(const uint16_t* __restrict low,
                                                float* __restrict wide, int64_t n) {
    constexpr uint32_t kExponent = 0x7c00u << 13;       // exponent field of a float16, moved
    constexpr uint32_t kRebias = (127u - 15u) << 23;    // float16 bias to float32 bias
    constexpr uint32_t kSmallest = (127u - 14u) << 23;  // 2^-14, the smallest normal float16
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t h = low[i];
      const uint32_t magnitude = (h & 0x7fffu) << 13;
      const uint32_t exponent = magnitude & kExponent;
      const uint32_t normal = magnitude + kRebias;
      const uint32_t special = normal + ((128u - 16u) << 23);  // infinity and NaN
      // 2^-14 + subnormal is exact and normal; subtracting 2^-14 again renormalizes.
      const float subnormal = bits_as<float>(magnitude + kSmallest) - bits_as<float>(kSmallest);
      uint32_t out = exponent == kExponent ? special : normal;
      out = exponent == 0 ? bits_as<uint32_t>(subnormal) : out;
      out |= magnitude > kExponent ? 0x00400000u : 0u;  // make a signalling NaN quiet
      wide[i] = bits_as<float>(out | ((h & 0x8000u) << 16));
    }
  }
};

struct NarrowF16 {
  [[gnu::always_inline]] static inline void run(const float* __restrict wide,
                                                uint16_t* __restrict low, int64_t n) {
    constexpr uint32_t kOverflow = (127u + 16u) << 23;  // 2^16: above every float16
    constexpr uint32_t kSmallest = (127u - 14u) << 23;  // 2^-14, the smallest normal float16
    constexpr uint32_t kMagic = ((127u - 15u) + (23u - 10u) + 1u) << 23;
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t x = bits_as<uint32_t>(wide[i]);
      const uint32_t magnitude = x & 0x7fffffffu;
      // Adding 0.5 puts the bits of a subnormal result at the bottom of the significand, rounded
      // by the adder.
      const float shifted = bits_as<float>(magnitude) + bits_as<float>(kMagic);
      const uint32_t subnormal = bits_as<uint32_t>(shifted) - kMagic;
      const uint32_t normal =
          (magnitude - ((127u - 15u) << 23) + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
      const uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x01ffu);
      uint32_t out = magnitude < kSmallest ? subnormal : normal;
      out = magnitude >= kOverflow ? 0x7c00u : out;
      out = magnitude > 0x7f800000u ? nan : out;
      low[i] = static_cast<uint16_t>(out | ((x >> 16) & 0x8000u));
    }
  }
};

void widen_f16(const uint16_t* low, float* wide, int64_t n) { WidenF16::run(low, wide, n); }
void narrow_f16(const float* wide, uint16_t* low, int64_t n) { NarrowF16::run(wide, low, n); }

#if defined(__x86_64__)
// The CPU's own conversions, 8 (F16C) or 16 (AVX-512) at a time; they ignore the flush-to-zero mode
// for float16. Inline assembly, because <immintrin.h> alone would double the time that a kernel
// file takes to compile.
typedef short Low8 __attribute__((vector_size(16), aligned(2), may_alias));
typedef short Low16 __attribute__((vector_size(32), aligned(2), may_alias));
typedef float Wide8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef float Wide16 __attribute__((vector_size(64), aligned(4), may_alias));

DS_TARGET_AVX2 void widen_f16_avx2(const uint16_t* low, float* wide, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    Wide8 out;
    asm("vcvtph2ps %1, %0" : "=x"(out) : "m"(*reinterpret_cast<const Low8*>(low + i)));
    *reinterpret_cast<Wide8*>(wide + i) = out;
  }
  widen_f16(low + i, wide + i, n - i);
}

DS_TARGET_AVX2 void narrow_f16_avx2(const float* wide, uint16_t* low, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const Wide8 in = *reinterpret_cast<const Wide8*>(wide + i);
    // $0: round to nearest even
    asm("vcvtps2ph $0, %1, %0" : "=m"(*reinterpret_cast<Low8*>(low + i)) : "x"(in));
  }
  narrow_f16(wide + i, low + i, n - i);
}

DS_TARGET_AVX512 void widen_f16_avx512(const uint16_t* low, float* wide, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    Wide16 out;
    asm("vcvtph2ps %1, %0" : "=v"(out) : "m"(*reinterpret_cast<const Low16*>(low + i)));
    *reinterpret_cast<Wide16*>(wide + i) = out;
  }
  widen_f16(low + i, wide + i, n - i);
}

DS_TARGET_AVX512 void narrow_f16_avx512(const float* wide, uint16_t* low, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const Wide16 in = *reinterpret_cast<const Wide16*>(wide + i);
    asm("vcvtps2ph $0, %1, %0" : "=m"(*reinterpret_cast<Low16*>(low + i)) : "v"(in));
  }
  narrow_f16(wide + i, low + i, n - i);
}
#endif

// Conversions for `type`, which must not be f32, at `level`.
[[maybe_unused]] Conversion conversion(FloatType type, Simd level) {
  if (type == FloatType::bf16) {
    return {PerLevel<WidenBf16>::select(level), PerLevel<NarrowBf16>::select(level)};
  }
#if defined(__x86_64__)
  if (level == Simd::avx512) return {&widen_f16_avx512, &narrow_f16_avx512};
  if (level == Simd::avx2) return {&widen_f16_avx2, &narrow_f16_avx2};
#endif
  return {&widen_f16, &narrow_f16};
}

}  // namespace

}  // namespace deepspeed
