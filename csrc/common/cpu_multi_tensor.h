// From lists of tensors to one parallel pass over all their elements.

#pragma once

#include <torch/csrc/stable/library.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "checks.h"
#include "segments.h"
#include "tensor_list.h"

namespace deepspeed {

// Below this many elements per thread, waking a thread costs more than it saves.
constexpr int64_t kGrain = 16 * 1024;

template <int N>
class SegmentList {
 public:
  // `names[0]` is the parameter, whose size the other streams must have. The lists stay with the
  // caller; they keep the memory alive.
  SegmentList(const char* op, const std::array<const char*, N>& names) : op_(op), names_(names) {}

  // Checks `lists` and appends one segment per non-empty parameter.
  void add(const std::array<const TensorList*, N>& lists) {
    const size_t count = lists[0]->size();
    for (int s = 1; s < N; ++s) {
      if (lists[s]->size() == count) continue;
      fail(op_, "%s holds %zu tensors but %s holds %zu; pass lists of equal length", names_[s],
           lists[s]->size(), names_[0], count);
    }
    segments_.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      std::array<AtenTensorHandle, N> tensors;
      for (int s = 0; s < N; ++s) tensors[s] = (*lists[s])[i];
      add_one(tensors, static_cast<int64_t>(i));
    }
  }

  // Checks the streams of one parameter; `index` is its place in a list, or -1.
  void add_one(const std::array<AtenTensorHandle, N>& tensors, int64_t index) {
    Segment<N> segment;
    segment.begin = total_;
    for (int s = 0; s < N; ++s) {
      const Argument argument{op_, names_[s], index};
      const AtenTensorHandle tensor = tensors[s];
      check_cpu_contiguous(tensor, argument);
      segment.streams[s].type = types_.check(tensor, argument);
      segment.all_f32 = segment.all_f32 && segment.streams[s].type == FloatType::f32;
      const int64_t numel = get(&aoti_torch_get_numel, tensor);
      if (s == 0) segment.numel = numel;
      check_numel(numel, segment.numel, argument, names_[0]);
      segment.streams[s].data = get(&aoti_torch_get_data_ptr, tensor);
    }
    if (segment.numel == 0) return;
    check_disjoint(segment, index);
    total_ += segment.numel;
    segments_.push_back(segment);
  }

  bool all_f32() const {
    for (const auto& segment : segments_) {
      if (!segment.all_f32) return false;
    }
    return true;
  }

  // Runs `update` over every element, on torch's threads.
  template <class Constants>
  void run(const Update<N, Constants>& update) const {
    struct Context {
      const SegmentList* list;
      const Update<N, Constants>* update;
    } context{this, &update};
    if (total_ == 0) return;
    const ParallelFunc body = [](int64_t begin, int64_t end, void* opaque) {
      const auto& c = *static_cast<const Context*>(opaque);
      const auto& segments = c.list->segments_;
      update_range(segments.data(), static_cast<int64_t>(segments.size()), begin, end, *c.update);
    };
    check_status(torch_parallel_for(0, total_, kGrain, body, &context), "torch_parallel_for");
  }

 private:
  // Streams are read and written block by block: overlapping ones would feed on their own results.
  void check_disjoint(const Segment<N>& segment, int64_t index) const {
    for (int a = 0; a < N; ++a) {
      for (int b = a + 1; b < N; ++b) {
        const Stream &x = segment.streams[a], &y = segment.streams[b];
        if (x.at(segment.numel) <= y.data || y.at(segment.numel) <= x.data) continue;
        char what[96];
        std::snprintf(what, sizeof(what), "shares memory with %s; pass a copy made with .clone()",
                      names_[a]);
        Argument{op_, names_[b], index}.fail(what);
      }
    }
  }

  const char* op_;
  std::array<const char*, N> names_;
  FloatTypes types_;
  std::vector<Segment<N>> segments_;
  int64_t total_ = 0;
};

}  // namespace deepspeed
