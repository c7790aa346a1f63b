// Adam and AdamW on GPU tensors, all of them in one launch.
//
//   g ← g / grad_scale, and in L2 mode g ← g + weight_decay · p
//   m ← β₁ m + (1 − β₁) g
//   v ← β₂ v + (1 − β₂) g²
//   in AdamW mode p ← p · (1 − lr · weight_decay)
//   p ← p − lr / (1 − β₁ᵗ) · m / (√v / √(1 − β₂ᵗ) + eps)
//
// (Kingma and Ba 2015; Loshchilov and Hutter 2019.) Arithmetic is in float32, in float64 for
// float64 storage, and IEEE: no approximate division or root.
//
// Memory traffic per element: reads p, g, m, v and writes p, m, v; 28 bytes in float32, 22 with
// bfloat16 p and g, 14 all in 16 bits. Arithmetic is a tenth of what would matter.

#include <cmath>

#include "cuda_multi_tensor.cuh"
#include "fused_adam.h"

namespace deepspeed {
namespace {

template <class P, class S>
using AdamLayout = Layout<P, P, S, 2>;

template <class A>
struct AdamConstants {
  A beta1, one_minus_beta1, beta2, one_minus_beta2;
  A step_size;        // lr / (1 − β₁ᵗ)
  A root_correction;  // 1 / √(1 − β₂ᵗ)
  A eps;
  A decay;          // AdamW: 1 − lr · weight_decay, else 1
  A l2;             // L2 mode: weight_decay, else 0
  A inverse_scale;  // 1 / grad_scale
  bool skip = false;

  __host__ __device__ explicit AdamConstants(const AdamOptions& o) {
    const double correction1 = o.bias_correction ? 1.0 - pow(o.beta1, o.step) : 1.0;
    const double correction2 = o.bias_correction ? 1.0 - pow(o.beta2, o.step) : 1.0;
    beta1 = static_cast<A>(o.beta1);
    one_minus_beta1 = static_cast<A>(1.0 - o.beta1);
    beta2 = static_cast<A>(o.beta2);
    one_minus_beta2 = static_cast<A>(1.0 - o.beta2);
    step_size = static_cast<A>(o.lr / correction1);
    root_correction = static_cast<A>(1.0 / sqrt(correction2));
    eps = static_cast<A>(o.eps);
    decay = static_cast<A>(o.adamw ? 1.0 - o.lr * o.weight_decay : 1.0);
    l2 = static_cast<A>(o.adamw ? 0.0 : o.weight_decay);
    inverse_scale = static_cast<A>(1.0 / o.grad_scale);
  }
};

template <class L>
__global__ void __launch_bounds__(kThreads)
    adam_kernel(TensorTable<kAdamStreams> table,
                Constants<AdamConstants<typename L::A>> constants) {
  using A = typename L::A;
  const int64_t chunk = blockIdx.x;
  const TensorRow<kAdamStreams>& row = table.rows[table.row_of_chunk[chunk]];
  const AdamConstants<A> c = constants.get();
  if (c.skip) return;
  const int64_t begin = (chunk - row.first_chunk) * L::kChunk;
  for_each_element<L, ~0u, kParamBit | kStateBits>(row, begin, [&](A& p, A g, A* states, int) {
    A &m = states[0], &v = states[1];
    g *= c.inverse_scale;
    if (c.l2 != A(0)) g += c.l2 * p;
    m = c.beta1 * m + c.one_minus_beta1 * g;
    v = c.beta2 * v + c.one_minus_beta2 * g * g;
    p = p * c.decay - c.step_size * (m / (sqrt(v) * c.root_correction + c.eps));
  });
}

template <class P, class S>
const char* launch(const TensorRow<kAdamStreams>* rows, int32_t row_count, int64_t chunks,
                   const AdamOptions& options, const DeviceValues& values, char* workspace,
                   cudaStream_t stream) {
  using L = AdamLayout<P, S>;
  auto* device_rows = reinterpret_cast<TensorRow<kAdamStreams>*>(workspace + kConstantsBytes);
  auto* row_of_chunk = reinterpret_cast<int32_t*>(device_rows + row_count);
  const char* error = upload_table(rows, row_count, chunks, device_rows, row_of_chunk, stream);
  if (error != nullptr) return error;
  adam_kernel<L><<<static_cast<unsigned>(chunks), kThreads, 0, stream>>>(
      {device_rows, row_of_chunk},
      constants_of<AdamConstants<typename L::A>>(options, values, workspace, stream));
  return last_error();
}

}  // namespace

int64_t adam_chunk(FloatType params, FloatType states) {
  return for_types(params, states, [](auto p, auto s) {
    return AdamLayout<typename decltype(p)::type, typename decltype(s)::type>::kChunk;
  });
}

int64_t adam_workspace(int32_t rows, int64_t chunks) {
  return kConstantsBytes + table_bytes<kAdamStreams>(rows, chunks);
}

const char* launch_adam(FloatType params, FloatType states, const TensorRow<kAdamStreams>* rows,
                        int32_t row_count, int64_t chunks, const AdamOptions& options,
                        const DeviceValues& values, void* workspace, int32_t device, void* stream) {
  const char* error = set_device(device);
  if (error != nullptr) return error;
  return for_types(params, states, [&](auto p, auto s) {
    return launch<typename decltype(p)::type, typename decltype(s)::type>(
        rows, row_count, chunks, options, values, static_cast<char*>(workspace),
        static_cast<cudaStream_t>(stream));
  });
}

}  // namespace deepspeed
