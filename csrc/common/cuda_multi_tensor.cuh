// Device side of a multi-tensor update: how the table gets there, and how a block walks its chunk.
//
// The table travels as kernel arguments, which CUDA copies at the launch: no host memory has to
// outlive the call, nothing waits, and a CUDA graph captures the values. A second small kernel
// writes down, for each chunk, whose it is; the update itself then finds its row with two loads.

#pragma once

#include "cuda_elements.cuh"
#include "cuda_multi_tensor.h"
#include "float_type.h"

namespace deepspeed {

// Kernel arguments may take 4 KiB on every GPU.
constexpr int kArgumentBytes = 4000;

template <int N>
struct RowBatch {
  static constexpr int kRows = kArgumentBytes / static_cast<int>(sizeof(TensorRow<N>));
  TensorRow<N> rows[kRows];
};

template <int N>
__global__ void store_rows(const RowBatch<N> batch, TensorRow<N>* to, int count) {
  // Word by word: neighbours write neighbouring addresses.
  constexpr int kWords = sizeof(TensorRow<N>) / sizeof(int64_t);
  const auto* words = reinterpret_cast<const int64_t*>(&batch);
  for (int i = threadIdx.x; i < count * kWords; i += blockDim.x) {
    reinterpret_cast<int64_t*>(to)[i] = words[i];
  }
}

// One thread a chunk: the row with the last first_chunk that is not behind it. Rows of empty
// tensors share theirs with the next row and are passed over.
template <int N>
__global__ void find_rows(const TensorRow<N>* rows, int row_count, int32_t* row_of_chunk,
                          int64_t chunks) {
  const int64_t chunk = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (chunk >= chunks) return;
  int low = 0, high = row_count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (rows[middle].first_chunk <= chunk) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  row_of_chunk[chunk] = low;
}

// Fills `device_rows` and `row_of_chunk`, in stream order; null, or the text of an error.
template <int N>
const char* upload_table(const TensorRow<N>* rows, int32_t count, int64_t chunks,
                         TensorRow<N>* device_rows, int32_t* row_of_chunk, cudaStream_t stream) {
  for (int32_t done = 0; done < count;) {
    RowBatch<N> batch;
    const int32_t now = count - done < RowBatch<N>::kRows ? count - done : RowBatch<N>::kRows;
    for (int32_t i = 0; i < now; ++i) batch.rows[i] = rows[done + i];
    store_rows<N><<<1, 128, 0, stream>>>(batch, device_rows + done, now);
    done += now;
  }
  constexpr int kThreads = 256;
  const int64_t blocks = (chunks + kThreads - 1) / kThreads;
  find_rows<N><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(device_rows, count,
                                                                       row_of_chunk, chunks);
  return last_error();
}

// The factors of an update, which kernels take by value: known to the host, or else left in device
// memory by `prepare`. C is made from the op's options and has a member `skip`.
template <class C>
struct Constants {
  C on_host;
  const C* on_device;

  __device__ C get() const { return on_device != nullptr ? *on_device : on_host; }
};

// Device memory for one C, in front of a workspace.
constexpr int64_t kConstantsBytes = 128;

// One thread: what the GPU knows takes the place of what the host said.
template <class C, class Options>
__global__ void prepare(Options options, DeviceValues values, C* to) {
  const bool skip = values.found_inf != nullptr && *values.found_inf != 0.0f;
  if (values.step != nullptr) {
    if (!skip) *values.step += 1.0f;
    options.step = *values.step;
  }
  if (values.lr != nullptr) options.lr = *values.lr;
  if (values.grad_scale != nullptr) options.grad_scale *= *values.grad_scale;
  *to = C(options);
  to->skip = skip;
}

template <class C, class Options>
Constants<C> constants_of(const Options& options, const DeviceValues& values, void* workspace,
                          cudaStream_t stream) {
  static_assert(sizeof(C) <= kConstantsBytes, "they have to fit");
  auto* on_device = static_cast<C*>(workspace);
  if (values.any()) prepare<C><<<1, 1, 0, stream>>>(options, values, on_device);
  return {C(options), values.any() ? on_device : nullptr};
}

// Calls f(TypeTag<P>, TypeTag<S>) for the element types of parameters and states that optimizers
// support: states are of the parameters' type, or float32 beside 16-bit parameters.
template <class F>
auto for_types(FloatType params, FloatType states, F&& f) {
  const bool wide = states == FloatType::f32;
  using Half = TypeTag<__half>;
  using Bfloat = TypeTag<__nv_bfloat16>;
  using Float = TypeTag<float>;
  using Double = TypeTag<double>;
  switch (params) {
    case FloatType::f64:
      return f(Double{}, Double{});
    case FloatType::f16:
      return wide ? f(Half{}, Float{}) : f(Half{}, Half{});
    case FloatType::bf16:
      return wide ? f(Bfloat{}, Float{}) : f(Bfloat{}, Bfloat{});
    case FloatType::f32:
      break;
  }
  return f(Float{}, Float{});
}

// A block updates one chunk: it loads everything, then stores everything. Measured on an H200, in
// one run over 1.3 B float32 elements, Adam and LAMB (in GB/s): 512 threads with 2 vectors each
// 4176 and 4325; with 1 vector 4152 and 4125; 256 threads with 1 vector 4254 and 4127, with 2 4121
// and 4347. Streaming hints on loads and stores cost Adam 2 % and LAMB 6 %, whose second pass finds
// a part of the first one's data in the L2 cache. Grids that stay, and bulk copies through shared
// memory, came to 3900.
constexpr int kThreads = 512;
constexpr int kVectors = 2;  // per stream and thread

constexpr int smaller(int a, int b) { return a < b ? a : b; }

// The element types of a parameter, its gradient and its states, and how a chunk is cut.
template <class Param, class Grad, class State, int kStateCount>
struct Layout {
  using P = Param;
  using G = Grad;
  using S = State;
  using A = typename Arithmetic<Param>::type;
  static constexpr int kStates = kStateCount;
  // Elements of a vector: 16 bytes of the narrowest stream.
  static constexpr int kWidth = 16 / smaller(sizeof(P), smaller(sizeof(G), sizeof(S)));
  static constexpr int64_t kChunk = int64_t{kThreads} * kVectors * kWidth;
};

// Streams of a row, as bits of what is read and written: parameter, gradient, states.
constexpr unsigned kParamBit = 1, kGradBit = 2;
constexpr unsigned kStateBits = ~3u;

// Calls f(A& p, A g, A (&states)[kStates]) for each element of the chunk that begins at `begin`,
// loading the streams in kRead (others are 0) and storing those in kWritten.
template <class L, unsigned kRead, unsigned kWritten, int N, class F>
__device__ inline void for_each_element(const TensorRow<N>& row, int64_t begin, F&& f) {
  using P = typename L::P;
  using G = typename L::G;
  using S = typename L::S;
  using A = typename L::A;
  constexpr int K = L::kWidth;
  constexpr bool kReadsStates = (kRead & kStateBits) != 0;
  constexpr bool kWritesStates = (kWritten & kStateBits) != 0;
  const int64_t left = row.numel - begin;
  P* p = static_cast<P*>(row.streams[0]) + begin;
  const G* g = static_cast<const G*>(row.streams[1]) + begin;
  S* s[L::kStates];
  bool vectors = left >= L::kChunk && is_vector_aligned(p) && is_vector_aligned(g);
#pragma unroll
  for (int i = 0; i < L::kStates; ++i) {
    s[i] = static_cast<S*>(row.streams[2 + i]) + begin;
    vectors = vectors && is_vector_aligned(s[i]);
  }
  if (!vectors) {
    const int count = static_cast<int>(left < L::kChunk ? left : L::kChunk);
    for (int at = threadIdx.x; at < count; at += kThreads) {
      A pi = kRead & kParamBit ? A(widen(p[at])) : A(0);
      const A gi = kRead & kGradBit ? A(widen(g[at])) : A(0);
      A si[L::kStates];
#pragma unroll
      for (int i = 0; i < L::kStates; ++i) si[i] = kReadsStates ? A(widen(s[i][at])) : A(0);
      f(pi, gi, si, at);
      if (kWritten & kParamBit) p[at] = narrow<P>(pi);
#pragma unroll
      for (int i = 0; i < L::kStates; ++i) {
        if (kWritesStates) s[i][at] = narrow<S>(si[i]);
      }
    }
    return;
  }
  Vector<P, K> pv[kVectors];
  Vector<G, K> gv[kVectors];
  Vector<S, K> sv[kVectors][L::kStates];
#pragma unroll
  for (int u = 0; u < kVectors; ++u) {
    const int at = (u * kThreads + threadIdx.x) * K;
    if (kRead & kParamBit) pv[u] = load_vector<P, K>(p + at);
    if (kRead & kGradBit) gv[u] = load_vector<G, K>(g + at);
#pragma unroll
    for (int i = 0; i < L::kStates; ++i) {
      if (kReadsStates) sv[u][i] = load_vector<S, K>(s[i] + at);
    }
  }
#pragma unroll
  for (int u = 0; u < kVectors; ++u) {
    const int at = (u * kThreads + threadIdx.x) * K;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      A pi = kRead & kParamBit ? A(widen(pv[u].values[k])) : A(0);
      const A gi = kRead & kGradBit ? A(widen(gv[u].values[k])) : A(0);
      A si[L::kStates];
#pragma unroll
      for (int i = 0; i < L::kStates; ++i) {
        si[i] = kReadsStates ? A(widen(sv[u][i].values[k])) : A(0);
      }
      f(pi, gi, si, at + k);
      if (kWritten & kParamBit) pv[u].values[k] = narrow<P>(pi);
#pragma unroll
      for (int i = 0; i < L::kStates; ++i) {
        if (kWritesStates) sv[u][i].values[k] = narrow<S>(si[i]);
      }
    }
    if (kWritten & kParamBit) store_vector<P, K>(p + at, pv[u]);
#pragma unroll
    for (int i = 0; i < L::kStates; ++i) {
      if (kWritesStates) store_vector<S, K>(s[i] + at, sv[u][i]);
    }
  }
}

}  // namespace deepspeed
