// deepspeed_utils::flatten(tensors): one 1-D tensor with the elements of all tensors in order.
//
// CPU tensors are copied in one parallel pass over all bytes, whatever the sizes of the tensors
// are; memory traffic is one read and one write of each byte. Tensors of other devices, and those
// without memory that torch.compile traces with, go through ATen.

#include <torch/csrc/stable/library.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "checks.h"
#include "registration.h"

namespace deepspeed {
namespace {

using torch::stable::Tensor;
using Tensors = std::vector<Tensor>;
using torch::stable::detail::from;
using torch::stable::detail::to;

constexpr const char* kOp = "flatten";

// Bytes per thread below which waking it costs more than it saves.
constexpr int64_t kGrainBytes = 128 * 1024;

struct Piece {
  int64_t begin;  // byte offset in the result
  const char* data;
};

struct CopyJob {
  std::vector<Piece> pieces;
  int64_t bytes = 0;
  char* result = nullptr;

  // Copies bytes [begin, end) of the result. Never throws.
  void copy(int64_t begin, int64_t end) const noexcept {
    size_t lo = 0, hi = pieces.size();  // pieces[lo].begin <= begin < pieces[hi].begin
    while (hi - lo > 1) {
      const size_t middle = lo + (hi - lo) / 2;
      (pieces[middle].begin <= begin ? lo : hi) = middle;
    }
    for (size_t i = lo; begin < end; ++i) {
      const int64_t piece_end = i + 1 < pieces.size() ? pieces[i + 1].begin : bytes;
      const int64_t stop = piece_end < end ? piece_end : end;
      std::memcpy(result + begin, pieces[i].data + (begin - pieces[i].begin),
                  static_cast<size_t>(stop - begin));
      begin = stop;
    }
  }
};

int32_t dtype_of(const Tensor& tensor) { return get(&aoti_torch_get_dtype, tensor.get()); }

void check_alike(const Tensors& tensors) {
  if (tensors.empty()) fail(kOp, "the list is empty; pass at least one tensor");
  const int32_t dtype = dtype_of(tensors[0]);
  const int32_t device = device_type_of(tensors[0].get());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Argument argument{kOp, "tensors", static_cast<int64_t>(i)};
    if (dtype_of(tensors[i]) != dtype) {
      argument.fail("differs in dtype from tensors[0]; convert it, or flatten each dtype apart");
    }
    if (device_type_of(tensors[i].get()) != device ||
        tensors[i].get_device_index() != tensors[0].get_device_index()) {
      argument.fail("is on another device than tensors[0]; move it there first");
    }
    check_strided(tensors[i].get(), argument);
  }
}

Tensor reshape_1d(const Tensor& tensor) {
  StableIValue stack[] = {from(tensor), from(std::vector<int64_t>{-1})};
  check_status(torch_call_dispatcher("aten::reshape", "", stack, TORCH_ABI_VERSION),
               "aten::reshape");
  return to<Tensor>(stack[0]);
}

Tensor contiguous(const Tensor& tensor) {
  StableIValue stack[] = {from(tensor), from(torch::headeronly::MemoryFormat::Contiguous)};
  check_status(torch_call_dispatcher("aten::contiguous", "", stack, TORCH_ABI_VERSION),
               "aten::contiguous");
  return to<Tensor>(stack[0]);
}

Tensor flatten_by_aten(const Tensors& tensors) {
  Tensors flat;
  flat.reserve(tensors.size());
  for (const Tensor& tensor : tensors) flat.push_back(reshape_1d(tensor));
  StableIValue stack[] = {from(flat), from(int64_t{0})};
  check_status(torch_call_dispatcher("aten::cat", "", stack, TORCH_ABI_VERSION), "aten::cat");
  return to<Tensor>(stack[0]);
}

Tensor empty_1d(int64_t numel, const Tensor& like) {
  AtenTensorHandle handle = nullptr;
  const int64_t stride = 1;
  check_status(
      aoti_torch_empty_strided(1, &numel, &stride, dtype_of(like), device_type_of(like.get()),
                               like.get_device_index(), &handle),
      "aoti_torch_empty_strided");
  return Tensor(handle);
}

constexpr char kFlatten[] = "flatten(Tensor[] tensors) -> Tensor";
Tensor flatten(const Tensors& tensors) {
  check_alike(tensors);
  if (device_type_of(tensors[0].get()) != aoti_torch_device_type_cpu())
    return flatten_by_aten(tensors);
  const int64_t width = static_cast<int64_t>(tensors[0].element_size());
  CopyJob job;
  Tensors copies;  // of strided tensors; kept alive until the end
  job.pieces.reserve(tensors.size());
  for (const Tensor& tensor : tensors) {
    const bool dense = tensor.is_contiguous();
    if (!dense) copies.push_back(contiguous(tensor));
    const Tensor& source = dense ? tensor : copies.back();
    const int64_t bytes = source.numel() * width;
    if (bytes == 0) continue;
    job.pieces.push_back({job.bytes, static_cast<const char*>(source.data_ptr())});
    job.bytes += bytes;
  }
  Tensor result = empty_1d(job.bytes / width, tensors[0]);
  if (job.bytes == 0) return result;
  job.result = static_cast<char*>(result.data_ptr());
  const ParallelFunc body = [](int64_t begin, int64_t end, void* opaque) {
    static_cast<const CopyJob*>(opaque)->copy(begin, end);
  };
  check_status(torch_parallel_for(0, job.bytes, kGrainBytes, body, &job), "torch_parallel_for");
  return result;
}

}  // namespace
}  // namespace deepspeed

STABLE_TORCH_LIBRARY(deepspeed_utils, m) { m.def(deepspeed::kFlatten); }

STABLE_TORCH_LIBRARY_IMPL(deepspeed_utils, CompositeExplicitAutograd, m) {
  using namespace deepspeed;
  m.impl("flatten", boxed<&flatten, kFlatten>());
}
