// A source of groups whose elements are sums of quantized tensors.

#pragma once

#include "group_kernels.cuh"

namespace deepspeed {

struct SumOfParts {
  using Raw = Floats;
  template <class Statistic>
  using Accumulator = FloatAccumulator<Statistic>;
  using Group = int64_t;  // its first element

  Quantized from;
  int64_t parts;
  int64_t part_size;    // elements
  int64_t part_params;  // values
  int64_t size;         // of a group of the result
  int32_t log2_of_group_size;

  __device__ Group open(int64_t group) const { return group * size; }
  __device__ const float* params_at(int64_t first) const {
    // A 64-bit division would be a third of the work.
    const int64_t group =
        log2_of_group_size >= 0 ? first >> log2_of_group_size : first / from.group_size;
    return from.params + group * (from.symmetric ? 1 : 2);
  }
  // All of a vector's elements are in one group of the input: sizes are multiples of 8.
  __device__ Raw load(Group group, int vector) const {
    const int64_t first = group + int64_t{vector} * kWidth;
    const float* params = params_at(first);
    Raw sum{};
    float offsets = 0.0f;
#pragma unroll 2
    for (int64_t part = 0; part < parts; ++part, params += part_params) {
      const float step = params[0];
      if (!from.symmetric) offsets += params[1];
      float codes[kWidth];
      codes_to_floats(load_codes(from.data, part * part_size + first, from.bits), from.bits, codes);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) sum.values[k] += codes[k] * step;
    }
#pragma unroll
    for (int k = 0; k < kWidth; ++k) sum.values[k] += offsets;
    return sum;
  }
  __device__ static void widen(const Raw& raw, float (&to)[kWidth]) { copy(raw, to); }
  __device__ float at(Group group, int64_t i) const {
    const int64_t first = group + i;
    const float* params = params_at(first);
    float sum = 0.0f, offsets = 0.0f;
    for (int64_t part = 0; part < parts; ++part, params += part_params) {
      sum += code_at(from.data, part * part_size + first, from.bits) * params[0];
      if (!from.symmetric) offsets += params[1];
    }
    return sum + offsets;
  }
};

// The source of `a`, and whether its vectors are aligned.
inline SumOfParts sum_of_parts(const ReduceArguments& a) {
  return {a.input,
          a.parts,
          a.output.groups * a.output.group_size,
          a.input.groups / a.parts * (a.input.symmetric ? 1 : 2),
          a.output.group_size,
          exact_log2(a.input.group_size)};
}

inline bool vectors_of_parts_aligned(const ReduceArguments& a) {
  const int64_t part_size = a.output.groups * a.output.group_size;
  return a.input.group_size % kWidth == 0 && part_size % kWidth == 0 && codes_aligned(a.input) &&
         codes_aligned(a.output);
}

}  // namespace deepspeed
