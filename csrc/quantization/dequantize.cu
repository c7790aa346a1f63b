// Codes to numbers: q · step + offset; or, of unsigned codes, q / scale + minimum.
//
// Memory traffic per element: reads the code, writes the number; 3 bytes from 8 bits to 16.

#include "group_kernels.cuh"

namespace deepspeed {
namespace {

constexpr int kThreads = 128;
constexpr int kUnroll = 2;  // vectors a thread
constexpr int kWarpVectors = kWarp * kUnroll;

// Which group a vector is in, for vectors near `first`: 64-bit divisions take a hundred
// instructions, so there is one for each thread and not for each vector; where groups have a power
// of two of vectors there is none.
class GroupsFrom {
 public:
  __device__ GroupsFrom(int64_t first, uint32_t vectors, int32_t log2_vectors)
      : first_(first), vectors_(vectors), log2_vectors_(log2_vectors) {
    if (log2_vectors < 0) {
      group_ = first / vectors;
      rest_ = static_cast<uint32_t>(first % vectors);
    }
  }
  __device__ int64_t of(int after) const {
    if (log2_vectors_ >= 0) return (first_ + after) >> log2_vectors_;
    return group_ + (rest_ + after) / vectors_;
  }

 private:
  int64_t first_, group_ = 0;
  uint32_t rest_ = 0, vectors_;
  int32_t log2_vectors_;
};

// A group has a multiple of 8 elements.
template <class T>
__global__ void __launch_bounds__(kThreads)
    dequantize_vectors(Quantized from, T* to, int64_t count, uint32_t vectors_of_group,
                       int32_t log2_vectors) {
  // What a warp writes is contiguous. Measured on an H200: 2 % faster than strides of a block, and
  // than 1 or 4 vectors a thread.
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads * kUnroll +
                        static_cast<int>(threadIdx.x) / kWarp * kWarpVectors;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const GroupsFrom groups(first, vectors_of_group, log2_vectors);
  CodeWords words[kUnroll];
  float steps[kUnroll], offsets[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int after = u * kWarp + lane;
    if (first + after >= count) continue;
    words[u] = load_codes(from.data, (first + after) * kWidth, from.bits);
    const float* params = from.params + groups.of(after) * (from.symmetric ? 1 : 2);
    steps[u] = params[0];
    offsets[u] = from.symmetric ? 0.0f : params[1];
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int after = u * kWarp + lane;
    if (first + after >= count) continue;
    float codes[kWidth];
    codes_to_floats(words[u], from.bits, codes);
    Vector<T, kWidth> numbers;
#pragma unroll
    for (int k = 0; k < kWidth; ++k)
      numbers.values[k] = narrow<T>(codes[k] * steps[u] + offsets[u]);
    T* at = to + (first + after) * kWidth;
    if (from.bits == 4) {
      // Most of the traffic is written, and would push what is read out of the cache: 1 % faster.
      stream_vector<T, kWidth>(at, numbers);
    } else {
      store_vector<T, kWidth>(at, numbers);
    }
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

}  // namespace

const char* dequantize_on_gpu(const DequantizeArguments& a, void* stream_handle) {
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  const int64_t count = a.input.groups * a.input.group_size;
  const bool vectors =
      a.input.group_size % kWidth == 0 && codes_aligned(a.input) && is_vector_aligned(a.output);
  return for_type(a.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    auto* to = static_cast<T*>(a.output);
    if (vectors) {
      const auto of_group = static_cast<uint32_t>(a.input.group_size / kWidth);
      dequantize_vectors<<<blocks_for(count / kWidth, kThreads * kUnroll), kThreads, 0, stream>>>(
          a.input, to, count / kWidth, of_group, exact_log2(of_group));
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
