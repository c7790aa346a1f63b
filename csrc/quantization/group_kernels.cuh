// Kernels that read a group, find a statistic of it (its range, or its greatest magnitude), and
// write something that depends on both.
//
// What is read and written are a Source's and a Sink's business:
//   Source: Group open(group): once a group and thread;
//           Raw load(Group, vector): 8 elements, aligned; widen(Raw, float (&)[8]);
//           Accumulator<Statistic>: add(Raw), and result() of all that were added;
//           float at(Group, i): one element.
//   Sink:   Statistic: what it has to know of a group;
//           Group open(group, statistic, writes): once a group and thread, `writes` in one of them;
//           store(Group, vector, const float (&)[8]): 8 elements, aligned;
//           store_few(Group, i, const float*, n): 1 or 2 elements, i even.
//
// Groups of up to 32 Ki elements whose size is a multiple of 8 are kept in registers between
// reading and writing: each element is read once. Others, and unaligned ones, are read twice, the
// second time mostly from a cache; those too large for one block are worked on in parts.

#pragma once

#include <climits>
#include <type_traits>

#include "cuda_elements.cuh"
#include "rounding.h"

namespace deepspeed {

constexpr int kWidth = 8;  // elements of a vector
constexpr int kWarp = 32;
constexpr int kMaxThreads = 1024;
// Vectors a thread: 64 bytes of float16 in flight, in four independent loads. Measured on an H200,
// 8 and 2 are slower at some sizes of groups, and so are blocks of 256 and 512 threads.
constexpr int kVectors = 4;
// Threads of a block of small groups.
constexpr int kBlockThreads = 128;
constexpr int64_t kMaxVectors = int64_t{kMaxThreads} * kVectors;
// Elements of a part where a group is too large for one block; even, so that pairs stay together.
constexpr int64_t kPart = 16384;

__device__ inline Range from_lane(const Range& range, int offset) {
  return {__shfl_xor_sync(~0u, range.low, offset), __shfl_xor_sync(~0u, range.high, offset)};
}
__device__ inline Magnitude from_lane(const Magnitude& magnitude, int offset) {
  return {__shfl_xor_sync(~0u, magnitude.value, offset)};
}

// The statistic over `lanes` neighbouring lanes of a warp, in each of them.
template <class Statistic>
__device__ inline Statistic over_lanes(Statistic statistic, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
    statistic.add(from_lane(statistic, offset));
  }
  return statistic;
}

// The statistic over a block of whole warps, in each thread.
template <class Statistic>
__device__ inline Statistic over_block(Statistic statistic) {
  __shared__ Statistic of_warp[kMaxThreads / kWarp];
  statistic = over_lanes(statistic, kWarp);
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = statistic;
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  return over_lanes(lane < warps ? of_warp[lane] : Statistic{}, kWarp);
}

// Each thread holds kVectors vectors: `kPerGroup` of one group, or one of each of several groups.
// `lanes` threads share a group: a power of two up to 32, or else, with kPerBlock, all of the
// block.
template <int kPerGroup, bool kPerBlock, class Source, class Sink>
__global__ void __launch_bounds__(kPerBlock ? kMaxThreads : kBlockThreads)
    whole_groups(Source source, Sink sink, int64_t groups, int32_t vectors, int32_t log2_lanes) {
  using Statistic = typename Sink::Statistic;
  constexpr int kGroups = kVectors / kPerGroup;
  const int thread = static_cast<int>(threadIdx.x);
  const int lanes = kPerBlock ? static_cast<int>(blockDim.x) : 1 << log2_lanes;
  const int side_by_side = kPerBlock ? 1 : kBlockThreads >> log2_lanes;
  const int lane = kPerBlock ? thread : thread & (lanes - 1);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * side_by_side * kGroups +
                        (kPerBlock ? 0 : thread >> log2_lanes);
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
    typename Source::template Accumulator<Statistic> accumulator;
#pragma unroll
    for (int i = 0; i < kPerGroup; ++i) {
      if (group < groups && i * lanes + lane < vectors) accumulator.add(raw[g][i]);
    }
    Statistic statistic = accumulator.result();
    statistic = kPerBlock ? over_block(statistic) : over_lanes(statistic, lanes);
    if (group >= groups) continue;
    const auto to = sink.open(group, statistic, lane == 0);
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

template <class Statistic, class Source>
__device__ Statistic statistic_of_part(const Source& source, const PartOfGroup& part) {
  const auto from = source.open(part.group);
  Statistic statistic;
  for (int64_t i = part.begin + threadIdx.x; i < part.end; i += blockDim.x) {
    statistic.add(source.at(from, i));
  }
  return over_block(statistic);
}

template <class Statistic, class Source>
__global__ void statistics_of_parts(Source source, int64_t size, int32_t parts,
                                    Statistic* statistics) {
  const auto statistic = statistic_of_part<Statistic>(source, PartOfGroup(size, parts));
  if (threadIdx.x == 0) statistics[blockIdx.x] = statistic;
}

// `statistics` are those of all parts; null where a group is one part.
template <class Source, class Sink>
__global__ void parts_of_groups(Source source, Sink sink, int64_t size, int32_t parts,
                                const typename Sink::Statistic* statistics) {
  using Statistic = typename Sink::Statistic;
  const PartOfGroup part(size, parts);
  Statistic statistic;
  if (statistics == nullptr) {
    statistic = statistic_of_part<Statistic>(source, part);
  } else {
    for (int i = threadIdx.x; i < parts; i += blockDim.x) {
      statistic.add(statistics[part.group * parts + i]);
    }
    statistic = over_block(statistic);
  }
  const auto from = source.open(part.group);
  const auto to = sink.open(part.group, statistic, part.part == 0 && threadIdx.x == 0);
  for (int64_t i = part.begin + 2 * threadIdx.x; i < part.end; i += 2 * blockDim.x) {
    const int n = i + 1 < part.end ? 2 : 1;
    const float values[2] = {source.at(from, i), n == 2 ? source.at(from, i + 1) : 0.0f};
    sink.store_few(to, i, values, n);
  }
}

// The exponent of a power of two; −1 for other numbers.
inline int32_t exact_log2(int64_t n) {
  int32_t exponent = 0;
  while (exponent < 62 && int64_t{1} << exponent < n) ++exponent;
  return int64_t{1} << exponent == n ? exponent : -1;
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
    if (vectors <= kWarp * kVectors) {
      // The fewer threads share a group, the less there is to do for each of them; eight lanes
      // still read whole cache lines, four whole sectors. Of vectors larger than 16 bytes there is
      // one kernel only: three take long to compile.
      constexpr bool kSmall = sizeof(typename Source::Raw) <= sizeof(int4);
      const int per_group = !kSmall || vectors > 16 ? kVectors : vectors > 2 ? 2 : 1;
      int log2_lanes = 0;
      while (int64_t{per_group} << log2_lanes < vectors) ++log2_lanes;
      const int64_t of_block = int64_t{kBlockThreads >> log2_lanes} * (kVectors / per_group);
      const auto blocks = static_cast<unsigned>((groups + of_block - 1) / of_block);
      auto kernel = &whole_groups<kVectors, false, Source, Sink>;
      if constexpr (kSmall) {
        if (per_group == 1) kernel = &whole_groups<1, false, Source, Sink>;
        if (per_group == 2) kernel = &whole_groups<2, false, Source, Sink>;
      }
      kernel<<<blocks, kBlockThreads, 0, stream>>>(source, sink, groups, count, log2_lanes);
    } else {
      const auto threads = (count + kVectors * kWarp - 1) / (kVectors * kWarp) * kWarp;
      whole_groups<kVectors, true>
          <<<static_cast<unsigned>(groups), threads, 0, stream>>>(source, sink, groups, count, 0);
    }
    return last_error();
  }
  const int64_t parts = parts_of(size), blocks = groups * parts;
  if (blocks > INT_MAX) return "too many groups for one launch; split the tensor";
  const int64_t pairs = (size < kPart ? size : kPart) / 2;
  int threads = kWarp;
  while (threads < kBlockThreads && threads < pairs) threads *= 2;
  using Statistic = typename Sink::Statistic;
  auto* statistics = parts > 1 ? static_cast<Statistic*>(workspace) : nullptr;
  if (parts > 1) {
    statistics_of_parts<<<static_cast<unsigned>(blocks), threads, 0, stream>>>(
        source, size, static_cast<int32_t>(parts), statistics);
  }
  parts_of_groups<<<static_cast<unsigned>(blocks), threads, 0, stream>>>(
      source, sink, size, static_cast<int32_t>(parts), statistics);
  return last_error();
}

// -- elements of one floating-point type ----------------------------------------------------------

// Statistics of elements as they are, two 16-bit ones at a time.
template <class T>
using PairOf = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;

template <class T, class Statistic>
struct AccumulatorOf;

template <class T>
struct AccumulatorOf<T, Magnitude> {
  PairOf<T> most = zero();

  __device__ static PairOf<T> zero() {
    PairOf<T> pair;
    pair.x = pair.y = narrow<T>(0.0f);
    return pair;
  }
  __device__ void add(const Vector<T, kWidth>& raw) {
    const auto* pairs = reinterpret_cast<const PairOf<T>*>(&raw);
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) most = __hmax2_nan(most, __habs2(pairs[i]));
  }
  __device__ Magnitude result() const { return {greater(widen(most.x), widen(most.y))}; }
};

template <class T>
struct AccumulatorOf<T, Range> {
  PairOf<T> least, most;
  bool any = false;

  __device__ void add(const Vector<T, kWidth>& raw) {
    const auto* pairs = reinterpret_cast<const PairOf<T>*>(&raw);
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) {
      least = any ? __hmin2_nan(least, pairs[i]) : pairs[i];
      most = any ? __hmax2_nan(most, pairs[i]) : pairs[i];
      any = true;
    }
  }
  __device__ Range result() const {
    if (!any) return {};
    return {lesser(widen(least.x), widen(least.y)), greater(widen(most.x), widen(most.y))};
  }
};

// Of elements that are float32 already.
template <class Statistic>
struct FloatAccumulator {
  Statistic statistic;

  template <class Raw>
  __device__ void add(const Raw& raw) {
#pragma unroll
    for (int k = 0; k < kWidth; ++k) statistic.add(raw.values[k]);
  }
  __device__ Statistic result() const { return statistic; }
};
template <>
struct AccumulatorOf<float, Magnitude> : FloatAccumulator<Magnitude> {};
template <>
struct AccumulatorOf<float, Range> : FloatAccumulator<Range> {};

template <class T>
struct FloatVectors {
  using Raw = Vector<T, kWidth>;
  template <class Statistic>
  using Accumulator = AccumulatorOf<T, Statistic>;
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

// The low byte of each of four words, the first one lowest.
__device__ inline uint32_t bytes_of(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

// 8 codes, which the low bits of `codes` hold.
__device__ inline void store_codes_of_8_bits(int8_t* to, const float (&codes)[8]) {
  uint32_t words[8];
#pragma unroll
  for (int k = 0; k < 8; ++k) words[k] = __float_as_uint(codes[k]);
  *reinterpret_cast<uint2*>(to) = make_uint2(bytes_of(words[0], words[1], words[2], words[3]),
                                             bytes_of(words[4], words[5], words[6], words[7]));
}

// The first of two has the high half of the byte. 8 more makes both not negative, so that they add
// without a borrow; flipping the sign bits then takes it back.
__device__ inline void store_codes_of_4_bits(int8_t* to, const float (&codes)[8]) {
  uint32_t bytes[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    bytes[k] = (__float_as_uint(codes[2 * k]) << 4) + __float_as_uint(codes[2 * k + 1]) + 0x88u;
  }
  *reinterpret_cast<uint32_t*>(to) = bytes_of(bytes[0], bytes[1], bytes[2], bytes[3]) ^ 0x88888888u;
}

__device__ inline void store_few_codes(const Quantized& to, int64_t first, const float* codes,
                                       int n) {
  const uint32_t words[2] = {__float_as_uint(codes[0]), __float_as_uint(codes[1])};
  if (to.bits == 8) {
    for (int i = 0; i < n; ++i) to.data[first + i] = static_cast<int8_t>(words[i]);
  } else {
    to.data[first / 2] = static_cast<int8_t>(((words[0] & 15) << 4) | (words[1] & 15));
  }
}

// Codes as they lie in memory; `words` beyond the first are unused for 4 bits.
using CodeWords = uint2;

__device__ inline CodeWords load_codes(const int8_t* data, int64_t first, int64_t bits) {
  if (bits == 8) return *reinterpret_cast<const uint2*>(data + first);
  return make_uint2(*reinterpret_cast<const uint32_t*>(data + first / 2), 0);
}

// Small integers become floats by standing in the low bits of 2²³, where one is one bit: three
// instructions at full rate, where a conversion takes longer.
__device__ inline void codes_to_floats(const CodeWords& words, int64_t bits, float (&to)[8]) {
  constexpr uint32_t kOnes = 0x4b000000u;  // 2²³
  if (bits == 8) {
    // With its sign bit flipped, a code is 128 more and not negative.
    const uint32_t flipped[2] = {words.x ^ 0x80808080u, words.y ^ 0x80808080u};
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const uint32_t byte = __byte_perm(flipped[k / 4], kOnes, 0x7650 + k % 4);
      to[k] = __uint_as_float(byte) - (8388608.0f + 128.0f);
    }
    return;
  }
  // Four codes are used where they stand, as multiples of a power of 16.
  const uint32_t flipped = words.x ^ 0x88888888u;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const int shift = k / 2 * 8 + (k % 2 == 0 ? 4 : 0);
    const uint32_t half = shift < 16 ? flipped : flipped >> 16;
    const uint32_t unit = 1u << shift % 16;
    to[k] = (__uint_as_float((half & (15u * unit)) | kOnes) - (8388608.0f + 8.0f * unit)) *
            (1.0f / unit);
  }
}

__device__ inline float code_at(const int8_t* data, int64_t at, int64_t bits) {
  if (bits == 8) return static_cast<float>(data[at]);
  const int code = data[at / 2];
  return static_cast<float>(at % 2 == 0 ? code >> 4 : static_cast<int8_t>(code << 4) >> 4);
}

// Codes, and nothing else. `AScale` is SymmetricScale or AsymmetricScale; kOf16Bits says what is
// quantized.
template <class AScale, bool kOf16Bits>
struct CodeSink {
  using Scale = AScale;
  using Statistic = typename Scale::Statistic;
  struct Group {
    Scale scale;
    int64_t first;  // element
  };

  Quantized to;
  GroupOrder order;
  Levels levels;

  CodeSink(const Quantized& output, const GroupOrder& output_order)
      : to(output), order(output_order), levels(output.bits) {}

  __device__ Group open(int64_t group, const Statistic& statistic, bool writes) const {
    const Scale scale(statistic, levels);
    const int64_t place = order(group);
    if (writes) scale.write(to.params + place * Scale::kParams);
    return {scale, place * to.group_size};
  }
  // A fast code is good enough for all numbers, or for codes of 4 bits.
  static constexpr bool kFast = kOf16Bits && Scale::kParams == 1;

  __device__ static float code_of_8_bits(const Scale& scale, float value) {
    return kFast ? scale.shifted_code_fast(value) : scale.shifted_code(value);
  }
  __device__ float shifted_code(const Scale& scale, float value) const {
    return to.bits == 8 ? code_of_8_bits(scale, value) : scale.shifted_code_fast(value);
  }
  __device__ void store(const Group& group, int vector, const float (&values)[kWidth]) const {
    const int64_t first = group.first + int64_t{vector} * kWidth;
    float codes[kWidth];
    if (to.bits == 8) {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) codes[k] = code_of_8_bits(group.scale, values[k]);
      store_codes_of_8_bits(to.data + first, codes);
    } else {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) codes[k] = group.scale.shifted_code_fast(values[k]);
      store_codes_of_4_bits(to.data + first / 2, codes);
    }
  }
  __device__ void store_few(const Group& group, int64_t i, const float* values, int n) const {
    const float codes[2] = {shifted_code(group.scale, values[0]),
                            shifted_code(group.scale, values[1])};
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

// Errors of earlier quantizations, by element.
template <class T>
struct Errors {
  T* data;

  __device__ void read(int64_t first, float (&to)[kWidth]) const {
    FloatVectors<T>::widen(load_vector<T, kWidth>(data + first), to);
  }
  __device__ void write(int64_t first, const float (&from)[kWidth]) const {
    Vector<T, kWidth> raw;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) raw.values[k] = narrow<T>(from[k]);
    store_vector<T, kWidth>(data + first, raw);
  }
  __device__ float at(int64_t i) const { return widen(data[i]); }
  __device__ void put(int64_t i, float x) const { data[i] = narrow<T>(x); }
};

// The same where the type is known at run time only: for kernels of which there would be too many.
struct ErrorsOfAnyType {
  FloatType type;
  void* data;

  template <class F>
  __device__ auto typed(F&& f) const {
    if (type == FloatType::f16) return f(Errors<__half>{static_cast<__half*>(data)});
    if (type == FloatType::bf16) {
      return f(Errors<__nv_bfloat16>{static_cast<__nv_bfloat16*>(data)});
    }
    return f(Errors<float>{static_cast<float*>(data)});
  }
  __device__ void read(int64_t first, float (&to)[kWidth]) const {
    typed([&](const auto& errors) { errors.read(first, to); });
  }
  __device__ void write(int64_t first, const float (&from)[kWidth]) const {
    typed([&](const auto& errors) { errors.write(first, from); });
  }
  __device__ float at(int64_t i) const {
    return typed([&](const auto& errors) { return errors.at(i); });
  }
  __device__ void put(int64_t i, float x) const {
    typed([&](const auto& errors) { errors.put(i, x); });
  }
};

// A source to whose elements errors are added.
template <class Source, class SomeErrors>
struct WithError {
  using Raw = Floats;
  template <class Statistic>
  using Accumulator = FloatAccumulator<Statistic>;
  struct Group {
    typename Source::Group of_source;
    int64_t first;  // error
  };

  Source source;
  SomeErrors errors;
  GroupOrder order;
  int64_t size;

  __device__ Group open(int64_t group) const { return {source.open(group), order(group) * size}; }
  __device__ Raw load(const Group& group, int vector) const {
    Raw sum;
    float error[kWidth];
    source.widen(source.load(group.of_source, vector), sum.values);
    errors.read(group.first + int64_t{vector} * kWidth, error);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) sum.values[k] += error[k];
    return sum;
  }
  __device__ static void widen(const Raw& raw, float (&to)[kWidth]) { copy(raw, to); }
  __device__ float at(const Group& group, int64_t i) const {
    return source.at(group.of_source, i) + errors.at(group.first + i);
  }
};

// Codes, and what they lose goes into the errors.
template <class AScale, class SomeErrors>
struct CodeAndErrorSink {
  using Codes = CodeSink<AScale, false>;
  using Scale = AScale;
  using Statistic = typename Scale::Statistic;
  using Group = typename Codes::Group;

  Codes codes;
  SomeErrors errors;
  float beta, rest;

  CodeAndErrorSink(const Quantized& to, const GroupOrder& order, const SomeErrors& some_errors,
                   double error_beta)
      : codes(to, order),
        errors(some_errors),
        beta(static_cast<float>(error_beta)),
        rest(static_cast<float>(1.0 - error_beta)) {}

  __device__ Group open(int64_t group, const Statistic& statistic, bool writes) const {
    return codes.open(group, statistic, writes);
  }
  __device__ float updated(float error, float value, const Scale& scale) const {
    const float lost = value - scale.number(codes.shifted_code(scale, value) - kIntegers);
    return beta * error + rest * lost;
  }
  __device__ void store(const Group& group, int vector, const float (&values)[kWidth]) const {
    codes.store(group, vector, values);
    const int64_t first = group.first + int64_t{vector} * kWidth;
    float error[kWidth];
    errors.read(first, error);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) error[k] = updated(error[k], values[k], group.scale);
    errors.write(first, error);
  }
  __device__ void store_few(const Group& group, int64_t i, const float* values, int n) const {
    codes.store_few(group, i, values, n);
    for (int k = 0; k < n; ++k) {
      const int64_t at = group.first + i + k;
      errors.put(at, updated(errors.at(at), values[k], group.scale));
    }
  }
};

// Whether vectors of codes are aligned if the first one is.
inline bool codes_aligned(const Quantized& q) {
  return reinterpret_cast<uintptr_t>(q.data) % (q.bits == 8 ? 8 : 4) == 0;
}

// Calls f(TypeTag<Scale>).
template <class F>
auto for_scale(bool symmetric, F&& f) {
  return symmetric ? f(TypeTag<SymmetricScale>{}) : f(TypeTag<AsymmetricScale>{});
}

}  // namespace deepspeed
