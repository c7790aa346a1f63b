// Operators deepspeed_cpu_lion::*: argument checks and constants around the kernel.
//
// They are registered for every device: the check for CPU tensors then gives a message that tells
// what to do, and tracing with tensors that have no memory needs no second implementation.

#include "cpu_lion.h"

#include <torch/csrc/stable/library.h>

#include <array>
#include <cstdio>
#include <string>

#include "checks.h"
#include "config_registry.h"
#include "cpu_multi_tensor.h"
#include "registration.h"
#include "simd.h"
#include "tensor_list.h"

namespace deepspeed {
namespace {

using torch::stable::Tensor;

// Every hyperparameter is passed to each update; the registry only tells known ids from others.
struct LionConfig {};

ConfigRegistry<LionConfig>& registry() {
  static ConfigRegistry<LionConfig> instance;
  return instance;
}

void check(const char* op, int64_t step, double beta1, double beta2) {
  check_step(op, step);
  check_coefficient(op, "beta1", beta1);
  check_coefficient(op, "beta2", beta2);
}

LionConstants constants_for(double lr, double beta1, double beta2, double weight_decay) {
  LionConstants c;
  c.lr = static_cast<float>(lr);
  c.beta1 = static_cast<float>(beta1);
  c.one_minus_beta1 = static_cast<float>(1.0 - beta1);
  c.beta2 = static_cast<float>(beta2);
  c.one_minus_beta2 = static_cast<float>(1.0 - beta2);
  c.decay = static_cast<float>(1.0 - lr * weight_decay);
  return c;
}

constexpr char kCreateLion[] =
    "create_lion(int optimizer_id, float lr, float beta1, float beta2, float weight_decay, "
    "bool should_log) -> int";
int64_t create_lion(int64_t optimizer_id, double lr, double beta1, double beta2,
                    double weight_decay, bool should_log) {
  check("create_lion", 1, beta1, beta2);
  registry().create(optimizer_id, {});
  if (should_log) {
    std::printf(
        "cpu_lion: optimizer %lld uses %s kernels; lr=%g, betas=(%g, %g), "
        "weight_decay=%g\n",
        static_cast<long long>(optimizer_id), simd_name(current_simd()), lr, beta1, beta2,
        weight_decay);
    std::fflush(stdout);
  }
  return 0;
}

constexpr char kDestroyLion[] = "destroy_lion(int optimizer_id) -> int";
int64_t destroy_lion(int64_t optimizer_id) {
  registry().destroy(optimizer_id);
  return 0;
}

constexpr char kLionUpdate[] =
    "lion_update(int optimizer_id, int step, float lr, float beta1, float beta2, "
    "float weight_decay, Tensor(a!) params, Tensor grads, Tensor(b!) exp_avg) -> int";
int64_t lion_update(int64_t optimizer_id, int64_t step, double lr, double beta1, double beta2,
                    double weight_decay, const Tensor& params, const Tensor& grads,
                    const Tensor& exp_avg) {
  constexpr const char* kOp = "lion_update";
  registry().find(kOp, optimizer_id);
  check(kOp, step, beta1, beta2);
  if (is_meta(params.get())) return 0;
  SegmentList<kLionStreams> segments(kOp, {"params", "grads", "exp_avg"});
  segments.add_one({params.get(), grads.get(), exp_avg.get()}, -1);
  segments.run(lion_kernel(current_simd(), constants_for(lr, beta1, beta2, weight_decay)));
  return 0;
}

constexpr char kLionStep[] =
    "lion_step(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, int step, float lr, "
    "float beta1, float beta2, float weight_decay) -> ()";
void lion_step(const TensorList& params, const TensorList& grads, const TensorList& exp_avgs,
               int64_t step, double lr, double beta1, double beta2, double weight_decay) {
  constexpr const char* kOp = "lion_step";
  check(kOp, step, beta1, beta2);
  if (params.all_meta()) return;
  SegmentList<kLionStreams> segments(kOp, {"params", "grads", "exp_avgs"});
  segments.add({&params, &grads, &exp_avgs});
  segments.run(lion_kernel(current_simd(), constants_for(lr, beta1, beta2, weight_decay)));
}

constexpr char kSimdLevel[] = "simd_level() -> str";
std::string simd_level() { return simd_name(current_simd()); }

}  // namespace
}  // namespace deepspeed

STABLE_TORCH_LIBRARY(deepspeed_cpu_lion, m) {
  using namespace deepspeed;
  m.def(kCreateLion).def(kDestroyLion).def(kLionUpdate).def(kLionStep);
  m.def(kSimdLevel);
}

STABLE_TORCH_LIBRARY_IMPL(deepspeed_cpu_lion, CompositeExplicitAutograd, m) {
  using namespace deepspeed;
  m.impl("create_lion", boxed<&create_lion, kCreateLion>());
  m.impl("destroy_lion", boxed<&destroy_lion, kDestroyLion>());
  m.impl("lion_update", boxed<&lion_update, kLionUpdate>());
  m.impl("lion_step", boxed<&lion_step, kLionStep>());
  m.impl("simd_level", boxed<&simd_level, kSimdLevel>());
}
