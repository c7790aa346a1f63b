// What rounds numbers in place, to nearest or at random.

#pragma once

#include "group_kernels.cuh"

namespace deepspeed {

// `Formula` is SymmetricFake or AsymmetricFake.
template <class T, class AFormula, bool kRandom>
struct FakeSink {
  using Formula = AFormula;
  using Statistic = typename Formula::Statistic;
  struct Group {
    Formula formula;
    int64_t first;  // element
    int64_t seed;
  };

  T* data;
  int64_t size;
  Levels levels;
  const int64_t* seed;

  FakeSink(const FakeQuantizeArguments& a)
      : data(static_cast<T*>(a.data)), size(a.group_size), levels(a.bits), seed(a.seed) {}

  __device__ Group open(int64_t group, const Statistic& statistic, bool) const {
    return {Formula(statistic, levels), group * size, kRandom ? *seed : 0};
  }
  // Four elements beginning at a multiple of 4. Its ten rounds are compiled once.
  __device__ __noinline__ static void round_randomly(const Formula& formula, int64_t seed,
                                                     int64_t first, float* values) {
    const Random4 random(static_cast<uint64_t>(seed), static_cast<uint64_t>(first) / 4);
#pragma unroll
    for (int k = 0; k < 4; ++k) values[k] = formula.rounded(values[k], random.uniform(k));
  }
  __device__ static float to_nearest(const Formula& formula, float x) {
    return sizeof(T) == 2 ? formula.rounded_of_16_bits(x) : formula.rounded(x);
  }
  __device__ void store(const Group& group, int vector, const float (&values)[kWidth]) const {
    const int64_t first = group.first + int64_t{vector} * kWidth;
    float rounded[kWidth];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      rounded[k] = kRandom ? values[k] : to_nearest(group.formula, values[k]);
    }
    if constexpr (kRandom) {
      round_randomly(group.formula, group.seed, first, rounded);
      round_randomly(group.formula, group.seed, first + 4, rounded + 4);
    }
    Vector<T, kWidth> narrowed;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) narrowed.values[k] = narrow<T>(rounded[k]);
    store_vector<T, kWidth>(data + first, narrowed);
  }
  __device__ void store_few(const Group& group, int64_t i, const float* values, int n) const {
    for (int k = 0; k < n; ++k) {
      const int64_t at = group.first + i + k;
      data[at] = narrow<T>(kRandom ? group.formula.rounded(values[k], uniform_of(group.seed, at))
                                   : to_nearest(group.formula, values[k]));
    }
  }
};

template <bool kRandom>
const char* launch_fake(const FakeQuantizeArguments& a, void* workspace, void* stream) {
  return for_type(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    const FloatVectors<T> source{static_cast<const T*>(a.data), a.group_size};
    const auto launch = [&](const auto& sink) {
      return launch_groups(source, sink, a.groups, a.group_size, is_vector_aligned(a.data),
                           workspace, static_cast<cudaStream_t>(stream));
    };
    return a.symmetric ? launch(FakeSink<T, SymmetricFake, kRandom>(a))
                       : launch(FakeSink<T, AsymmetricFake, kRandom>(a));
  });
}

}  // namespace deepspeed
