// Element ranges of many tensors, processed as one range.
//
// An optimizer updates a list of parameters; each parameter has N streams (parameter, gradient,
// states) of equal length but maybe different types. A Segment is one parameter. All segments are
// laid end to end to form one virtual range, which threads share evenly whatever the sizes of the
// tensors are. Kernels see float32 only: 16-bit streams pass through a block that stays in the L1
// cache, float32 streams are handed over where they lie. Nothing here depends on torch.

#pragma once

#include <cstdint>

#include "float_type.h"

namespace deepspeed {

struct Stream {
  void* data = nullptr;
  FloatType type = FloatType::f32;

  void* at(int64_t i) const {
    const int64_t width = type == FloatType::f32 ? 4 : 2;
    return static_cast<char*>(data) + i * width;
  }
};

template <int N>
struct Segment {
  int64_t begin = 0;  // of this segment in the virtual range
  int64_t numel = 0;
  Stream streams[N];
  bool all_f32 = true;
};

// What to do with a range: `kernel(streams, n, constants)` updates n float32 elements of each
// stream. Bit i of `written` says that stream i is written and has to be converted back.
template <int N, class Constants>
struct Update {
  using Kernel = void (*)(float* const* streams, int64_t n, const Constants* constants);
  Kernel kernel;
  Conversion bf16;
  Conversion f16;
  unsigned written;
  Constants constants;

  const Conversion& converter(FloatType type) const { return type == FloatType::bf16 ? bf16 : f16; }
};

// Elements per block. Float32 copies of N streams and the data they come from fit the smallest L1
// data cache (32 KiB) several times; measured, 128 to 512 differ little.
constexpr int64_t kBlock = 128;

// How many elements ahead of its use memory is asked for. Hardware prefetchers follow that many
// streams less well, and stop at the end of each page.
constexpr int64_t kAhead = 512;

// Threads split the virtual range anywhere; within a tensor the split is moved down to a multiple
// of this, so that both sides keep the alignment of the tensor.
constexpr int64_t kSplit = 1024;

namespace detail {

// Asks for the block of `stream` at element `at`. An address past its end does no harm.
inline void prefetch_block(const Stream& stream, int64_t at) {
  constexpr int64_t kLine = 64;
  const char* begin = static_cast<const char*>(stream.at(at));
  const char* end = static_cast<const char*>(stream.at(at + kBlock));
  for (const char* line = begin; line < end; line += kLine) __builtin_prefetch(line);
}

// Updates elements [lo, hi) of one segment.
template <int N, class Constants>
void update_segment(const Segment<N>& segment, int64_t lo, int64_t hi,
                    const Update<N, Constants>& update) {
  alignas(64) float scratch[N][kBlock];
  for (int64_t at = lo; at < hi; at += kBlock) {
    const int64_t n = hi - at < kBlock ? hi - at : kBlock;
    float* wide[N];
    for (int s = 0; s < N; ++s) {
      const Stream& stream = segment.streams[s];
      if (at + kAhead < hi) prefetch_block(stream, at + kAhead);
      wide[s] = stream.type == FloatType::f32 ? static_cast<float*>(stream.at(at)) : scratch[s];
      if (stream.type == FloatType::f32) continue;
      update.converter(stream.type).widen(static_cast<const uint16_t*>(stream.at(at)), wide[s], n);
    }
    update.kernel(wide, n, &update.constants);
    for (int s = 0; s < N; ++s) {
      const Stream& stream = segment.streams[s];
      if (stream.type == FloatType::f32 || (update.written >> s & 1u) == 0) continue;
      update.converter(stream.type).narrow(wide[s], static_cast<uint16_t*>(stream.at(at)), n);
    }
  }
}

}  // namespace detail

// Index of the segment that holds element `at` of the virtual range. Segments are never empty.
template <int N>
int64_t find_segment(const Segment<N>* segments, int64_t count, int64_t at) {
  int64_t lo = 0, hi = count;  // segments[lo].begin <= at < segments[hi].begin
  while (hi - lo > 1) {
    const int64_t middle = lo + (hi - lo) / 2;
    (segments[middle].begin <= at ? lo : hi) = middle;
  }
  return lo;
}

// Updates elements [begin, end) of the virtual range. Both ends are moved by the same rule, so
// that calls for neighbouring ranges neither overlap nor leave a gap. Never throws: it runs in
// threads whose exceptions nobody would catch.
template <int N, class Constants>
void update_range(const Segment<N>* segments, int64_t count, int64_t begin, int64_t end,
                  const Update<N, Constants>& update) noexcept {
  if (count == 0 || begin >= end) return;
  const int64_t total = segments[count - 1].begin + segments[count - 1].numel;
  int64_t index = find_segment(segments, count, begin);
  int64_t lo = (begin - segments[index].begin) / kSplit * kSplit;
  int64_t last = count - 1, stop = segments[count - 1].numel;
  if (end < total) {
    last = find_segment(segments, count, end);
    stop = (end - segments[last].begin) / kSplit * kSplit;
  }
  for (; index < last; ++index, lo = 0) {
    detail::update_segment(segments[index], lo, segments[index].numel, update);
  }
  if (index == last && lo < stop) detail::update_segment(segments[last], lo, stop, update);
}

}  // namespace deepspeed
