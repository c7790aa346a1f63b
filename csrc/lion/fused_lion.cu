// Lion on GPU tensors, all of them in one launch.
//
//   g ← g / grad_scale
//   c ← β₁ m + (1 − β₁) g
//   p ← p · (1 − lr · weight_decay) − lr · sign(c)
//   m ← β₂ m + (1 − β₂) g
//
// (Chen et al. 2023.) sign(0) is 0, and NaN stays NaN. Arithmetic is in float32, in float64 for
// float64 storage.
//
// Memory traffic per element: reads p, g, m and writes p, m; 20 bytes in float32.

#include "cuda_multi_tensor.cuh"
#include "fused_lion.h"

namespace deepspeed {
namespace {

template <class P, class S>
using LionLayout = Layout<P, P, S, 1>;

template <class A>
struct LionConstants {
  A lr, beta1, one_minus_beta1, beta2, one_minus_beta2;
  A decay;          // 1 − lr · weight_decay
  A inverse_scale;  // 1 / grad_scale
  bool skip = false;

  __host__ __device__ explicit LionConstants(const FusedLionOptions& o)
      : lr(static_cast<A>(o.lr)),
        beta1(static_cast<A>(o.beta1)),
        one_minus_beta1(static_cast<A>(1.0 - o.beta1)),
        beta2(static_cast<A>(o.beta2)),
        one_minus_beta2(static_cast<A>(1.0 - o.beta2)),
        decay(static_cast<A>(1.0 - o.lr * o.weight_decay)),
        inverse_scale(static_cast<A>(1.0 / o.grad_scale)) {}
};

// c itself where it is 0 or NaN.
template <class A>
__device__ inline A sign(A c) {
  return c > A(0) ? A(1) : c < A(0) ? A(-1) : c;
}

template <class L>
__global__ void __launch_bounds__(kThreads)
    lion_kernel(TensorTable<kFusedLionStreams> table,
                Constants<LionConstants<typename L::A>> constants) {
  using A = typename L::A;
  const int64_t chunk = blockIdx.x;
  const TensorRow<kFusedLionStreams>& row = table.rows[table.row_of_chunk[chunk]];
  const LionConstants<A> c = constants.get();
  if (c.skip) return;
  const int64_t begin = (chunk - row.first_chunk) * L::kChunk;
  for_each_element<L, ~0u, kParamBit | kStateBits>(row, begin, [&](A& p, A g, A* states, int) {
    A& m = states[0];
    g *= c.inverse_scale;
    p = p * c.decay - c.lr * sign(c.beta1 * m + c.one_minus_beta1 * g);
    m = c.beta2 * m + c.one_minus_beta2 * g;
  });
}

template <class P, class S>
const char* launch(const TensorRow<kFusedLionStreams>* rows, int32_t row_count, int64_t chunks,
                   const FusedLionOptions& options, const DeviceValues& values, char* workspace,
                   cudaStream_t stream) {
  using L = LionLayout<P, S>;
  auto* device_rows = reinterpret_cast<TensorRow<kFusedLionStreams>*>(workspace + kConstantsBytes);
  auto* row_of_chunk = reinterpret_cast<int32_t*>(device_rows + row_count);
  const char* error = upload_table(rows, row_count, chunks, device_rows, row_of_chunk, stream);
  if (error != nullptr) return error;
  lion_kernel<L><<<static_cast<unsigned>(chunks), kThreads, 0, stream>>>(
      {device_rows, row_of_chunk},
      constants_of<LionConstants<typename L::A>>(options, values, workspace, stream));
  return last_error();
}

}  // namespace

int64_t fused_lion_chunk(FloatType params, FloatType states) {
  return for_types(params, states, [](auto p, auto s) {
    return LionLayout<typename decltype(p)::type, typename decltype(s)::type>::kChunk;
  });
}

int64_t fused_lion_workspace(int32_t rows, int64_t chunks) {
  return kConstantsBytes + table_bytes<kFusedLionStreams>(rows, chunks);
}

const char* launch_fused_lion(FloatType params, FloatType states,
                              const TensorRow<kFusedLionStreams>* rows, int32_t row_count,
                              int64_t chunks, const FusedLionOptions& options,
                              const DeviceValues& values, void* workspace, int32_t device,
                              void* stream) {
  const char* error = set_device(device);
  if (error != nullptr) return error;
  return for_types(params, states, [&](auto p, auto s) {
    return launch<typename decltype(p)::type, typename decltype(s)::type>(
        rows, row_count, chunks, options, values, static_cast<char*>(workspace),
        static_cast<cudaStream_t>(stream));
  });
}

}  // namespace deepspeed
