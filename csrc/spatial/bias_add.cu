// Biases of channels that lie next to each other in memory, and sums of two such tensors.
//
//   out = x + bias;  out = x + bias + other;  out = (x + bias) + (other + other_bias)
//
// Sums are float32, rounded once. Memory traffic per element: reads x and other, writes out; in
// 16 bits 4 bytes, or 6 with other. Biases stay in the caches.

#include "bias_add.h"
#include "cuda_elements.cuh"

namespace deepspeed {
namespace {

constexpr int kThreads = 256;
// Vectors a thread. Measured on an H200, 168 MB of float16: 1 vector 4060 GB/s, 4 vectors 3970, 2
// vectors 3810.
constexpr int kUnroll = 1;

__device__ inline float sum(float x, float bias, float other, float other_bias) {
  return (x + bias) + (other + other_bias);
}

// kTerms: 2 for x + bias, 3 with other, 4 with its bias. K elements a vector divide `channels`.
template <class T, int K, int kTerms>
__global__ void __launch_bounds__(kThreads)
    add_vectors(const T* x, const T* bias, const T* other, const T* other_bias, T* out,
                int64_t count, uint32_t vectors_of_row) {
  const int64_t block = static_cast<int64_t>(blockIdx.x) * kThreads * kUnroll;
  const auto rest = static_cast<uint32_t>(block % vectors_of_row);
  Vector<T, K> xs[kUnroll], others[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t at = block + u * kThreads + threadIdx.x;
    if (at >= count) continue;
    xs[u] = load_vector<T, K>(x + at * K);
    if (kTerms > 2) others[u] = load_vector<T, K>(other + at * K);
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t at = block + u * kThreads + threadIdx.x;
    if (at >= count) continue;
    const uint32_t channel = (rest + u * kThreads + threadIdx.x) % vectors_of_row * K;
    const Vector<T, K> biases = load_vector<T, K>(bias + channel);
    Vector<T, K> other_biases{};
    if (kTerms > 3) other_biases = load_vector<T, K>(other_bias + channel);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      xs[u].values[k] = narrow<T>(sum(widen(xs[u].values[k]), widen(biases.values[k]),
                                      kTerms > 2 ? widen(others[u].values[k]) : 0.0f,
                                      kTerms > 3 ? widen(other_biases.values[k]) : 0.0f));
    }
    store_vector<T, K>(out + at * K, xs[u]);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    add_elements(const T* x, const T* bias, const T* other, const T* other_bias, T* out,
                 int64_t count, int64_t channels) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= count) return;
  const int64_t channel = at % channels;
  out[at] = narrow<T>(sum(widen(x[at]), widen(bias[channel]), other ? widen(other[at]) : 0.0f,
                          other_bias ? widen(other_bias[channel]) : 0.0f));
}

bool are_aligned(std::initializer_list<const void*> pointers) {
  for (const void* p : pointers) {
    if (!is_vector_aligned(p)) return false;
  }
  return true;
}

template <class T>
const char* launch(const BiasAddArguments& a, cudaStream_t stream) {
  constexpr int K = 16 / sizeof(T);
  const auto* x = static_cast<const T*>(a.x);
  const auto* bias = static_cast<const T*>(a.bias);
  const auto* other = static_cast<const T*>(a.other);
  const auto* other_bias = static_cast<const T*>(a.other_bias);
  auto* out = static_cast<T*>(a.out);
  const bool vectors = a.channels % K == 0 && a.channels / K < UINT32_MAX / 2 &&
                       are_aligned({x, bias, other, other_bias, out});
  if (!vectors) {
    add_elements<<<blocks_for(a.numel, kThreads), kThreads, 0, stream>>>(x, bias, other, other_bias,
                                                                         out, a.numel, a.channels);
    return last_error();
  }
  const auto kernel = other_bias ? &add_vectors<T, K, 4>
                      : other    ? &add_vectors<T, K, 3>
                                 : &add_vectors<T, K, 2>;
  const int64_t count = a.numel / K;
  kernel<<<blocks_for(count, kThreads * kUnroll), kThreads, 0, stream>>>(
      x, bias, other, other_bias, out, count, static_cast<uint32_t>(a.channels / K));
  return last_error();
}

}  // namespace

const char* launch_bias_add(const BiasAddArguments& a, void* stream) {
  return for_type(a.type, [&](auto type) {
    return launch<typename decltype(type)::type>(a, static_cast<cudaStream_t>(stream));
  });
}

}  // namespace deepspeed
