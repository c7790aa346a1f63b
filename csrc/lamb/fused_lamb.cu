// LAMB on GPU tensors, all of them in three launches: moments and norms, coefficients, parameters.
//
//   g ← g / grad_scale
//   m ← β₁ m + (1 − β₁) g
//   v ← β₂ v + (1 − β₂) g²
//   u = m / (√v + eps), or m / √(v + eps), + weight_decay · p
//   coefficient = clamp(‖p‖ / ‖u‖, min_coeff, max_coeff); 1 if either norm is 0
//   p ← p − lr · √(1 − β₂ᵗ) / (1 − β₁ᵗ) · coefficient · u
//
// (You et al. 2020, with DeepSpeed's conventions: m and v without bias correction inside u.)
// Arithmetic is in float32, in float64 for float64 storage. Norms are summed in a fixed order, per
// chunk in the arithmetic type and over chunks in float64, so that results repeat bit for bit.
//
// Memory traffic per element: the first pass reads p, g, m, v and writes m, v; the second reads p,
// m, v and writes p; 40 bytes in float32. u is computed twice rather than stored, which would be
// 8 bytes more.

#include <cmath>
#include <type_traits>

#include "cuda_multi_tensor.cuh"
#include "fused_lamb.h"

namespace deepspeed {
namespace {

// States of 16-bit parameters are float32: v would vanish in 16 bits, and u be m / eps.
template <class P, class G>
using LambLayout = Layout<P, G, std::conditional_t<sizeof(P) == 2, float, P>, 2>;

template <class A>
struct LambConstants {
  A beta1, one_minus_beta1, beta2, one_minus_beta2;
  A eps_inside, eps_outside;  // one of them is 0
  A weight_decay;
  A inverse_scale;
  A step_size;  // lr · √(1 − β₂ᵗ) / (1 − β₁ᵗ)
  bool skip = false;

  __host__ __device__ explicit LambConstants(const LambOptions& o) {
    const double correction =
        o.bias_correction ? sqrt(1.0 - pow(o.beta2, o.step)) / (1.0 - pow(o.beta1, o.step)) : 1.0;
    beta1 = static_cast<A>(o.beta1);
    one_minus_beta1 = static_cast<A>(1.0 - o.beta1);
    beta2 = static_cast<A>(o.beta2);
    one_minus_beta2 = static_cast<A>(1.0 - o.beta2);
    eps_inside = static_cast<A>(o.eps_inside_sqrt ? o.eps : 0.0);
    eps_outside = static_cast<A>(o.eps_inside_sqrt ? 0.0 : o.eps);
    weight_decay = static_cast<A>(o.weight_decay);
    inverse_scale = static_cast<A>(1.0 / o.grad_scale);
    step_size = static_cast<A>(o.lr * correction);
  }
};

template <class A>
__device__ inline A direction(A p, A m, A v, const LambConstants<A>& c) {
  return m / (sqrt(v + c.eps_inside) + c.eps_outside) + c.weight_decay * p;
}

// The sums of `value` over the block, in thread 0; the order does not depend on timing.
template <class A>
__device__ inline A block_sum(A value) {
  constexpr int kWarp = 32;
  __shared__ A of_warp[kThreads / kWarp];
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value += __shfl_down_sync(~0u, value, offset);
  }
  __syncthreads();  // an earlier sum may still be read
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = value;
  __syncthreads();
  A sum(0);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kThreads / kWarp; ++i) sum += of_warp[i];
  }
  return sum;
}

// Squares of norms over one chunk.
struct Squares {
  double p;
  double u;
};

template <class L>
__global__ void __launch_bounds__(kThreads)
    moments_and_norms(TensorTable<kLambStreams> table,
                      Constants<LambConstants<typename L::A>> constants, Squares* squares) {
  using A = typename L::A;
  const LambConstants<A> c = constants.get();
  if (c.skip) return;
  const int64_t chunk = blockIdx.x;
  const TensorRow<kLambStreams>& row = table.rows[table.row_of_chunk[chunk]];
  const int64_t begin = (chunk - row.first_chunk) * L::kChunk;
  A sum_p(0), sum_u(0);
  for_each_element<L, ~0u, kStateBits>(row, begin, [&](A& p, A g, A* states, int) {
    A &m = states[0], &v = states[1];
    g *= c.inverse_scale;
    m = c.beta1 * m + c.one_minus_beta1 * g;
    v = c.beta2 * v + c.one_minus_beta2 * g * g;
    const A u = direction(p, m, v, c);
    sum_p += p * p;
    sum_u += u * u;
  });
  sum_p = block_sum(sum_p);
  sum_u = block_sum(sum_u);
  if (threadIdx.x == 0) squares[chunk] = {sum_p, sum_u};
}

// One block a row.
template <class A>
__global__ void __launch_bounds__(kThreads)
    coefficients_of_rows(const TensorRow<kLambStreams>* rows, int32_t row_count, int64_t chunks,
                         Constants<LambConstants<A>> constants, const Squares* squares,
                         double min_coeff, double max_coeff, double* coefficients,
                         float* reported) {
  const int32_t row = blockIdx.x;
  if (constants.get().skip) {
    if (threadIdx.x == 0) reported[row] = 1.0f;
    return;
  }
  const int64_t end = row + 1 < row_count ? rows[row + 1].first_chunk : chunks;
  double p = 0.0, u = 0.0;
  for (int64_t i = rows[row].first_chunk + threadIdx.x; i < end; i += kThreads) {
    p += squares[i].p;
    u += squares[i].u;
  }
  p = block_sum(p);
  u = block_sum(u);
  if (threadIdx.x != 0) return;
  double coefficient = 1.0;
  if (p != 0.0 && u != 0.0) {
    coefficient = sqrt(p) / sqrt(u);
    // Comparisons that leave NaN as it is.
    if (coefficient > max_coeff) coefficient = max_coeff;
    if (coefficient < min_coeff) coefficient = min_coeff;
  }
  coefficients[row] = coefficient;
  reported[row] = static_cast<float>(coefficient);
}

template <class L>
__global__ void __launch_bounds__(kThreads)
    move_params(TensorTable<kLambStreams> table, Constants<LambConstants<typename L::A>> constants,
                const double* coefficients) {
  using A = typename L::A;
  const LambConstants<A> c = constants.get();
  if (c.skip) return;
  using G = typename L::G;
  // The last chunks of the first pass may still be in the L2 cache.
  const int64_t chunk = gridDim.x - 1 - blockIdx.x;
  const int32_t index = table.row_of_chunk[chunk];
  const TensorRow<kLambStreams>& row = table.rows[index];
  const int64_t begin = (chunk - row.first_chunk) * L::kChunk;
  const A step = c.step_size * A(coefficients[index]);
  G* copy =
      row.streams[kLambCopy] == nullptr ? nullptr : static_cast<G*>(row.streams[kLambCopy]) + begin;
  for_each_element<L, kParamBit | kStateBits, kParamBit>(
      row, begin, [&](A& p, A, A* states, int at) {
        p -= step * direction(p, states[0], states[1], c);
        if (copy != nullptr) copy[at] = narrow<G>(p);
      });
}

// Calls f(TypeTag<P>, TypeTag<G>): gradients of the parameters' type, or of 16 bits beside float32.
template <class F>
auto for_lamb_types(FloatType params, FloatType grads, F&& f) {
  using Half = TypeTag<__half>;
  using Bfloat = TypeTag<__nv_bfloat16>;
  using Float = TypeTag<float>;
  switch (params) {
    case FloatType::f64:
      return f(TypeTag<double>{}, TypeTag<double>{});
    case FloatType::f16:
      return f(Half{}, Half{});
    case FloatType::bf16:
      return f(Bfloat{}, Bfloat{});
    case FloatType::f32:
      break;
  }
  if (grads == FloatType::f16) return f(Float{}, Half{});
  if (grads == FloatType::bf16) return f(Float{}, Bfloat{});
  return f(Float{}, Float{});
}

template <class P, class G>
const char* launch(const TensorRow<kLambStreams>* rows, int32_t row_count, int64_t chunks,
                   const LambOptions& options, const DeviceValues& values, float* reported,
                   char* workspace, cudaStream_t stream) {
  using L = LambLayout<P, G>;
  auto* squares = reinterpret_cast<Squares*>(workspace + kConstantsBytes);
  auto* coefficients = reinterpret_cast<double*>(squares + chunks);
  auto* device_rows = reinterpret_cast<TensorRow<kLambStreams>*>(coefficients + row_count);
  auto* row_of_chunk = reinterpret_cast<int32_t*>(device_rows + row_count);
  const char* error = upload_table(rows, row_count, chunks, device_rows, row_of_chunk, stream);
  if (error != nullptr) return error;
  const TensorTable<kLambStreams> table{device_rows, row_of_chunk};
  const auto constants =
      constants_of<LambConstants<typename L::A>>(options, values, workspace, stream);
  const auto blocks = static_cast<unsigned>(chunks);
  if (chunks > 0) moments_and_norms<L><<<blocks, kThreads, 0, stream>>>(table, constants, squares);
  coefficients_of_rows<<<static_cast<unsigned>(row_count), kThreads, 0, stream>>>(
      device_rows, row_count, chunks, constants, squares, options.min_coeff, options.max_coeff,
      coefficients, reported);
  if (chunks > 0) move_params<L><<<blocks, kThreads, 0, stream>>>(table, constants, coefficients);
  return last_error();
}

}  // namespace

int64_t lamb_chunk(FloatType params, FloatType grads) {
  return for_lamb_types(params, grads, [](auto p, auto g) {
    return LambLayout<typename decltype(p)::type, typename decltype(g)::type>::kChunk;
  });
}

int64_t lamb_workspace(int32_t rows, int64_t chunks) {
  return kConstantsBytes + chunks * static_cast<int64_t>(sizeof(Squares)) +
         rows * static_cast<int64_t>(sizeof(double)) + table_bytes<kLambStreams>(rows, chunks);
}

const char* launch_lamb(FloatType params, FloatType grads, const TensorRow<kLambStreams>* rows,
                        int32_t row_count, int64_t chunks, const LambOptions& options,
                        const DeviceValues& values, float* coefficients, void* workspace,
                        int32_t device, void* stream) {
  const char* error = set_device(device);
  if (error != nullptr) return error;
  return for_lamb_types(params, grads, [&](auto p, auto g) {
    return launch<typename decltype(p)::type, typename decltype(g)::type>(
        rows, row_count, chunks, options, values, coefficients, static_cast<char*>(workspace),
        static_cast<cudaStream_t>(stream));
  });
}

}  // namespace deepspeed
