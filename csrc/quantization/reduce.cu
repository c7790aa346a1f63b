// Codes of a sum of quantized tensors, as each device has one after an exchange. Sums are float32.
//
// Memory traffic per element of the result: reads a code a part, writes one.

#include "group_kernels.cuh"

namespace deepspeed {
namespace {

struct SumOfParts {
  using Raw = Floats;
  using Group = int64_t;  // its first element

  Quantized from;
  int64_t parts;
  int64_t part_size;  // elements
  int64_t size;       // of a group of the result

  __device__ Group open(int64_t group) const { return group * size; }
  __device__ const float* params_at(int64_t first) const {
    return from.params + first / from.group_size * (from.symmetric ? 1 : 2);
  }
  __device__ int64_t params_of_part() const {
    return from.groups / parts * (from.symmetric ? 1 : 2);
  }
  // All of a vector's elements are in one group of the input: sizes are multiples of 8.
  __device__ Raw load(Group group, int vector) const {
    const int64_t first = group + int64_t{vector} * kWidth, stride = params_of_part();
    const float* params = params_at(first);
    Raw sum{};
#pragma unroll 2
    for (int64_t part = 0; part < parts; ++part, params += stride) {
      const float step = params[0], offset = from.symmetric ? 0.0f : params[1];
      float codes[kWidth];
      codes_to_floats(load_codes(from.data, part * part_size + first, from.bits), from.bits, codes);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) sum.values[k] += codes[k] * step + offset;
    }
    return sum;
  }
  __device__ static void widen(const Raw& raw, float (&to)[kWidth]) { copy(raw, to); }
  __device__ float at(Group group, int64_t i) const {
    const int64_t first = group + i, stride = params_of_part();
    const float* params = params_at(first);
    float sum = 0.0f;
    for (int64_t part = 0; part < parts; ++part, params += stride) {
      const float code = code_at(from.data, part * part_size + first, from.bits);
      sum += code * params[0] + (from.symmetric ? 0.0f : params[1]);
    }
    return sum;
  }
};

}  // namespace

const char* reduce_on_gpu(const ReduceArguments& a, void* workspace, void* stream_handle) {
  const Quantized& to = a.output;
  const int64_t part_size = to.groups * to.group_size;
  const SumOfParts source{a.input, a.parts, part_size, to.group_size};
  const bool vectors = a.input.group_size % kWidth == 0 && part_size % kWidth == 0 &&
                       codes_aligned(a.input) && codes_aligned(to);
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  if (a.error.data == nullptr) {
    return launch_groups(source, CodeSink{to, {}}, to.groups, to.group_size, vectors, workspace,
                         stream);
  }
  return for_type(a.error.type, [&](auto tag) {
    using E = typename decltype(tag)::type;
    const FloatVectors<E> errors{static_cast<const E*>(a.error.data), to.group_size};
    return launch_groups(WithError<SumOfParts, E>{source, errors, {}},
                         CodeAndErrorSink<E>(to, {}, a.error), to.groups, to.group_size,
                         vectors && aligned(a.error.data), workspace, stream);
  });
}

}  // namespace deepspeed
