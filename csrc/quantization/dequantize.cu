// Codes to numbers: q · step + offset; or, of unsigned codes, q / scale + minimum.
//
// Memory traffic per element: reads the code, writes the number; 3 bytes from 8 bits to 16.

#include "group_kernels.cuh"

namespace deepspeed {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;  // vectors a thread

// Which group a vector is in, for vectors near `first`: 64-bit divisions take a hundred
// instructions, so there is one for each thread and not for each vector.
struct GroupsFrom {
  int64_t group;
  uint32_t rest;
  uint32_t vectors;  // of a group

  __device__ GroupsFrom(int64_t first, uint32_t vectors_of_group)
      : group(first / vectors_of_group),
        rest(static_cast<uint32_t>(first % vectors_of_group)),
        vectors(vectors_of_group) {}
  __device__ int64_t of(int after) const { return group + (rest + after) / vectors; }
};

// A group has a multiple of 8 elements.
template <class T>
__global__ void __launch_bounds__(kThreads)
    dequantize_vectors(Quantized from, T* to, int64_t count, uint32_t vectors_of_group) {
  const int64_t block = static_cast<int64_t>(blockIdx.x) * kThreads * kUnroll;
  const GroupsFrom groups(block, vectors_of_group);
  CodeWords words[kUnroll];
  float steps[kUnroll], offsets[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int after = u * kThreads + static_cast<int>(threadIdx.x);
    if (block + after >= count) continue;
    words[u] = load_codes(from.data, (block + after) * kWidth, from.bits);
    const float* params = from.params + groups.of(after) * (from.symmetric ? 1 : 2);
    steps[u] = params[0];
    offsets[u] = from.symmetric ? 0.0f : params[1];
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int after = u * kThreads + static_cast<int>(threadIdx.x);
    if (block + after >= count) continue;
    float codes[kWidth];
    codes_to_floats(words[u], from.bits, codes);
    Vector<T, kWidth> numbers;
#pragma unroll
    for (int k = 0; k < kWidth; ++k)
      numbers.values[k] = narrow<T>(codes[k] * steps[u] + offsets[u]);
    store_vector<T, kWidth>(to + (block + after) * kWidth, numbers);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) dequantize_any(Quantized from, T* to, int64_t count) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= count) return;
  const float* params = from.params + at / from.group_size * (from.symmetric ? 1 : 2);
  const float offset = from.symmetric ? 0.0f : params[1];
  to[at] = narrow<T>(code_at(from.data, at, from.bits) * params[0] + offset);
}

__global__ void __launch_bounds__(kThreads)
    dequantize_unsigned(DequantizeUnsignedArguments a, int64_t count) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= count) return;
  int code = a.data[a.bits == 8 ? at : at / 2];
  if (a.bits == 4) code = at % 2 == 0 ? code >> 4 : code & 15;
  const int64_t group = at / a.group_size;
  const float scale = __half2float(static_cast<const __half*>(a.scale)[group]);
  const float minimum = __half2float(static_cast<const __half*>(a.minimum)[group]);
  static_cast<__half*>(a.output)[at] = __float2half_rn(static_cast<float>(code) / scale + minimum);
}

unsigned blocks_for(int64_t count, int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

}  // namespace

const char* dequantize_on_gpu(const DequantizeArguments& a, void* stream_handle) {
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  const int64_t count = a.input.groups * a.input.group_size;
  const bool vectors =
      a.input.group_size % kWidth == 0 && codes_aligned(a.input) && aligned(a.output);
  return for_type(a.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    auto* to = static_cast<T*>(a.output);
    if (vectors) {
      dequantize_vectors<<<blocks_for(count / kWidth, kThreads * kUnroll), kThreads, 0, stream>>>(
          a.input, to, count / kWidth, static_cast<uint32_t>(a.input.group_size / kWidth));
    } else {
      dequantize_any<<<blocks_for(count, kThreads), kThreads, 0, stream>>>(a.input, to, count);
    }
    return last_error();
  });
}

const char* dequantize_unsigned_on_gpu(const DequantizeUnsignedArguments& a, void* stream) {
  const int64_t count = a.groups * a.group_size;
  dequantize_unsigned<<<blocks_for(count, kThreads), kThreads, 0,
                        static_cast<cudaStream_t>(stream)>>>(a, count);
  return last_error();
}

}  // namespace deepspeed
