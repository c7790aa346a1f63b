// What kernels share: elements of each type and vectors of them, and errors of the run-time
// library.

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "float_type.h"

namespace deepspeed {

inline const char* last_error() {
  const cudaError_t status = cudaGetLastError();
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

// This run-time library is not torch's, so it has to be told which GPU is the current one.
inline const char* set_device(int32_t device) {
  const cudaError_t status = cudaSetDevice(device);
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

// The arithmetic type of storage type T.
template <class T>
struct Arithmetic {
  using type = float;
};
template <>
struct Arithmetic<double> {
  using type = double;
};

__device__ inline float widen(float x) { return x; }
__device__ inline double widen(double x) { return x; }
__device__ inline float widen(__half x) { return __half2float(x); }
__device__ inline float widen(__nv_bfloat16 x) { return __bfloat162float(x); }

template <class T>
__device__ inline T narrow(typename Arithmetic<T>::type x);
template <>
__device__ inline float narrow<float>(float x) {
  return x;
}
template <>
__device__ inline double narrow<double>(double x) {
  return x;
}
template <>
__device__ inline __half narrow<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

template <class T>
struct TypeTag {
  using type = T;
};

// K elements that one thread moves at once, in accesses of at most 16 bytes.
template <class T, int K>
struct alignas(sizeof(T) * K < 16 ? sizeof(T) * K : 16) Vector {
  T values[K];
};

template <class T, int K>
__device__ inline Vector<T, K> load_vector(const T* from) {
  using Word = int4;
  static_assert(sizeof(T) * K % sizeof(Word) == 0, "whole 16-byte accesses");
  Vector<T, K> result;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T) * K / sizeof(Word)); ++i) {
    reinterpret_cast<Word*>(&result)[i] = reinterpret_cast<const Word*>(from)[i];
  }
  return result;
}

template <class T, int K>
__device__ inline void store_vector(T* to, const Vector<T, K>& from) {
  using Word = int4;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T) * K / sizeof(Word)); ++i) {
    reinterpret_cast<Word*>(to)[i] = reinterpret_cast<const Word*>(&from)[i];
  }
}

// The same for what is not read again soon.
template <class T, int K>
__device__ inline void stream_vector(T* to, const Vector<T, K>& from) {
  using Word = int4;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T) * K / sizeof(Word)); ++i) {
    __stcs(reinterpret_cast<Word*>(to) + i, reinterpret_cast<const Word*>(&from)[i]);
  }
}

__host__ __device__ inline bool is_vector_aligned(const void* a) {
  return reinterpret_cast<uintptr_t>(a) % sizeof(int4) == 0;
}

// Calls f(TypeTag<T>) for a type of 16 or 32 bits.
template <class F>
auto for_type(FloatType type, F&& f) {
  if (type == FloatType::f16) return f(TypeTag<__half>{});
  if (type == FloatType::bf16) return f(TypeTag<__nv_bfloat16>{});
  return f(TypeTag<float>{});
}

// Blocks of a launch of which each does `per_block` of `count` things.
inline unsigned blocks_for(int64_t count, int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

}  // namespace deepspeed
