// Which vector instructions a CPU kernel may use, decided when it runs.
//
// One binary serves every CPU of its architecture: each kernel is compiled once per level below and
// the level is looked up at each call. Nothing here depends on torch.

#pragma once

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace deepspeed {

// Ordered: a higher level includes the lower ones. `generic` is what the compiler's baseline gives
// (SSE2 on x86_64, NEON on aarch64).
enum class Simd { generic = 0, avx2 = 1, avx512 = 2 };

inline const char* simd_name(Simd level) {
  constexpr const char* kNames[] = {"generic", "avx2", "avx512"};
  return kNames[static_cast<int>(level)];
}

// The best level this CPU and its operating system support.
inline Simd supported_simd() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  // __builtin_cpu_supports knows the name "f16c" only from GCC 11 on.
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  const bool avx2 = f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  return avx512 ? Simd::avx512 : avx2 ? Simd::avx2 : Simd::generic;
#else
  return Simd::generic;
#endif
}

// The level to use now. DS_CPU_SIMD may lower it, for tests and for tracking down a fault; it never
// raises it above what the CPU has, so a setting copied between machines can't crash.
inline Simd current_simd() {
  static const Simd supported = supported_simd();
  const char* wanted = std::getenv("DS_CPU_SIMD");
  if (wanted == nullptr || *wanted == '\0') return supported;
  for (Simd level : {Simd::generic, Simd::avx2, Simd::avx512}) {
    if (std::strcmp(wanted, simd_name(level)) == 0) return level < supported ? level : supported;
  }
  throw std::runtime_error("DS_CPU_SIMD=" + std::string(wanted) +
                           " is not a known SIMD level; set it to generic, avx2 or avx512, or "
                           "unset it");
}

// Attributes can't be produced by templates, hence two macros.
#if defined(__x86_64__) && defined(__clang__)
#define DS_TARGET_AVX2 __attribute__((target("avx2,fma,f16c")))
#define DS_TARGET_AVX512 \
  __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl"), min_vector_width(512)))
#elif defined(__x86_64__)
#define DS_TARGET_AVX2 __attribute__((target("avx2,fma,f16c")))
#define DS_TARGET_AVX512                                         \
  __attribute__((                                                \
      target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl," \
             "prefer-vector-width=512")))
#else
#define DS_TARGET_AVX2
#define DS_TARGET_AVX512
#endif

// PerLevel<Loop>::select(level) is Loop::run compiled for that level.
//
// `Loop::run` must be `always_inline` and static. Code it reaches must be always_inline too, and
// must not call inline functions of the standard library: such a function could be emitted here
// with AVX-512 instructions and then be picked by the linker for callers on older CPUs. Use
// __builtin_sqrtf and plain arithmetic. Instantiate it within an unnamed namespace's types only, so
// that its members stay local to the file for the same reason.
template <class Loop>
struct PerLevel {
  template <class... Args>
  struct With {
    static void generic(Args... args) { Loop::run(args...); }
    DS_TARGET_AVX2 static void avx2(Args... args) { Loop::run(args...); }
    DS_TARGET_AVX512 static void avx512(Args... args) { Loop::run(args...); }
  };

  template <class... Args>
  static auto pick(Simd level, void (*)(Args...)) -> void (*)(Args...) {
    switch (level) {
      case Simd::avx512:
        return &With<Args...>::avx512;
      case Simd::avx2:
        return &With<Args...>::avx2;
      default:
        return &With<Args...>::generic;
    }
  }

  static auto select(Simd level) { return pick(level, &Loop::run); }
};

}  // namespace deepspeed
