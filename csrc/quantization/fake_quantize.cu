// Numbers rounded in place to those that a few bits can tell apart, see rounding.h.
//
// Memory traffic per element: reads and writes it; 4 bytes in 16 bits.

#include "group_kernels.cuh"

namespace deepspeed {
namespace {

// `Formula` is SymmetricFake or AsymmetricFake.
template <class T, class Formula>
struct FakeSink {
  struct Group {
    Formula formula;
    int64_t first;  // element
  };

  T* data;
  int64_t size;
  int64_t bits;
  const int64_t* seed;  // null: round to nearest

  __device__ Group open(int64_t group, const Range& range, bool) const {
    return {Formula(range, bits), group * size};
  }
  // Four elements beginning at a multiple of 4. Its ten rounds are compiled once.
  __device__ __noinline__ static void round_randomly(const Formula& formula, int64_t seed,
                                                     int64_t first, float* values) {
    const Random4 random(static_cast<uint64_t>(seed), static_cast<uint64_t>(first) / 4);
#pragma unroll
    for (int k = 0; k < 4; ++k) values[k] = formula.rounded(values[k], random.uniform(k));
  }
  __device__ void store(const Group& group, int vector, const float (&values)[kWidth]) const {
    const int64_t first = group.first + int64_t{vector} * kWidth;
    Vector<T, kWidth> rounded;
    if (seed != nullptr) {
      float changed[kWidth];
#pragma unroll
      for (int k = 0; k < kWidth; ++k) changed[k] = values[k];
      round_randomly(group.formula, *seed, first, changed);
      round_randomly(group.formula, *seed, first + 4, changed + 4);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) rounded.values[k] = narrow<T>(changed[k]);
    } else {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        rounded.values[k] = narrow<T>(group.formula.rounded(values[k]));
      }
    }
    store_vector<T, kWidth>(data + first, rounded);
  }
  __device__ void store_few(const Group& group, int64_t i, const float* values, int n) const {
    for (int k = 0; k < n; ++k) {
      const int64_t at = group.first + i + k;
      const float x = values[k];
      data[at] = narrow<T>(seed != nullptr ? group.formula.rounded(x, uniform_of(*seed, at))
                                           : group.formula.rounded(x));
    }
  }
};

template <class T, class Formula>
const char* launch(const FakeQuantizeArguments& a, void* workspace, cudaStream_t stream) {
  auto* data = static_cast<T*>(a.data);
  const FakeSink<T, Formula> sink{data, a.group_size, a.bits, a.seed};
  return launch_groups(FloatVectors<T>{data, a.group_size}, sink, a.groups, a.group_size,
                       aligned(data), workspace, stream);
}

}  // namespace

const char* fake_quantize_on_gpu(const FakeQuantizeArguments& a, void* workspace,
                                 void* stream_handle) {
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  return for_type(a.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return a.symmetric ? launch<T, SymmetricFake>(a, workspace, stream)
                       : launch<T, AsymmetricFake>(a, workspace, stream);
  });
}

}  // namespace deepspeed
