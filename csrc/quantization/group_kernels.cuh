// Kernels that read a group, find its range, and write something that depends on both.
//
// What is read and written are a Source's and a Sink's business:
//   Source: Group open(group): once a group and thread;
//           Raw load(Group, vector) and widen(Raw, float (&)[8]): 8 elements, aligned;
//           float at(Group, i): one element.
//   Sink:   Group open(group, range, writes): once a group and thread, `writes` in one of them;
//           store(Group, vector, const float (&)[8]): 8 elements, aligned;
//           store_few(Group, i, const float*, n): 1 or 2 elements, i even.
//
// Groups of up to 32 Ki elements whose size is a multiple of 8 are kept in registers between
// reading and writing: each element is read once. Others, and unaligned ones, are read twice, the
// second time mostly from a cache; those too large for one block are worked on in parts.

#pragma once

#include <climits>

#include "cuda_elements.cuh"
#include "rounding.h"

namespace deepspeed {

constexpr int kWidth = 8;  // elements of a vector
constexpr int kWarp = 32;
constexpr int kMaxThreads = 1024;
// 64 bytes of float16 in flight a thread, for four independent loads.
constexpr int kVectors = 4;
// Threads of a block of small groups.
constexpr int kBlockThreads = 256;
constexpr int64_t kMaxVectors = int64_t{kMaxThreads} * kVectors;
// Elements of a part where a group is too large for one block; even, so that pairs stay together.
constexpr int64_t kPart = 16384;

__device__ inline void add(Range& range, float x) {
  range.low = lesser(range.low, x);
  range.high = greater(range.high, x);
}

__device__ inline void add(Range& range, const Range& other) {
  range.low = lesser(range.low, other.low);
  range.high = greater(range.high, other.high);
}

// The range over `lanes` neighbouring lanes of a warp, in each of them.
__device__ inline Range over_lanes(Range range, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
    add(range, {__shfl_xor_sync(~0u, range.low, offset), __shfl_xor_sync(~0u, range.high, offset)});
  }
  return range;
}

// The range over a block of whole warps, in each thread.
__device__ inline Range over_block(Range range) {
  __shared__ Range of_warp[kMaxThreads / kWarp];
  range = over_lanes(range, kWarp);
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = range;
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  return over_lanes(lane < warps ? of_warp[lane] : Range{}, kWarp);
}

// Each thread holds kVectors vectors: `kPerGroup` of one group, or one of each of several groups.
// `lanes` threads share a group: a power of two up to 32, or else all of the block.
template <int kPerGroup, class Source, class Sink>
__global__ void __launch_bounds__(kMaxThreads)
    whole_groups(Source source, Sink sink, int64_t groups, int32_t vectors, int32_t lanes) {
  constexpr int kGroups = kVectors / kPerGroup;
  const int side_by_side = static_cast<int>(blockDim.x) / lanes;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * side_by_side * kGroups +
                        static_cast<int>(threadIdx.x) / lanes;
  typename Source::Raw raw[kGroups][kPerGroup];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int64_t group = first + g * side_by_side;
    const auto from = source.open(group < groups ? group : 0);
#pragma unroll
    for (int i = 0; i < kPerGroup; ++i) {
      const int vector = i * lanes + lane;
      if (group < groups && vector < vectors) raw[g][i] = source.load(from, vector);
    }
  }
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int64_t group = first + g * side_by_side;
    Range range;
#pragma unroll
    for (int i = 0; i < kPerGroup; ++i) {
      if (group >= groups || i * lanes + lane >= vectors) continue;
      float values[kWidth];
      source.widen(raw[g][i], values);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) add(range, values[k]);
    }
    range = lanes > kWarp ? over_block(range) : over_lanes(range, lanes);
    if (group >= groups) continue;
    const auto to = sink.open(group, range, lane == 0);
#pragma unroll
    for (int i = 0; i < kPerGroup; ++i) {
      const int vector = i * lanes + lane;
      if (vector >= vectors) continue;
      float values[kWidth];
      source.widen(raw[g][i], values);
      sink.store(to, vector, values);
    }
  }
}

struct PartOfGroup {
  int64_t group;
  int32_t part;
  int64_t begin, end;

  __device__ PartOfGroup(int64_t size, int32_t parts)
      : group(blockIdx.x / parts),
        part(static_cast<int32_t>(blockIdx.x % parts)),
        begin(part * kPart),
        end(parts == 1 || begin + kPart > size ? size : begin + kPart) {}
};

template <class Source>
__device__ Range range_of_part(const Source& source, const PartOfGroup& part) {
  const auto from = source.open(part.group);
  Range range;
  for (int64_t i = part.begin + threadIdx.x; i < part.end; i += blockDim.x) {
    add(range, source.at(from, i));
  }
  return over_block(range);
}

template <class Source>
__global__ void ranges_of_parts(Source source, int64_t size, int32_t parts, Range* ranges) {
  const Range range = range_of_part(source, PartOfGroup(size, parts));
  if (threadIdx.x == 0) ranges[blockIdx.x] = range;
}

// `ranges` are those of all parts; null where a group is one part.
template <class Source, class Sink>
__global__ void parts_of_groups(Source source, Sink sink, int64_t size, int32_t parts,
                                const Range* ranges) {
  const PartOfGroup part(size, parts);
  Range range;
  if (ranges == nullptr) {
    range = range_of_part(source, part);
  } else {
    for (int i = threadIdx.x; i < parts; i += blockDim.x)
      add(range, ranges[part.group * parts + i]);
    range = over_block(range);
  }
  const auto from = source.open(part.group);
  const auto to = sink.open(part.group, range, part.part == 0 && threadIdx.x == 0);
  for (int64_t i = part.begin + 2 * threadIdx.x; i < part.end; i += 2 * blockDim.x) {
    const int n = i + 1 < part.end ? 2 : 1;
    const float values[2] = {source.at(from, i), n == 2 ? source.at(from, i + 1) : 0.0f};
    sink.store_few(to, i, values, n);
  }
}

// Parts of a group for which a block is not large enough.
inline int64_t parts_of(int64_t size) { return size <= kPart ? 1 : (size + kPart - 1) / kPart; }

// Runs the kernels over `groups` groups of `size` elements; `aligned` says whether every vector is.
// Returns null or the text of an error.
template <class Source, class Sink>
const char* launch_groups(const Source& source, const Sink& sink, int64_t groups, int64_t size,
                          bool aligned, void* workspace, cudaStream_t stream) {
  const int64_t vectors = size / kWidth;
  if (aligned && size > 0 && size % kWidth == 0 && vectors <= kMaxVectors) {
    const auto count = static_cast<int32_t>(vectors);
    int lanes = 1;
    if (vectors <= kWarp) {
      while (lanes < vectors) lanes *= 2;
      const int64_t of_block = int64_t{kBlockThreads / lanes} * kVectors;
      const auto blocks = static_cast<unsigned>((groups + of_block - 1) / of_block);
      whole_groups<1><<<blocks, kBlockThreads, 0, stream>>>(source, sink, groups, count, lanes);
    } else if (vectors <= kWarp * kVectors) {
      while (lanes * kVectors < vectors) lanes *= 2;
      const int64_t of_block = kBlockThreads / lanes;
      const auto blocks = static_cast<unsigned>((groups + of_block - 1) / of_block);
      whole_groups<kVectors>
          <<<blocks, kBlockThreads, 0, stream>>>(source, sink, groups, count, lanes);
    } else {
      const auto threads = (count + kVectors * kWarp - 1) / (kVectors * kWarp) * kWarp;
      whole_groups<kVectors><<<static_cast<unsigned>(groups), threads, 0, stream>>>(
          source, sink, groups, count, threads);
    }
    return last_error();
  }
  const int64_t parts = parts_of(size), blocks = groups * parts;
  if (blocks > INT_MAX) return "too many groups for one launch; split the tensor";
  const int64_t pairs = (size < kPart ? size : kPart) / 2;
  int threads = kWarp;
  while (threads < kBlockThreads && threads < pairs) threads *= 2;
  auto* ranges = parts > 1 ? static_cast<Range*>(workspace) : nullptr;
  if (parts > 1) {
    ranges_of_parts<<<static_cast<unsigned>(blocks), threads, 0, stream>>>(
        source, size, static_cast<int32_t>(parts), ranges);
  }
  parts_of_groups<<<static_cast<unsigned>(blocks), threads, 0, stream>>>(
      source, sink, size, static_cast<int32_t>(parts), ranges);
  return last_error();
}

// -- elements of one floating-point type ----------------------------------------------------------

template <class T>
struct FloatVectors {
  using Raw = Vector<T, kWidth>;
  using Group = const T*;

  const T* data;
  int64_t size;

  __device__ Group open(int64_t group) const { return data + group * size; }
  __device__ static Raw load(Group group, int vector) {
    return load_vector<T, kWidth>(group + int64_t{vector} * kWidth);
  }
  __device__ static void widen(const Raw& raw, float (&to)[kWidth]) {
#pragma unroll
    for (int k = 0; k < kWidth; ++k) to[k] = deepspeed::widen(raw.values[k]);
  }
  __device__ static float at(Group group, int64_t i) { return deepspeed::widen(group[i]); }
};

// -- codes ----------------------------------------------------------------------------------------

// 8 numbers as codes of 8 or 4 bits, and back.
__device__ inline void store_codes(const Quantized& to, int64_t first, const float (&codes)[8]) {
  uint32_t words[2] = {0, 0};
  if (to.bits == 8) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      words[k / 4] |= (static_cast<uint32_t>(static_cast<int>(codes[k])) & 255u) << (k % 4 * 8);
    }
    *reinterpret_cast<uint2*>(to.data + first) = make_uint2(words[0], words[1]);
    return;
  }
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    // The first of two has the high half of the byte.
    const int shift = k / 2 * 8 + (k % 2 == 0 ? 4 : 0);
    words[0] |= (static_cast<uint32_t>(static_cast<int>(codes[k])) & 15u) << shift;
  }
  *reinterpret_cast<uint32_t*>(to.data + first / 2) = words[0];
}

__device__ inline void store_few_codes(const Quantized& to, int64_t first, const float* codes,
                                       int n) {
  if (to.bits == 8) {
    for (int i = 0; i < n; ++i) to.data[first + i] = static_cast<int8_t>(codes[i]);
  } else {
    const int high = static_cast<int>(codes[0]), low = static_cast<int>(codes[1]);
    to.data[first / 2] = static_cast<int8_t>(((high & 15) << 4) | (low & 15));
  }
}

// Codes as they lie in memory; `words` beyond the first are unused for 4 bits.
using CodeWords = uint2;

__device__ inline CodeWords load_codes(const int8_t* data, int64_t first, int64_t bits) {
  if (bits == 8) return *reinterpret_cast<const uint2*>(data + first);
  return make_uint2(*reinterpret_cast<const uint32_t*>(data + first / 2), 0);
}

__device__ inline void codes_to_floats(const CodeWords& words, int64_t bits, float (&to)[8]) {
  if (bits == 8) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const uint32_t word = k < 4 ? words.x : words.y;
      to[k] = static_cast<float>(static_cast<int8_t>(word >> (k % 4 * 8)));
    }
    return;
  }
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const int left = 24 - k / 2 * 8 + (k % 2 == 0 ? 0 : 4);
    to[k] = static_cast<float>(static_cast<int32_t>(words.x << left) >> 28);
  }
}

__device__ inline float code_at(const int8_t* data, int64_t at, int64_t bits) {
  if (bits == 8) return static_cast<float>(data[at]);
  const int code = data[at / 2];
  return static_cast<float>(at % 2 == 0 ? code >> 4 : static_cast<int8_t>(code << 4) >> 4);
}

// Codes, and nothing else.
struct CodeSink {
  struct Group {
    QuantizedScale scale;
    int64_t first;  // element
  };

  Quantized to;
  GroupOrder order;

  __device__ Group open(int64_t group, const Range& range, bool writes) const {
    const QuantizedScale scale(range, to.bits, to.symmetric);
    const int64_t place = order(group);
    if (writes) {
      float* params = to.params + place * (to.symmetric ? 1 : 2);
      params[0] = scale.step.value;
      if (!to.symmetric) params[1] = scale.offset;
    }
    return {scale, place * to.group_size};
  }
  __device__ void store(const Group& group, int vector, const float (&values)[kWidth]) const {
    float codes[kWidth];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) codes[k] = group.scale.code(values[k]);
    store_codes(to, group.first + int64_t{vector} * kWidth, codes);
  }
  __device__ void store_few(const Group& group, int64_t i, const float* values, int n) const {
    const float codes[2] = {group.scale.code(values[0]), group.scale.code(values[1])};
    store_few_codes(to, group.first + i, codes, n);
  }
};

// A source of which a vector is made of several.
struct Floats {
  float values[kWidth];
};

__device__ inline void copy(const Floats& from, float (&to)[kWidth]) {
#pragma unroll
  for (int k = 0; k < kWidth; ++k) to[k] = from.values[k];
}

// A source to whose elements the errors are added.
template <class Source, class E>
struct WithError {
  using Raw = Floats;
  struct Group {
    typename Source::Group of_source;
    const E* errors;
  };

  Source source;
  FloatVectors<E> errors;
  GroupOrder order;

  __device__ Group open(int64_t group) const {
    return {source.open(group), errors.open(order(group))};
  }
  __device__ Raw load(const Group& group, int vector) const {
    Raw sum;
    float error[kWidth];
    source.widen(source.load(group.of_source, vector), sum.values);
    errors.widen(errors.load(group.errors, vector), error);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) sum.values[k] += error[k];
    return sum;
  }
  __device__ static void widen(const Raw& raw, float (&to)[kWidth]) { copy(raw, to); }
  __device__ float at(const Group& group, int64_t i) const {
    return source.at(group.of_source, i) + errors.at(group.errors, i);
  }
};

// Codes, and what they lose goes into the errors.
template <class E>
struct CodeAndErrorSink {
  using Group = CodeSink::Group;

  CodeSink codes;
  E* errors;
  float beta, rest;

  CodeAndErrorSink(const Quantized& to, const GroupOrder& order, const ErrorFeedback& error)
      : codes{to, order},
        errors(static_cast<E*>(error.data)),
        beta(static_cast<float>(error.beta)),
        rest(static_cast<float>(1.0 - error.beta)) {}

  __device__ Group open(int64_t group, const Range& range, bool writes) const {
    return codes.open(group, range, writes);
  }
  __device__ void update(E& error, float value, const QuantizedScale& scale) const {
    const float lost = value - scale.number(scale.code(value));
    error = narrow<E>(beta * deepspeed::widen(error) + rest * lost);
  }
  __device__ void store(const Group& group, int vector, const float (&values)[kWidth]) const {
    codes.store(group, vector, values);
    E* at = errors + group.first + int64_t{vector} * kWidth;
    Vector<E, kWidth> updated = load_vector<E, kWidth>(at);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) update(updated.values[k], values[k], group.scale);
    store_vector<E, kWidth>(at, updated);
  }
  __device__ void store_few(const Group& group, int64_t i, const float* values, int n) const {
    codes.store_few(group, i, values, n);
    for (int k = 0; k < n; ++k) update(errors[group.first + i + k], values[k], group.scale);
  }
};

// Whether vectors of codes are aligned if the first one is.
inline bool codes_aligned(const Quantized& q) {
  return reinterpret_cast<uintptr_t>(q.data) % (q.bits == 8 ? 8 : 4) == 0;
}

// Calls f(TypeTag<T>) for a type of 16 or 32 bits.
template <class F>
auto for_type(FloatType type, F&& f) {
  if (type == FloatType::f16) return f(TypeTag<__half>{});
  if (type == FloatType::bf16) return f(TypeTag<__nv_bfloat16>{});
  return f(TypeTag<float>{});
}

inline bool aligned(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % sizeof(int4) == 0;
}

}  // namespace deepspeed
