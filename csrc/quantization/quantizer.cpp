// Operators deepspeed_quantizer::*: argument checks, and the way to the CPU's or the GPU's version.
//
// Every operator writes into tensors the caller made, so tracing needs no shapes from here.

#include "quantizer.h"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>

#include <optional>
#include <vector>

#include "checks.h"
#include "cuda_stream.h"
#include "cuda_workspace.h"
#include "registration.h"

namespace deepspeed {
namespace {

using torch::stable::Tensor;

// Elements for which waking another thread pays.
constexpr int64_t kGrain = 32 * 1024;

// The tensors of one call: they have to be contiguous and on one device.
class Call {
 public:
  Call(const char* op, const Tensor& first)
      : op_(op), type_(device_type_of(first.get())), index_(first.get_device_index()) {
    if (!on_cpu() && !on_gpu() && !is_meta(first.get())) {
      fail(op, "tensors are neither on the CPU nor on a GPU; move them with .cpu() or .cuda()");
    }
  }

  const char* op() const { return op_; }
  bool on_cpu() const { return type_ == aoti_torch_device_type_cpu(); }
  bool on_gpu() const { return type_ == aoti_torch_device_type_cuda(); }
  int32_t device() const { return index_; }

  void* data(const Tensor& tensor, const char* name) const {
    const Argument argument{op_, name, -1};
    if (device_type_of(tensor.get()) != type_ || tensor.get_device_index() != index_) {
      argument.fail("is on another device than the other tensors; move it there");
    }
    check_strided(tensor.get(), argument);
    if (!tensor.is_contiguous()) argument.fail("is not contiguous; pass .contiguous()");
    // Tensors that torch.compile traces with have no memory, and say so by an error.
    return on_cpu() || on_gpu() ? get(&aoti_torch_get_data_ptr, tensor.get()) : nullptr;
  }

  // Memory of elements of one integer type, or of float32.
  void* data(const Tensor& tensor, const char* name, int32_t dtype, const char* dtype_name) const {
    if (get(&aoti_torch_get_dtype, tensor.get()) != dtype) {
      fail(op_, "%s is not of dtype %s; convert it", name, dtype_name);
    }
    return data(tensor, name);
  }

  FloatType type(const Tensor& tensor, const char* name) const {
    return FloatTypes().check(tensor.get(), {op_, name, -1});
  }

 private:
  const char* op_;
  int32_t type_;
  int32_t index_;
};

void check_bits(const char* op, int64_t bits) {
  if (bits != 4 && bits != 8) {
    fail(op, "bits is %lld; choose 4 or 8", static_cast<long long>(bits));
  }
}

// How many elements a group has.
int64_t group_size(const char* op, int64_t numel, int64_t groups, const char* what) {
  if (groups < 1) {
    fail(op, "%s is %lld; there has to be at least one", what, static_cast<long long>(groups));
  }
  if (numel % groups != 0) {
    fail(op, "%lld elements can't be cut into %lld equal groups; choose another number of groups",
         static_cast<long long>(numel), static_cast<long long>(groups));
  }
  return numel / groups;
}

Quantized quantized(const Call& call, const Tensor& codes, const char* codes_name,
                    const Tensor& params, const char* params_name, int64_t bits, bool symmetric) {
  check_bits(call.op(), bits);
  Quantized q{};
  q.data = static_cast<int8_t*>(call.data(codes, codes_name, aoti_torch_dtype_int8(), "int8"));
  q.params =
      static_cast<float*>(call.data(params, params_name, aoti_torch_dtype_float32(), "float32"));
  const int64_t width = symmetric ? 1 : 2;
  if (params.numel() % width != 0) {
    fail(call.op(), "%s does not hold a step and an offset for each group", params_name);
  }
  q.groups = params.numel() / width;
  q.group_size =
      group_size(call.op(), codes.numel() * (8 / bits), q.groups, "the number of groups");
  q.bits = bits;
  q.symmetric = symmetric;
  if (bits == 4 && q.group_size % 2 != 0) {
    fail(call.op(),
         "groups of %lld elements can't be packed in pairs; choose a number of groups that leaves "
         "an even number in each",
         static_cast<long long>(q.group_size));
  }
  return q;
}

void check_numel(const Call& call, const Tensor& tensor, const char* name, int64_t expected) {
  deepspeed::check_numel(tensor.numel(), expected, {call.op(), name, -1}, "the codes");
}

GroupOrder group_order(const Call& call, const std::vector<int64_t>& dealt, int64_t groups) {
  GroupOrder order;
  if (dealt.empty()) return order;
  if (dealt.size() != 3 || dealt[0] < 1 || dealt[1] < 1 || dealt[2] < 1) {
    fail(call.op(), "pipeline, nodes and devices have to be positive");
  }
  order = {0, dealt[0], dealt[1], dealt[2]};
  const int64_t targets = dealt[0] * dealt[1] * dealt[2];
  if (groups % targets != 0) {
    fail(call.op(), "%lld groups can't be dealt out to pipeline · nodes · devices = %lld equally",
         static_cast<long long>(groups), static_cast<long long>(targets));
  }
  order.block = groups / targets;
  return order;
}

QuantizeArguments quantize_arguments(const Call& call, const Tensor& x, const Tensor& q,
                                     const Tensor& params, int64_t bits, bool symmetric,
                                     const std::vector<int64_t>& dealt) {
  QuantizeArguments a{};
  a.type = call.type(x, "x");
  a.input = call.data(x, "x");
  a.output = quantized(call, q, "q", params, "params", bits, symmetric);
  check_numel(call, x, "x", a.output.groups * a.output.group_size);
  a.order = group_order(call, dealt, a.output.groups);
  return a;
}

ErrorFeedback error_feedback(const Call& call, const Tensor& error, double beta, int64_t numel) {
  if (!(beta >= 0.0 && beta <= 1.0)) {
    fail(call.op(), "beta is %g; choose a value in [0, 1]", beta);
  }
  check_numel(call, error, "error", numel);
  return {call.type(error, "error"), call.data(error, "error"), beta};
}

// Calls f(arguments, first, last) for ranges of groups, in parallel.
template <class Arguments>
void parallel_groups(void (*f)(const Arguments&, int64_t, int64_t), const Arguments& arguments,
                     int64_t groups, int64_t size) {
  struct Job {
    void (*f)(const Arguments&, int64_t, int64_t);
    const Arguments* arguments;
  } job{f, &arguments};
  const ParallelFunc body = [](int64_t first, int64_t last, void* opaque) {
    const Job& j = *static_cast<const Job*>(opaque);
    j.f(*j.arguments, first, last);
  };
  const int64_t grain = size >= kGrain ? 1 : kGrain / (size > 0 ? size : 1);
  check_status(torch_parallel_for(0, groups, grain, body, &job), "torch_parallel_for");
}

#ifdef DEEPSPEED_WITH_CUDA
constexpr bool kWithCuda = true;
#else
constexpr bool kWithCuda = false;
#endif

// Calls f(stream) with the call's GPU as the current one. `f` is not compiled into a binary that
// has no kernels.
template <class F>
void on_gpu(const Call& call, F&& f) {
  if constexpr (kWithCuda) {
    const torch::stable::accelerator::DeviceGuard guard(call.device());
    check_launch(call.op(), f(current_cuda_stream(call.op(), call.device())));
  } else {
    fail(call.op(),
         "this build of the op has no code for GPUs; load it where a GPU is visible and "
         "nvcc is installed, or reinstall with DS_BUILD_QUANTIZER=1 there");
  }
}

// The same for launches of `groups` groups that may need a workspace.
template <class F>
void on_gpu(const Call& call, int64_t groups, int64_t size, F&& f) {
  on_gpu(call, [&](void* stream) {
    const Workspace workspace(parts_workspace(groups, size), call.device());
    return f(workspace.data(), stream);
  });
}

constexpr char kQuantize[] =
    "quantize(Tensor x, Tensor(a!) q, Tensor(b!) params, int bits, bool symmetric, int[] dealt) "
    "-> ()";
void quantize(const Tensor& x, const Tensor& q, const Tensor& params, int64_t bits, bool symmetric,
              const std::vector<int64_t>& dealt) {
  const Call call("quantize", x);
  const QuantizeArguments a = quantize_arguments(call, x, q, params, bits, symmetric, dealt);
  const int64_t groups = a.output.groups, size = a.output.group_size;
  if (call.on_cpu()) return parallel_groups(&quantize_on_cpu, a, groups, size);
  if (call.on_gpu()) {
    on_gpu(call, groups, size,
           [&](void* workspace, void* stream) { return quantize_on_gpu(a, workspace, stream); });
  }
}

constexpr char kQuantizeWithError[] =
    "quantize_with_error(Tensor x, Tensor(a!) error, float beta, Tensor(b!) q, Tensor(c!) params, "
    "int bits, bool symmetric, int[] dealt) -> ()";
void quantize_with_error(const Tensor& x, const Tensor& error, double beta, const Tensor& q,
                         const Tensor& params, int64_t bits, bool symmetric,
                         const std::vector<int64_t>& dealt) {
  const Call call("quantize_with_error", x);
  QuantizeArguments a = quantize_arguments(call, x, q, params, bits, symmetric, dealt);
  a.error = error_feedback(call, error, beta, x.numel());
  if (a.error.type != a.type) fail(call.op(), "error is not of x's dtype; convert one of them");
  const int64_t groups = a.output.groups, size = a.output.group_size;
  if (call.on_cpu()) return parallel_groups(&quantize_on_cpu, a, groups, size);
  if (call.on_gpu()) {
    on_gpu(call, groups, size, [&](void* workspace, void* stream) {
      return quantize_with_error_on_gpu(a, workspace, stream);
    });
  }
}

constexpr char kReduce[] =
    "reduce(Tensor q, Tensor params, int parts, Tensor(a!) out, Tensor(b!) out_params, int bits, "
    "bool symmetric, Tensor(c!)? error, float beta) -> ()";
void reduce(const Tensor& q, const Tensor& params, int64_t parts, const Tensor& out,
            const Tensor& out_params, int64_t bits, bool symmetric,
            const std::optional<Tensor>& error, double beta) {
  const Call call("reduce", q);
  ReduceArguments a{};
  a.input = quantized(call, q, "q", params, "params", bits, symmetric);
  a.parts = parts;
  a.output = quantized(call, out, "out", out_params, "out_params", bits, symmetric);
  if (parts < 1 || a.input.groups % parts != 0) {
    fail(call.op(), "%lld groups can't be cut into %lld equal parts; choose other numbers",
         static_cast<long long>(a.input.groups), static_cast<long long>(parts));
  }
  const int64_t groups = a.output.groups, size = a.output.group_size;
  check_numel(call, out, "out", q.numel() / parts);
  if (error) a.error = error_feedback(call, *error, beta, groups * size);
  if (call.on_cpu()) return parallel_groups(&reduce_on_cpu, a, groups, size);
  if (call.on_gpu()) {
    on_gpu(call, groups, size, [&](void* workspace, void* stream) {
      return error ? reduce_with_error_on_gpu(a, workspace, stream)
                   : reduce_on_gpu(a, workspace, stream);
    });
  }
}

constexpr char kDequantize[] =
    "dequantize(Tensor q, Tensor params, Tensor(a!) out, int bits, bool symmetric) -> ()";
void dequantize(const Tensor& q, const Tensor& params, const Tensor& out, int64_t bits,
                bool symmetric) {
  const Call call("dequantize", q);
  DequantizeArguments a{};
  a.input = quantized(call, q, "q", params, "params", bits, symmetric);
  a.type = call.type(out, "out");
  a.output = call.data(out, "out");
  check_numel(call, out, "out", a.input.groups * a.input.group_size);
  if (out.numel() == 0) return;
  if (call.on_cpu()) {
    return parallel_groups(&dequantize_on_cpu, a, a.input.groups, a.input.group_size);
  }
  if (call.on_gpu()) on_gpu(call, [&](void* stream) { return dequantize_on_gpu(a, stream); });
}

constexpr char kDequantizeUnsigned[] =
    "dequantize_unsigned(Tensor data, Tensor scale, Tensor minimum, Tensor(a!) out, int bits) "
    "-> ()";
void dequantize_unsigned(const Tensor& data, const Tensor& scale, const Tensor& minimum,
                         const Tensor& out, int64_t bits) {
  const Call call("dequantize_unsigned", data);
  check_bits(call.op(), bits);
  const int32_t f16 = aoti_torch_dtype_float16();
  DequantizeUnsignedArguments a{};
  a.data = static_cast<const uint8_t*>(call.data(data, "data", aoti_torch_dtype_uint8(), "uint8"));
  a.scale = call.data(scale, "scale", f16, "float16");
  a.minimum = call.data(minimum, "minimum", f16, "float16");
  a.output = call.data(out, "out", f16, "float16");
  a.groups = scale.numel();
  a.bits = bits;
  deepspeed::check_numel(minimum.numel(), a.groups, {call.op(), "minimum", -1}, "scale");
  check_numel(call, out, "out", data.numel() * (8 / bits));
  a.group_size = group_size(call.op(), out.numel(), a.groups, "the number of groups");
  if (out.numel() == 0) return;
  if (call.on_cpu()) {
    return parallel_groups(&dequantize_unsigned_on_cpu, a, a.groups, a.group_size);
  }
  if (call.on_gpu()) {
    on_gpu(call, [&](void* stream) { return dequantize_unsigned_on_gpu(a, stream); });
  }
}

constexpr char kFakeQuantize[] =
    "fake_quantize(Tensor(a!) x, int groups, int bits, bool symmetric, Tensor? seed) -> ()";
void fake_quantize(const Tensor& x, int64_t groups, int64_t bits, bool symmetric,
                   const std::optional<Tensor>& seed) {
  const Call call("fake_quantize", x);
  if (bits < 1 || bits > 16) {
    fail(call.op(), "bits is %lld; choose 1 to 16", static_cast<long long>(bits));
  }
  FakeQuantizeArguments a{};
  a.type = call.type(x, "x");
  a.data = call.data(x, "x");
  a.groups = groups;
  a.group_size = group_size(call.op(), x.numel(), groups, "groups");
  a.bits = bits;
  a.symmetric = symmetric;
  if (seed) {
    a.seed =
        static_cast<const int64_t*>(call.data(*seed, "seed", aoti_torch_dtype_int64(), "int64"));
    if (seed->numel() != 1) fail(call.op(), "seed does not hold exactly one element");
  }
  if (x.numel() == 0) return;
  if (call.on_cpu()) return parallel_groups(&fake_quantize_on_cpu, a, groups, a.group_size);
  if (call.on_gpu()) {
    on_gpu(call, groups, a.group_size, [&](void* workspace, void* stream) {
      return seed ? fake_quantize_randomly_on_gpu(a, workspace, stream)
                  : fake_quantize_on_gpu(a, workspace, stream);
    });
  }
}

template <class Library>
void implement(Library& m) {
  m.impl("quantize", boxed<&quantize, kQuantize>());
  m.impl("quantize_with_error", boxed<&quantize_with_error, kQuantizeWithError>());
  m.impl("reduce", boxed<&reduce, kReduce>());
  m.impl("dequantize", boxed<&dequantize, kDequantize>());
  m.impl("dequantize_unsigned", boxed<&dequantize_unsigned, kDequantizeUnsigned>());
  m.impl("fake_quantize", boxed<&fake_quantize, kFakeQuantize>());
}

}  // namespace
}  // namespace deepspeed

STABLE_TORCH_LIBRARY(deepspeed_quantizer, m) {
  using namespace deepspeed;
  m.def(kQuantize).def(kQuantizeWithError).def(kReduce);
  m.def(kDequantize).def(kDequantizeUnsigned).def(kFakeQuantize);
}

STABLE_TORCH_LIBRARY_IMPL(deepspeed_quantizer, CPU, m) { deepspeed::implement(m); }
STABLE_TORCH_LIBRARY_IMPL(deepspeed_quantizer, CUDA, m) { deepspeed::implement(m); }
STABLE_TORCH_LIBRARY_IMPL(deepspeed_quantizer, Meta, m) { deepspeed::implement(m); }
